//! Probation: after an unclean end, a consumer of a durable channel takes its positions one by one, and sets aside a position that
//! ends the process again and again.
//!
//! A record can end the process: a processor that aborts, takes all memory or never returns. The channel keeps the record, so every start
//! would meet it again, and all other paths of the process would end with it. Therefore each path (a consumer of a durable channel: a sink
//! or a pump, with the chain in front of it) has a mark (`mark.rs`), which survives the process:
//!
//! 1. At full speed, the mark says up to which position the path has handed out batches. This costs one small write in many batches.
//! 2. An orderly end removes the mark. If a start finds it, the positions from the cursor to that position may have been active when the
//!    process died. These positions are in probation: one is handed out at a time, and while it is active, the mark names it. Then the
//!    path continues at full speed.
//! 3. A position that was active at [`DEATHS_MAX`] deaths in a row is set aside in `data_dir/rejected`, and the path continues.
//!
//! A death counts only with evidence that the position is its cause (`watch.rs`), because operators kill processes, too. A position is
//! active from the moment at which the path asks the channel for it until the consumer asks for the next one. While the thread of the
//! consumer waits for something else, such as an answer of its destination, no evidence is gathered. A consumer that blocks its thread
//! while it waits says so ([`waiting`]).
//!
//! Only one path of the process has an active position at a time, so that no path is blamed for another one. If a position takes longer
//! than [`TURN_WAIT`], the others no longer wait for it.

mod gate;
mod mark;
#[cfg(test)]
mod tests;
mod watch;

use std::{
    cell::RefCell,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use millstream_record::{Batch, Position};
use millstream_wire::record::records;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    channel::BoxFuture,
    condition::{Condition, Trouble},
    failure::Failure,
    outlet::Outlet,
    reject, replay,
    report::Reporter,
};

pub(crate) use gate::{Gate, Watched};
use mark::Mark;
use watch::Work;

/// A position that was probably the cause of this many deaths in a row is set aside.
const DEATHS_MAX: u32 = 3;
/// The longest time for which a path waits until no other path has an active position.
const TURN_WAIT: Duration = Duration::from_secs(3);
/// The condition that a position was set aside holds for at least this time.
const SHOWN: Duration = Duration::from_secs(600);

thread_local! {
    /// The path whose consumer runs on this thread.
    static HERE: RefCell<Weak<Path>> = const { RefCell::new(Weak::new()) };
}

/// Runs `work`, which may block until a destination answers: a write to a file system or a pipe. Meanwhile there is no evidence that the
/// position that is active hangs the thread.
pub fn waiting<T>(work: impl FnOnce() -> T) -> T {
    let path = HERE.with_borrow(Weak::upgrade);
    let path = path.filter(|path| path.is_on_probation() && path.has_active());
    if let Some(path) = &path {
        path.release();
    }
    let done = work();
    if let Some(path) = &path {
        path.unparked();
    }
    done
}

/// The state that the paths of a process share.
#[derive(Clone)]
pub(crate) struct Probation(Arc<Shared>);

struct Shared {
    directory: PathBuf,
    turn: Arc<Semaphore>,
    /// The position that occupies a thread.
    work: Mutex<Option<Work>>,
    /// The number of paths in probation.
    paths: AtomicUsize,
    has_watch: Mutex<bool>,
}

impl Shared {
    fn in_probation(&self) -> usize {
        self.paths.load(Ordering::Acquire)
    }

    fn work(&self) -> MutexGuard<'_, Option<Work>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Probation {
    /// `data_dir` is where the marks are kept.
    pub(crate) fn new(data_dir: &std::path::Path) -> Self {
        Self(Arc::new(Shared {
            directory: data_dir.join("probation"),
            turn: Arc::new(Semaphore::new(1)),
            work: Mutex::default(),
            paths: AtomicUsize::new(0),
            has_watch: Mutex::default(),
        }))
    }

    /// Returns the entrance of `consumer`. `aside` has the id of the channel that it reads, and the port by which the path sets positions
    /// aside, as rejected records of the node with this name. `None`: the consumer reads from memory, and has no path.
    pub(crate) fn entrance(
        &self,
        consumer: &Arc<str>,
        aside: Option<(u128, (Arc<str>, Outlet))>,
        reporter: &Reporter,
    ) -> Arc<Entrance> {
        Arc::new(Entrance {
            probation: self.clone(),
            consumer: consumer.clone(),
            aside,
            reporter: reporter.clone(),
            path: OnceLock::new(),
        })
    }
}

