//! A broker in memory, for tests: written records can be read, transactions are atomic, and operations fail when a test
//! asks for it.

mod reader;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::{
    Connect, Consumer, Error, Failed, Kind, Outgoing, Partition, Polled, Producer, ProducerOptions,
    Record, Sent, Settings, Store,
};
use reader::Reader;

/// A stored record.
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
pub struct Broker(Arc<Mutex<Cluster>>);

/// A test's reaction to a fault.
type OnFault = Box<dyn FnOnce(&Broker) + Send>;

/// Runs when a producer calls `init`; an error fails the call.
type OnInit = Box<dyn FnOnce(&Broker) -> Result<(), Error> + Send>;

/// Selects the values that the broker rejects permanently. `named`: the error names the bad records.
struct Verdict {
    bad: fn(&[u8]) -> bool,
    named: bool,
}

/// The errors of the next operations, in order.
type Faults = VecDeque<Error>;

#[derive(Default)]
struct Cluster {
    /// The committed records, in order.
    kept: Vec<Kept>,
    positions: BTreeMap<(String, String), String>,
    /// Positions whose transactions are not completed yet.
    unstable: BTreeMap<(String, String), String>,
    /// The epoch of the producer that may write. Every `init` increments it.
    epoch: u64,
    /// Errors for the next commits, returned before anything is committed.
    commit_faults: Faults,
    /// Errors for the next commits, returned after the commit.
    commit_doubts: Faults,
    /// Errors for the next records that would otherwise be accepted, one error per record.
    record_faults: Faults,
    on_fault: Option<OnFault>,
    on_inits: VecDeque<OnInit>,
    verdict: Option<Verdict>,
    /// The broker does not answer: records stay in flight.
    away: bool,
    /// The time that a record takes, and the largest timeout of a transaction. Transactions that
    /// exceed their timeout are then aborted.
    slow: Option<(Duration, Duration)>,
    record_max: Option<usize>,
    /// The number of records at the end of each topic that belong to an open transaction.
    open: usize,
    /// Errors for the next requests for a topic's record limit.
    limit_faults: Faults,
    /// Whether requests for committed offsets fail.
    offsets_away: bool,
    offsets_asked: usize,
    producers: Vec<ProducerOptions>,
    offsets: BTreeMap<Partition, u64>,
    /// The topics whose partition has no leader.
    leaderless: BTreeSet<String>,
    /// The topics for whose partition the leader does not answer.
    silent: BTreeSet<String>,
    rebalances: VecDeque<Polled>,
    commits: Vec<(Partition, u64)>,
}

impl Broker {
    /// All records that readers of committed records see, in order.
    pub fn kept(&self) -> Vec<Kept> {
        self.state().kept.clone()
    }

    /// The values of all records, as text.
    pub fn values(&self) -> Vec<String> {
        let kept = self.kept().into_iter();
        kept.map(|kept| String::from_utf8_lossy(&kept.value).into_owned())
            .collect()
    }

    /// Stores a record as another producer would.
    pub fn put(&self, kept: Kept) {
        self.state().kept.push(kept);
    }

    /// The next commit fails with this error, and nothing is committed.
    pub fn fail_commit(&self, kind: Kind) {
        let error = Error::new(kind, "the test wants it");
        self.state().commit_faults.push_back(error);
    }

    /// The next commit succeeds, but reports this error.
    pub fn doubt_commit(&self, kind: Kind) {
        let error = Error::new(kind, "the test wants it");
        self.state().commit_doubts.push_back(error);
    }

    /// The next record that would otherwise be accepted fails with this error.
    pub fn fail_record(&self, kind: Kind) {
        let error = Error::new(kind, "the test wants it");
        self.state().record_faults.push_back(error);
    }

    /// The next request for the record limit of a topic fails with this error.
    pub fn fail_limit(&self, kind: Kind) {
        let error = Error::new(kind, "the test wants it");
        self.state().limit_faults.push_back(error);
    }

    /// Fails all requests for committed offsets immediately.
    pub fn refuse_offsets(&self) {
        self.state().offsets_away = true;
    }

    /// How often consumers requested committed offsets.
    pub fn offsets_asked(&self) -> usize {
        self.state().offsets_asked
    }

    /// Runs `act` right after the next failed commit or record.
    pub fn on_next_fault(&self, act: impl FnOnce(&Broker) + Send + 'static) {
        self.state().on_fault = Some(Box::new(act));
    }

    /// Runs `act` at the next `init` of a producer, before the `init` takes effect. Each further call adds an action for one more `init`.
    pub fn on_init(&self, act: impl FnOnce(&Broker) -> Result<(), Error> + Send + 'static) {
        self.state().on_inits.push_back(Box::new(act));
    }

    /// Permanently rejects batches that contain a value for which `bad` is true. With `named`, the error names the bad records,
    /// as current Kafka does. Without `named`, all records of the batch get the same error, as with older brokers. The records of
    /// one call are divided into batches of `batch_records` (an option of the producer).
    pub fn refuse(&self, named: bool, bad: fn(&[u8]) -> bool) {
        self.state().verdict = Some(Verdict { bad, named });
    }

