//! Tests of restarts, with paused time: when a node runs again, and when it does not.

use std::{collections::VecDeque, task};

use millstream_record::{Pool, Position};
use tokio::time::Instant as Clock;

use super::*;
use crate::{
    channel::{Delivered, Reader},
    meters::Meters,
    node::{LocalFuture, Placement},
    outlet::Outlet,
    promise::{Guarantee, Promise},
    stop::{Stopper, stop},
    threads::Threads,
};

/// The end of a run.
enum Ends {
    Well,
    Failing(Failure),
    Panicking,
}

/// How the next runs will end, and when each earlier run began.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<(VecDeque<Ends>, Vec<Clock>)>>);

impl Script {
    fn new(ends: impl IntoIterator<Item = Ends>) -> Self {
        Self(Arc::new(Mutex::new((
            ends.into_iter().collect(),
            Vec::new(),
        ))))
    }

    fn run(&self) -> Result<(), Failure> {
        let next = {
            let (ends, begun) = &mut *self.0.lock().unwrap();
            begun.push(Clock::now());
            ends.pop_front()
        };
        match next.expect("the node ran more often than the test expects") {
            Ends::Well => Ok(()),
            Ends::Failing(failure) => Err(failure),
            Ends::Panicking => panic!("the test lets a run panic"),
        }
    }

    /// The number of runs.
    fn runs(&self) -> usize {
        self.0.lock().unwrap().1.len()
    }

    /// The milliseconds between the starts of consecutive runs.
    fn waits(&self) -> Vec<u128> {
        let (_, begun) = &*self.0.lock().unwrap();
        let pairs = begun.windows(2);
        pairs.map(|at| (at[1] - at[0]).as_millis()).collect()
    }
}

impl Source for Script {
    fn bind(&mut self, _: &SourceContext) -> Result<(), Failure> {
        Ok(())
    }

    fn run<'a>(&'a mut self, _: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async { Script::run(self) })
    }

    fn values(&self) -> &'static [&'static str] {
        &[]
    }

    fn promise(&self, _: bool) -> Promise {
        Promise::new(Guarantee::AtMostOnce, "a test")
    }
}

impl Sink for Script {
    fn placement(&self) -> Placement {
        Placement::DataThreads
    }

    fn run<'a>(&'a self, _: &'a mut Inlet, _: SinkContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async { Script::run(self) })
    }

    fn promise(&self, _: bool) -> Promise {
        Promise::new(Guarantee::AtMostOnce, "a test")
    }
}

/// A channel without batches.
struct Nothing;

impl Reader for Nothing {
    fn resume(&mut self, _: Option<Position>) -> Result<(), Failure> {
        Ok(())
    }

    fn poll_next(
        &mut self,
        _: &mut task::Context<'_>,
    ) -> task::Poll<Result<Option<Delivered>, Failure>> {
        task::Poll::Pending
    }

    fn commit(&mut self, _: Position) -> Result<(), Failure> {
        Ok(())
    }
}

fn later() -> Failure {
    Failure::peer("the server is down")
}

/// Supervises a source until it ends. Returns how it ended, and its final state.
async fn supervise_source(
    script: &Script,
    reporter: &Reporter,
    stopper: &Stopper,
) -> (End, NodeState) {
    let (seat, stop) = Seat::new(stopper);
    let meters = Meters::default().of("in");
    let outlet = |rejected| Outlet::new(Vec::new(), &meters, rejected);
    let context = SourceContext {
        name: "in".into(),
        follows: [].into(),
        outlet: outlet(false),
        rejects: outlet(true),
        threads: Threads::start(1).unwrap(),
        stop,
        once: false,
        pool: Pool::new(1 << 20),
        meters: meters.clone(),
        reporter: reporter.clone(),
        host: "here".into(),
        directory: "unused".into(),
    };
    let state = StateCell::new();
    let end = source(
        Box::new(script.clone()),
        seat,
        context,
        state.clone(),
        Arc::default(),
    )
    .await;
    (end, state.get())
}

/// Returns the inlet and the context of a sink that receives no batches. The inlet reads a durable channel if `channel` is an id,
/// otherwise a memory channel.
fn input(channel: Option<u128>, stop: Stop) -> (Inlet, SinkContext) {
    let meters = Meters::default().of("out");
    let rejects = Outlet::new(Vec::new(), &meters, true);
    let reader = Box::new(Nothing);
    let inlet = Inlet::new("out", reader, channel, rejects, stop.clone(), &meters);
    let context = SinkContext {
        name: "out".into(),
        stop,
        pool: Pool::new(1 << 20),
        meters,
        reporter: Reporter::new("out"),
        directory: "unused".into(),
        lane: 0,
    };
    (inlet, context)
}

