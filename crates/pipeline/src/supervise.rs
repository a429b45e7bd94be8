//! Runs nodes again after a failure or a panic, with a back-off; what a node leaves unsettled is never counted as done.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::{
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

/// How a node is doing, for `status` and `/health`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It runs.
    Running,
    /// It failed and is tried again; with why.
    Retrying(String),
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
    let mut retry = Retry::new(context.reporter.clone(), state, context.stop.clone());
    loop {
        let ended = guarded(source.run(context.clone())).await;
        if let Some(end) = retry.after(ended.map_err(|panic| panic.0)).await {
            return end;
        }
    }
}

/// Runs a sink until its inlet has ended, or, behind a durable channel, until it fails after the stop: what it has not
/// settled is there at the next start. It keeps the inlet across restarts, so that nothing queued is lost.
pub async fn sink(
    sink: Arc<dyn Sink>,
    mut inlet: Inlet,
    context: SinkContext,
    state: StateCell,
) -> End {
    let mut retry = Retry::new(context.reporter.clone(), state, context.stop.clone());
    loop {
        let ended = guarded(sink.run(&mut inlet, context.clone())).await;
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
}

impl Retry {
    fn new(reporter: Reporter, state: StateCell, stop: Stop) -> Self {
        Self {
            reporter,
            state,
            stop,
            wait: WAIT_FIRST,
            started: Instant::now(),
        }
    }

    /// What follows a run that `ended`: the end, or None after a wait: run again.
    async fn after(&mut self, ended: Result<End, String>) -> Option<End> {
        // A run that lasted has earned a fresh start.
        if self.started.elapsed() > WAIT_MAX {
            self.wait = WAIT_FIRST;
        }
        let failure = match ended {
            Ok(Ok(())) => {
                self.state.set(NodeState::Ended);
                return Some(Ok(()));
            }
            Ok(Err(failure)) => failure,
            Err(panic) => Failure::us(format!(
                "it panicked ({panic}): a fault of Millstream, please report it"
            )),
        };
        if failure.again == Again::Never {
            self.reporter.error(
                "failed",
                format_args!("{failure}; it does not run any more"),
            );
            self.state.set(NodeState::Failed(failure.message.clone()));
            return Some(Err(failure));
        }
        let wait = if failure.again == Again::Now {
            Duration::ZERO
        } else {
            self.wait
        };
        self.reporter.error(
            "retry",
            format_args!("{failure}; trying again in {} ms", wait.as_millis()),
        );
        self.state.set(NodeState::Retrying(failure.message.clone()));
        self.wait = (self.wait * 2).min(WAIT_MAX);
        // While the process wants to end there is no time for long waits.
        let mut stop = self.stop.clone();
        let stopped = async {
            stop.stopped().await;
            tokio::time::sleep(WAIT_FIRST).await;
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stopped => {}
        }
        self.started = Instant::now();
        self.state.set(NodeState::Running);
        None
    }
}
