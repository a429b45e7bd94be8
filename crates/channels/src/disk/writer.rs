//! The writer's thread: takes groups from the queue, keeps them with one commit, and settles their tokens.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> [keep] -> read back -> process -> encode -> write -> settle`
//!
//! While the writer writes and syncs, the groups of the next commit collect in the queue. Under load, commits are large and groups share
//! the cost of a sync. With little traffic, no group is delayed. A token is settled when its group is kept, and never before.

use std::{
    sync::{Arc, Mutex, PoisonError},
    task::{Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use millstream_pipeline::{
    channel::{Attached, BoxFuture, Consumer, Group, Note},
    condition::{Condition, Trouble},
    delivery::Token,
    failure::Failure,
    meters::{Meter, histogram::Histogram},
    node::ChannelContext,
    report::Reporter,
};
use millstream_record::{Batch, Position, Time};
use millstream_sys::disk::Disk;
use tokio::sync::oneshot;

use super::{
    abandoned::Abandoned,
    failure,
    gauges::Gauges,
    keep_clock::KeepClock,
    log::{Error, Log, Missing, Skipped, Watch},
    loss_report::LossReport,
    queue::{Entry, Queue, Request, Work},
    reader::DiskReader,
    segment_maker::SegmentMaker,
    skips::Skips,
    unkept::{Unkept, may_leave},
};

/// Approximate size of a commit. Beyond 1 MiB a sync does not get cheaper per byte, and acks would wait longer.
const COMMIT_BYTES: usize = 1 << 20;
/// The interval between retries while the disk or the channel is full. Progress of a consumer causes an earlier retry.
const RETRY: Duration = Duration::from_millis(200);
/// How often an idle channel checks its directory and its consumers.
const LOOK: Duration = Duration::from_secs(1);
/// A channel is reported as full only after this time, because under load a channel is often full for a short time.
const PATIENCE: Duration = Duration::from_secs(1);

/// On a full disk, a consumer that holds at least this share of the channel is named as the cause.
const HOLDS_PERCENT: u128 = 50;

/// A group up to this size, in bytes, may be kept on the thread of its source.
const NOW_BYTES_MAX: usize = 64 << 10;

/// Resolves when the writer has ended.
pub(super) type Finished = BoxFuture<'static, Result<(), Failure>>;

/// The writer; `None` once it is closed. Its thread holds the lock while it works, but not while it waits for work.
pub(super) type Shared = Mutex<Option<Writer>>;

pub(super) struct Writer {
    log: Log,
    clock: KeepClock,
    queue: Arc<Queue>,
    waiting: Unkept,
    maker: SegmentMaker,
    reporter: Reporter,
    /// Raised while there is no space in the channel or on the disk.
    room: Condition,
    /// Raised while the directory of the channel is missing.
    gone: Condition,
    records: Meter,
    bytes: Meter,
    batches: Meter,
    /// The durations of commits.
    commits: Histogram,
    busy: Meter,
    /// The groups that were taken from the queue and are not kept yet.
    unkept: Meter,
    /// When the last work arrived.
    began: Instant,
    /// Time spent waiting for space since `began`.
    waited: Duration,
    gauges: Gauges,
    skips: Skips,
    abandoned: Abandoned,
    context: ChannelContext,
    /// The consumers that have a reader or had one.
    consumers: Vec<Consumer>,
    missing: Arc<LossReport>,
}

/// Starts the thread. Returns the writer, and a future. The future completes when everything in the queue is kept and the log is closed.
pub(super) fn start(
    log: Log,
    (disk, queue, missing): (Arc<dyn Disk>, Arc<Queue>, Arc<LossReport>),
    context: ChannelContext,
    consumers: &[Consumer],
) -> Result<(Arc<Shared>, Finished), Failure> {
    let mut abandoned = Abandoned::new(&context);
    abandoned.look(&log, consumers);
    let writer = Writer {
        abandoned,
        clock: KeepClock::new(log.keep_time(), Time::now()),
        gauges: Gauges::new(&context, &log, disk.clone()),
        skips: Skips::new(&context, consumers, &log),
        log,
        queue: Arc::clone(&queue),
        waiting: Unkept::default(),
        maker: SegmentMaker::new(disk),
        reporter: context.reporter.clone(),
        room: context.reporter.condition("room"),
        gone: context.reporter.condition("gone"),
        records: context.meters.counter("records_received"),
        bytes: context.meters.counter("bytes_received"),
        batches: context.meters.counter("batches_received"),
        commits: context.meters.histogram("write_seconds"),
        busy: context.meters.counter("busy_microseconds"),
        unkept: context.meters.gauge("unkept_groups"),
        began: Instant::now(),
        waited: Duration::ZERO,
        consumers: consumers.to_vec(),
        missing,
        context,
    };
    let name = format!("keep {}", writer.context.name);
    let (watch, unkept) = (writer.log.watch(), writer.unkept.clone());
    let shared = Arc::new(Mutex::new(Some(writer)));
    let writer = Arc::clone(&shared);
    let (done, finished) = oneshot::channel();
    thread::Builder::new()
        .name(name)
        .spawn(move || {
            let mut end = EndGuard {
                result: Err("the writer of the channel has panicked".to_owned()),
                watch,
                unkept,
                queue: Arc::clone(&queue),
                writer: Arc::clone(&writer),
            };
            let Some(result) = run(&writer, &queue) else {
                return;
            };
            end.result = result.as_ref().map(|_| ()).map_err(ToString::to_string);
            drop(end);
            // The receiver may be gone.
            let _ = done.send(result.map_err(failure));
        })
        .map_err(|error| Failure::us(format!("no thread for the channel: {error}")))?;
    let finished = Box::pin(async move {
        finished
            .await
            .unwrap_or_else(|_| Err(Failure::us("the writer of the channel has panicked")))
    });
    Ok((shared, finished))
}

/// Tells producers and readers that the writer has ended, even if it panics.
struct EndGuard {
    result: Result<(), String>,
    watch: Watch,
    unkept: Meter,
    queue: Arc<Queue>,
    writer: Arc<Shared>,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        // Closes the log, unless that is done already.
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        drop({ writer }.take());
        self.unkept.set(0);
        self.queue.end(std::mem::replace(&mut self.result, Ok(())));
        self.watch.wake_readers();
    }
}

/// Runs the writer's thread. `None`: the writer has panicked on the thread of a source.
fn run(shared: &Shared, queue: &Arc<Queue>) -> Option<Result<(), Error>> {
    let waker = Waker::from(Arc::clone(queue));
    let mut idle = Duration::ZERO;
    loop {
        // While the thread waits here, sources may use the writer ([`keep_now`]).
        let work = queue.next_work(COMMIT_BYTES, idle);
        let mut slot = shared.lock().ok()?;
        let writer = slot.as_mut()?;
        match writer.work(work) {
            Ok(true) => idle = writer.rest(&waker),
            Ok(false) => return slot.take().map(Writer::close),
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Keeps a small group on the thread of its source, if the writer waits for work and can keep the group at once. This saves two
/// switches between threads. Otherwise returns the group. Call this only for a group whose flow has no other group in the queue.
pub(super) fn keep_now(shared: &Shared, queue: &Arc<Queue>, group: Group) -> Option<Group> {
    let Ok(mut slot) = shared.try_lock() else {
        return Some(group);
    };
    match slot.as_mut() {
        Some(writer) if writer.can_keep_now(&group, queue) => writer.keep_now(group),
        _ => return Some(group),
    }
    None
}

impl Writer {
    fn can_keep_now(&self, group: &Group, queue: &Queue) -> bool {
        let bytes = group.len();
        bytes <= NOW_BYTES_MAX
            && self.waiting.is_empty()
            && queue.is_idle()
            && self.log.can_keep_now(bytes as u64, self.clock.now())
    }

    fn keep_now(&mut self, group: Group) {
        let was_unsynced = self.log.is_unsynced();
        let kept = self.append(group).and_then(|()| self.commit());
        self.settle();
        // The thread of the writer handles failures, and syncs in time.
        if kept.is_err() || !was_unsynced {
            Arc::clone(&self.queue).wake();
        }
    }

    /// Does a piece of work. Returns false if there will be no more.
    fn work(&mut self, work: Work) -> Result<bool, Error> {
        self.begin(&work);
        self.wait_for_directory(work.closed)?;
        let mut syncs = Vec::new();
        for entry in work.entries {
            match entry {
                Entry::Group(group) => self.append(group)?,
                Entry::Note(Note::ConnectionClosed(id)) => self.log.close_connection(id, true),
                Entry::Note(Note::ConnectionBroken(id)) => self.log.close_connection(id, false),
                Entry::Sync(token) => syncs.push(token),
            }
        }
        if !self.keep()? {
            return Ok(false);
        }
        self.sync(syncs)?;
        self.maker.step(&mut self.log);
        self.measure();
        Ok(!work.closed)
    }

    /// Updates the gauges of the work that begins.
    fn begin(&mut self, work: &Work) {
        let groups = work.entries.iter();
        let groups = groups.filter(|entry| matches!(entry, Entry::Group(_)));
        self.unkept.set(groups.count() as u64);
        (self.began, self.waited) = (Instant::now(), Duration::ZERO);
    }

    /// Counts the batches of a group.
    fn count(&self, batches: &[Batch]) {
        let records = batches.iter().map(|batch| u64::from(batch.count)).sum();
        let bytes = batches.iter().map(|batch| batch.len() as u64).sum();
        self.records.add(records);
        self.bytes.add(bytes);
        self.batches.add(batches.len() as u64);
    }

    /// Prepares to wait for work: updates `busy` (adds the time since the last work arrived, minus the time spent waiting for space).
    /// Returns how long to wait.
    fn rest(&mut self, waker: &Waker) -> Duration {
        let busy = self.began.elapsed().saturating_sub(self.waited);
        self.busy
            .add(u64::try_from(busy.as_micros()).unwrap_or(u64::MAX));
        self.unkept.set(0);
        self.log.wake_on_settle(waker.clone());
        self.idle_time()
    }

    /// How long to wait for work.
    fn idle_time(&self) -> Duration {
        self.log.sync_due().map_or(LOOK, |due| {
            let nanos = due.0.saturating_sub(self.clock.now().0);
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)).min(LOOK)
        })
    }

    /// Waits while the directory of the channel is missing. Writes to a removed file are lost, so no group may be acknowledged in that
    /// time. `closed`: the queue is closed and empty. If the directory is missing, the call fails instead of waiting when `closed` is true
    /// or a stop has given up waiting.
    fn wait_for_directory(&mut self, closed: bool) -> Result<(), Error> {
        while let Err(error) = self.log.check_place() {
            self.queue.set_full(true);
            self.gone.raise(Trouble::Losing, &error);
            self.answer_requests();
            if closed || self.queue.has_given_up() {
                return Err(error);
            }
            self.queue.wait_for_settle(RETRY);
        }
        if self.gone.clear().is_some() {
            self.reporter
                .info("gone", "the directory of the channel is back");
        }
        Ok(())
    }

    /// Stages a group, unless its sender has withdrawn it.
    fn append(&mut self, group: Group) -> Result<(), Error> {
        let Group { batches, token, .. } = group;
        if !token.claim() {
            return Ok(());
        }
        let may_leave = may_leave(&batches);
        self.count(&batches);
        match self.log.append(batches, self.clock.now()) {
            Ok(seq) => self.waiting.push(seq, token, may_leave),
            // The token is dropped, which fails the receipt. The sender has to split the group.
            Err(error @ Error::TooLarge { .. }) => self.reporter.error("large", error),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Keeps everything that is staged, and waits while there is no space. Returns true when everything is kept, and false if a stop ended
    /// the wait. In the second case the frames without space were dropped, and nothing more may be staged.
    fn keep(&mut self) -> Result<bool, Error> {
        let started = Instant::now();
        loop {
            self.waiting.claim(&mut self.log);
            let done = self.commit();
            let is_full = done.as_ref().is_err_and(Error::is_for_now);
            self.queue.set_full(is_full);
            if done.is_ok() && self.room.clear().is_some() {
                self.reporter.info("room", "there is space again");
            }
            self.settle();
            let error = match done {
                Ok(()) => return Ok(true),
                Err(error) if !is_full => return Err(self.report_failure(error)),
                Err(error) => error,
            };
            self.waiting.release();
            if started.elapsed() >= PATIENCE || matches!(error, Error::NoRoom { .. }) {
                self.report_blocked(&error);
            }
            self.measure();
            // Without a reader, no space is ever freed.
            let stays_full = matches!(error, Error::Full { .. }) && self.log.readers() == 0;
            if (self.queue.is_closed() && stays_full) || self.queue.has_given_up() {
                self.give_up(&error)?;
                return Ok(false);
            }
            self.wait_for_space();
        }
    }

    /// Answers requests. A requester may have stopped waiting, so errors of `send` are ignored.
    fn answer_requests(&mut self) {
        for request in self.queue.take_requests() {
            match request {
                Request::Forget(consumer, answer) => drop(answer.send(self.forget(&consumer))),
                Request::Abandon(consumer) => {
                    self.consumers.retain(|it| *it.name != *consumer);
                    self.consumers_changed();
                }
                Request::Skip(consumer, to, unsettled, answer) => {
                    drop(answer.send(self.skip(&consumer, to, unsettled)));
                }
                Request::Attach(consumer, answer) => drop(answer.send(self.attach(consumer))),
                Request::Change(config) => {
                    self.log.change(config.options());
                    self.queue.resize(config.queue_bytes());
                    // The new options may allow more space, so the writer checks again.
                    Arc::clone(&self.queue).wake();
                }
            }
        }
    }

    /// Forgets a consumer. The next commit drops batches that every other consumer has settled.
    fn forget(&mut self, consumer: &str) -> Result<(), String> {
        self.log.forget(consumer).map_err(|error| {
            let known: Vec<_> = self.log.unread().collect();
            let others = match known.is_empty() {
                true => "every consumer has a sink".to_owned(),
                false => format!("without a sink are: {}", known.join(", ")),
            };
            format!("{error}; {others}")
        })?;
        self.consumers.retain(|it| *it.name != *consumer);
        self.consumers_changed();
        self.skips.forget(consumer);
        self.gauges.forget(consumer);
        // Wakes the writer, which releases the segments that only this consumer held.
        Arc::clone(&self.queue).wake();
        let text = format_args!("{consumer} is forgotten: what only it has not settled is dropped");
        self.reporter.apart().info("forgotten", text);
        Ok(())
    }

    /// Moves a consumer past everything up to a position. Returns the number of records that the consumer had not settled.
    fn skip(&mut self, consumer: &str, to: Position, skipped: Skipped) -> Result<u64, String> {
        let moved = self.log.skip_to(consumer, to);
        moved.map_err(|error| error.to_string())?;
        let meters = self.context.meters.beside(consumer);
        meters.counter("records_skipped").add(skipped.records);
        meters.counter("bytes_skipped").add(skipped.bytes);
        // Wakes the writer, which releases the segments that only this consumer held.
        Arc::clone(&self.queue).wake();
        let text = format_args!(
            "{consumer} was moved to {to}: {} records ({} bytes) that it had not settled are skipped",
            skipped.records, skipped.bytes
        );
        self.reporter.apart().warn("moved", text);
        Ok(skipped.records)
    }

    /// Attaches a reader for a consumer that has none.
    fn attach(&mut self, consumer: Consumer) -> Result<Attached, String> {
        let pool = self.context.pool.clone();
        let is_new = !self.log.has_consumer(&consumer.name);
        let reader = self.log.reader(&consumer.name, consumer.behind, pool);
        let reader = reader.map_err(|error| error.to_string())?;
        let reader = DiskReader::new(
            reader.with_tags(consumer.tags.clone()),
            Arc::clone(&self.queue),
            self.reporter.clone(),
            Arc::clone(&self.missing),
        );
        self.gauges.attach(&self.context, &consumer.name);
        self.skips.attach(&self.context, &consumer, &self.log);
        self.consumers.retain(|it| it.name != consumer.name);
        self.consumers.push(consumer);
        self.consumers_changed();
        let reader = Box::new(reader);
        Ok(Attached { reader, is_new })
    }

    /// Tells the log and the conditions which consumers have a sink now.
    fn consumers_changed(&mut self) {
        self.log.count_unclaimed(&self.consumers);
        self.abandoned.look(&self.log, &self.consumers);
    }

    /// Commits everything that is staged, and measures how long that takes.
    fn commit(&mut self) -> Result<(), Error> {
        let (began, has_more) = (Instant::now(), self.log.staged_bytes() > 0);
        self.log.commit(self.clock.now())?;
        if has_more {
            self.commits.observe(began.elapsed());
        }
        Ok(())
    }

    /// Waits until a consumer settles a batch, at most for [`RETRY`].
    fn wait_for_space(&mut self) {
        let began = Instant::now();
        self.log
            .wake_on_settle(Waker::from(Arc::clone(&self.queue)));
        self.queue.wait_for_settle(RETRY);
        self.waited += began.elapsed();
    }

    /// Reports what is lost, and settles the tokens of everything that is kept by now.
    fn settle(&mut self) {
        for (first, last) in self.log.drain_lost() {
            self.missing.add(Missing::Middle, first.before(), last);
            self.reporter.error(
                "lost",
                format_args!(
                    "{first} to {last} are lost: they were kept without a sync, the disk failed to sync them, and they could \
                     not be read back"
                ),
            );
        }
        self.waiting.settle(self.log.kept().seq);
    }

    /// Syncs if a sync is due, or if `tokens` wait for a sync. If there is temporarily no space, the tokens fail, and a later sync covers
    /// their frames.
    fn sync(&mut self, tokens: Vec<Token>) -> Result<(), Error> {
        let synced = match tokens.is_empty() {
            true => self.log.sync_if_due(self.clock.now()),
            false => self.log.sync(),
        };
        match synced {
            Ok(()) => tokens.into_iter().for_each(Token::settle),
            Err(error) if error.is_for_now() => self.reporter.warn("room", &error),
            Err(error) => return Err(self.report_failure(error)),
        }
        Ok(())
    }

    fn close(mut self) -> Result<(), Error> {
        self.maker.finish();
        self.skips.end();
        self.log.close(self.clock.now())
    }

    /// Drops frames for which there is no space, so that the channel can be closed. None of them was acknowledged.
    fn give_up(&mut self, error: &Error) -> Result<(), Error> {
        // Records that were withdrawn are not in the report.
        self.waiting.claim(&mut self.log);
        let records = self.log.drop_staged();
        if records > 0 {
            self.reporter.warn(
                "stop",
                format_args!(
                    "stopping without space for {records} records that were not accepted yet; senders that wait for an \
                     acknowledgement still have them ({error})"
                ),
            );
        }
        // Keeps the frames that are already written. Frames whose sync failed need space to be written again. If there is none, the next
        // start finds these frames in the segment whose sync failed.
        self.log.commit(self.clock.now())?;
        self.settle();
        self.waiting.clear();
        Ok(())
    }

    fn report_failure(&self, error: Error) -> Error {
        self.reporter.error("disk", &error);
        error
    }

    /// Reports why there is no space, and which consumer holds most of the channel.
    fn report_blocked(&self, error: &Error) {
        let (used, limit) = (self.log.used_bytes(), self.log.options().size_max);
        let behind = |name: &str| {
            let behind = self.log.backlog_bytes(name);
            let share = u128::from(behind) * 100 / u128::from(used.max(1));
            (behind, share.min(100))
        };
        let slowest = || {
            let consumers = self.log.consumers().into_iter();
            let slowest = consumers.min_by_key(|(_, position)| *position);
            slowest.map(|(name, _)| name)
        };
        let (cause, text) = match error {
            Error::Full {
                consumer: Some(name),
                ..
            } => {
                let (behind, share) = behind(name);
                let text = format!(
                    ", which has not settled {behind} bytes, {share} % of the channel (size_max is {limit} bytes)"
                );
                (Some(name.clone()), text)
            }
            _ => match slowest().map(|name| (behind(&name), name)) {
                Some(((behind, share), name)) if share >= HOLDS_PERCENT => {
                    let text = format!(
                        "; the consumer {name} holds {share} % of the channel: it has not settled {behind} bytes"
                    );
                    (Some(name), text)
                }
                _ => (None, String::new()),
            },
        };
        let remedy = cause.as_ref().and_then(|name| self.abandoned.remedy(name));
        let remedy = remedy.unwrap_or_default();
        self.room.raise_because(
            Trouble::Blocked,
            cause.map(Arc::from),
            format_args!("{error}{text}{remedy}"),
        );
    }

    /// Answers requests and updates gauges and reports. Called after each commit, and while the writer waits for space.
    fn measure(&mut self) {
        self.answer_requests();
        self.gauges.set(&mut self.log, &self.reporter);
        self.skips.look(&self.log, self.clock.now());
    }
}
