//! `millstream channel verify`: reads the whole channel and checks every frame.

use std::{path::Path, sync::Arc};

use clap::Args;
use millstream_channels::disk::log::{Loss, inspect};
use millstream_record::Position;
use millstream_sys::disk::HostDisk;

use super::{At, Trouble, read::account};
use crate::{
    exit,
    page::{self, bytes, count, grouped},
};

/// Read the whole channel, check every frame and report missing data. Changes nothing.
#[derive(Args)]
pub struct Verify {
    #[command(flatten)]
    at: At,
}

impl Verify {
    /// Checks; returns the exit code.
    pub fn execute(self) -> Result<u8, Trouble> {
        let path = &self.at.path;
        let unaccepted = |found| inspect::unaccepted(Arc::new(HostDisk), path, found);
        if let Some(gone) = inspect::gone(&HostDisk, path)?
            && let losses = unaccepted(vec![gone])?
            && !losses.is_empty()
        {
            return Ok(complain(path, 0, &losses));
        }
        let directory = self.at.open()?;
        let found = account(&directory, Position::default(), |_, _, _| {})?;
        let mut out = format!("channel {}\n", directory.channel);
        match found.span {
            Some((first, last)) => out.push_str(&format!(
                "{} batches, {} records, {}, from {first} to {last}\n",
                grouped(found.batches),
                grouped(found.records),
                bytes(found.bytes)
            )),
            None => out.push_str("no batches\n"),
        }
        out.push_str(match found.clean {
            true => "it was closed in order\n",
            false => {
                "it is in use, or was not closed in order: the next start begins a new epoch\n"
            }
        });
        if found.torn_bytes > 0 {
            let torn = bytes(found.torn_bytes);
            out.push_str(&format!(
                "{torn} after the last record were never kept and are not counted\n"
            ));
        }
        for damage in &found.damage {
            let after = match damage.after {
                Some(position) => format!("after {position}"),
                None => "at the beginning".to_owned(),
            };
            let path = damage.path.display();
            let at = damage.offset;
            out.push_str(&format!("DAMAGE {after}: {path} from byte {at} on\n"));
        }
        let damaged = directory.consumers.iter().filter(|(_, at)| at.is_none());
        let mut unsound = found.damage.len();
        for (name, _) in damaged {
            unsound += 1;
            out.push_str(&format!(
                "DAMAGE: the cursor of {name}; it starts again at the oldest batch\n"
            ));
        }
        page::print(&out);
        let losses = unaccepted(directory.missing(&HostDisk, path, &found.positions)?)?;
        Ok(complain(path, unsound, &losses))
    }
}

/// Reports missing and damaged data; returns the exit code.
fn complain(path: &Path, damaged: usize, losses: &[Loss]) -> u8 {
    for loss in losses {
        page::print(&page::paragraph("MISSING: ", &loss.to_string()));
    }
    if damaged + losses.len() == 0 {
        return page::print("sound\n");
    }
    if !losses.is_empty() {
        page::print(&format!(
            "to accept what is missing: millstream channel forget --accept-loss {}\n",
            path.display()
        ));
    }
    let text = format!("{} found", count(damaged + losses.len(), "place"));
    page::complain(&text, exit::FAILED)
}