    /// Stops or resumes acknowledging records.
    pub fn set_away(&self, away: bool) {
        self.state().away = away;
    }

    /// Takes `record` for each record, aborts transactions that exceed their timeout, and allows no
    /// larger timeout than `timeout_max`.
    pub fn set_slow(&self, record: Duration, timeout_max: Duration) {
        self.state().slow = Some((record, timeout_max));
    }

    /// Rejects batches that are larger than this.
    pub fn set_record_max(&self, bytes: usize) {
        self.state().record_max = Some(bytes);
    }

    /// The options of all producers, in the order in which they were created.
    pub fn producers(&self) -> Vec<ProducerOptions> {
        self.state().producers.clone()
    }

    /// Consumers do not see the last `records` records of each topic, because they belong to an open transaction.
    pub fn set_open(&self, records: usize) {
        self.state().open = records;
    }

    /// Sets the position (the text that a sink commits for a group and topic) as another producer would.
    pub fn set_position(&self, group: &str, topic: &str, text: &str) {
        let place = (group.to_owned(), topic.to_owned());
        self.state().positions.insert(place, text.to_owned());
    }

    /// Sets a position whose transaction is not completed yet. A stable read completes the transaction and returns the position. Other
    /// reads return the previous position.
    pub fn set_unstable_position(&self, group: &str, topic: &str, text: &str) {
        let place = (group.to_owned(), topic.to_owned());
        self.state().unstable.insert(place, text.to_owned());
    }

    /// All positions: group, topic, text.
    pub fn positions(&self) -> Vec<(String, String, String)> {
        let state = self.state();
        let all = state.positions.iter();
        all.map(|((group, topic), text)| (group.clone(), topic.clone(), text.clone()))
            .collect()
    }

    /// Adds a decision of the consumer group, for one of the next polls.
    pub fn rebalance(&self, decided: Polled) {
        self.state().rebalances.push_back(decided);
    }

    /// The partition of a topic loses its leader, or has one again.
    pub fn set_leader(&self, topic: &str, led: bool) {
        set(&mut self.state().leaderless, topic, !led);
    }

    /// The leader of a topic's partition stops to answer, or answers again.
    pub fn set_answers(&self, topic: &str, answers: bool) {
        set(&mut self.state().silent, topic, !answers);
    }

    /// All committed offsets, in order.
    pub fn commits(&self) -> Vec<(Partition, u64)> {
        self.state().commits.clone()
    }

    fn state(&self) -> MutexGuard<'_, Cluster> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn set(topics: &mut BTreeSet<String>, topic: &str, contained: bool) {
    if contained {
        topics.insert(topic.to_owned());
    } else {
        topics.remove(topic);
    }
}

impl Connect for Broker {
    fn producer(&self, options: ProducerOptions) -> Result<Box<dyn Producer>, Error> {
        let mut state = self.state();
        state.producers.push(options.clone());
        let epoch = state.epoch;
        Ok(Box::new(Writer {
            broker: self.clone(),
            open: Vec::new(),
            failed: Vec::new(),
            waiting: Vec::new(),
            epoch,
            batch: options.batch_records,
            batch_bytes: options.batch_bytes,
            in_transactions: options.transactional_id.is_some(),
            timeout: options.transaction_timeout,
            begun: Instant::now(),
        }))
    }

    fn consumer(&self, _: &Settings) -> Result<Box<dyn Consumer>, Error> {
        Ok(Box::new(Reader::new(self.clone())))
    }
}

struct Writer {
    broker: Broker,
    open: Vec<Kept>,
    failed: Vec<Failed>,
    /// Records in flight, by their numbers.
    waiting: Vec<(usize, Kept)>,
    epoch: u64,
    /// The maximum numbers of records and of bytes in a batch.
    batch: usize,
    batch_bytes: usize,
    in_transactions: bool,
    /// The timeout of a transaction, and when the last one has begun.
    timeout: Duration,
    begun: Instant,
}

impl Writer {
    /// Divides the records of a range of indexes into batches.
    fn batches(&self, outgoing: &Outgoing, which: Range<usize>) -> Vec<Range<usize>> {
        let (mut batches, mut bytes) = (Vec::<Range<usize>>::new(), 0);
        for index in which {
            let size = outgoing.size_of(index);
            match batches.last_mut() {
                Some(last) if last.len() < self.batch && bytes + size <= self.batch_bytes => {
                    last.end += 1;
                    bytes += size;
                }
                _ => {
                    batches.push(index..index + 1);
                    bytes = size;
                }
            }
        }
        batches
    }

