//! Restarts nodes after a failure or a panic, with back-off. If a reload has replaced a node, starts the replacement in the same seat
//! (`seat.rs`). Batches that a node leaves unsettled never count as done. The life of a task from its plan to its end is in
//! `start/life.rs`.

#[cfg(test)]
mod tests;

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::time::sleep;

use crate::{
    condition::{Condition, Trouble},
    failure::{Again, Failure},
    guard::guarded,
    inlet::Inlet,
    node::{Sink, SinkContext, Source, SourceContext},
    readings::Readings,
    report::Reporter,
    seat::Seat,
    stop::Stop,
};

/// The wait after the first failure; each further failure doubles it.
const WAIT_FIRST: Duration = Duration::from_millis(500);
/// The longest wait.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// If a run after a failure lasts this long, the failure counts as over. Conditions that the node itself has raised stay.
const PROVEN: Duration = Duration::from_secs(5);

/// Whether a node's task still runs. A running task may be kept from its work by a problem; conditions report such problems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It has its input, and begins once an earlier task of the node has ended. A condition says what it waits for.
    Planned,
    /// It runs, or waits before a restart.
    Running,
    /// It has ended in an orderly way.
    Ended,
    /// It failed, and runs again only if a reload replaces it. The text is the reason.
    Failed(String),
}

/// The shared state of one node.
#[derive(Clone, Debug)]
pub struct StateCell(Arc<Mutex<NodeState>>);

