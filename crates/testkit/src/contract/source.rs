//! The contract of sources.

use std::{
    cell::Cell,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use millstream_pipeline::{
    channel::{BoxFuture, Channel, Group},
    delivery::Token,
    failure::Failure,
    meters::Meters,
    node::{Source, SourceContext},
    outlet::{Edge, Feed, Outlet},
    promise::Guarantee,
    report::Reporter,
    stop::{Stop, Stopper, stop},
    threads::Threads,
};
use millstream_record::{Batch, Pool};
use tokio::{sync::oneshot, task::LocalSet};

use super::{WATCH, assert_ended, caught, within};

/// The number of data threads in the checks.
const THREADS: usize = 2;
/// The interval between two checks of a running source.
const LOOK: Duration = Duration::from_millis(2);

/// Sends the input to a source that is bound, on a new connection. Returns whether the source has acknowledged all of the input. If
/// it has not, the peer is called again.
pub type Peer = Arc<dyn Fn() -> bool + Send + Sync>;

/// A source for [`SourceCase::check`].
pub struct SourceCase<'c> {
    /// Builds the source, with an input of [`SourceCase::records`] records. Without a `peer`, the source runs
    /// as with `--once` and must end when it has read the input. Each call builds a new source and a new input.
    pub build: &'c dyn Fn() -> Box<dyn Source>,
    /// The peer of a source that receives its input from peers. Such a source runs until it is stopped.
    pub peer: Option<Peer>,
    /// The number of records in the input, including those that the source rejects.
    pub records: u64,
    /// The number of records that the source rejects.
    pub rejected: u64,
    /// The source's directory for state. Each check uses its own subdirectory.
    pub directory: &'c Path,
}

impl SourceCase<'_> {
    /// Checks the contract of a source. Call it within a Tokio runtime.
    ///
    /// # Panics
    /// If the source breaks the contract.
    pub async fn check(&self) {
        self.sends_every_record_and_rejects_only_misfits().await;
        self.drains_before_it_ends().await;
        self.resends_a_dropped_batch().await;
        self.restarts_after_a_panic().await;
    }

    async fn sends_every_record_and_rejects_only_misfits(&self) {
        let mut node = self.node("all");
        let ended = node.run_to_its_end("it reads its input to the end").await;
        assert_ended(ended, "the input has ended");
        let sent = self.records - self.rejected;
        assert_eq!(node.kept.state().records, sent, "records are sent");
        assert_eq!(
            node.rejects.state().records,
            self.rejected,
            "misfits leave by the port for rejects"
        );
    }

    /// The source waits for the batches in flight, even after a stop.
    async fn drains_before_it_ends(&self) {
        let mut node = self.node("drain");
        node.kept.state().answer = Answer::Hold;
        node.bind();
        let (kept, stopper) = (node.kept.clone(), node.stopper.clone());
        let watch = async move {
            kept.until("a batch is sent", |state| state.records > 0)
                .await;
            stopper.stop();
            tokio::time::sleep(WATCH).await;
            kept.answer_all();
        };
        let held = node.kept.clone();
        let run = async {
            let ended = node.run().await;
            assert!(
                held.state().held.is_empty(),
                "a source ends only when its batches in flight are answered"
            );
            ended
        };
        let both = async { tokio::join!(run, watch) };
        let (ended, ()) = within("a source ends after a stop", both).await;
        assert_ended(ended, "it was stopped");
    }

    /// A source resends a batch that its consumer dropped, unless it promises at most once.
    async fn resends_a_dropped_batch(&self) {
        let mut node = self.node("dropped");
        node.kept.state().answer = Answer::DropFirst;
        // The run may end with a failure. The supervisor then runs the source again.
        node.bind();
        let first = node.run();
        let first = within("a source notices a dropped batch", first).await;
        if first.is_err() {
            let again = within("a source runs again after a failure", node.run()).await;
            assert_ended(again, "it runs again");
        }
        node.assert_nothing_lost(self.records - self.rejected);
    }

    async fn restarts_after_a_panic(&self) {
        let mut node = self.node("panic");
        node.kept.state().answer = Answer::PanicOnce;
        node.bind();
        let first = within(
            "a panic ends a run, or the source survives it",
            caught(node.run()),
        );
        if !matches!(first.await, Ok(Ok(()))) {
            let again = within("a source runs again after a panic", node.run()).await;
            assert_ended(again, "it runs again after a panic, without another bind");
        }
        node.assert_nothing_lost(self.records - self.rejected);
    }

    fn node(&self, check: &str) -> Node {
        let source = (self.build)();
        let (stopper, stop) = stop();
        Node {
            source,
            peer: self.peer.clone(),
            records: self.records,
            directory: self.directory.join(check),
            kept: Keeper::default(),
            rejects: Keeper::default(),
            stopper: Arc::new(stopper),
            stop,
            context: None,
        }
    }
}

