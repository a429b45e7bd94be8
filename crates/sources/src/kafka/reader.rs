//! The reading thread. It owns the consumer, and may block.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `[read] -> decode -> send -> keep -> read back -> process -> encode -> write -> settle`

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use millstream_kafka::{Connect, Consumer, Error, Kind, Partition, Polled};
use millstream_net::ClientFiles;
use millstream_pipeline::{
    condition::{Condition, Trouble},
    failure::Failure,
    node::SourceContext,
    threads::own_thread,
};
use millstream_record::{FileId, Values};
use tokio::{sync::mpsc, time::timeout};

use super::{
    gather::{Gather, PIECE_BYTES, PartitionBatch, Piece, Reading},
    identity::identity,
    options::{Config, Partitions},
    progress::{Assigned, Progress},
    start::{self, ANSWER, Known, lowest_kept},
    waiting::{Place, Waiting},
};
use crate::tagging::Tagging;

/// How long one poll waits for records.
const WAIT: Duration = Duration::from_millis(50);
/// If the data thread accepts nothing for this long, reading is paused. A pause discards the records that the client has
/// prefetched, so a short stall must not cause a pause.
const PAUSE_AFTER: Duration = Duration::from_secs(1);
/// The interval at which settled offsets are committed.
const COMMIT: Duration = Duration::from_secs(1);
/// How long the records of a revoked partition may take to be settled. If they take longer, a sink is probably down, and the
/// partition is released. The next owner of the partition then reads the unsettled records again.
const REVOKE_WAIT: Duration = Duration::from_secs(30);
/// The interval at which new partitions are looked for.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// The interval at which the progress of the data thread is checked.
const STEP: Duration = Duration::from_millis(5);
/// The longest pause before a retry. The first pause is [`STEP`], and each further pause is twice as long.
const RETRY: Duration = Duration::from_secs(1);
/// How long a question may take that is asked while records may be waiting to be read.
const ASK: Duration = Duration::from_millis(200);

/// The offset of each partition that can be read now, and a batch without records for each partition
/// whose offset in the channel must be set back.
type Found = (Vec<(Partition, u64)>, Vec<PartitionBatch>);

/// The reading thread.
pub(super) struct Reader {
    config: Arc<Config>,
    client: Arc<dyn Connect>,
    context: SourceContext,
    progress: Arc<Progress>,
    cluster: String,
    /// Raised while no broker answers.
    failing: Condition,
    /// When to ask whether a broker answers again.
    ask_at: Instant,
    readings: HashMap<Partition, Reading>,
    waiting: Waiting,
    /// The number of assignments so far.
    time: u64,
    /// The last committed offsets.
    committed: HashMap<Partition, u64>,
    /// With `--once`: how many partitions have reached their end, by partition number. Partitions of different topics can have
    /// the same number.
    ends: HashMap<i32, usize>,
    files: Option<Files>,
}

/// Reports how the thread has ended, even when it panics.
struct EndGuard(Arc<Progress>, Option<Result<(), Failure>>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        let panicked = || Err(Failure::us("the reading thread panicked"));
        self.0.end(self.1.take().unwrap_or_else(panicked));
    }
}

/// The files of the option `tls`. The client reads them only when it is made.
struct Files {
    files: ClientFiles,
    /// The value of [`ClientFiles::changes`] when the client was made.
    changes: u64,
}

impl Reader {
    pub(super) fn new(
        config: Arc<Config>,
        client: Arc<dyn Connect>,
        context: SourceContext,
        progress: Arc<Progress>,
    ) -> Self {
        Self {
            config,
            client,
            failing: context.reporter.condition("kafka"),
            ask_at: Instant::now(),
            waiting: Waiting::new(&context.reporter),
            context,
            progress,
            cluster: String::new(),
            readings: HashMap::new(),
            time: 0,
            committed: HashMap::new(),
            ends: HashMap::new(),
            files: None,
        }
    }

    /// Starts the thread. It ends when the source stops or the receiver of the pieces is dropped.
    pub(super) fn start(mut self, pieces: mpsc::Sender<Piece>) -> Result<(), Failure> {
        let name = self.context.name.clone();
        let started = own_thread(&name, async move || {
            let mut guard = EndGuard(self.progress.clone(), None);
            let end = self.run(pieces).await;
            guard.1 = Some(end.map_err(|error| match error.kind {
                Kind::Settings => Failure::config(format!("Kafka: {error}")),
                _ => Failure::peer(format!("Kafka: {error}")),
            }));
        });
        started
            .map(drop)
            .map_err(|error| Failure::us(format!("cannot start the reading thread: {error}")))
    }