/// Opens the path of a consumer when the consumer starts.
pub(crate) struct Entrance {
    probation: Probation,
    consumer: Arc<str>,
    aside: Option<(u128, (Arc<str>, Outlet))>,
    reporter: Reporter,
    path: OnceLock<Arc<Path>>,
}

impl Entrance {
    /// Opens the path. `None` if there is none, or if its mark cannot be written: then the consumer runs without probation.
    pub(crate) fn open(&self) -> Option<Arc<Path>> {
        let (channel, (node, aside)) = self.aside.clone()?;
        let (consumer, directory) = (&self.consumer, &self.probation.0.directory);
        let opened = Mark::open(directory, consumer, channel);
        let opened = opened.inspect_err(|error| {
            let place = directory.display();
            let text = format_args!(
                "cannot write {place}/{consumer}: {error}; a record that ends the process will not be recognized"
            );
            self.reporter.warn("probation", text);
        });
        let path = Arc::new(Path {
            shared: self.probation.0.clone(),
            mark: Mutex::new(opened.ok()?),
            node,
            aside,
            is_on_probation: AtomicBool::new(false),
            has_active: AtomicBool::new(false),
            is_outside: AtomicBool::new(false),
            has_threads: AtomicBool::new(false),
            permit: Mutex::default(),
            condition: self.reporter.condition("probation"),
            shown_since: Mutex::default(),
            reporter: self.reporter.clone(),
        });
        let _ = self.path.set(path.clone());
        HERE.set(Arc::downgrade(&path));
        Some(path)
    }

    /// The thread of the consumer waits (`is_parked`), or continues.
    pub(crate) fn observe(&self, is_parked: bool) {
        match (self.path.get(), is_parked) {
            (None, _) => {}
            (Some(path), true) => path.parked(),
            (Some(path), false) => path.unparked(),
        }
    }
}

/// One consumer of a durable channel.
pub(crate) struct Path {
    shared: Arc<Shared>,
    mark: Mutex<Mark>,
    node: Arc<str>,
    aside: Outlet,
    /// Whether the path is in probation.
    is_on_probation: AtomicBool,
    has_active: AtomicBool,
    /// Whether the consumer has the active position: it has left the chain.
    is_outside: AtomicBool,
    /// Whether the chain has threads.
    has_threads: AtomicBool,
    /// Held while the position occupies a thread.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    /// Raised when a position was set aside.
    condition: Condition,
    shown_since: Mutex<Option<Instant>>,
    reporter: Reporter,
}

impl Path {
    fn mark(&self) -> MutexGuard<'_, Mark> {
        self.mark.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn permit(&self) -> MutexGuard<'_, Option<OwnedSemaphorePermit>> {
        self.permit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports a mark that cannot be written. The path continues: a record that ends the process is rare, and a full disk is not.
    fn check<T>(&self, written: io::Result<T>) -> Option<T> {
        let failed = |error: &io::Error| {
            let text = format_args!(
                "cannot write the mark: {error}; a record that ends the process will not be recognized"
            );
            self.reporter.warn("probation", text);
        };
        written.inspect_err(failed).ok()
    }

    fn is_on_probation(&self) -> bool {
        self.is_on_probation.load(Ordering::Acquire)
    }

    fn has_active(&self) -> bool {
        self.has_active.load(Ordering::Acquire)
    }

    /// Begins the probation of the positions up to `until`, of which the path continues after `start`.
    fn activate(&self, start: Position, until: Position) {
        self.is_on_probation.store(true, Ordering::Release);
        self.shared.paths.fetch_add(1, Ordering::AcqRel);
        watch::start(&self.shared);
        let text = format_args!(
            "the last run died: the positions after {start} up to {until} are processed one by one, then the path continues at full speed"
        );
        self.reporter.info("died", text);
    }

