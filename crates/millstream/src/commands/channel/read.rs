//! Reads a log and counts, for `ls` and `verify`.

use millstream_channels::disk::log::inspect::{Damage, Directory, Seen, Span};
use millstream_record::Position;

use super::Trouble;

/// The contents of a log behind a position.
#[derive(Default)]
pub struct Account {
    /// Frames.
    pub batches: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// The first and the last position.
    pub span: Option<(Position, Position)>,
    /// Damage between them.
    pub damage: Vec<Damage>,
    /// Bytes of a torn tail.
    pub torn_bytes: u64,
    /// Closed in order.
    pub clean: bool,
    /// The positions of the batches.
    pub positions: Span,
}

/// Reads the log behind `after`. `also` gets each batch: position, records and bytes.
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