    async fn run(&mut self, pieces: mpsc::Sender<Piece>) -> Result<(), Error> {
        if self.context.stop.is_stopped() {
            return Ok(());
        }
        // Files that cannot be read are reported by the client.
        let files = self.config.tls.as_ref().and_then(|tls| tls.read()?.ok());
        self.files = files.map(|files| Files {
            changes: files.changes(),
            files,
        });
        let settings = self.config.settings(self.context.once);
        let mut consumer = self.client.consumer(&settings)?;
        let read = self.read(&mut *consumer, &pieces).await;
        drop(pieces);
        while !self.progress.is_landed() {
            tokio::time::sleep(STEP).await;
        }
        self.commit_all(&mut *consumer).await;
        consumer.close();
        read
    }

    /// Commits for the last time. A group accepts no offsets during a rebalance, so this retries for a while. If it never
    /// succeeds, the next reader of the partitions begins earlier, and no record is lost.
    async fn commit_all(&mut self, consumer: &mut dyn Consumer) {
        let until = Instant::now() + ANSWER;
        let all: Vec<Partition> = self.readings.keys().cloned().collect();
        while let Err(error) = self.commit(consumer, &all, true) {
            if error.kind != Kind::Again || Instant::now() >= until {
                let text = format_args!(
                    "cannot commit: {error}; the next reader of {} partitions begins earlier",
                    all.len()
                );
                self.context.reporter.warn("commit", text);
                return;
            }
            tokio::time::sleep(STEP).await;
        }
    }

    async fn read(
        &mut self,
        consumer: &mut dyn Consumer,
        pieces: &mpsc::Sender<Piece>,
    ) -> Result<(), Error> {
        if !self.find_cluster(consumer).await? {
            return Ok(());
        }
        if self.config.partitions.is_none() {
            consumer.subscribe(&self.config.topics)?;
        }
        let (mut look_at, mut commit_at) = (Instant::now(), Instant::now() + COMMIT);
        let (mut paused, mut held) = (false, VecDeque::new());
        while !self.is_over(pieces) {
            if self.config.partitions.is_some() && look_at <= Instant::now() {
                self.look(consumer, pieces).await?;
                look_at = Instant::now() + self.pause_between_looks();
            }
            let room = timeout(PAUSE_AFTER, pieces.reserve()).await;
            let Ok(room) = room else {
                // Polling must continue, because it also handles rebalances. The partitions are paused first. Partitions that are
                // assigned meanwhile are not paused yet, so a poll may still return records.
                paused = true;
                consumer.pause(true)?;
                held.extend(self.poll(consumer, None, Duration::ZERO).await?);
                continue;
            };
            let Ok(room) = room else { break };
            if let Some(piece) = held.pop_front() {
                room.send(piece);
                continue;
            }
            if std::mem::take(&mut paused) {
                consumer.pause(false)?;
            }
            if let Some(piece) = self.poll(consumer, Some(PIECE_BYTES), WAIT).await? {
                room.send(piece);
            }
            if commit_at <= Instant::now() {
                commit_at = Instant::now() + COMMIT;
                let all: Vec<Partition> = self.readings.keys().cloned().collect();
                self.commit_early(consumer, &all);
            }
            if self.waiting.is_due() {
                self.begin_waiting(consumer, pieces).await?;
            }
            self.watch(consumer);
        }
        Ok(())
    }

    /// Reports what the client complains about, and whether brokers can be reached again.
    fn watch(&mut self, consumer: &mut dyn Consumer) {
        if let Some(complaint) = consumer.complaint() {
            self.context.reporter.warn("client", complaint);
        }
        if self.failing.holds() && self.ask_at <= Instant::now() {
            if consumer.partitions(&self.config.topics, ASK).is_ok() {
                self.failing.clear();
            }
            self.ask_at = Instant::now() + RETRY;
        }
    }

