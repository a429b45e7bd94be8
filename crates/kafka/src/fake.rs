//! A broker in memory, as far as the sink and the source can tell: what was written can be read, transactions are all or
//! nothing, and it fails when a test says so. Tests only.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use crate::{
    Connect, Consumer, Error, Failed, Incoming, Kind, Outgoing, Partition, Polled, Producer, Sent,
    Settings, Store, Taken, Topics,
};

/// A record as the broker keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its topic.
    pub topic: String,
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its value.
    pub value: Vec<u8>,
    /// Its time.
    pub timestamp: i64,
    /// Its headers.
    pub headers: Vec<(String, Vec<u8>)>,
}

/// The broker. Cloning shares it.
#[derive(Clone, Default)]
pub struct Broker(Arc<Mutex<State>>);

/// What a test does when something fails.
type OnFault = Box<dyn FnOnce(&Broker) + Send>;

/// What happens next, in the order in which it was asked for.
type Faults = VecDeque<Error>;

#[derive(Default)]
struct State {
    /// What is committed, in order.
    kept: Vec<Kept>,
    positions: BTreeMap<(String, String), String>,
    /// Which producer may write: raised by every `init`.
    epoch: u64,
    /// Calls of `commit` that fail before anything is committed.
    commit_faults: Faults,
    /// Calls of `commit` that fail after all is committed.
    commit_doubts: Faults,
    /// Records that fail with this error after they were taken.
    record_faults: Faults,
    on_fault: Option<OnFault>,
    record_max: Option<usize>,
    settings: Vec<Settings>,
    offsets: BTreeMap<Partition, u64>,
    rebalances: VecDeque<Polled>,
    commits: Vec<(Partition, u64)>,
}

impl Broker {
    /// Everything that readers of committed records see, in order.
    pub fn kept(&self) -> Vec<Kept> {
        self.state().kept.clone()
    }

    /// The values of all records, as text.
    pub fn values(&self) -> Vec<String> {
        let kept = self.kept().into_iter();
        kept.map(|kept| String::from_utf8_lossy(&kept.value).into_owned())
            .collect()
    }

    /// Puts a record there as another producer would.
    pub fn put(&self, kept: Kept) {
        self.state().kept.push(kept);
    }

    /// The next commit fails with this error, and nothing is committed.
    pub fn fail_commit(&self, kind: Kind) {
        let error = Error::new(kind, "the test wants it");
        self.state().commit_faults.push_back(error);
    }

    /// The next commit commits all, and says this error.
    pub fn doubt_commit(&self, kind: Kind) {
        let error = Error::new(kind, "the test wants it");
        self.state().commit_doubts.push_back(error);
    }

    /// The next record that is taken fails with this error.
    pub fn fail_record(&self, kind: Kind) {
        let error = Error::new(kind, "the test wants it");
        self.state().record_faults.push_back(error);
    }

    /// Does this right after the next commit or record has failed.
    pub fn on_next_fault(&self, act: impl FnOnce(&Broker) + Send + 'static) {
        self.state().on_fault = Some(Box::new(act));
    }

    /// Batches with more than so many bytes are refused, as far as records alone make them too large.
    pub fn set_record_max(&self, bytes: usize) {
        self.state().record_max = Some(bytes);
    }

    /// What the clients were told, in the order in which they were made.
    pub fn settings(&self) -> Vec<Settings> {
        self.state().settings.clone()
    }

    /// A producer elsewhere takes over the transactional id.
    pub fn take_over(&self) {
        self.state().epoch += 1;
    }

    /// Sets a position, as another producer would.
    pub fn set_position(&self, group: &str, topic: &str, text: &str) {
        let place = (group.to_owned(), topic.to_owned());
        self.state().positions.insert(place, text.to_owned());
    }

    /// All positions: group, topic, text.
    pub fn positions(&self) -> Vec<(String, String, String)> {
        let state = self.state();
        let all = state.positions.iter();
        all.map(|((group, topic), text)| (group.clone(), topic.clone(), text.clone()))
            .collect()
    }

    /// The group decides this next.
    pub fn rebalance(&self, decided: Polled) {
        self.state().rebalances.push_back(decided);
    }