    fn deactivate(&self) {
        if self.is_on_probation.swap(false, Ordering::AcqRel) {
            self.shared.paths.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Resolves when it is this path's turn to have an active position.
    fn turn(&self) -> BoxFuture<'static, Option<OwnedSemaphorePermit>> {
        let turn = self.shared.turn.clone();
        Box::pin(async move {
            let permit = tokio::time::timeout(TURN_WAIT, turn.acquire_owned()).await;
            permit.ok().and_then(Result::ok)
        })
    }

    /// Notes that the position after `after` is active. Returns whether it must be set aside.
    fn begin(self: &Arc<Self>, after: Position, permit: Option<OwnedSemaphorePermit>) -> bool {
        *self.permit() = permit;
        let deaths = self.check(self.mark().begin(after)).unwrap_or(0);
        self.is_outside.store(false, Ordering::Release);
        self.has_active.store(true, Ordering::Release);
        self.occupy();
        deaths >= DEATHS_MAX
    }

    /// Notes that no position is active. `is_done`: the last one is done.
    fn end(self: &Arc<Self>, is_done: bool) {
        if self.has_active.swap(false, Ordering::AcqRel) {
            self.release();
            self.check(self.mark().end(is_done));
        }
    }

    fn set_threads(&self, has_threads: bool) {
        self.has_threads.store(has_threads, Ordering::Release);
    }

    /// The consumer has got the active position.
    fn leave_chain(&self) {
        self.is_outside.store(true, Ordering::Release);
    }

    /// The thread of the consumer works on the position.
    fn occupy(self: &Arc<Self>) {
        *self.shared.work() = Some(Work::new(self));
        self.mark().arm();
    }

    /// The thread of the consumer no longer works on the position.
    fn release(self: &Arc<Self>) {
        self.mark().disarm();
        let work = self.shared.work().take_if(|work| work.is_of(self));
        if work.is_some_and(|work| work.is_suspect()) {
            self.check(self.mark().clear());
        }
        *self.permit() = None;
    }

    /// The thread of the consumer waits. It waits for the position only if threads of the chain process it.
    fn parked(self: &Arc<Self>) {
        if self.has_active() {
            let waits = self.is_outside.load(Ordering::Acquire);
            if waits || !self.has_threads.load(Ordering::Acquire) {
                self.release();
            }
        }
    }

    /// The thread of the consumer continues.
    fn unparked(self: &Arc<Self>) {
        if self.has_active()
            && !self
                .shared
                .work()
                .as_ref()
                .is_some_and(|work| work.is_of(self))
        {
            // Does not wait for its turn, because it is already within its work.
            *self.permit() = self.shared.turn.clone().try_acquire_owned().ok();
            self.occupy();
        }
    }

    /// Keeps a batch in `data_dir/rejected`.
    fn set_aside(
        &self,
        position: Position,
        batch: Batch,
    ) -> BoxFuture<'static, Result<(), Failure>> {
        let mut batch = match replay::address(&batch) {
            Some(_) => replay::unaddressed(batch),
            None => batch,
        };
        let (count, tag, node) = (batch.count, batch.tag.as_str(), &self.node);
        let reason = format!(
            "the process died {DEATHS_MAX} times in a row while the position {position} was active"
        );
        self.condition.raise(
            Trouble::Losing,
            format_args!(
                "{reason}: its {count} records with the tag {tag} are set aside as rejected records of {node}, and the path continues. Read them \
                 with `millstream rejected cat --node {node}`; when the cause is removed, send them again with `millstream rejected replay {node}`"
            ),
        );
        *self.shown_since() = Some(Instant::now());
        Arc::make_mut(&mut batch.values).set(replay::UNPROCESSED, "yes");
        let all = records(&batch).map(|(range, _)| &batch.body[range]);
        let rejected = reject::batch(node, &batch, all, &reason);
        let aside = self.aside.clone();
        Box::pin(async move {
            let kept = aside.send(rejected, true).await.await;
            kept.map_err(|_| {
                Failure::us("records could not be set aside; they are set aside again")
            })
        })
    }

    /// Ends the condition that a position was set aside, once it was shown for long enough. Called when the consumer settles positions.
    fn settled(&self) {
        if self.condition.holds()
            && self
                .shown_since()
                .is_some_and(|since| since.elapsed() >= SHOWN)
        {
            self.condition.clear();
        }
    }

    fn shown_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.shown_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The path has ended in an orderly way.
    fn close(self: &Arc<Self>) {
        self.end(false);
        self.deactivate();
        self.mark().remove();
    }
}