    fn is_over(&self, pieces: &mpsc::Sender<Piece>) -> bool {
        let mut numbers: HashMap<i32, usize> = HashMap::new();
        for partition in self.readings.keys() {
            *numbers.entry(partition.number).or_default() += 1;
        }
        let met = |(number, count): (&i32, &usize)| self.ends.get(number).unwrap_or(&0) >= count;
        if self.has_new_files() {
            return true;
        }
        let is_whole = !numbers.is_empty() && self.waiting.is_empty();
        let at_end = self.context.once && is_whole && numbers.iter().all(met);
        at_end || self.context.stop.is_stopped() || pieces.is_closed()
    }

    /// Whether the files of the option `tls` have changed since the client was made. The source then starts again with a new client.
    fn has_new_files(&self) -> bool {
        let is_new = |files: &Files| files.files.changes() != files.changes;
        if !self.files.as_ref().is_some_and(is_new) {
            return false;
        }
        if !self.progress.begins_again() {
            let text = "certificates have changed on the disk and are read again";
            self.context.reporter.info("certificates", text);
            self.progress.begin_again();
        }
        true
    }

    fn pause_between_looks(&self) -> Duration {
        if self.readings.is_empty() && self.waiting.is_empty() {
            RETRY
        } else {
            LOOK_AGAIN
        }
    }

