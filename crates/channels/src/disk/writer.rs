//! The writer's thread: takes what waits, keeps it as one commit, and settles it.
//!
//! `read -> decode -> send -> [keep] -> take -> process -> encode -> write -> settle`
//!
//! While it writes and syncs, the next commit gathers in the queue: under load commits are large and the cost of a sync
//! is shared, and an idle stream waits for nobody. A token is settled when its group is kept, and never before.

use std::{
    collections::VecDeque,
    io,
    sync::Arc,
    task::Waker,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use millstream_pipeline::{
    channel::{BoxFuture, Consumer, Group, Note},
    condition::{Condition, Trouble},
    delivery::Token,
    failure::Failure,
    meters::Meter,
    node::ChannelContext,
    report::Reporter,
};
use millstream_record::Time;
use millstream_sys::disk::Disk;
use tokio::sync::oneshot;

use super::{
    failure,
    keep_clock::KeepClock,
    log::{Blank, Error, Log, Sync, Unclaimed, Watch},
    queue::{Entry, Queue},
    skips::{self, Skips},
};

/// What one commit takes at most: beyond 1 MiB a sync is not cheaper per byte, and acks would wait longer.
const COMMIT_BYTES: usize = 1 << 20;
/// How often a full disk or a full channel is tried again when nobody says that there is room.
const RETRY: Duration = Duration::from_millis(200);
/// How long after a failure the next segment is not tried ahead of time.
const MAKE_RETRY: Duration = Duration::from_secs(5);
/// How often an idle channel looks whether its directory is still there.
const LOOK: Duration = Duration::from_secs(1);
/// For how long a full channel waits for its consumers before it says so: under load that is daily work.
const PATIENCE: Duration = Duration::from_secs(1);

struct Writer {
    log: Log,
    clock: KeepClock,
    queue: Arc<Queue>,
    waiting: VecDeque<(u64, Token)>,
    disk: Arc<dyn Disk>,
    /// The next segment, being made on a thread of its own: filling it takes tens of milliseconds.
    making: Option<JoinHandle<io::Result<Blank>>>,
    make_after: Instant,
    /// When the oldest frame that is written and not synced was written. The wall clock may jump, so it is not asked.
    unsynced_since: Option<Instant>,
    reporter: Reporter,
    /// There is no room, in the channel or on the disk.
    room: Condition,
    /// The directory is not where it was.
    gone: Condition,
    meters: Gauges,
    skips: Skips,
}

struct Gauges {
    records: Meter,
    bytes: Meter,
    unclaimed: Meter,
    used: Meter,
    limit: Meter,
    backlog: Meter,
    /// When the oldest record that some consumer has not settled was kept, in seconds since 1970; 0: there is none.
    oldest: Meter,
    repeats: Meter,
    ids: Meter,
    evicted: Meter,
    /// How many bytes each consumer has before it, beside its other meters.
    backlogs: Vec<(String, Meter)>,
}

/// Starts the thread. The future is ready when everything that was taken is kept and the log is closed.
pub(super) fn start(
    log: Log,
    disk: Arc<dyn Disk>,
    queue: Arc<Queue>,
    context: &ChannelContext,
    consumers: &[Consumer],
) -> Result<BoxFuture<'static, Result<(), Failure>>, Failure> {
    let meters = &context.meters;
    let backlogs = log.consumers().into_iter().map(|(name, _)| {
        let meter = meters.beside(&name).gauge("backlog_bytes");
        (name, meter)
    });
    let writer = Writer {
        clock: KeepClock::new(log.keep_time(), Time::now()),
        log,
        queue: Arc::clone(&queue),
        waiting: VecDeque::new(),
        disk,
        making: None,
        make_after: Instant::now(),
        unsynced_since: None,
        reporter: context.reporter.clone(),
        room: context.reporter.condition("room"),
        gone: context.reporter.condition("gone"),
        meters: Gauges {
            records: meters.counter("records_received"),
            bytes: meters.counter("bytes_received"),
            unclaimed: meters.counter("records_unclaimed"),
            used: meters.gauge("used_bytes"),
            limit: meters.gauge("size_max_bytes"),
            backlog: meters.gauge("backlog_bytes"),
            oldest: meters.gauge("oldest_record_timestamp_seconds"),
            repeats: meters.gauge("repeated_chunks"),
            ids: meters.gauge("remembered_ids"),
            evicted: meters.gauge("evicted_young_ids"),
            backlogs: backlogs.collect(),
        },
        skips: Skips::new(context, consumers),
    };
    let (done, finished) = oneshot::channel();
    thread::Builder::new()
        .name(format!("keep {}", context.name))
        .spawn(move || {
            let mut end = End {
                how: Err("the writer of the channel has panicked".to_owned()),
                watch: writer.log.watch(),
                queue,
            };
            let result = writer.run();
            end.how = result.as_ref().map(|_| ()).map_err(ToString::to_string);
            drop(end);
            // Nobody may be interested any more.
            let _ = done.send(result.map_err(failure));
        })
        .map_err(|error| Failure::us(format!("no thread for the channel: {error}")))?;
    Ok(Box::pin(async move {
        finished
            .await
            .unwrap_or_else(|_| Err(Failure::us("the writer of the channel has panicked")))
    }))
}

