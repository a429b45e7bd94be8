//! Gathers records in one buffer. Consecutive records of one partition become a batch.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep -> read back -> process -> encode -> write -> settle`

use std::{collections::HashMap, ops::Range, sync::Arc};

use bytes::Bytes;
use millstream_kafka::{Incoming, Partition, Taken};
use millstream_record::{Batch, Buffer, Encoding, FileId, FileOrigin, Origin, Tag, Time, Values};

use super::{decode, options::Config, progress::Assigned};

/// A [`Piece`] (the batches of one poll) gets no more records once it has this many bytes.
pub(super) const PIECE_BYTES: usize = 1 << 20;
/// Memory that a rejected record takes beside its value and the reason.
const REJECTED_BYTES: usize = 128;
/// If all records of a piece together have fewer bytes than this, they are copied, so that a few records do not hold a large buffer.
const COPY_BYTES_MAX: usize = 64 << 10;

/// A partition that is being read.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) of: Assigned,
    pub(super) id: FileId,
    pub(super) tag: Tag,
    pub(super) values: Arc<Values>,
    /// The records before this offset were gathered.
    pub(super) next: u64,
    /// The records before this offset were sent.
    pub(super) sent: u64,
    /// Offsets that no batch may span. After a restart, a channel may already hold everything before such an offset, and then takes
    /// only the records from this offset on.
    pub(super) marks: Vec<u64>,
}

/// Consecutive records of one partition.
pub(super) struct PartitionBatch {
    pub(super) of: Assigned,
    pub(super) batch: Batch,
    /// The offset of the first record. If there is a gap in the offsets before this record, `begin` may be an offset in the gap.
    pub(super) begin: u64,
    /// The offset after the last record.
    pub(super) next: u64,
    /// The records that could not be decoded, each with the reason.
    pub(super) rejected: Vec<(Vec<u8>, String)>,
}

impl PartitionBatch {
    /// A batch without records. It sets the offset that a channel has for the partition.
    pub(super) fn empty(reading: &Reading) -> Self {
        let origin = FileOrigin {
            file: reading.id,
            begin: reading.next,
            next: reading.next,
        };
        Self {
            of: reading.of.clone(),
            begin: reading.next,
            next: reading.next,
            rejected: Vec::new(),
            batch: Batch {
                tag: reading.tag.clone(),
                plain: false,
                encoding: Encoding::Packed,
                body: Bytes::new(),
                count: 0,
                received: Time::now(),
                values: reading.values.clone(),
                origins: vec![Origin::File(origin)],
            },
        }
    }
}

/// The batches of one poll, which are passed to the data thread together.
#[derive(Default)]
pub(super) struct Piece {
    pub(super) batches: Vec<PartitionBatch>,
}

/// A batch that is not finished yet. Its records are at `range` in the buffer that all batches of the piece share.
struct PendingBatch {
    partition: Partition,
    begin: u64,
    next: u64,
    range: Range<usize>,
    count: u32,
    rejected: Vec<(Vec<u8>, String)>,
}

/// Gathers the records of one poll of the client.
pub(super) struct Gather<'a> {
    config: &'a Config,
    readings: &'a mut HashMap<Partition, Reading>,
    buffer: Buffer,
    scratch: Vec<u8>,
    pending: Vec<PendingBatch>,
    /// The memory of the rejected records in `pending`.
    rejected_bytes: usize,
    received: Time,
}

impl<'a> Gather<'a> {
    pub(super) fn new(
        config: &'a Config,
        readings: &'a mut HashMap<Partition, Reading>,
        buffer: Buffer,
    ) -> Self {
        Self {
            config,
            readings,
            buffer,
            scratch: Vec::new(),
            pending: Vec::new(),
            rejected_bytes: 0,
            received: Time::now(),
        }
    }

