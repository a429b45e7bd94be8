//! A reader of the broker in memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
    time::Duration,
};

use super::{Broker, Kept};
use crate::{Consumer, Error, Incoming, Kind, Partition, Polled, Taken, Topics};

/// The consumer. Each topic has one partition, number 0.
pub(super) struct Reader {
    broker: Broker,
    next: BTreeMap<Partition, u64>,
    paused: bool,
    ended: Vec<Partition>,
}

impl Reader {
    pub(super) fn new(broker: Broker) -> Self {
        Self {
            broker,
            next: BTreeMap::new(),
            paused: false,
            ended: Vec::new(),
        }
    }

    /// All records of a partition.
    fn all(&self, partition: &Partition) -> Vec<Kept> {
        let state = self.broker.state();
        let kept = state.kept.iter();
        kept.filter(|kept| kept.topic == partition.topic)
            .cloned()
            .collect()
    }

    /// The records before the open transaction.
    fn of(&self, partition: &Partition) -> Vec<Kept> {
        let mut all = self.all(partition);
        let open = self.broker.state().open;
        all.truncate(all.len().saturating_sub(open));
        all
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
        let mut state = self.broker.state();
        state.offsets_asked += 1;
        if state.offsets_away {
            return Err(Error::new(Kind::Again, "the broker is away"));
        }
        let offsets = partitions.iter();
        Ok(offsets
            .map(|partition| state.offsets.get(partition).copied())
            .collect())
    }

    fn without_leader(
        &mut self,
        partitions: &[Partition],
        _: Duration,
    ) -> Result<BTreeSet<Partition>, Error> {
        let state = self.broker.state();
        let all = partitions.iter();
        let headless = all.filter(|partition| state.leaderless.contains(&partition.topic));
        Ok(headless.cloned().collect())
    }

    fn bounds(&mut self, partition: &Partition, timeout: Duration) -> Result<(u64, u64), Error> {
        let state = self.broker.state();
        if state.leaderless.contains(&partition.topic) || state.silent.contains(&partition.topic) {
            drop(state);
            thread::sleep(timeout);
            return Err(Error::new(Kind::Again, "no answer in time"));
        }
        drop(state);
        Ok((0, self.of(partition).len() as u64))
    }

    fn end(&mut self, partition: &Partition, _: Duration) -> Result<u64, Error> {
        Ok(self.all(partition).len() as u64)
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