    /// For each record of a batch, the error that it causes, or that another record of the batch
    /// causes. `None` if the broker accepts the record.
    fn judge(state: &Cluster, outgoing: &Outgoing, batch: &Range<usize>) -> Vec<Option<Kind>> {
        let bytes: usize = batch.clone().map(|index| outgoing.size_of(index)).sum();
        if state.record_max.is_some_and(|max| bytes > max) {
            return vec![Some(Kind::TooLarge); batch.len()];
        }
        let records = outgoing.records.get(batch.clone()).unwrap_or_default();
        let Some(verdict) = &state.verdict else {
            return vec![None; batch.len()];
        };
        let bad = |record: &Record| (verdict.bad)(outgoing.slice(&record.value));
        let count = records.iter().filter(|record| bad(record)).count();
        let said = records.iter().map(|record| match (verdict.named, count) {
            (_, 0) => None,
            (true, _) if !bad(record) => Some(Kind::Neighbour),
            _ => Some(Kind::Suspect),
        });
        said.collect()
    }

    fn fenced(&self) -> Result<(), Error> {
        if self.in_transactions && self.broker.state().epoch != self.epoch {
            return Err(Error::new(Kind::Fenced, "there is a newer producer"));
        }
        Ok(())
    }
}

impl Producer for Writer {
    fn init(&mut self, _: Duration) -> Result<(), Error> {
        let act = self.broker.state().on_inits.pop_front();
        act.map_or(Ok(()), |act| act(&self.broker))?;
        let mut state = self.broker.state();
        if state.slow.is_some_and(|(_, max)| self.timeout > max) {
            return Err(Error::new(Kind::Settings, "INVALID_TRANSACTION_TIMEOUT"));
        }
        state.epoch += 1;
        self.epoch = state.epoch;
        Ok(())
    }

    fn committed(
        &mut self,
        store: &Store,
        stable: bool,
        _: Duration,
    ) -> Result<Option<String>, Error> {
        let place = (store.group.clone(), store.topic.clone());
        let mut state = self.broker.state();
        if stable && let Some(text) = state.unstable.remove(&place) {
            state.positions.insert(place.clone(), text);
        }
        Ok(state.positions.get(&place).cloned())
    }

    fn begin(&mut self) -> Result<(), Error> {
        self.begun = Instant::now();
        self.fenced()
    }

    fn send(&mut self, outgoing: &Outgoing, which: Range<usize>) -> Sent {
        let from = which.start;
        let (mut taken, mut act) = (0, None);
        let mut state = self.broker.state();
        let mut said = Vec::new();
        for batch in self.batches(outgoing, which.clone()) {
            let kinds = Self::judge(&state, outgoing, &batch).into_iter();
            said.extend(kinds.map(|kind| (kind, batch.len() == 1)));
        }
        let records = outgoing.records.iter().enumerate();
        for (index, record) in records.skip(from).take(which.len()) {
            taken += 1;
            let (kind, alone) = said.get(index - from).copied().unwrap_or_default();
            let error = if let Some(kind) = kind {
                Some(Error::new(kind, "the broker will not have it"))
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
                    alone,
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
            if state.away {
                self.waiting.push((record.number, kept));
            } else if self.in_transactions {
                self.open.push(kept);
            } else {
                state.kept.push(kept);
            }
        }
        let slow = state.slow;
        drop(state);
        if let Some(act) = act {
            act(&self.broker);
        }
        if let Some((record, _)) = slow {
            thread::sleep(record.saturating_mul(u32::try_from(taken).unwrap_or(u32::MAX)));
        }
        Sent {
            taken,
            refused: None,
        }
    }

    fn serve(&mut self, wait: Duration) {
        let mut state = self.broker.state();
        if state.away {
            drop(state);
            thread::sleep(wait.min(Duration::from_millis(1)));
            return;
        }
        let arrived = self.waiting.drain(..).map(|(_, kept)| kept);
        if self.in_transactions {
            self.open.extend(arrived);
        } else {
            state.kept.extend(arrived);
        }
    }

    fn flush(&mut self, wait: Duration) {
        self.serve(wait);
    }

    fn in_flight(&self) -> usize {
        self.waiting.len()
    }

    fn take_failed(&mut self) -> Vec<Failed> {
        std::mem::take(&mut self.failed)
    }

    fn commit(&mut self, store: &Store, text: &str, _: i64, _: Duration) -> Result<(), Error> {
        self.fenced()?;
        let mut state = self.broker.state();
        if state.slow.is_some() && self.begun.elapsed() >= self.timeout {
            let text = "the transaction has timed out";
            return Err(Error::new(Kind::Fenced, text));
        }
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

    fn purge(&mut self) {
        let failed = self.waiting.drain(..).map(|(number, kept)| Failed {
            number,
            topic: kept.topic,
            alone: false,
            error: Error::new(Kind::Again, "the record was purged before it was sent"),
        });
        self.failed.extend(failed);
    }

    fn record_max(&mut self, _: &str, _: Duration) -> Result<usize, Error> {
        let mut state = self.broker.state();
        if let Some(fault) = state.limit_faults.pop_front() {
            return Err(fault);
        }
        let max = state.record_max;
        max.ok_or_else(|| Error::new(Kind::Refused, "no limit"))
    }

    fn make_topic(&mut self, _: &str, _: Duration) -> Result<(), Error> {
        Ok(())
    }

    fn cluster(&mut self, _: Duration) -> Result<String, Error> {
        Ok("fake".to_owned())
    }

    fn complaint(&mut self) -> Option<String> {
        None
    }
}