/// Supervises a sink, which reads a durable channel if `channel` is an id. Returns how the sink ended, and its final state.
async fn supervise_sink(
    script: &Script,
    channel: Option<u128>,
    stopper: &Stopper,
) -> (End, NodeState) {
    let (seat, stop) = Seat::new(stopper);
    let (mut inlet, mut context) = input(channel, stop);
    let state = StateCell::new();
    let mut script: Arc<dyn Sink> = Arc::new(script.clone());
    let end = sink(&mut script, &seat, &mut inlet, &mut context, &state).await;
    (end, state.get())
}

/// Returns the retry logic of a node, with the node's reporter and the stopper that stops it.
fn retry() -> (Retry, Reporter, Stopper) {
    let (stopper, stop) = stop();
    let reporter = Reporter::new("node");
    let retry = Retry::new(&reporter, StateCell::new(), stop);
    (retry, reporter, stopper)
}

/// Returns the back-off after a failed run, in milliseconds.
async fn wait_after(retry: &mut Retry, failure: Failure) -> u128 {
    let begun = Clock::now();
    assert!(
        retry.after(Ok(Err(failure))).await.is_none(),
        "it runs again"
    );
    begun.elapsed().as_millis()
}

#[tokio::test(start_paused = true)]
async fn a_node_that_fails_or_panics_runs_again_after_a_wait_that_doubles() {
    let script = Script::new([
        Ends::Failing(later()),
        Ends::Panicking,
        Ends::Failing(later()),
        Ends::Well,
    ]);
    let (reporter, (stopper, _)) = (Reporter::new("in"), stop());
    let (end, state) = supervise_source(&script, &reporter, &stopper).await;
    assert_eq!((end, state), (Ok(()), NodeState::Ended));
    assert_eq!(script.waits(), [500, 1000, 2000]);
    assert_eq!(
        reporter.conditions(),
        [],
        "a node that has ended has no conditions"
    );
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_a_retry_cannot_fix_ends_the_node() {
    let failure = Failure::config("`path` is a directory");
    let script = Script::new([Ends::Failing(failure.clone())]);
    let (reporter, (stopper, _)) = (Reporter::new("in"), stop());
    let (end, state) = supervise_source(&script, &reporter, &stopper).await;
    let failed = NodeState::Failed(failure.message.clone());
    assert_eq!((end, state), (Err(failure), failed));
    assert_eq!(reporter.conditions(), []);
}

#[tokio::test(start_paused = true)]
async fn the_wait_has_a_limit_and_is_reset_after_a_long_run() {
    let (mut retry, _, _stopper) = retry();
    let mut waits = Vec::new();
    for _ in 0..8 {
        waits.push(wait_after(&mut retry, later()).await);
    }
    assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
    retry.started -= WAIT_MAX + Duration::from_secs(1);
    assert_eq!(wait_after(&mut retry, later()).await, 500);
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_asks_for_an_immediate_retry_is_retried_without_a_wait() {
    let (mut retry, reporter, _stopper) = retry();
    let again = Failure {
        again: Again::Now,
        ..later()
    };
    assert_eq!(wait_after(&mut retry, again).await, 0);
    assert_eq!(
        reporter.conditions().len(),
        1,
        "the condition stays until the node has run long enough"
    );
}

#[tokio::test(start_paused = true)]
async fn a_stop_shortens_the_wait() {
    let (mut retry, _, stopper) = retry();
    retry.wait = WAIT_MAX;
    let stop_later = async {
        sleep(Duration::from_secs(1)).await;
        stopper.stop();
    };
    let (waited, ()) = tokio::join!(wait_after(&mut retry, later()), stop_later);
    assert_eq!(waited, 1500);
}

#[tokio::test(start_paused = true)]
async fn the_condition_of_a_failed_node_is_cleared_when_a_later_run_has_lasted_long_enough() {
    let (mut retry, reporter, _stopper) = retry();
    wait_after(&mut retry, later()).await;
    let held = reporter.conditions();
    assert_eq!(held.len(), 1);
    assert_eq!(held[0].trouble, Trouble::Retrying);
    assert_eq!(held[0].why, "the server is down; retrying in 500 ms");
    let tick = Duration::from_millis(1);
    let look = async {
        sleep(PROVEN - tick).await;
        let before = reporter.conditions().len();
        sleep(2 * tick).await;
        (before, reporter.conditions().len())
    };
    let ((), seen) = tokio::join!(retry.watch(sleep(2 * PROVEN)), look);
    assert_eq!(seen, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn after_a_stop_a_failed_source_and_a_failed_sink_of_a_durable_channel_do_not_run_again() {
    let (stopper, _) = stop();
    stopper.stop();
    let fails = || Script::new([Ends::Failing(later())]);
    let (end, state) = supervise_source(&fails(), &Reporter::new("in"), &stopper).await;
    assert_eq!((end, state), (Ok(()), NodeState::Ended));
    let (end, state) = supervise_sink(&fails(), Some(7), &stopper).await;
    assert_eq!((end, state), (Ok(()), NodeState::Ended));
    // A sink that reads from memory is retried, because its batches exist nowhere else.
    let script = Script::new([Ends::Failing(later()), Ends::Panicking, Ends::Well]);
    let (end, state) = supervise_sink(&script, None, &stopper).await;
    assert_eq!((end, state), (Ok(()), NodeState::Ended));
    assert_eq!(script.waits(), [500, 500], "a stop bounds each wait");
}

#[tokio::test(start_paused = true)]
async fn a_replaced_sink_is_followed_by_the_next_one_on_the_same_inlet() {
    let (stopper, _) = stop();
    let (seat, first) = Seat::<Arc<dyn Sink>>::new(&stopper);
    let (mut inlet, mut context) = input(None, first);
    // The first sink never ends, so its run is dropped. The second sink ends with its inlet, because it is replaced.
    let (mut stays, takes): (Arc<dyn Sink>, _) = (Arc::new(Waits(false)), Arc::new(Waits(true)));
    let replace = async {
        seat.replace(takes);
        sleep(Duration::from_secs(60)).await;
        seat.replace(Arc::new(Script::new([Ends::Failing(later()), Ends::Well])));
    };
    let state = StateCell::new();
    let (end, ()) = tokio::join!(
        sink(&mut stays, &seat, &mut inlet, &mut context, &state),
        replace
    );
    assert_eq!((end, state.get()), (Ok(()), NodeState::Ended));
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_is_replaced_while_it_waits_to_retry_is_followed_by_the_next_one() {
    let (stopper, _) = stop();
    let (seat, first) = Seat::<Arc<dyn Sink>>::new(&stopper);
    let (mut inlet, mut context) = input(Some(7), first);
    let fails = Script::new([Ends::Failing(later())]);
    let next = Script::new([Ends::Well]);
    let replace = async {
        // The first sink fails immediately and then waits for half a second.
        sleep(Duration::from_millis(100)).await;
        seat.replace(Arc::new(next.clone()));
    };
    let state = StateCell::new();
    let mut first: Arc<dyn Sink> = Arc::new(fails.clone());
    let (end, ()) = tokio::join!(
        sink(&mut first, &seat, &mut inlet, &mut context, &state),
        replace
    );
    assert_eq!((end, state.get()), (Ok(()), NodeState::Ended));
    assert_eq!((fails.runs(), next.runs()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_must_leave_ends_even_if_each_run_fails_at_once() {
    for channel in [None, Some(7)] {
        let (stopper, _) = stop();
        let (seat, first) = Seat::<Arc<dyn Sink>>::new(&stopper);
        let (mut inlet, mut context) = input(channel, first);
        let fails = (0..9).map(|_| Ends::Failing(later()));
        let script = Script::new(fails);
        let leave = async {
            sleep(Duration::from_secs(5)).await;
            seat.leave();
        };
        let state = StateCell::new();
        let mut sink_of_test: Arc<dyn Sink> = Arc::new(script.clone());
        let run = sink(&mut sink_of_test, &seat, &mut inlet, &mut context, &state);
        let (end, ()) = tokio::join!(run, leave);
        assert_eq!((end, state.get()), (Ok(()), NodeState::Ended));
        assert!(script.runs() < 9, "it ran {} times", script.runs());
    }
}

/// If the flag is true, a sink that returns when its inlet has no more batches; otherwise a sink that never returns.
struct Waits(bool);

impl Sink for Waits {
    fn placement(&self) -> Placement {
        Placement::DataThreads
    }

    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        _: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async {
            inlet.resume(None)?;
            if !self.0 {
                std::future::pending::<()>().await;
            }
            assert!(inlet.next().await?.is_none());
            Ok(())
        })
    }

    fn promise(&self, _: bool) -> Promise {
        Promise::new(Guarantee::AtMostOnce, "a test")
    }
}
