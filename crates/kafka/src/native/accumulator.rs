//! Holds the accepted records that are neither acknowledged nor failed, in batches by partition. The sink's thread appends records,
//! the producer's thread sends batches.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! An accepted record is in one batch until it is acknowledged or reported as failed. A record whose topic has no known partitions yet is
//! staged first: it waits in a list of the topic. The batches of a partition are sent in order and one at a time. So a rejected batch
//! leaves no gap in the sequence numbers, and a batch without an answer is retried with the same numbers.

use std::{
    collections::{BTreeSet, HashMap},
    ops::Range,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use millstream_sys::random::Spread;
use tokio::sync::Notify;

use super::{
    batch::{Builder, Parts, advance},
    partitions::{Batch, Partition, Topic, headers},
};
use crate::{Error, Failed, Kind, Outgoing, ProducerOptions, Record};

/// The accumulator, shared by both threads.
pub(super) struct SharedAccumulator {
    state: Mutex<Accumulator>,
    /// Wakes the sink's thread: a record was acknowledged or has failed.
    pub(super) progress: Condvar,
    /// Wakes the producer's thread: there is work.
    pub(super) work: Notify,
}

impl SharedAccumulator {
    pub(super) fn new(options: &ProducerOptions) -> Self {
        Self {
            state: Mutex::new(Accumulator::new(options)),
            progress: Condvar::new(),
            work: Notify::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Accumulator> {
        // No code panics in the middle of a change, so the state is consistent even if the lock is poisoned.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A topic and one of its partitions, by their indexes in [`Accumulator`].
pub(super) type Place = (usize, usize);

pub(super) struct Accumulator {
    record_bytes: usize,
    batch_bytes: usize,
    batch_records: usize,
    buffer_bytes: usize,
    linger: Duration,
    partitioner: super::partitioner::Partitioner,
    transactional: bool,
    /// Topics with known partitions, and partitions, are never removed, because the sequence numbers of a partition must not restart. Their
    /// number is bounded by the topics of the cluster. A topic that does not exist in the cluster is evicted, and its records fail. Without
    /// the eviction, topic names that peers send could fill the memory.
    pub(super) topics: Vec<Topic>,
    by_name: HashMap<String, usize>,
    /// The indexes of evicted topics, for reuse.
    vacant: Vec<usize>,
    /// The partitions that have records.
    pub(super) active: BTreeSet<Place>,
    /// The topics that have records but no known partitions.
    pub(super) wanting: BTreeSet<usize>,
    /// The state of the open transaction at its coordinators.
    pub(super) registered: Registered,
    /// Number and bytes of the accepted records that are neither acknowledged nor failed.
    pub(super) records: usize,
    bytes: usize,
    pub(super) failed: Vec<Failed>,
    pub(super) complaint: Option<String>,
    /// Whether a record of the open transaction has failed. If so, the transaction must not be committed.
    pub(super) spoiled: bool,
    /// Whether the producer's thread has ended.
    pub(super) ended: bool,
    /// Whether a flush was requested. If so, open batches are sent without lingering.
    flushing: bool,
    /// Buffers for reuse.
    spare: Vec<Vec<u8>>,
    spread: Spread,
    /// The number of the last batch.
    serial: u64,
}

/// The state of the open transaction at its coordinators.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Registered {
    /// At least one partition was added to the transaction.
    pub(super) partitions: bool,
    /// The consumer group of the sink's position was added to the transaction.
    pub(super) group: bool,
    /// The sink's position was stored at the group's coordinator.
    pub(super) position: bool,
}

/// The outcome of an append.
enum Appended {
    Taken,
    /// The buffer is full.
    Full,
    TooLarge,
}

impl Accumulator {
    fn new(options: &ProducerOptions) -> Self {
        Self {
            record_bytes: options.record_bytes,
            batch_bytes: options.batch_bytes,
            batch_records: options.batch_records,
            buffer_bytes: options.buffer_bytes,
            linger: options.linger,
            partitioner: options.partitioner,
            transactional: options.transactional_id.is_some(),
            topics: Vec::new(),
            by_name: HashMap::new(),
            vacant: Vec::new(),
            active: BTreeSet::new(),
            wanting: BTreeSet::new(),
            registered: Registered::default(),
            records: 0,
            bytes: 0,
            failed: Vec::new(),
            complaint: None,
            spoiled: false,
            ended: false,
            flushing: false,
            spare: Vec::new(),
            spread: Spread::new(),
            serial: 0,
        }
    }

    /// The index of a topic. Adds the topic if it is new.
    pub(super) fn topic(&mut self, name: &str) -> usize {
        if let Some(place) = self.by_name.get(name) {
            return *place;
        }
        let topic = Topic::new(name);
        let place = match self.vacant.pop() {
            Some(vacant) => {
                self.topics[vacant] = topic;
                vacant
            }
            None => {
                self.topics.push(topic);
                self.topics.len() - 1
            }
        };
        self.by_name.insert(name.to_owned(), place);
        place
    }

    /// Evicts a topic that has neither partitions nor records.
    fn evict(&mut self, topic: usize) {
        let Some(found) = self.topics.get_mut(topic) else {
            return;
        };
        let evicted = std::mem::replace(found, Topic::new(""));
        if self.by_name.remove(&*evicted.name).is_some() {
            self.vacant.push(topic);
        }
    }

    /// The index of a topic, if it was used before.
    pub(super) fn known(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    pub(super) fn partition(&mut self, (topic, partition): Place) -> Option<&mut Partition> {
        self.topics.get_mut(topic)?.partitions.get_mut(partition)
    }

    /// Appends the records with these indexes, until the buffer is full or a record is too large.
    /// Returns the number of accepted records,
    /// and whether the next record is too large.
    pub(super) fn append_all(
        &mut self,
        outgoing: &Outgoing,
        which: Range<usize>,
        now: Instant,
    ) -> (usize, bool) {
        let (mut taken, mut last) = (0, (usize::MAX, 0));
        let records = outgoing.records.iter().enumerate();
        for (index, record) in records.skip(which.start).take(which.len()) {
            if last.0 != record.topic {
                let name = outgoing.topics.get(record.topic);
                last = (record.topic, self.topic(name.map_or("", String::as_str)));
            }
            match self.append(last.1, outgoing, index, record, now) {
                Appended::Taken => taken += 1,
                Appended::Full => return (taken, false),
                Appended::TooLarge => return (taken, true),
            }
        }
        (taken, false)
    }

    #[inline]
    fn append(
        &mut self,
        topic: usize,
        outgoing: &Outgoing,
        index: usize,
        record: &Record,
        now: Instant,
    ) -> Appended {
        let parts = Parts {
            key: record.key.as_ref().map(|key| outgoing.slice(key)),
            value: outgoing.slice(&record.value),
            timestamp: record.timestamp,
            headers: headers(outgoing, index),
        };
        let room = Builder::room_for(&parts);
        if room > self.record_bytes && parts.bytes() > self.record_bytes {
            return Appended::TooLarge;
        }
        if self.bytes > 0 && self.bytes + room > self.buffer_bytes {
            return Appended::Full;
        }
        let Some(place) = self.topics.get_mut(topic) else {
            return Appended::Full;
        };
        if place.partitions.is_empty() {
            place.stage(outgoing, index, record, now);
            self.wanting.insert(topic);
            self.count(room);
            return Appended::Taken;
        }
        let partition = self
            .partitioner
            .partition(parts.key, place.partitions.len());
        let (partition, dealt) = match partition {
            Some(partition) => (partition, false),
            None => (place.sticky, true),
        };
        let Some(found) = place.partitions.get_mut(partition) else {
            return Appended::Full;
        };
        let full = found.open.as_ref().is_some_and(|open| {
            open.len() + room > self.batch_bytes || open.numbers.len() >= self.batch_records
        });
        if full {
            found.close();
            if dealt {
                self.deal(topic);
                // Retries with the new partition.
                return self.append(topic, outgoing, index, record, now);
            }
        }
        if found.open.is_none() {
            self.serial += 1;
            let buffer = self.spare.pop().unwrap_or_default();
            found.open = Some(Batch::new(buffer, self.serial, now));
            self.active.insert((topic, partition));
        }
        if let Some(Batch {
            builder: Some(builder),
            numbers,
            bytes,
            ..
        }) = &mut found.open
        {
            builder.append(&parts);
            numbers.push(record.number);
            *bytes += room;
        }
        self.count(room);
        Appended::Taken
    }

    /// Counts a record.
    fn count(&mut self, room: usize) {
        self.records += 1;
        self.bytes += room;
    }

    /// Chooses another partition for records without a key, preferably one that has a leader.
    fn deal(&mut self, topic: usize) {
        let random = self.spread.draw() as usize;
        let Some(topic) = self.topics.get_mut(topic) else {
            return;
        };
        let count = topic.partitions.len();
        let all = (0..count).map(|n| (random.wrapping_add(n)) % count);
        let led = |n: &usize| topic.partitions.get(*n).is_some_and(|one| one.leader >= 0);
        topic.sticky = all
            .clone()
            .find(led)
            .or_else(|| all.clone().next())
            .unwrap_or(0);
    }

    /// Updates the partitions of a topic: number and leader of each.
    pub(super) fn learn(&mut self, topic: usize, partitions: &[(i32, i32)], now: Instant) {
        let Some(found) = self.topics.get_mut(topic) else {
            return;
        };
        found.missing_since = None;
        let count = partitions.len().max(found.partitions.len());
        found.partitions.resize_with(count, Partition::new);
        for partition in &mut found.partitions {
            partition.leader = -1;
            partition.missing_since.get_or_insert(now);
        }
        for (number, leader) in partitions {
            let partition = usize::try_from(*number).ok();
            if let Some(partition) = partition.and_then(|number| found.partitions.get_mut(number)) {
                (partition.leader, partition.missing_since) = (*leader, None);
            }
        }
        found.learned_at = Some(now);
        let staged = std::mem::take(&mut found.staged);
        found.staged_since = None;
        self.wanting.remove(&topic);
        if staged.records.is_empty() {
            return;
        }
        self.deal(topic);
        for (index, record) in staged.records.iter().enumerate() {
            // A staged record was counted and checked against every limit when it was accepted. So it is uncounted here, and `append`
            // counts it again without a limit.
            let room = Builder::room_for(&Parts {
                key: record.key.as_ref().map(|key| staged.slice(key)),
                value: staged.slice(&record.value),
                timestamp: record.timestamp,
                headers: headers(&staged, index),
            });
            self.records -= 1;
            self.bytes -= room;
            let bound = std::mem::replace(&mut self.buffer_bytes, usize::MAX);
            self.append(topic, &staged, index, record, now);
            self.buffer_bytes = bound;
        }
        if self.flushing {
            self.flush();
        }
    }

    /// Closes all open batches, so that everything is sent now.
    pub(super) fn flush(&mut self) {
        self.flushing = true;
        let active = std::mem::take(&mut self.active);
        for place in &active {
            if let Some(partition) = self.partition(*place) {
                partition.close();
            }
        }
        self.active = active;
    }

    /// Closes the open batch of a partition if it is due. If the batch is not due, returns the time at which it will be. `None`: no batch
    /// is open now.
    pub(super) fn close_overdue(&mut self, place: Place, now: Instant) -> Option<Instant> {
        let (linger, pressed) = (self.linger, self.bytes >= self.buffer_bytes / 2);
        let partition = self.partition(place)?;
        let due = partition.open.as_ref()?.since + linger;
        // `pressed`: at least half of the buffer is used, so the sink may be waiting for space. In this case, the open batch does not
        // linger if no other batch of the partition is ready.
        if due <= now || (pressed && partition.ready.is_empty()) {
            partition.close();
            if self
                .topics
                .get(place.0)
                .is_some_and(|topic| topic.sticky == place.1)
            {
                self.deal(place.0);
            }
            return None;
        }
        Some(due)
    }

    /// Removes a partition from the active ones if it has no records.
    pub(super) fn retire_if_idle(&mut self, place: Place) {
        let idle = self
            .partition(place)
            .is_none_or(|partition| partition.open.is_none() && partition.ready.is_empty());
        if idle {
            self.active.remove(&place);
        }
    }

    /// Restarts the sequence numbers, for a new identity (id and epoch) of the producer.
    pub(super) fn renumber(&mut self) {
        for partition in self
            .topics
            .iter_mut()
            .flat_map(|topic| &mut topic.partitions)
        {
            (partition.sequence, partition.uncertain) = (0, false);
        }
    }

    /// Begins a transaction: the coordinator knows none of its partitions yet.
    pub(super) fn begin(&mut self) {
        self.spoiled = false;
        self.registered = Registered::default();
        for partition in self
            .topics
            .iter_mut()
            .flat_map(|topic| &mut topic.partitions)
        {
            partition.added = false;
        }
    }

    /// The partition of the batch in flight; `None` if the batch has failed in the meantime.
    fn in_flight(&mut self, place: Place, serial: u64) -> Option<&mut Partition> {
        let partition = self.partition(place)?;
        let first = partition.ready.front()?;
        (partition.in_flight && first.serial == serial).then_some(partition)
    }

    /// Whether the batch in flight was also sent in an earlier attempt.
    pub(super) fn is_repeated(&mut self, place: Place, serial: u64) -> bool {
        let partition = self.in_flight(place, serial);
        let first = partition.and_then(|partition| partition.ready.front());
        first.is_some_and(|first| first.attempts > 1)
    }

    /// Takes the contents of the batch in flight, to seal them.
    pub(super) fn builder(&mut self, place: Place, serial: u64) -> Option<Builder> {
        let partition = self.in_flight(place, serial)?;
        partition.ready.front_mut()?.builder.take()
    }

    /// Stores the sealed bytes of the batch in flight.
    pub(super) fn sealed(&mut self, place: Place, serial: u64, sealed: Arc<Vec<u8>>) {
        let partition = self.in_flight(place, serial);
        if let Some(first) = partition.and_then(|partition| partition.ready.front_mut()) {
            first.sealed = Some(sealed);
        }
    }

    /// The batch in flight was written.
    pub(super) fn succeed(&mut self, place: Place, serial: u64) {
        let Some(partition) = self.in_flight(place, serial) else {
            return;
        };
        partition.in_flight = false;
        if let Some(batch) = partition.ready.pop_front() {
            partition.sequence = advance(partition.sequence, batch.numbers.len());
            self.release(batch);
        }
    }

    /// Retries the batch in flight, not before `retry_at`.
    pub(super) fn retry(&mut self, place: Place, serial: u64, retry_at: Instant) {
        if let Some(partition) = self.in_flight(place, serial) {
            partition.in_flight = false;
            partition.retry_at = Some(retry_at);
        }
    }

    /// Fails the batch in flight. `error` returns the error of the record at an index. `refused`: the broker stored no
    /// record of the batch.
    pub(super) fn fail(
        &mut self,
        place: Place,
        serial: u64,
        refused: bool,
        error: impl Fn(usize) -> Error,
    ) {
        let Some(partition) = self.in_flight(place, serial) else {
            return;
        };
        partition.in_flight = false;
        if let Some(batch) = partition.ready.pop_front() {
            // An earlier attempt whose answer was lost may have succeeded.
            partition.uncertain |= !refused || batch.attempts > 1;
            self.give_back(place.0, batch, error);
        }
    }

    fn give_back(&mut self, topic: usize, batch: Batch, error: impl Fn(usize) -> Error) {
        let name = self.topics.get(topic).map(|topic| topic.name.clone());
        let name = name.unwrap_or_default();
        let alone = batch.numbers.len() == 1;
        let failed = batch.numbers.iter().enumerate().map(|(at, number)| Failed {
            number: *number,
            topic: name.as_ref().to_owned(),
            alone,
            error: error(at),
        });
        self.failed.extend(failed);
        self.spoiled |= self.transactional;
        self.release(batch);
    }

    fn release(&mut self, batch: Batch) {
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
    pub(super) fn reuse(&mut self, buffer: Vec<u8>) {
        let kept: usize = self.spare.iter().map(Vec::capacity).sum();
        if kept + buffer.capacity() <= self.buffer_bytes {
            self.spare.push(buffer);
        }
    }

    /// Fails all records of a topic, or of all topics.
    pub(super) fn take_back(&mut self, of: Option<usize>, error: &Error) {
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

    /// Fails all records of a partition.
    pub(super) fn take_back_partition(&mut self, place: Place, error: &Error) {
        while let Some(batch) = self.next_batch(place) {
            self.give_back(place.0, batch, |_| error.clone());
        }
    }

    fn next_batch(&mut self, place: Place) -> Option<Batch> {
        let partition = self.partition(place)?;
        partition.in_flight = false;
        let next = partition.ready.pop_front();
        let next = next.or_else(|| partition.open.take())?;
        partition.uncertain |= next.attempts > 0;
        Some(next)
    }

    /// Fails the staged records of a topic, and evicts the topic if its partitions are not known.
    pub(super) fn unstage(&mut self, topic: usize, error: &Error) {
        let Some(found) = self.topics.get_mut(topic) else {
            return;
        };
        let (staged, name) = (std::mem::take(&mut found.staged), found.name.clone());
        found.staged_since = None;
        self.wanting.remove(&topic);
        if found.partitions.is_empty() {
            self.evict(topic);
        }
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
                alone: false,
                error: error.clone(),
            });
            self.spoiled |= self.transactional;
        }
    }

    /// Fails all records and accepts no more, because the producer's thread ends.
    pub(super) fn end(&mut self) {
        let error = Error::new(Kind::Fatal, "the producer's thread has ended");
        self.take_back(None, &error);
        self.ended = true;
    }
}

/// The error for a batch that has waited longer than it may.
pub(super) fn waited_too_long(wait: Duration) -> Error {
    let text = format!("no broker accepted it within {} s", wait.as_secs());
    Error::new(Kind::Again, text)
}