/// A source with its context, its peer and the channels to which it sends.
struct Node {
    source: Box<dyn Source>,
    peer: Option<Peer>,
    records: u64,
    directory: PathBuf,
    kept: Keeper,
    rejects: Keeper,
    stopper: Arc<Stopper>,
    stop: Stop,
    context: Option<SourceContext>,
}

impl Node {
    fn bind(&mut self) {
        let meters = Meters::default().of("source");
        let outlet = |keeper: &Keeper, rejected| {
            let edge = Edge::to(Feed::new(Arc::new(keeper.clone())));
            Outlet::new(vec![edge], &meters, rejected)
        };
        let threads = Threads::start(THREADS);
        let context = SourceContext {
            name: "source".into(),
            follows: [].into(),
            outlet: outlet(&self.kept, false),
            rejects: outlet(&self.rejects, true),
            threads: threads.unwrap_or_else(|error| panic!("threads start: {error}")),
            stop: self.stop.clone(),
            once: self.peer.is_none(),
            pool: Pool::new(64 << 20),
            meters: meters.clone(),
            reporter: Reporter::new("source"),
            host: "here".into(),
            directory: self.directory.clone(),
        };
        let bound = self.source.bind(&context);
        bound.unwrap_or_else(|failure| panic!("a source binds: {failure}"));
        self.context = Some(context);
    }

    /// Runs the source once, with its local tasks and its peer.
    async fn run(&mut self) -> Result<(), Failure> {
        let context = self.context.clone();
        let context = context.expect("a source is bound before it runs");
        let has_ended = Cell::new(false);
        let (peer, records) = (self.peer.clone(), self.records);
        let (ports, stopper) = ([&self.kept, &self.rejects], &self.stopper);
        let send = async {
            let Some(peer) = peer else { return };
            while !has_ended.get() {
                if answers(&peer).await {
                    let settled: u64 = ports.iter().map(|port| port.state().settled).sum();
                    assert!(
                        settled >= records,
                        "a source answers only for what is settled: {settled} of {records} records"
                    );
                    return stopper.stop();
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        let run = async {
            let ended = LocalSet::new().run_until(self.source.run(context)).await;
            has_ended.set(true);
            ended
        };
        tokio::join!(run, send).0
    }

    async fn run_to_its_end(&mut self, step: &str) -> Result<(), Failure> {
        self.bind();
        within(step, self.run()).await
    }

    fn assert_nothing_lost(&self, records: u64) {
        let guarantee = self.source.promise(false).guarantee;
        let settled = self.kept.state().settled;
        assert!(
            guarantee == Guarantee::AtMostOnce || settled >= records,
            "it promises {guarantee}: {settled} of {records} records are settled"
        );
    }
}

/// Whether the source acknowledges all of the peer's input.
async fn answers(peer: &Peer) -> bool {
    let (peer, (sender, answered)) = (peer.clone(), oneshot::channel());
    // The peer runs on a separate thread, because a peer that gets no answer would block a thread of the runtime.
    thread::spawn(move || sender.send(peer()));
    answered.await.unwrap_or_else(|_| panic!("the peer died"))
}

/// How the channel treats a group of batches.
#[derive(Clone, Copy, Default, PartialEq)]
enum Answer {
    #[default]
    Settle,
    /// Holds the group's token, to settle it later.
    Hold,
    /// Drops the first group, as a consumer that dies does.
    DropFirst,
    /// Panics at the first group.
    PanicOnce,
}

/// The channel to which a source sends.
#[derive(Clone, Default)]
struct Keeper(Arc<Mutex<KeeperState>>);

#[derive(Default)]
struct KeeperState {
    answer: Answer,
    records: u64,
    settled: u64,
    held: Vec<Token>,
}

impl Keeper {
    fn state(&self) -> MutexGuard<'_, KeeperState> {
        // Some checks make a run panic, which may poison the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer_all(&self) {
        let mut state = self.state();
        state.answer = Answer::Settle;
        state.settled = state.records;
        state.held.drain(..).for_each(Token::settle);
    }

    async fn until(&self, step: &str, holds: impl Fn(&KeeperState) -> bool) {
        let look = async {
            while !holds(&self.state()) {
                tokio::time::sleep(LOOK).await;
            }
        };
        within(step, look).await;
    }
}

impl Channel for Keeper {
    fn put(&self, group: Group) -> BoxFuture<'_, ()> {
        let mut state = self.state();
        let answer = state.answer;
        if matches!(answer, Answer::DropFirst | Answer::PanicOnce) {
            state.answer = Answer::Settle;
        }
        if answer == Answer::PanicOnce {
            drop(state);
            panic!("the contract lets a run panic");
        }
        let records = |batch: &Batch| u64::from(batch.count);
        let records: u64 = group.batches.iter().map(records).sum();
        match answer {
            Answer::Hold => {
                state.records += records;
                state.held.push(group.token);
            }
            Answer::Settle => {
                state.records += records;
                state.settled += records;
                group.token.settle();
            }
            Answer::DropFirst | Answer::PanicOnce => {}
        }
        Box::pin(std::future::ready(()))
    }

    fn close(&self) {}
}