    /// All offsets that were committed, in order.
    pub fn commits(&self) -> Vec<(Partition, u64)> {
        self.state().commits.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connect for Broker {
    fn producer(&self, settings: &Settings) -> Result<Box<dyn Producer>, Error> {
        let mut state = self.state();
        state.settings.push(settings.clone());
        let epoch = state.epoch;
        Ok(Box::new(Writer {
            broker: self.clone(),
            open: Vec::new(),
            failed: Vec::new(),
            epoch,
            in_transactions: settings.get("transactional.id").is_some(),
        }))
    }

    fn consumer(&self, settings: &Settings) -> Result<Box<dyn Consumer>, Error> {
        self.state().settings.push(settings.clone());
        Ok(Box::new(Reader {
            broker: self.clone(),
            next: BTreeMap::new(),
            paused: false,
            ended: Vec::new(),
        }))
    }
}

struct Writer {
    broker: Broker,
    open: Vec<Kept>,
    failed: Vec<Failed>,
    epoch: u64,
    in_transactions: bool,
}

impl Writer {
    fn fenced(&self) -> Result<(), Error> {
        if self.in_transactions && self.broker.state().epoch != self.epoch {
            return Err(Error::new(Kind::Fenced, "there is a newer producer"));
        }
        Ok(())
    }
}

impl Producer for Writer {
    fn init(&mut self, _: Duration) -> Result<(), Error> {
        let mut state = self.broker.state();
        state.epoch += 1;
        self.epoch = state.epoch;
        Ok(())
    }

    fn committed(&mut self, store: &Store, _: Duration) -> Result<Option<String>, Error> {
        let place = (store.group.clone(), store.topic.clone());
        Ok(self.broker.state().positions.get(&place).cloned())
    }

    fn begin(&mut self) -> Result<(), Error> {
        self.fenced()
    }

    fn send(&mut self, outgoing: &Outgoing, from: usize) -> Sent {
        let (mut taken, mut act) = (0, None);
        let mut state = self.broker.state();
        for (index, record) in outgoing.records.iter().enumerate().skip(from) {
            taken += 1;
            let too_large = state
                .record_max
                .is_some_and(|max| outgoing.size_of(index) > max);
            let error = if too_large {
                Some(Error::new(Kind::TooLarge, "too large"))
            } else {
                state.record_faults.pop_front()
            };
            if let Some(error) = error {
                act = act.or_else(|| state.on_fault.take());
                let number = record.number;
                let topic = outgoing.topics[record.topic].clone();
                self.failed.push(Failed {
                    number,
                    topic,
                    error,
                });
                continue;
            }
            let names = outgoing.header_names.iter().cloned();
            let values = outgoing.headers_of(index).iter();
            let values = values.map(|range| outgoing.slice(range).to_vec());
            let kept = Kept {
                topic: outgoing.topics[record.topic].clone(),
                key: record.key.as_ref().map(|key| outgoing.slice(key).to_vec()),
                value: outgoing.slice(&record.value).to_vec(),
                timestamp: record.timestamp,
                headers: names.zip(values).collect(),
            };
            if self.in_transactions {
                self.open.push(kept);
            } else {
                state.kept.push(kept);
            }
        }
        drop(state);
        if let Some(act) = act {
            act(&self.broker);
        }
        Sent {
            taken,
            refused: None,
        }
    }

    fn serve(&mut self, _: Duration) {}

    fn flush(&mut self, _: Duration) {}

    fn in_flight(&self) -> usize {
        0
    }

    fn take_failed(&mut self) -> Vec<Failed> {
        std::mem::take(&mut self.failed)
    }

    fn commit(&mut self, store: &Store, text: &str, _: i64, _: Duration) -> Result<(), Error> {
        self.fenced()?;
        let mut state = self.broker.state();
        if let Some(error) = state.commit_faults.pop_front() {
            let act = state.on_fault.take();
            drop(state);
            if let Some(act) = act {
                act(&self.broker);
            }
            return Err(error);
        }
        state.kept.append(&mut self.open);
        let place = (store.group.clone(), store.topic.clone());
        state.positions.insert(place, text.to_owned());
        match state.commit_doubts.pop_front() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn abort(&mut self, _: Duration) -> Result<(), Error> {
        self.open.clear();
        self.fenced()
    }

    fn record_max(&mut self, _: &str, _: Duration) -> Result<usize, Error> {
        let max = self.broker.state().record_max;
        max.ok_or_else(|| Error::new(Kind::Refused, "no limit"))
    }

    fn make_topic(&mut self, _: &str, _: Duration) -> Result<(), Error> {
        Ok(())
    }

    fn complaint(&mut self) -> Option<String> {
        None
    }
}

/// Topics have one partition each, number 0.
struct Reader {
    broker: Broker,
    next: BTreeMap<Partition, u64>,
    paused: bool,
    ended: Vec<Partition>,
}

impl Reader {
    fn of(&self, partition: &Partition) -> Vec<Kept> {
        let state = self.broker.state();
        let kept = state.kept.iter();
        kept.filter(|kept| kept.topic == partition.topic)
            .cloned()
            .collect()
    }
}

impl Consumer for Reader {
    fn subscribe(&mut self, topics: &[String]) -> Result<(), Error> {
        let all = self.partitions(topics, Duration::ZERO)?;
        self.broker.rebalance(Polled::Assigned(all));
        Ok(())
    }

    fn partitions(&mut self, topics: &[String], _: Duration) -> Result<Vec<Partition>, Error> {
        let topics = Topics::new(topics)?;
        let state = self.broker.state();
        let taken = state.kept.iter().filter(|kept| topics.takes(&kept.topic));
        let mut all: Vec<_> = taken
            .map(|kept| Partition {
                topic: kept.topic.clone(),
                number: 0,
            })
            .collect();
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    fn cluster(&mut self, _: Duration) -> Result<String, Error> {
        Ok("fake".to_owned())
    }

    fn committed(
        &mut self,
        partitions: &[Partition],
        _: Duration,
    ) -> Result<Vec<Option<u64>>, Error> {
        let state = self.broker.state();
        let offsets = partitions.iter();
        Ok(offsets
            .map(|partition| state.offsets.get(partition).copied())
            .collect())
    }

    fn bounds(&mut self, partition: &Partition, _: Duration) -> Result<(u64, u64), Error> {
        Ok((0, self.of(partition).len() as u64))
    }

    fn offset_at(&mut self, partition: &Partition, time: i64, _: Duration) -> Result<u64, Error> {
        let all = self.of(partition);
        let found = all.iter().position(|kept| kept.timestamp >= time);
        Ok(found.unwrap_or(all.len()) as u64)
    }

    fn assign(&mut self, partitions: &[(Partition, u64)]) -> Result<(), Error> {
        self.next.extend(partitions.iter().cloned());
        Ok(())
    }

    fn unassign(&mut self, partitions: &[Partition]) -> Result<(), Error> {
        for partition in partitions {
            self.next.remove(partition);
        }
        Ok(())
    }

    fn poll(
        &mut self,
        wait: Duration,
        take: &mut dyn FnMut(Incoming<'_>) -> Taken,
    ) -> Result<Polled, Error> {
        if let Some(decided) = self.broker.state().rebalances.pop_front() {
            return Ok(decided);
        }
        let mut partitions: Vec<Partition> = self.next.keys().cloned().collect();
        if self.paused {
            partitions.clear();
        }
        for partition in partitions {
            let all = self.of(&partition);
            let mut at = self.next[&partition];
            while let Some(kept) = all.get(at as usize) {
                let headers: Vec<_> = kept.headers.iter().collect();
                let headers: Vec<_> = headers
                    .iter()
                    .map(|(name, value)| (name.as_str(), Some(value.as_slice())))
                    .collect();
                let taken = take(Incoming {
                    topic: &kept.topic,
                    partition: 0,
                    offset: at,
                    timestamp: Some(kept.timestamp),
                    key: kept.key.as_deref(),
                    value: Some(&kept.value),
                    headers: &headers,
                });
                at += 1;
                self.next.insert(partition.clone(), at);
                self.ended.retain(|ended| *ended != partition);
                if taken == Taken::Enough {
                    return Ok(Polled::Records);
                }
            }
            if !self.ended.contains(&partition) {
                self.ended.push(partition);
                return Ok(Polled::End(0));
            }
        }
        thread::sleep(wait.min(Duration::from_millis(5)));
        Ok(Polled::Records)
    }

    fn commit(&mut self, offsets: &[(Partition, u64)], _: bool) -> Result<(), Error> {
        let mut state = self.broker.state();
        state.offsets.extend(offsets.iter().cloned());
        state.commits.extend(offsets.iter().cloned());
        Ok(())
    }

    fn pause(&mut self, paused: bool) -> Result<(), Error> {
        self.paused = paused;
        Ok(())
    }

    fn close(&mut self) {}

    fn complaint(&mut self) -> Option<String> {
        None
    }
}
