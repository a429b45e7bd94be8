//! `millstream channel cat`: writes the records of a channel to stdout.

use std::io::{BufWriter, ErrorKind, Write, stdout};

use clap::Args;
use millstream_channels::disk::log::inspect::Seen;
use millstream_pipeline::tags::TagFilter;
use millstream_record::Position;

use super::{
    At, Trouble,
    write::{Format, Records},
};
use crate::{exit, page};

/// Write the records to stdout.
#[derive(Args)]
pub struct Cat {
    #[command(flatten)]
    at: At,
    /// The output format.
    #[arg(long, value_enum, default_value_t = Format::Json)]
    format: Format,
    /// Only batches after this position.
    #[arg(long, value_name = "EPOCH.SEQ", default_value = "0.0")]
    after: Position,
    /// Only these tags, as in the option `tags`; can be repeated.
    #[arg(long, value_name = "PATTERN")]
    tags: Vec<String>,
    /// The most batches to write; 0 writes all.
    #[arg(long, default_value_t = 0)]
    limit: u64,
}

impl Cat {
    /// Writes; returns the exit code.
    pub fn execute(self) -> Result<u8, Trouble> {
        let tags = TagFilter::new(self.tags.iter().map(String::as_str)).map_err(Trouble)?;
        let directory = self.at.open()?;
        let mut records = Records::new(BufWriter::new(stdout().lock()), self.format)?;
        let (mut batches, mut damaged) = (0, false);
        for seen in directory.read(self.after) {
            match seen? {
                Seen::Frame(frame) if tags.takes(frame.batch.tag.as_str()) => {
                    match records.write(&frame.batch) {
                        // The reader of the output has closed it.
                        Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
                        written => written.map_err(trouble)?,
                    }
                    batches += 1;
                    if batches == self.limit {
                        break;
                    }
                }
                Seen::Damage(damage) => {
                    damaged = true;
                    let place = damage.path.display();
                    page::complain(
                        &format!("damage in {place} from byte {} on", damage.offset),
                        exit::FAILED,
                    );
                }
                Seen::Frame(_) | Seen::End { .. } => {}
            }
        }
        if let Some((count, why)) = &records.refused {
            let text = format!("{count} records cannot be written in this format: {why}");
            page::complain(&text, exit::FAILED);
            damaged = true;
        }
        match records.into_inner().flush() {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(trouble(error)),
            _ if damaged => Ok(exit::FAILED),
            _ => Ok(exit::DRAINED),
        }
    }
}

fn trouble(error: std::io::Error) -> Trouble {
    Trouble(format!("cannot write: {error}"))
}
