//! Topics, their partitions, and the batches of a partition: what [`State`](super::state::State) is made of.
//!
//! `read -> decode -> send -> keep -> take -> process -> [encode] -> write -> settle`

use std::{collections::VecDeque, sync::Arc, time::Instant};

use super::batch::Builder;
use crate::{Outgoing, Record};

pub(super) struct Topic {
    pub(super) name: Arc<str>,
    pub(super) partitions: Vec<Partition>,
    /// Records that wait for the partitions to be known.
    pub(super) staged: Outgoing,
    pub(super) staged_since: Option<Instant>,
    /// Where records without a key go for now.
    pub(super) sticky: usize,
    /// Since when brokers say that there is no such topic.
    pub(super) missing_since: Option<Instant>,
    /// When its partitions were heard of.
    pub(super) learned_at: Option<Instant>,
}

pub(super) struct Partition {
    /// The id of the broker that has it; -1: not known.
    pub(super) leader: i32,
    /// What records are appended to.
    pub(super) open: Option<Batch>,
    /// Closed batches in order; the first one may be under way.
    pub(super) ready: VecDeque<Batch>,
    pub(super) under_way: bool,
    /// Not before.
    pub(super) again_at: Option<Instant>,
    /// Of the next record.
    pub(super) sequence: i32,
    /// Whether a batch left it of which nobody knows whether it is in Kafka: its sequence numbers must not be used again, as a
    /// broker would take what comes with them for what it has.
    pub(super) doubtful: bool,
    /// Whether the coordinator knows that it belongs to the open transaction.
    pub(super) added: bool,
}

pub(super) struct Batch {
    /// Until it is sealed.
    pub(super) builder: Option<Builder>,
    /// As it goes out, from then on.
    pub(super) sealed: Option<Arc<Vec<u8>>>,
    /// By which failures name its records.
    pub(super) numbers: Vec<usize>,
    /// What it counts in the buffer.
    pub(super) bytes: usize,
    pub(super) since: Instant,
    /// By which an answer finds it.
    pub(super) serial: u64,
    /// How often it went out.
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
    /// Keeps a copy of a record until the partitions are known.
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
            open: None,
            ready: VecDeque::new(),
            under_way: false,
            again_at: None,
            sequence: 0,
            doubtful: false,
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

    /// Bytes of it.
    pub(super) fn len(&self) -> usize {
        let sealed = || self.sealed.as_ref().map_or(0, |sealed| sealed.len());
        self.builder.as_ref().map_or_else(sealed, Builder::len)
    }
}
