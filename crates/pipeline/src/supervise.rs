//! Runs nodes again after a failure or a panic, with a back-off; what a node leaves unsettled is never counted as done.

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
    report::Reporter,
    stop::Stop,
};

/// The first wait after a failure; each further one doubles it.
const WAIT_FIRST: Duration = Duration::from_millis(500);
/// No wait is longer.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// A run that has lasted this long after a failure counts as working, unless the node reports a condition of its own.
const PROVEN: Duration = Duration::from_secs(5);

/// Whether a node's task still runs. Conditions say what keeps a running task from its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It runs, or waits before it runs again.
    Running,
    /// It has ended as it should.
    Ended,
    /// It will not run again; with why.
    Failed(String),
}

/// Shares the state of one node.
#[derive(Clone, Debug)]
pub struct StateCell(Arc<Mutex<NodeState>>);

impl StateCell {
    /// A node that runs.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(NodeState::Running)))
    }

    /// How it is doing.
    pub fn get(&self) -> NodeState {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// A node that will not run, and why.
    pub(crate) fn failed(why: &str) -> Self {
        Self(Arc::new(Mutex::new(NodeState::Failed(why.to_owned()))))
    }

    fn set(&self, state: NodeState) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

impl Default for StateCell {
    fn default() -> Self {
        Self::new()
    }
}

/// How a node has ended: as it should, or for good.
pub type End = Result<(), Failure>;

/// Runs a source until it has ended.
pub async fn source(mut source: Box<dyn Source>, context: SourceContext, state: StateCell) -> End {
    let mut retry = Retry::new(&context.reporter, state, context.stop.clone());
    loop {
        let run = guarded(source.run(context.clone()));
        let ended = retry.watch(run).await;
        if let Some(end) = retry.after(ended.map_err(|panic| panic.0)).await {
            return end;
        }
        // A source that cannot even begin would never see that it is time to stop.
        if context.stop.is_stopped() {
            retry.state.set(NodeState::Ended);
            return Ok(());
        }
    }
}

/// Runs a sink until its inlet has ended, or, behind a durable channel, until it fails after the stop: what it has not
/// settled is there at the next start. The inlet stays the same across restarts, so that nothing queued is lost.
pub async fn sink(
    sink: Arc<dyn Sink>,
    inlet: &mut Inlet,
    context: SinkContext,
    state: StateCell,
) -> End {
    let mut retry = Retry::new(&context.reporter, state, context.stop.clone());
    inlet.clears(retry.failing.clone());
    loop {
        let run = guarded(sink.run(inlet, context.clone()));
        let ended = retry.watch(run).await;
        if let Some(end) = retry.after(ended.map_err(|panic| panic.0)).await {
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
    /// Holds from a failure until a later run settles something or has lasted for [`PROVEN`].
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

    /// Waits for the end of a run.
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

    /// What follows a run that `ended`: the end, or None after a wait: run again.
    async fn after(&mut self, ended: Result<End, String>) -> Option<End> {
        // A run that lasted has earned a fresh start.
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
            self.reporter.error(
                "failed",
                format_args!("{failure}; it does not run any more"),
            );
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
        // While the process wants to end there is no time for long waits.
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
