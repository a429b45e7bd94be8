//! What becomes of what was taken: it is in Kafka, goes out again, comes back as failed, or is taken back.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    super::{
        batch::{Builder, Parts, advance},
        partitions::{Batch, Partition, headers},
    },
    Place, State,
};
use crate::{Error, Failed, Kind};

impl State {
    /// The partition of the batch that is under way, unless that was taken back.
    fn under_way(&mut self, place: Place, serial: u64) -> Option<&mut Partition> {
        let partition = self.partition(place)?;
        let first = partition.ready.front()?;
        (partition.under_way && first.serial == serial).then_some(partition)
    }

    /// Whether the batch that is under way has gone out before.
    pub(in super::super) fn is_repeated(&mut self, place: Place, serial: u64) -> bool {
        let partition = self.under_way(place, serial);
        let first = partition.and_then(|partition| partition.ready.front());
        first.is_some_and(|first| first.attempts > 1)
    }

    /// Takes what the batch that is under way is made of, to seal it.
    pub(in super::super) fn builder(&mut self, place: Place, serial: u64) -> Option<Builder> {
        let partition = self.under_way(place, serial)?;
        partition.ready.front_mut()?.builder.take()
    }

    /// The batch that is under way as it goes out.
    pub(in super::super) fn sealed(&mut self, place: Place, serial: u64, sealed: Arc<Vec<u8>>) {
        let partition = self.under_way(place, serial);
        if let Some(first) = partition.and_then(|partition| partition.ready.front_mut()) {
            first.sealed = Some(sealed);
        }
    }

    /// The batch that is under way is in Kafka.
    pub(in super::super) fn succeed(&mut self, place: Place, serial: u64) {
        let Some(partition) = self.under_way(place, serial) else {
            return;
        };
        partition.under_way = false;
        if let Some(batch) = partition.ready.pop_front() {
            partition.sequence = advance(partition.sequence, batch.numbers.len());
            self.settle(batch);
        }
    }

    /// The batch that is under way goes out again, not before `again_at`.
    pub(in super::super) fn retry(&mut self, place: Place, serial: u64, again_at: Instant) {
        if let Some(partition) = self.under_way(place, serial) {
            partition.under_way = false;
            partition.again_at = Some(again_at);
        }
    }

    /// The batch that is under way cannot be written; `error` says of the record at a place in it why. `refused`: the broker
    /// says that it has none of it.
    pub(in super::super) fn fail(
        &mut self,
        place: Place,
        serial: u64,
        refused: bool,
        error: impl Fn(usize) -> Error,
    ) {
        let Some(partition) = self.under_way(place, serial) else {
            return;
        };
        partition.under_way = false;
        if let Some(batch) = partition.ready.pop_front() {
            // An earlier attempt, whose answer was lost, may have come through.
            partition.doubtful |= !refused || batch.attempts > 1;
            self.give_back(place.0, batch, error);
        }
    }

    fn give_back(&mut self, topic: usize, batch: Batch, error: impl Fn(usize) -> Error) {
        let name = self.topics.get(topic).map(|topic| topic.name.clone());
        let name = name.unwrap_or_default();
        let failed = batch.numbers.iter().enumerate().map(|(at, number)| Failed {
            number: *number,
            topic: name.as_ref().to_owned(),
            error: error(at),
        });
        self.failed.extend(failed);
        self.spoiled |= self.transactional;
        self.settle(batch);
    }

    fn settle(&mut self, batch: Batch) {
        self.records -= batch.numbers.len();
        self.bytes -= batch.bytes;
        if self.records == 0 {
            self.flushing = false;
        }
        let buffer = batch.sealed.and_then(|sealed| Arc::try_unwrap(sealed).ok());
        if let Some(buffer) = buffer {
            self.reuse(buffer);
        }
    }

    /// Keeps a buffer for the next batch.
    pub(in super::super) fn reuse(&mut self, buffer: Vec<u8>) {
        let kept: usize = self.spare.iter().map(Vec::capacity).sum();
        if kept + buffer.capacity() <= self.buffer_bytes {
            self.spare.push(buffer);
        }
    }

    /// Takes back all of a topic, or all that there is.
    pub(in super::super) fn take_back(&mut self, of: Option<usize>, error: &Error) {
        for topic in 0..self.topics.len() {
            if of.is_some_and(|of| of != topic) {
                continue;
            }
            self.unstage(topic, error);
            let partitions = self
                .topics
                .get(topic)
                .map_or(0, |topic| topic.partitions.len());
            for partition in 0..partitions {
                self.take_back_partition((topic, partition), error);
            }
        }
    }

    /// Takes back all of a partition.
    pub(in super::super) fn take_back_partition(&mut self, place: Place, error: &Error) {
        while let Some(batch) = self.next_batch(place) {
            self.give_back(place.0, batch, |_| error.clone());
        }
    }

    fn next_batch(&mut self, place: Place) -> Option<Batch> {
        let partition = self.partition(place)?;
        partition.under_way = false;
        let next = partition.ready.pop_front();
        let next = next.or_else(|| partition.open.take())?;
        partition.doubtful |= next.attempts > 0;
        Some(next)
    }

    /// Fails the records that wait for the partitions of their topic.
    pub(in super::super) fn unstage(&mut self, topic: usize, error: &Error) {
        let Some(found) = self.topics.get_mut(topic) else {
            return;
        };
        let (staged, name) = (std::mem::take(&mut found.staged), found.name.clone());
        found.staged_since = None;
        self.wanting.remove(&topic);
        for (index, record) in staged.records.iter().enumerate() {
            self.records -= 1;
            self.bytes -= Builder::room_for(&Parts {
                key: record.key.as_ref().map(|key| staged.slice(key)),
                value: staged.slice(&record.value),
                timestamp: record.timestamp,
                headers: headers(&staged, index),
            });
            self.failed.push(Failed {
                number: record.number,
                topic: name.as_ref().to_owned(),
                error: error.clone(),
            });
            self.spoiled |= self.transactional;
        }
    }

    /// Nobody sends any more: everything comes back, and nothing is taken.
    pub(in super::super) fn end(&mut self) {
        let error = Error::new(Kind::Fatal, "the producer's thread has ended");
        self.take_back(None, &error);
        self.ended = true;
    }
}

/// What a batch waits for longer than it may.
pub(in super::super) fn waited_too_long(wait: Duration) -> Error {
    let text = format!("no broker has taken it within {} s", wait.as_secs());
    Error::new(Kind::Again, text)
}