/// Tells producers and readers that the writer has ended, also by a panic.
struct End {
    how: Result<(), String>,
    watch: Watch,
    queue: Arc<Queue>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.queue.end(std::mem::replace(&mut self.how, Ok(())));
        self.watch.wake_readers();
    }
}

impl Writer {
    fn run(mut self) -> Result<(), Error> {
        let waker = Waker::from(Arc::clone(&self.queue));
        self.measure();
        loop {
            self.log.wake_on_settle(waker.clone());
            let taken = self.queue.take(COMMIT_BYTES, self.until_look());
            self.wait_for_directory(taken.closed)?;
            if taken.poked {
                self.log.drop_settled()?;
            }
            let mut syncs = Vec::new();
            for entry in taken.entries {
                match entry {
                    Entry::Group(group) => self.stage(group)?,
                    Entry::Note(note) => self.heed(note),
                    Entry::Sync(token) => syncs.push(token),
                }
            }
            if !self.keep(taken.closed)? {
                return self.close();
            }
            self.sync_for(syncs)?;
            self.sync_in_time()?;
            self.make_ahead();
            self.measure();
            if taken.closed {
                return self.close();
            }
        }
    }

    fn close(mut self) -> Result<(), Error> {
        self.making.take().map(JoinHandle::join);
        self.skips.end();
        self.log.close(self.clock.now())
    }