    /// Adds a record.
    pub(super) fn add(&mut self, record: Incoming<'_>) -> Taken {
        if !self.continues(&record) && !self.begin(&record) {
            // The partition was revoked: its next reader gets the record.
            return Taken::More;
        }
        let Some(batch) = self.pending.last_mut() else {
            return Taken::More;
        };
        let (format, fields) = (self.config.format, &self.config.fields);
        let (scratch, buffer) = (&mut self.scratch, &mut self.buffer);
        match decode::entry(format, fields, &record, self.received, scratch, buffer) {
            Ok(()) => batch.count += 1,
            Err(reason) => {
                let value = record.value.unwrap_or_default().to_vec();
                self.rejected_bytes += value.len() + reason.len() + REJECTED_BYTES;
                batch.rejected.push((value, reason));
            }
        }
        batch.range.end = self.buffer.len();
        batch.next = record.offset + 1;
        if self.buffer.len() + self.rejected_bytes >= PIECE_BYTES {
            Taken::Enough
        } else {
            Taken::More
        }
    }

    /// Whether a record belongs to the last batch.
    fn continues(&self, record: &Incoming<'_>) -> bool {
        self.pending.last().is_some_and(|batch| {
            let same =
                batch.partition.number == record.partition && batch.partition.topic == record.topic;
            let reading = self.readings.get(&batch.partition);
            same && reading.is_some_and(|reading| {
                reading
                    .marks
                    .iter()
                    .all(|mark| record.offset < *mark || batch.begin >= *mark)
            })
        })
    }

    /// Begins a batch. Returns false if the partition is not read.
    fn begin(&mut self, record: &Incoming<'_>) -> bool {
        let partition = Partition {
            topic: record.topic.to_owned(),
            number: record.partition,
        };
        self.close();
        let Some(reading) = self.readings.get(&partition) else {
            return false;
        };
        let start = self.buffer.len();
        // A gap in the offsets (from compaction or transaction markers) belongs to the batch after the gap. If one of `marks` is in
        // the gap, the batch begins at this mark instead, so that it does not span the mark.
        let mark = reading
            .marks
            .iter()
            .copied()
            .filter(|mark| *mark <= record.offset)
            .max();
        self.pending.push(PendingBatch {
            begin: reading.next.max(mark.unwrap_or(0)),
            next: record.offset,
            range: start..start,
            count: 0,
            rejected: Vec::new(),
            partition,
        });
        true
    }

    /// Ends the last batch. The next batch of the same partition begins at the end of this one.
    fn close(&mut self) {
        if let Some(batch) = self.pending.last()
            && let Some(reading) = self.readings.get_mut(&batch.partition)
        {
            reading.next = batch.next;
        }
    }

    /// The gathered batches, without those of revoked partitions; None if there are none.
    pub(super) fn finish(mut self, revoked: &[Partition]) -> Option<Piece> {
        self.close();
        let Self {
            readings,
            buffer,
            mut pending,
            received,
            ..
        } = self;
        pending.retain(|batch| !revoked.contains(&batch.partition));
        if pending.is_empty() {
            return None;
        }
        let bytes = if buffer.len() < COPY_BYTES_MAX {
            Bytes::copy_from_slice(&buffer)
        } else {
            buffer.freeze()
        };
        let batches = pending.into_iter().filter_map(|batch| {
            let reading = readings.get_mut(&batch.partition)?;
            reading.sent = batch.next;
            let origin = FileOrigin {
                file: reading.id,
                begin: batch.begin,
                next: batch.next,
            };
            Some(PartitionBatch {
                of: reading.of.clone(),
                begin: batch.begin,
                next: batch.next,
                rejected: batch.rejected,
                batch: Batch {
                    tag: reading.tag.clone(),
                    plain: false,
                    encoding: Encoding::Packed,
                    body: bytes.slice(batch.range),
                    count: batch.count,
                    received,
                    values: reading.values.clone(),
                    origins: vec![Origin::File(origin)],
                },
            })
        });
        let batches: Vec<PartitionBatch> = batches.collect();
        (!batches.is_empty()).then_some(Piece { batches })
    }
}
