//! Divides a large batch into portions, which pass through a chain one after the other, so that the output of the chain fits into memory.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> [process] -> keep -> read back -> [process] -> encode -> write -> settle`
//!
//! A batch of 12 MiB may have 800,000 records, and a processor that gives each of them another tag makes as many batches, of which each takes
//! some hundred bytes. The limits depend only on the batch, so a replay divides a batch in the same way.

use millstream_record::Batch;
use millstream_wire::record::records;

/// The most bytes of a portion, unless a single record has more. Ordinary batches are smaller.
const BYTES_MAX: usize = 4 << 20;
/// The most records of a portion: each may become a separate batch.
const RECORDS_MAX: u32 = 16 << 10;

/// The portions of one batch.
pub(super) struct Portions {
    /// The part of the batch that is left, or the last portion.
    rest: Batch,
    is_done: bool,
    /// The number of the first record of `rest`.
    first: u32,
}

impl Portions {
    /// The portions of `batch`. There is at least one.
    pub(super) fn of(batch: Batch) -> Self {
        Self {
            rest: batch,
            is_done: false,
            first: 0,
        }
    }

    /// Whether the last portion was taken.
    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Takes the next portion, and the number of its first record in the batch. Must not be called after the last one.
    pub(super) fn take(&mut self) -> (Batch, u32) {
        let (rest, first) = (&self.rest, self.first);
        let Some((end, count)) = self.end() else {
            self.is_done = true;
            return (rest.clone(), first);
        };
        let part = |range, count| Batch {
            body: rest.body.slice(range),
            count,
            origins: Vec::new(),
            ..rest.clone()
        };
        let left = part(end..rest.len(), rest.count.saturating_sub(count));
        let portion = part(0..end, count);
        (self.first, self.rest) = (first.saturating_add(count), left);
        (portion, first)
    }

    /// Returns the end of the next portion in `rest` and the number of its records; `None` if it is all that is left.
    fn end(&self) -> Option<(usize, u32)> {
        let rest = &self.rest;
        if rest.len() <= BYTES_MAX && rest.count <= RECORDS_MAX {
            return None;
        }
        let (mut end, mut count) = (0, 0);
        for (range, _) in records(rest) {
            let is_full = range.end > BYTES_MAX || count == RECORDS_MAX;
            if is_full && count > 0 {
                break;
            }
            (end, count) = (range.end, count + 1);
        }
        (0 < end && end < rest.len()).then_some((end, count))
    }
}