impl StateCell {
    /// Returns a cell for a running node.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(NodeState::Running)))
    }

    /// Returns the state of the node.
    pub fn get(&self) -> NodeState {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns a cell for a node that will not run, for the reason `why`.
    pub(crate) fn failed(why: &str) -> Self {
        Self(Arc::new(Mutex::new(NodeState::Failed(why.to_owned()))))
    }

    /// Marks the node as failed; the message of `failure` is the reason.
    pub(crate) fn fail(&self, failure: &Failure) {
        self.set(NodeState::Failed(failure.message.clone()));
    }

    pub(crate) fn set(&self, state: NodeState) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

impl Default for StateCell {
    fn default() -> Self {
        Self::new()
    }
}

/// How a node ended. `Ok`: in an orderly way. `Err`: with a failure after which it is not restarted.
pub type End = Result<(), Failure>;

/// Runs a source until it ends. If a reload has put another source into its seat, runs that one next.
pub(crate) async fn source(
    mut source: Box<dyn Source>,
    seat: Seat<Box<dyn Source>>,
    mut context: SourceContext,
    state: StateCell,
    readings: Arc<Readings>,
) -> End {
    let mut retry = Retry::new(&context.reporter, state, context.stop.clone());
    loop {
        let run = async {
            let kind = source.reads();
            let turn = readings.turn(kind, &context).await;
            match turn {
                None => Ok(Ok(())),
                Some(_turn) => guarded(source.run(context.clone())).await,
            }
        };
        let ended = tokio::select! {
            biased;
            ended = retry.watch(run) => ended,
            () = seat.overstayed(context.stop.clone()) => Ok(Ok(())),
        };
        let end = match seat.has_next() {
            true => None,
            false => retry.after(ended.map_err(|panic| panic.0)).await,
        };
        // The seat is checked even if the source failed: a reload may have given the seat to another source during the back-off.
        if let Some(stop) = seat.turn_to_next(&mut source) {
            context.stop = stop;
            retry.begin_turn(&context.stop);
            continue;
        }
        if seat.is_left() {
            return retry.leave();
        }
        if let Some(end) = end {
            return end;
        }
        // After the stop, a failed source is not retried. Otherwise, a source that fails before it waits for the stop would be
        // retried forever.
        if context.stop.is_stopped() {
            retry.state.set(NodeState::Ended);
            return Ok(());
        }
    }
}

/// Runs a sink until its inlet ends, until it must leave its seat permanently, or until it fails permanently. If a reload has put another
/// sink into its seat, runs that one next. After the stop, a sink that reads a durable channel is not retried when it fails, because the
/// channel keeps its unsettled batches for the next start. The inlet survives restarts and replacements, so that no queued batch is
/// lost.
pub(crate) async fn sink(
    sink: &mut Arc<dyn Sink>,
    seat: &Seat<Arc<dyn Sink>>,
    inlet: &mut Inlet,
    context: &mut SinkContext,
    state: &StateCell,
) -> End {
    let mut retry = Retry::new(&context.reporter, state.clone(), context.stop.clone());
    inlet.clears(retry.failing.clone());
    loop {
        inlet.begin_turn(&context.stop, seat.call());
        let run = guarded(sink.run(inlet, context.clone()));
        let ended = tokio::select! {
            biased;
            ended = retry.watch(run) => ended,
            () = seat.overstayed(context.stop.clone()) => Ok(Ok(())),
        };
        let end = match seat.has_next() {
            true => None,
            false => retry.after(ended.map_err(|panic| panic.0)).await,
        };
        if let Some(stop) = seat.turn_to_next(sink) {
            context.stop = stop;
            retry.begin_turn(&context.stop);
            continue;
        }
        // A sink that must leave ends even if it fails. Its unsettled batches stay in its channel. Behind memory, they were given up.
        if seat.is_left() {
            return retry.leave();
        }
        if let Some(end) = end {
            return end;
        }
        if context.stop.is_stopped() && inlet.channel_id().is_some() {
            retry.state.set(NodeState::Ended);
            return Ok(());
        }
    }
}

struct Retry {
    reporter: Reporter,
    state: StateCell,
    stop: Stop,
    wait: Duration,
    started: Instant,
    /// Raised by a failure. Cleared when a later run settles a batch or has lasted for [`PROVEN`].
    failing: Arc<Condition>,
}

impl Retry {
    fn new(reporter: &Reporter, state: StateCell, stop: Stop) -> Self {
        Self {
            failing: Arc::new(reporter.condition("retry")),
            reporter: reporter.clone(),
            state,
            stop,
            wait: WAIT_FIRST,
            started: Instant::now(),
        }
    }

    /// Resets the back-off and the state for the node that takes the seat now.
    fn begin_turn(&mut self, stop: &Stop) {
        self.failing.clear();
        self.state.set(NodeState::Running);
        (self.stop, self.wait, self.started) = (stop.clone(), WAIT_FIRST, Instant::now());
    }

    /// Ends a node that was asked to leave permanently.
    fn leave(&self) -> End {
        self.failing.clear();
        self.state.set(NodeState::Ended);
        Ok(())
    }

    /// Waits for the end of a run. Clears the condition once the run has lasted for [`PROVEN`].
    async fn watch<T>(&self, run: impl Future<Output = T>) -> T {
        let mut run = pin!(run);
        if self.failing.holds() {
            tokio::select! {
                biased;
                ended = &mut run => return ended,
                () = sleep(PROVEN) => drop(self.failing.clear()),
            }
        }
        run.await
    }

    /// Decides what follows a run. If the node must run again, waits for the back-off and returns `None`. Otherwise, returns how the
    /// node ended.
    async fn after(&mut self, ended: Result<End, String>) -> Option<End> {
        // A long run resets the back-off.
        if self.started.elapsed() > WAIT_MAX {
            self.wait = WAIT_FIRST;
        }
        let failure = match ended {
            Ok(Ok(())) => {
                self.failing.clear();
                self.state.set(NodeState::Ended);
                return Some(Ok(()));
            }
            Ok(Err(failure)) => failure,
            Err(panic) => Failure::us(format!(
                "it panicked ({panic}): this is a fault of Millstream, please report it"
            )),
        };
        if failure.again == Again::Never {
            self.reporter
                .error("failed", format_args!("{failure}; it has stopped"));
            self.failing.clear();
            self.state.set(NodeState::Failed(failure.message.clone()));
            return Some(Err(failure));
        }
        let wait = if failure.again == Again::Now {
            Duration::ZERO
        } else {
            self.wait
        };
        self.failing.raise(
            Trouble::Retrying,
            format_args!("{failure}; retrying in {} ms", wait.as_millis()),
        );
        self.wait = (self.wait * 2).min(WAIT_MAX);
        // After a stop, the wait lasts at most `WAIT_FIRST`.
        let mut stop = self.stop.clone();
        let stopped = async {
            stop.stopped().await;
            sleep(WAIT_FIRST).await;
        };
        tokio::select! {
            () = sleep(wait) => {}
            () = stopped => {}
        }
        self.started = Instant::now();
        None
    }
}