    /// Waits as long as the channel's directory is not where it was: what a removed file holds is lost, so nothing may be answered
    /// for. Fails when it is time to stop.
    fn wait_for_directory(&mut self, closed: bool) -> Result<(), Error> {
        while let Err(error) = self.log.check_place() {
            self.queue.set_full(true);
            self.gone.raise(Trouble::Losing, &error);
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

    fn stage(&mut self, group: Group) -> Result<(), Error> {
        let Group { batches, token } = group;
        let records = batches.iter().map(|batch| u64::from(batch.count)).sum();
        self.meters.records.add(records);
        self.meters
            .bytes
            .add(batches.iter().map(|batch| batch.len() as u64).sum());
        match self.log.append(batches, 0, self.clock.now()) {
            Ok(seq) => self.waiting.push_back((seq, token)),
            // Its receipt fails; whoever sent it has to make it smaller.
            Err(error @ Error::TooLarge { .. }) => self.reporter.error("large", error),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn heed(&mut self, note: Note) {
        match note {
            Note::ConnectionClosed(connection) => self.log.close_connection(connection, true),
            Note::ConnectionBroken(connection) => self.log.close_connection(connection, false),
        }
    }

    /// Keeps all that is staged, however long there is no room for it; false: that took too long for a stop, and what found
    /// no room was dropped. Nothing more may be staged then.
    fn keep(&mut self, closed: bool) -> Result<bool, Error> {
        let started = Instant::now();
        loop {
            let done = self.log.commit(self.clock.now());
            let is_full = done.as_ref().is_err_and(Error::is_for_now);
            self.queue.set_full(is_full);
            if done.is_ok() && self.room.clear().is_some() {
                self.reporter.info("room", "there is room again");
            }
            self.settle();
            match done {
                Ok(()) => break,
                Err(error) if error.is_for_now() => {
                    let waits = started.elapsed() >= PATIENCE;
                    if waits || matches!(error, Error::NoRoom { .. }) {
                        self.say_blocked(&error);
                    }
                    self.measure();
                    // Without a reader nothing would ever change.
                    let stays_full = matches!(error, Error::Full { .. }) && self.log.readers() == 0;
                    if (closed && stays_full) || self.queue.has_given_up() {
                        return self.give_up(&error).map(|()| false);
                    }
                    let waker = Waker::from(Arc::clone(&self.queue));
                    self.log.wake_on_settle(waker);
                    self.queue.wait_for_settle(RETRY);
                }
                Err(error) => {
                    self.reporter.error("disk", &error);
                    return Err(error);
                }
            }
        }
        if self.log.is_unsynced() {
            self.unsynced_since.get_or_insert_with(Instant::now);
        } else {
            self.unsynced_since = None;
        }
        Ok(true)
    }

    /// Drops what finds no room, so that the channel can be closed. None of it was answered for.
    fn give_up(&mut self, error: &Error) -> Result<(), Error> {
        let records = self.log.drop_staged();
        // What is written already is kept yet.
        self.log.commit(self.clock.now())?;
        self.settle();
        self.waiting.clear();
        self.reporter.warn(
            "stop",
            format_args!(
                "stopping without room for {records} records that were not accepted yet; their senders keep them, if they wait \
                 for an answer ({error})"
            ),
        );
        Ok(())
    }

    /// Says why there is no room, and by how much the slowest consumer is behind.
    fn say_blocked(&self, error: &Error) {
        let behind = match error {
            Error::Full {
                consumer: Some(name),
                ..
            } => {
                let (behind, limit) = (self.log.backlog_bytes(name), self.log.size_max());
                format!(", which has not settled {behind} bytes (size_max is {limit} bytes)")
            }
            _ => String::new(),
        };
        self.room
            .raise(Trouble::Blocked, format_args!("{error}{behind}"));
    }

    /// Answers for everything that is kept by now.
    fn settle(&mut self) {
        let kept = self.log.kept().seq;
        // A repeat may wait for less than what stands before it.
        let mut left = VecDeque::new();
        for (seq, token) in self.waiting.drain(..) {
            if seq <= kept {
                token.settle();
            } else {
                left.push_back((seq, token));
            }
        }
        self.waiting = left;
        for (from, to) in self.log.take_lost() {
            self.reporter.error(
                "lost",
                format_args!(
                    "the disk failed to sync what was kept and not synced yet, and {from} to {to} could not be read back: \
                     they are lost"
                ),
            );
        }
    }

    /// Has the next segment made while this one is written. If that fails the log tries it itself, and says why.
    fn make_ahead(&mut self) {
        if self.making.as_ref().is_some_and(JoinHandle::is_finished) {
            match self.making.take().map(JoinHandle::join) {
                Some(Ok(Ok(blank))) => self.log.add_blank(blank),
                _ => self.make_after = Instant::now() + MAKE_RETRY,
            }
        } else if self.making.is_none()
            && self.make_after <= Instant::now()
            && let Some((path, bytes)) = self.log.wants_blank()
        {
            let disk = Arc::clone(&self.disk);
            let make = move || Blank::create_ahead(&*disk, &path, bytes);
            self.making = thread::Builder::new()
                .name("make segment".into())
                .spawn(make)
                .ok();
        }
    }

    /// How long to wait for the next group before a sync is due.
    fn until_sync(&self) -> Option<Duration> {
        match (self.log.sync_policy(), self.unsynced_since) {
            (Sync::Every(time), Some(since)) => Some(time.saturating_sub(since.elapsed())),
            _ => None,
        }
    }

    /// How long to wait for the next group.
    fn until_look(&self) -> Option<Duration> {
        let look = match self.skips.hold() {
            true => skips::LOOK.min(LOOK),
            false => LOOK,
        };
        let sync = self.until_sync();
        Some(sync.map_or(look, |sync| sync.min(look)))
    }

    /// Syncs what is kept for those who wait for it. What cannot be synced for now fails them, and is synced later.
    fn sync_for(&mut self, waiting: Vec<Token>) -> Result<(), Error> {
        if !waiting.is_empty() && self.log.is_unsynced() {
            match self.log.sync() {
                Ok(()) => self.unsynced_since = None,
                Err(error) if error.is_for_now() => {
                    self.reporter.warn("room", &error);
                    return Ok(());
                }
                Err(error) => {
                    self.reporter.error("disk", &error);
                    return Err(error);
                }
            }
        }
        waiting.into_iter().for_each(Token::settle);
        Ok(())
    }

    fn sync_in_time(&mut self) -> Result<(), Error> {
        if self.until_sync().is_some_and(|left| left.is_zero()) {
            match self.log.sync() {
                Ok(()) => self.unsynced_since = None,
                Err(error) if error.is_for_now() => self.reporter.warn("room", &error),
                Err(error) => {
                    self.reporter.error("disk", &error);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn measure(&mut self) {
        self.meters.used.set(self.log.used_bytes());
        self.meters.limit.set(self.log.size_max());
        let oldest = self.log.oldest().map_or(0, Time::seconds);
        self.meters.oldest.set(u64::try_from(oldest).unwrap_or(0));
        self.meters.repeats.set(self.log.repeats());
        self.meters.ids.set(self.log.ids() as u64);
        self.meters.evicted.set(self.log.evicted_young());
        let mut most = 0;
        for (name, backlog) in &self.meters.backlogs {
            let bytes = self.log.backlog_bytes(name);
            backlog.set(bytes);
            most = bytes.max(most);
        }
        self.meters.backlog.set(most);
        if let Some(Unclaimed { records, tag }) = self.log.take_unclaimed() {
            self.meters.unclaimed.add(records);
            let all = self.meters.unclaimed.get();
            self.reporter.warn(
                "unclaimed",
                format_args!(
                    "no sink takes the tag `{tag}` from this channel: its records are dropped ({all} of this and other tags \
                     since the start); add it to the `tags` of a sink, or take it with a sink of type discard"
                ),
            );
        }
        self.skips.look(&self.log, self.clock.now());
    }
}
