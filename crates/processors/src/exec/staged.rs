//! Holds the answers to a batch until all have arrived: only then is it certain which answer belongs to which record.

use std::{convert::Infallible, ops::Range};

use millstream_config::Size;
use millstream_pipeline::{output::Out, processor::MAIN};
use millstream_record::Batch;
use millstream_wire::{
    msgpack::{write_array_len, write_time},
    record::{Record, TimedRecord},
};

use super::{program::Cause, protocol::records_of};

/// The answers to the records of a batch so far.
#[derive(Debug, Default)]
pub(super) struct Staged {
    /// Packed entries: arrays `[time, record]` in MessagePack.
    body: Vec<u8>,
    counts: Counts,
    /// Records that leave by the port `NAME.rejected`, each with the reason.
    rejected: Vec<(Range<usize>, String)>,
    /// The bytes of an entry before its record: the array header, the time and the metadata.
    head: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Entries in the body.
    entries: u32,
    /// Records that were dropped.
    dropped: u32,
}

/// A state of [`Staged`] that [`Staged::back_to`] restores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    length: usize,
    counts: Counts,
}

impl From<String> for Cause {
    fn from(why: String) -> Self {
        Self::Nonsense(why)
    }
}

impl Staged {
    /// Adds the answer to a record. After an error, some records of the answer may have been added.
    pub(super) fn add(
        &mut self,
        batch: &Batch,
        range: &Range<usize>,
        timed: TimedRecord<'_>,
        answer: &[u8],
        limit: Size,
    ) -> Result<(), Cause> {
        self.head.clear();
        match timed.record {
            // A packed record keeps its time, and the metadata that newer versions of Fluent Bit write beside the
            // time.
            Record::Packed(rest) => {
                let end = batch.body.len() - rest.len();
                let head = batch.body.get(range.start..end);
                self.head.extend_from_slice(head.unwrap_or_default());
            }
            Record::Line(_) | Record::None => {
                write_array_len(&mut self.head, 2);
                write_time(&mut self.head, timed.time);
            }
        }
        let Self {
            body, counts, head, ..
        } = self;
        let before = counts.entries;
        records_of(answer, |record| {
            if body.len() + head.len() + record.len() > limit.as_usize() {
                return Err(Cause::Large(limit));
            }
            body.extend_from_slice(head);
            body.extend_from_slice(record);
            counts.entries += 1;
            Ok(())
        })?;
        if counts.entries == before {
            counts.dropped += 1;
        }
        Ok(())
    }

    /// Rejects a record.
    pub(super) fn reject(&mut self, range: Range<usize>, why: String) {
        self.rejected.push((range, why));
    }

    /// Returns the current state, for [`Self::back_to`].
    pub(super) fn mark(&self) -> Mark {
        Mark {
            length: self.body.len(),
            counts: self.counts,
        }
    }

    /// Removes the answers that were added after `mark`. Rejected records stay rejected.
    pub(super) fn back_to(&mut self, mark: Mark) {
        self.body.truncate(mark.length);
        self.counts = mark.counts;
    }

    /// Removes everything.
    pub(super) fn clear(&mut self) {
        self.body.clear();
        self.counts = Counts::default();
        self.rejected.clear();
    }

    /// Moves all answers and rejected records to the output of the batch. Frees the memory of buffers above
    /// `bytes_max`.
    pub(super) fn send(&mut self, batch: &Batch, out: &mut Out<'_>, bytes_max: usize) {
        let (body, counts) = (&mut self.body, self.counts);
        if counts.entries > 0 {
            let sent: Result<(), Infallible> = out.append(MAIN, None, |buffer| {
                if buffer.is_empty() {
                    std::mem::swap(buffer, body);
                } else {
                    buffer.extend_from_slice(body);
                }
                Ok(counts.entries)
            });
            sent.unwrap_or_else(|never| match never {});
        }
        out.filter(counts.dropped);
        for (range, why) in self.rejected.drain(..) {
            out.reject(batch.body.get(range).unwrap_or_default(), &why);
        }
        self.clear();
        self.body.shrink_to(bytes_max);
        self.head.shrink_to(bytes_max);
    }
}
