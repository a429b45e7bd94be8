//! Topics, partitions and batches: the parts of an [`Accumulator`](super::accumulator::Accumulator).
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`

use std::{collections::VecDeque, sync::Arc, time::Instant};

use super::batch::Builder;
use crate::{Outgoing, Record};

pub(super) struct Topic {
    pub(super) name: Arc<str>,
    pub(super) partitions: Vec<Partition>,
    /// Records that wait until the partitions are known.
    pub(super) staged: Outgoing,
    pub(super) staged_since: Option<Instant>,
    /// The current partition for records without a key.
    pub(super) sticky: usize,
    /// When brokers first reported that the topic does not exist.
    pub(super) missing_since: Option<Instant>,
    /// When its partitions were last looked up.
    pub(super) learned_at: Option<Instant>,
}

pub(super) struct Partition {
    /// The id of the leader; -1 if unknown.
    pub(super) leader: i32,
    /// When the brokers first listed the topic's partitions without this one.
    pub(super) missing_since: Option<Instant>,
    /// The batch that records are appended to.
    pub(super) open: Option<Batch>,
    /// Closed batches in order; the first one may be in flight.
    pub(super) ready: VecDeque<Batch>,
    pub(super) in_flight: bool,
    /// The first batch is not sent before this time.
    pub(super) retry_at: Option<Instant>,
    /// The sequence number of the next record.
    pub(super) sequence: i32,
    /// Whether a batch was reported as failed although a broker may have written it. The sequence numbers of this batch must not be reused,
    /// because a broker would treat the new records as duplicates.
    pub(super) uncertain: bool,
    /// Whether the partition belongs to the open transaction.
    pub(super) added: bool,
}

pub(super) struct Batch {
    /// The contents, until the batch is sealed.
    pub(super) builder: Option<Builder>,
    /// The batch as it is sent, once it is sealed.
    pub(super) sealed: Option<Arc<Vec<u8>>>,
    /// The numbers of its records, by which failures are reported.
    pub(super) numbers: Vec<usize>,
    /// The number of bytes by which the batch counts towards `buffer_bytes`.
    pub(super) bytes: usize,
    pub(super) since: Instant,
    /// Identifies the batch when an answer arrives.
    pub(super) serial: u64,
    /// How often it was sent.
    pub(super) attempts: u32,
}

/// Names and values of a record's headers.
pub(super) fn headers(
    outgoing: &Outgoing,
    index: usize,
) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
    let values = outgoing.headers_of(index).iter();
    let values = values.map(|value| outgoing.slice(value));
    outgoing
        .header_names
        .iter()
        .map(String::as_bytes)
        .zip(values)
}

impl Topic {
    /// A topic whose partitions are not known.
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            partitions: Vec::new(),
            staged: Outgoing::default(),
            staged_since: None,
            sticky: 0,
            missing_since: None,
            learned_at: None,
        }
    }

    /// Copies a record to the staging list.
    pub(super) fn stage(
        &mut self,
        outgoing: &Outgoing,
        index: usize,
        record: &Record,
        now: Instant,
    ) {
        let staged = &mut self.staged;
        let mut copy = |bytes: &[u8]| {
            let start = staged.bytes.len();
            staged.bytes.extend_from_slice(bytes);
            start..staged.bytes.len()
        };
        let key = record.key.as_ref().map(|key| copy(outgoing.slice(key)));
        let value = copy(outgoing.slice(&record.value));
        let headers = outgoing.headers_of(index).iter();
        let headers: Vec<_> = headers.map(|value| copy(outgoing.slice(value))).collect();
        staged.headers.extend(headers);
        if staged.header_names.len() != outgoing.header_names.len() {
            staged.header_names.clone_from(&outgoing.header_names);
        }
        staged.records.push(Record {
            number: record.number,
            topic: 0,
            key,
            value,
            timestamp: record.timestamp,
        });
        self.staged_since.get_or_insert(now);
    }
}

impl Partition {
    pub(super) fn new() -> Self {
        Self {
            leader: -1,
            missing_since: None,
            open: None,
            ready: VecDeque::new(),
            in_flight: false,
            retry_at: None,
            sequence: 0,
            uncertain: false,
            added: false,
        }
    }

    pub(super) fn close(&mut self) {
        self.ready.extend(self.open.take());
    }
}

impl Batch {
    pub(super) fn new(buffer: Vec<u8>, serial: u64, since: Instant) -> Self {
        Self {
            builder: Some(Builder::new(buffer)),
            sealed: None,
            numbers: Vec::new(),
            bytes: 0,
            since,
            serial,
            attempts: 0,
        }
    }

    #[cfg(test)]
    pub(super) fn records(&self) -> usize {
        self.numbers.len()
    }

    /// The size in bytes.
    pub(super) fn len(&self) -> usize {
        let sealed = || self.sealed.as_ref().map_or(0, |sealed| sealed.len());
        self.builder.as_ref().map_or_else(sealed, Builder::len)
    }
}
