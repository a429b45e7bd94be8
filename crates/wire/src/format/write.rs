//! The trait of formats.

use millstream_record::{Batch, Time};

use super::Reason;
use crate::{
    msgpack as mp,
    record::{Record, TimedRecord},
    room::Room,
    template::Shared,
};

/// A format writes one record at a time. After an error, the caller must remove the partial record.
pub(super) trait Write {
    /// Prepares the values that are constant for the batch.
    fn begin(&mut self, batch: &Batch);

    /// Writes a line.
    fn line(&mut self, room: &mut Room<'_>, line: &[u8], of: Of<'_>) -> Result<(), Reason>;

    /// Writes the record of the entry at `start` of `body`. `head` has the entry's time and the offset of its map. Returns
    /// the offset after the entry.
    fn packed(
        &mut self,
        room: &mut Room<'_>,
        body: &[u8],
        start: usize,
        head: mp::Head,
        of: Of<'_>,
    ) -> Result<usize, Reason>;
}

/// The properties that all records of the batch share.
#[derive(Clone, Copy)]
pub(super) struct Of<'a> {
    pub(super) shared: Shared<'a>,
    pub(super) received: Time,
}

impl<'a> Of<'a> {
    pub(super) fn line(self, line: &'a [u8]) -> TimedRecord<'a> {
        TimedRecord {
            time: self.received,
            record: Record::Line(line),
            metadata: &[],
        }
    }

    #[inline(always)]
    pub(super) fn packed(self, body: &'a [u8], head: mp::Head) -> TimedRecord<'a> {
        TimedRecord {
            time: head.time.unwrap_or(self.received),
            record: Record::Packed(body.get(head.record..).unwrap_or_default()),
            metadata: head.metadata(body),
        }
    }
}
