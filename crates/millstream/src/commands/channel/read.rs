//! Reads the log (the segments) of a disk channel and counts its contents, for `ls` and `verify`.

use millstream_channels::disk::log::inspect::{Damage, Directory, Seen, Span};
use millstream_record::Position;

use super::Trouble;

/// The contents of a log after a position.
#[derive(Default)]
pub struct Account {
    /// The number of batches (frames).
    pub batches: u64,
    /// The number of records in them.
    pub records: u64,
    /// The bytes of their bodies.
    pub bytes: u64,
    /// The first and the last position.
    pub span: Option<(Position, Position)>,
    /// The damage that was found.
    pub damage: Vec<Damage>,
    /// The number of bytes after the last complete batch. These bytes are not part of the log.
    pub torn_bytes: u64,
    /// Whether the last stop closed the channel. False if the process was killed, or if the channel is in use.
    pub clean: bool,
    /// The positions of the batches.
    pub positions: Span,
}

/// Reads the log after the position `after`. Calls `also` with the position of each batch, its number of records, and its bytes.
pub fn account(
    directory: &Directory,
    after: Position,
    mut also: impl FnMut(Position, u64, u64),
) -> Result<Account, Trouble> {
    let mut account = Account::default();
    for seen in directory.read(after) {
        match seen? {
            Seen::Frame(frame) => {
                let (records, bytes) = (u64::from(frame.batch.count), frame.batch.len() as u64);
                account.batches += 1;
                account.records += records;
                account.bytes += bytes;
                let first = account.span.map_or(frame.position, |(first, _)| first);
                account.span = Some((first, frame.position));
                account.positions.see(frame.position);
                also(frame.position, records, bytes);
            }
            Seen::Damage(damage) => account.damage.push(damage),
            Seen::End { torn_bytes, clean } => {
                (account.torn_bytes, account.clean) = (torn_bytes, clean);
            }
        }
    }
    Ok(account)
}
