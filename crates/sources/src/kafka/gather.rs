//! Records as they come, gathered in one buffer: neighbours of one partition become a batch.
//!
//! `read -> [decode] -> send -> keep -> take -> process -> encode -> write -> settle`

use std::{collections::HashMap, ops::Range, sync::Arc};

use bytes::Bytes;
use millstream_kafka::{Incoming, Partition, Taken};
use millstream_record::{Batch, Buffer, Encoding, FileId, FileOrigin, Origin, Tag, Time, Values};

use super::{decode, options::Config, progress::Assigned};

/// A piece is full with so many bytes.
pub(super) const PIECE_BYTES: usize = 1 << 20;
/// Less than this is copied out of its buffer: a few records must not hold the room of many.
const COPY_BYTES_MAX: usize = 64 << 10;

/// What is known of a partition that is read.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) of: Assigned,
    pub(super) id: FileId,
    pub(super) tag: Tag,
    pub(super) values: Arc<Values>,
    /// Everything before it was gathered.
    pub(super) next: u64,
    /// Everything before it was sent.
    pub(super) sent: u64,
    /// Offsets at which a batch must end, as a channel goes on there.
    pub(super) marks: Vec<u64>,
}

/// Neighbours of one partition.
pub(super) struct Run {
    pub(super) of: Assigned,
    pub(super) batch: Batch,
    /// The offset of its first record, or before it.
    pub(super) begin: u64,
    /// The offset behind its last.
    pub(super) next: u64,
    /// Records that could not be read, and why.
    pub(super) rejected: Vec<(Vec<u8>, String)>,
}

/// What goes to the data thread at once.
pub(super) struct Piece {
    pub(super) runs: Vec<Run>,
}

struct Open {
    partition: Partition,
    begin: u64,
    next: u64,
    range: Range<usize>,
    count: u32,
    rejected: Vec<(Vec<u8>, String)>,
}

/// Gathers the records of one call of the client.
pub(super) struct Gather<'a> {
    config: &'a Config,
    readings: &'a mut HashMap<Partition, Reading>,
    buffer: Buffer,
    scratch: Vec<u8>,
    runs: Vec<Open>,
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
            runs: Vec::new(),
            received: Time::now(),
        }
    }

    /// Takes a record.
    pub(super) fn take(&mut self, record: Incoming<'_>) -> Taken {
        if !self.goes_on(&record) && !self.begin(&record) {
            // Of a partition that is not read any more: its next reader gets it.
            return Taken::More;
        }
        let Some(run) = self.runs.last_mut() else {
            return Taken::More;
        };
        let (format, fields) = (self.config.format, &self.config.fields);
        let (scratch, buffer) = (&mut self.scratch, &mut self.buffer);
        match decode::entry(format, fields, &record, self.received, scratch, buffer) {
            Ok(()) => run.count += 1,
            Err(reason) => {
                let value = record.value.unwrap_or_default().to_vec();
                run.rejected.push((value, reason));
            }
        }
        run.range.end = self.buffer.len();
        run.next = record.offset + 1;
        if self.buffer.len() >= PIECE_BYTES {
            Taken::Enough
        } else {
            Taken::More
        }
    }

    /// Whether a record belongs to the run that is open.
    fn goes_on(&self, record: &Incoming<'_>) -> bool {
        self.runs.last().is_some_and(|run| {
            let same =
                run.partition.number == record.partition && run.partition.topic == record.topic;
            let reading = self.readings.get(&run.partition);
            same && reading.is_some_and(|reading| {
                reading
                    .marks
                    .iter()
                    .all(|mark| record.offset < *mark || run.begin >= *mark)
            })
        })
    }

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
        // A gap (what compaction took, the marks of transactions) belongs to what follows it, but for a mark within it.
        let mark = reading
            .marks
            .iter()
            .copied()
            .filter(|mark| *mark <= record.offset)
            .max();
        self.runs.push(Open {
            begin: reading.next.max(mark.unwrap_or(0)),
            next: record.offset,
            range: start..start,
            count: 0,
            rejected: Vec::new(),
            partition,
        });
        true
    }

    /// Notes up to where the open run has come.
    fn close(&mut self) {
        if let Some(run) = self.runs.last()
            && let Some(reading) = self.readings.get_mut(&run.partition)
        {
            reading.next = run.next;
        }
    }

    /// What was gathered, but for partitions that are taken away; None if that is nothing.
    pub(super) fn finish(mut self, without: &[Partition]) -> Option<Piece> {
        self.close();
        let Self {
            readings,
            buffer,
            mut runs,
            received,
            ..
        } = self;
        runs.retain(|run| !without.contains(&run.partition));
        if runs.is_empty() {
            return None;
        }
        let bytes = if buffer.len() < COPY_BYTES_MAX {
            Bytes::copy_from_slice(&buffer)
        } else {
            buffer.freeze()
        };
        let runs = runs.into_iter().filter_map(|run| {
            let reading = readings.get_mut(&run.partition)?;
            reading.sent = run.next;
            let origin = FileOrigin {
                file: reading.id,
                begin: run.begin,
                next: run.next,
            };
            Some(Run {
                of: reading.of.clone(),
                begin: run.begin,
                next: run.next,
                rejected: run.rejected,
                batch: Batch {
                    tag: reading.tag.clone(),
                    plain: false,
                    encoding: Encoding::Packed,
                    body: bytes.slice(run.range),
                    count: run.count,
                    received,
                    values: reading.values.clone(),
                    origins: vec![Origin::File(origin)],
                },
            })
        });
        let runs: Vec<Run> = runs.collect();
        (!runs.is_empty()).then_some(Piece { runs })
    }
}
