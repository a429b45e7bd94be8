//! `millstream channel ls`: lists segments and the backlog of each consumer.

use clap::Args;
use jiff::Timestamp;
use millstream_channels::disk::log::inspect::Directory;
use millstream_record::{Position, Time};

use super::{At, Trouble, read::account};
use crate::page::{self, bytes, columns, grouped};

/// List segments and consumers, with the backlog of each consumer.
#[derive(Args)]
pub struct Ls {
    #[command(flatten)]
    at: At,
}

impl Ls {
    /// Lists; returns the exit code.
    pub fn execute(self) -> Result<u8, Trouble> {
        let directory = self.at.open()?;
        let mut out = format!(
            "channel {}\n\n{}\n",
            directory.channel,
            segments(&directory)
        );
        out.push_str(&consumers(&directory)?);
        Ok(page::print(&out))
    }
}

fn segments(directory: &Directory) -> String {
    let heads = ["SEGMENT", "FIRST", "FRAMES TAKE", "FILE TAKES", "SINCE", ""];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for segment in &directory.segments {
        let file = segment.path.file_name().unwrap_or_default();
        let note = if segment.header_damaged {
            "its header is damaged"
        } else {
            ""
        };
        rows.push(vec![
            file.to_string_lossy().into_owned(),
            segment.first.to_string(),
            segment.frame_bytes.map_or("(newest)".to_owned(), bytes),
            bytes(segment.file_bytes),
            time(segment.since),
            note.to_owned(),
        ]);
    }
    columns(0, &rows, &[2, 3])
}

fn consumers(directory: &Directory) -> Result<String, Trouble> {
    // The backlog of the slowest consumer includes the backlogs of all other consumers. So one pass over the largest
    // backlog counts all of them.
    let cursors: Vec<Position> = directory
        .consumers
        .iter()
        .map(|(_, cursor)| cursor.unwrap_or_default())
        .collect();
    let from = cursors.iter().min().copied().unwrap_or_default();
    let mut behind = vec![(0u64, 0u64, 0u64); cursors.len()];
    account(directory, from, |position, records, bytes| {
        for (behind, cursor) in behind.iter_mut().zip(&cursors) {
            if position > *cursor {
                behind.0 += 1;
                behind.1 += records;
                behind.2 += bytes;
            }
        }
    })?;
    let heads = [
        "CONSUMER",
        "SETTLED",
        "BATCHES",
        "RECORDS",
        "BYTES BEFORE IT",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for ((name, cursor), behind) in directory.consumers.iter().zip(behind) {
        rows.push(vec![
            name.clone(),
            cursor.map_or("damaged".to_owned(), |cursor| cursor.to_string()),
            grouped(behind.0),
            grouped(behind.1),
            bytes(behind.2),
        ]);
    }
    Ok(columns(0, &rows, &[1, 2, 3, 4]))
}

/// A time in whole seconds; empty if it is unknown.
fn time(time: Time) -> String {
    match Timestamp::from_second(time.seconds()) {
        Ok(stamp) if time.0 > 0 => stamp.to_string(),
        _ => String::new(),
    }
}