    /// Waits for a broker, and asks for the id of its cluster. Returns false if the source stops.
    async fn find_cluster(&mut self, consumer: &mut dyn Consumer) -> Result<bool, Error> {
        let mut pause = STEP;
        while !(self.context.stop.is_stopped() || self.has_new_files()) {
            match consumer.cluster(RETRY) {
                Ok(cluster) => {
                    self.cluster = cluster;
                    self.failing.clear();
                    return Ok(true);
                }
                Err(error) if error.kind == Kind::Again => {
                    let why = consumer.complaint().unwrap_or_else(|| error.to_string());
                    self.failing
                        .raise(Trouble::Retrying, format_args!("{why}; retrying"));
                    self.back_off(&mut pause).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Polls once, with room for `size` bytes. `None` means that the partitions are paused. The poll then serves rebalances, and
    /// rarely returns records.
    async fn poll(
        &mut self,
        consumer: &mut dyn Consumer,
        size: Option<usize>,
        wait: Duration,
    ) -> Result<Option<Piece>, Error> {
        let buffer = match size {
            Some(size) => self.context.pool.reserve(size).await,
            None => self.context.pool.take(0),
        };
        let config = self.config.clone();
        let mut gather = Gather::new(&config, &mut self.readings, buffer);
        let polled = consumer.poll(wait, &mut |record| gather.add(record))?;
        let revoked: &[Partition] = match &polled {
            Polled::Revoked { partitions, .. } => partitions,
            _ => &[],
        };
        let mut piece = gather.finish(revoked);
        match polled {
            Polled::Records if piece.is_some() => drop(self.failing.clear()),
            Polled::Records => {}
            Polled::Unreachable => {
                let why = consumer.complaint();
                let why = why.as_deref().unwrap_or("no broker can be reached");
                self.failing
                    .raise(Trouble::Retrying, format_args!("{why}; retrying"));
                self.ask_at = Instant::now() + RETRY;
            }
            Polled::End(number) => *self.ends.entry(number).or_default() += 1,
            Polled::Assigned(partitions) => {
                let anew = self.begin(consumer, &partitions).await?;
                if !anew.is_empty() {
                    piece.get_or_insert_default().batches.extend(anew);
                }
            }
            Polled::Revoked { partitions, lost } => {
                self.revoke(consumer, &partitions, lost).await?;
            }
        }
        Ok(piece)
    }

    /// Begins to read fixed partitions that are not read yet.
    async fn look(
        &mut self,
        consumer: &mut dyn Consumer,
        pieces: &mpsc::Sender<Piece>,
    ) -> Result<(), Error> {
        let found = match consumer.partitions(&self.config.topics, ANSWER) {
            Ok(found) => {
                self.failing.clear();
                found
            }
            Err(error) if error.kind == Kind::Again => {
                self.failing
                    .raise(Trouble::Retrying, format_args!("{error}; retrying"));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let wanted = |partition: &Partition| match &self.config.partitions {
            Some(Partitions::Numbers(numbers)) => numbers.contains(&partition.number),
            _ => true,
        };
        let new = found.into_iter().filter(wanted);
        let new: Vec<_> = new
            .filter(|partition| !self.readings.contains_key(partition))
            .filter(|partition| !self.waiting.contains(partition))
            .collect();
        if new.is_empty() {
            if self.readings.is_empty() && self.waiting.is_empty() {
                let topics = self.config.topics.join(", ");
                self.context
                    .reporter
                    .warn("topics", format_args!("{topics} has no partition yet"));
            }
            return Ok(());
        }
        let anew = self.begin(consumer, &new).await?;
        if !anew.is_empty() {
            // Fails only if the receiver is dropped.
            let _ = pieces.send(Piece { batches: anew }).await;
        }
        Ok(())
    }

    /// Begins to read partitions. A partition that cannot be read yet holds up no other one.
    /// Returns a batch without records for each partition whose offset in the channel must be set
    /// back.
    async fn begin(
        &mut self,
        consumer: &mut dyn Consumer,
        partitions: &[Partition],
    ) -> Result<Vec<PartitionBatch>, Error> {
        self.time += 1;
        let committed = self.committed(consumer, partitions).await?;
        self.waiting.add(partitions.iter().cloned().zip(committed));
        let (offsets, anew) = self.find(consumer)?;
        consumer.assign(&offsets)?;
        self.commit_early(consumer, partitions);
        Ok(anew)
    }

    /// Begins to read those of the waiting partitions that can be read now.
    async fn begin_waiting(
        &mut self,
        consumer: &mut dyn Consumer,
        pieces: &mpsc::Sender<Piece>,
    ) -> Result<(), Error> {
        let (offsets, anew) = self.find(consumer)?;
        if offsets.is_empty() {
            return Ok(());
        }
        consumer.assign(&offsets)?;
        let begun: Vec<Partition> = offsets.into_iter().map(|(begun, _)| begun).collect();
        self.commit_early(consumer, &begun);
        if !anew.is_empty() {
            // Fails only if the receiver is dropped.
            let _ = pieces.send(Piece { batches: anew }).await;
        }
        Ok(())
    }

    /// The offset that the group has committed for each partition. It is not asked for where the
    /// channel's offset counts: then a group without a coordinator holds up nothing.
    async fn committed(
        &self,
        consumer: &mut dyn Consumer,
        partitions: &[Partition],
    ) -> Result<Vec<Option<u64>>, Error> {
        let is_kept = |partition| {
            let id = identity(&self.cluster, partition);
            lowest_kept(&self.context.outlet, id).is_some()
        };
        if self.config.partitions.is_some() && partitions.iter().all(is_kept) {
            return Ok(vec![None; partitions.len()]);
        }
        self.patiently(|| consumer.committed(partitions, ANSWER))
            .await
    }

    /// Finds where the waiting partitions begin.
    fn find(&mut self, consumer: &mut dyn Consumer) -> Result<Found, Error> {
        let (fixed, rule) = (self.config.partitions.is_some(), self.config.start);
        let (cluster, outlet) = (&self.cluster, &self.context.outlet);
        let known = |(partition, committed): &Place| Known {
            committed: *committed,
            kept: lowest_kept(outlet, identity(cluster, partition)),
            fixed,
        };
        let find = |consumer: &mut dyn Consumer, place: &Place, answer| {
            start::find(consumer, &place.0, known(place), rule, answer)
        };
        let found = self.waiting.find(consumer, self.context.once, find)?;
        let (mut offsets, mut anew) = (Vec::new(), Vec::new());
        let with_known = |(place, begin): (Place, _)| (known(&place), place.0, begin);
        let found: Vec<_> = found.into_iter().map(with_known).collect();
        for (known, partition, begin) in found {
            let id = identity(&self.cluster, &partition);
            let marks = self.context.outlet.file_marks(id);
            if let Some(warning) = begin.warning {
                self.context.reporter.error("offset", warning);
            }
            let reading = self.reading(&partition, id, begin.offset, marks);
            self.progress.assign(reading.of.clone(), begin.offset);
            if begin.anew {
                anew.push(PartitionBatch::empty(&reading));
            }
            if known.offset() != Some(begin.offset) {
                // Commit the offset, so that the result of `start` still holds after a crash.
                self.committed.remove(&partition);
            } else {
                self.committed.insert(partition.clone(), begin.offset);
            }
            self.readings.insert(partition.clone(), reading);
            offsets.push((partition, begin.offset));
        }
        Ok((offsets, anew))
    }

    /// Retries until a broker answers, or the source stops.
    async fn patiently<T>(&self, mut ask: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        let mut pause = STEP;
        loop {
            match ask() {
                Err(error) if error.kind == Kind::Again && !self.context.stop.is_stopped() => {
                    self.failing
                        .raise(Trouble::Retrying, format_args!("{error}; retrying"));
                    self.back_off(&mut pause).await;
                }
                Err(error) => return Err(error),
                Ok(answer) => {
                    self.failing.clear();
                    return Ok(answer);
                }
            }
        }
    }

    /// Waits for `pause`, or until the source stops, and doubles the pause.
    async fn back_off(&self, pause: &mut Duration) {
        let mut stop = self.context.stop.clone();
        tokio::select! {
            () = tokio::time::sleep(*pause) => {}
            () = stop.stopped() => {}
        }
        *pause = (*pause * 2).min(RETRY);
    }

    fn reading(&self, partition: &Partition, id: FileId, next: u64, marks: Vec<u64>) -> Reading {
        let mut values = Values::new();
        let broker = self.config.brokers.first().map_or("", String::as_str);
        let host = broker.rsplit_once(':').map_or(broker, |(host, _)| host);
        values.set("host", host);
        values.set("topic", partition.topic.as_str());
        values.set("partition", partition.number.to_string());
        // The options were checked at the start.
        let tagging = self.config.tagging().unwrap_or(Tagging::Given);
        Reading {
            of: Assigned {
                partition: partition.clone(),
                time: self.time,
            },
            id,
            tag: tagging.tag(&self.context.name, None, &values),
            values: Arc::new(values),
            next,
            sent: next,
            marks,
        }
    }

    /// Releases partitions after the records read from them are settled and committed, or after [`REVOKE_WAIT`].
    async fn revoke(
        &mut self,
        consumer: &mut dyn Consumer,
        partitions: &[Partition],
        lost: bool,
    ) -> Result<(), Error> {
        let until = Instant::now() + REVOKE_WAIT;
        let is_unsettled = |reader: &Self| {
            partitions.iter().any(|partition| {
                let reading = reader.readings.get(partition);
                reading.is_some_and(|reading| {
                    let settled = reader.progress.settled(&reading.of);
                    settled.is_some_and(|settled| settled < reading.sent)
                })
            })
        };
        while !lost && is_unsettled(self) && Instant::now() < until && !self.progress.is_landed() {
            tokio::time::sleep(STEP).await;
        }
        if !lost && let Err(error) = self.commit(consumer, partitions, true) {
            let text = format_args!(
                "cannot commit: {error}; the next owner of these partitions reads some records again"
            );
            self.context.reporter.warn("commit", text);
        }
        consumer.unassign(partitions)?;
        for partition in partitions {
            if let Some(reading) = self.readings.remove(partition) {
                self.progress.unassign(&reading.of);
            }
            self.committed.remove(partition);
            self.waiting.remove(partition);
        }
        self.ends.clear();
        Ok(())
    }

    /// Commits the settled offsets of these partitions before the end. A failure costs nothing but
    /// a repeat after a restart.
    fn commit_early(&mut self, consumer: &mut dyn Consumer, partitions: &[Partition]) {
        if let Err(error) = self.commit(consumer, partitions, false) {
            let text = format_args!("cannot commit: {error}; retrying");
            self.context.reporter.warn("commit", text);
        }
    }

    /// Commits the settled offsets of these partitions. Without `wait`, leaves out offsets that are already committed. With
    /// `wait`, commits all of them, and waits for the answer.
    fn commit(
        &mut self,
        consumer: &mut dyn Consumer,
        partitions: &[Partition],
        wait: bool,
    ) -> Result<(), Error> {
        let settled = |partition: &Partition| {
            let reading = self.readings.get(partition)?;
            let settled = self.progress.settled(&reading.of)?;
            let is_new = self.committed.get(partition) != Some(&settled);
            (is_new || wait).then(|| (partition.clone(), settled))
        };
        let offsets: Vec<_> = partitions.iter().filter_map(settled).collect();
        consumer.commit(&offsets, wait)?;
        self.committed.extend(offsets);
        Ok(())
    }
}
