//! What is taken and not settled: records in batches, batches by their partitions. Shared by the sink's thread, which
//! appends, and the producer's, which sends.
//!
//! `read -> decode -> send -> keep -> take -> process -> [encode] -> write -> settle`
//!
//! It promises that a record is in one batch or in one list until it is acknowledged or among the failed, that the batches
//! of a partition leave in order, and one at a time: so a batch that was refused leaves no hole in the sequence numbers, and
//! one of which nothing was heard goes out again with its own. Records of a topic whose partitions are not known yet wait.
//! What becomes of a batch that went out, or is taken back, stands in `outcome`.

mod outcome;

use std::{
    collections::{BTreeSet, HashMap},
    hash::{BuildHasher, RandomState},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

pub(super) use outcome::waited_too_long;

use super::{
    batch::{Builder, Parts},
    partitions::{Batch, Partition, Topic, headers},
};
use crate::{Failed, Outgoing, ProducerOptions, Record};

/// What both threads know.
pub(super) struct Shared {
    state: Mutex<State>,
    /// For the sink's thread: something was settled.
    pub(super) settled: Condvar,
    /// For the producer's thread: there is something to do.
    pub(super) work: Notify,
}

impl Shared {
    pub(super) fn new(options: &ProducerOptions) -> Self {
        Self {
            state: Mutex::new(State::new(options)),
            settled: Condvar::new(),
            work: Notify::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here can panic half way, so a poisoned lock is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A topic and a partition of it, by their places in [`State`].
pub(super) type Place = (usize, usize);

pub(super) struct State {
    record_bytes: usize,
    batch_bytes: usize,
    batch_records: usize,
    buffer_bytes: usize,
    linger: Duration,
    partitioner: super::partitioner::Partitioner,
    transactional: bool,
    /// Never forgotten, as sequence numbers must not begin anew: as many as were written to, which the cluster has, too.
    pub(super) topics: Vec<Topic>,
    by_name: HashMap<String, usize>,
    /// The partitions that have records.
    pub(super) active: BTreeSet<Place>,
    /// The topics that have records and no partitions yet.
    pub(super) wanting: BTreeSet<usize>,
    /// What the coordinator has been told of the open transaction.
    pub(super) told: Told,
    /// Records that are taken and not settled, and their bytes.
    pub(super) records: usize,
    bytes: usize,
    pub(super) failed: Vec<Failed>,
    pub(super) complaint: Option<String>,
    /// Whether a record of the open transaction has failed: it must not be committed.
    pub(super) spoiled: bool,
    /// Whether nobody sends any more.
    pub(super) ended: bool,
    /// All that was taken is wanted now.
    flushing: bool,
    /// Buffers to be used again.
    spare: Vec<Vec<u8>>,
    random: u64,
    /// Of the last batch.
    serial: u64,
}

/// What the coordinator has been told of the open transaction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    /// Of any partition.
    pub(super) partitions: bool,
    /// Of the group.
    pub(super) group: bool,
    /// The group's coordinator: the position.
    pub(super) position: bool,
}

/// What became of a record that was to be appended.
enum Appended {
    Taken,
    /// No room.
    Full,
    TooLarge,
}

impl State {
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
            active: BTreeSet::new(),
            wanting: BTreeSet::new(),
            told: Told::default(),
            records: 0,
            bytes: 0,
            failed: Vec::new(),
            complaint: None,
            spoiled: false,
            ended: false,
            flushing: false,
            spare: Vec::new(),
            random: RandomState::new().hash_one(0) | 1,
            serial: 0,
        }
    }

    /// The place of a topic.
    pub(super) fn topic(&mut self, name: &str) -> usize {
        if let Some(place) = self.by_name.get(name) {
            return *place;
        }
        let place = self.topics.len();
        self.by_name.insert(name.to_owned(), place);
        self.topics.push(Topic {
            name: name.into(),
            partitions: Vec::new(),
            staged: Outgoing::default(),
            staged_since: None,
            sticky: 0,
            missing_since: None,
            learned_at: None,
        });
        place
    }

    /// The place of a topic that was named before.
    pub(super) fn known(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    pub(super) fn partition(&mut self, (topic, partition): Place) -> Option<&mut Partition> {
        self.topics.get_mut(topic)?.partitions.get_mut(partition)
    }

    /// Takes records from the one at `from` on; gives how many, and whether the next one is too large for the settings.
    pub(super) fn append_all(
        &mut self,
        outgoing: &Outgoing,
        from: usize,
        now: Instant,
    ) -> (usize, bool) {
        let (mut taken, mut last) = (0, (usize::MAX, 0));
        for (index, record) in outgoing.records.iter().enumerate().skip(from) {
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
                // Once more, into another one.
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

    /// A record more is here, in a batch or in a list.
    fn count(&mut self, room: usize) {
        self.records += 1;
        self.bytes += room;
    }

    /// Records without a key go to another partition from now on, one that has a leader if there is any.
    fn deal(&mut self, topic: usize) {
        // xorshift64 of Marsaglia.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let random = self.random as usize;
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

    /// The partitions of a topic are known now, or known better: number and leader of each.
    pub(super) fn learn(&mut self, topic: usize, partitions: &[(i32, i32)], now: Instant) {
        let Some(found) = self.topics.get_mut(topic) else {
            return;
        };
        found.missing_since = None;
        let count = partitions.len().max(found.partitions.len());
        found.partitions.resize_with(count, Partition::new);
        for (number, leader) in partitions {
            let partition = usize::try_from(*number).ok();
            if let Some(partition) = partition.and_then(|number| found.partitions.get_mut(number)) {
                partition.leader = *leader;
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
            // They were counted, and checked against every limit, when they came.
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

    /// Everything that was taken goes out now.
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

    /// Whether a batch that is open should go out, and else when.
    pub(super) fn close_overdue(&mut self, place: Place, now: Instant) -> Option<Instant> {
        let (linger, pressed) = (self.linger, self.bytes >= self.buffer_bytes / 2);
        let partition = self.partition(place)?;
        let due = partition.open.as_ref()?.since + linger;
        // Half of the buffer in batches that wait for more: somebody may wait for room.
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

    /// Forgets the partitions that have nothing to send.
    pub(super) fn rest(&mut self, place: Place) {
        let idle = self
            .partition(place)
            .is_none_or(|partition| partition.open.is_none() && partition.ready.is_empty());
        if idle {
            self.active.remove(&place);
        }
    }

    /// A new identity: sequence numbers begin anew.
    pub(super) fn renumber(&mut self) {
        for partition in self
            .topics
            .iter_mut()
            .flat_map(|topic| &mut topic.partitions)
        {
            (partition.sequence, partition.doubtful) = (0, false);
        }
    }

    /// A new transaction: the coordinator knows of no partition.
    pub(super) fn begin(&mut self) {
        self.spoiled = false;
        self.told = Told::default();
        for partition in self
            .topics
            .iter_mut()
            .flat_map(|topic| &mut topic.partitions)
        {
            partition.added = false;
        }
    }
}
