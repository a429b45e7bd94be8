//! Tests that run a plan from its start to its end, and tests of plans that cannot start, of reloads that are refused, and of a sink that
//! leaves a channel and comes back.

use std::{
    any::Any,
    collections::VecDeque,
    future::pending,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use millstream_config::RejectedLimits;
use millstream_record::{Batch, Encoding, Position};
use tokio::{
    sync::{Semaphore, oneshot},
    time::{sleep, timeout},
};

use super::*;
use crate::{
    channel::{Apply, Attached, BoxFuture, Channel, Consumer, Delivered, Group, Reader},
    inlet::{Inlet, Item},
    node::{
        ChannelConfig, ChannelContext, LocalFuture, Opened, Placement, Sink, SinkContext, Source,
        SourceContext,
    },
    partition::Tasks,
    plan::{ChannelInput, ChannelPlan, Input, Route, RunSettings, SinkPlan, SourcePlan, Target},
    promise::{Guarantee, Promise},
    running::NodeStatus,
    supervise::NodeState,
    threads::Parked,
};

/// A step of a test that takes longer than this fails.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a test watches for something that must not happen.
const WATCH: Duration = Duration::from_millis(50);
/// The number of records in a batch.
const RECORDS: u32 = 2;

/// A memory channel with one lane and no bound.
#[derive(Default)]
struct Memory(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    groups: VecDeque<Group>,
    is_closed: bool,
    waker: Option<Waker>,
}

impl Memory {
    fn open(_: usize, _: usize) -> (Arc<dyn Channel>, Vec<Box<dyn Reader>>) {
        let memory = Arc::new(Self::default());
        (memory.clone(), vec![Box::new(Lane(memory))])
    }

    fn change(&self, change: impl FnOnce(&mut Queue)) {
        let mut queue = self.0.lock().unwrap();
        change(&mut queue);
        queue.waker.take().inspect(Waker::wake_by_ref);
    }
}

impl Channel for Memory {
    fn put(&self, group: Group) -> BoxFuture<'_, ()> {
        self.change(|queue| queue.groups.push_back(group));
        Box::pin(async {})
    }

    fn close(&self) {
        self.change(|queue| queue.is_closed = true);
    }
}

struct Lane(Arc<Memory>);

impl Reader for Lane {
    fn resume(&mut self, _: Option<Position>) -> Result<(), Failure> {
        Ok(())
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>> {
        let mut queue = self.0.0.lock().unwrap();
        match queue.groups.pop_front() {
            Some(mut group) => {
                let batch = group.batches.remove(0);
                Poll::Ready(Ok(Some(Delivered::new(batch, None, Some(group.token)))))
            }
            None if queue.is_closed => Poll::Ready(Ok(None)),
            None => {
                queue.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    fn commit(&mut self, _: Position) -> Result<(), Failure> {
        Ok(())
    }
}

/// A durable channel that keeps no group, so its sources wait.
#[derive(Clone, Default)]
struct Hold {
    id: u128,
    groups: Arc<Mutex<Vec<Group>>>,
    /// Counts the changes of its options; `None` if only a restart can change them.
    changes: Option<Arc<AtomicUsize>>,
    /// The consumers that have joined it while it ran.
    attached: Arc<Mutex<Vec<String>>>,
    /// The consumers that it was asked to forget.
    forgotten: Arc<Mutex<Vec<String>>>,
}

impl Channel for Hold {
    fn put(&self, group: Group) -> BoxFuture<'_, ()> {
        self.groups.lock().unwrap().push(group);
        Box::pin(async {})
    }

    fn close(&self) {}

    fn change(&self, _: Box<dyn Any + Send>) -> Option<Apply> {
        let changes = self.changes.clone()?;
        Some(Box::new(move || {
            changes.fetch_add(1, SeqCst);
        }))
    }

    fn attach(&self, consumer: Consumer) -> oneshot::Receiver<Result<Attached, String>> {
        let (answer, receiver) = oneshot::channel();
        self.attached
            .lock()
            .unwrap()
            .push(consumer.name.to_string());
        let _ = answer.send(Ok(Attached {
            reader: idle(),
            is_new: true,
        }));
        receiver
    }

    fn forget(&self, consumer: &str) -> oneshot::Receiver<Result<(), String>> {
        self.forgotten.lock().unwrap().push(consumer.to_owned());
        let (answer, receiver) = oneshot::channel();
        let _ = answer.send(Ok(()));
        receiver
    }

    fn id(&self) -> Option<u128> {
        Some(self.id)
    }
}

/// The reader of a channel that keeps nothing.
struct Idle;

fn idle() -> Box<dyn Reader> {
    Box::new(Idle)
}

impl Reader for Idle {
    fn resume(&mut self, _: Option<Position>) -> Result<(), Failure> {
        Ok(())
    }

    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>> {
        Poll::Pending
    }

    fn commit(&mut self, _: Position) -> Result<(), Failure> {
        Ok(())
    }
}

impl ChannelConfig for Hold {
    fn open(&self, _: ChannelContext, consumers: &[Consumer]) -> Result<Opened, Failure> {
        Ok(Opened {
            channel: Arc::new(self.clone()),
            readers: consumers.iter().map(|_| idle()).collect(),
            finished: Box::pin(pending()),
        })
    }

    fn promise(&self) -> Promise {
        Promise::new(Guarantee::ExactlyOnce, "a test")
    }
}

/// Counts what the nodes of a test do.
#[derive(Default)]
struct Seen {
    bound: AtomicUsize,
    has_run: AtomicBool,
    records: AtomicUsize,
}

/// A source that sends one batch.
struct One {
    seen: Arc<Seen>,
    bind: Result<(), Failure>,
}

impl Source for One {
    fn bind(&mut self, _: &SourceContext) -> Result<(), Failure> {
        self.seen.bound.fetch_add(1, SeqCst);
        self.bind.clone()
    }

    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            self.seen.has_run.store(true, SeqCst);
            let batch = Batch {
                tag: "app".into(),
                encoding: Encoding::Lines,
                plain: false,
                body: "a\nb\n".into(),
                count: RECORDS,
                received: Default::default(),
                values: Default::default(),
                origins: Vec::new(),
            };
            let kept = context.outlet.send(batch, false).await.await;
            kept.map_err(|_| Failure::us("the batch was dropped"))
        })
    }

    fn values(&self) -> &'static [&'static str] {
        &[]
    }

    fn promise(&self, _: bool) -> Promise {
        Promise::new(Guarantee::AtMostOnce, "a test")
    }
}

/// A source whose state is damaged.
struct DamagedSource;

impl Source for DamagedSource {
    fn bind(&mut self, _: &SourceContext) -> Result<(), Failure> {
        Ok(())
    }

    fn run<'a>(&'a mut self, _: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async { Err(Failure::state("its state is damaged")) })
    }

    fn values(&self) -> &'static [&'static str] {
        &[]
    }

    fn promise(&self, _: bool) -> Promise {
        Promise::new(Guarantee::AtLeastOnce, "a test")
    }
}

/// A sink that counts records.
struct Counter(Arc<Seen>);

impl Sink for Counter {
    fn placement(&self) -> Placement {
        Placement::DataThreads
    }

    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        _: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            self.0.has_run.store(true, SeqCst);
            inlet.resume(None)?;
            while let Some(item) = inlet.next().await? {
                match item {
                    Item::Batch(batch, _) => {
                        self.0.records.fetch_add(batch.count as usize, SeqCst);
                    }
                    Item::Checkpoint(checkpoint) => inlet.settle(checkpoint).await?,
                }
            }
            Ok(())
        })
    }

    fn promise(&self, _: bool) -> Promise {
        Promise::new(Guarantee::AtMostOnce, "a test")
    }
}

/// A sink that ends only when its gate is closed.
struct Late(Arc<Semaphore>);

impl Sink for Late {
    fn placement(&self) -> Placement {
        Placement::OwnThread
    }

    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        _: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            inlet.resume(None)?;
            while inlet.next().await?.is_some() {}
            let _ = self.0.acquire().await;
            Ok(())
        })
    }

    fn promise(&self, _: bool) -> Promise {
        Promise::new(Guarantee::AtMostOnce, "a test")
    }
}

/// Returns a durable channel as a plan has it.
fn hold(name: &str, options: &str, hold: &Hold) -> ChannelPlan {
    ChannelPlan {
        name: name.into(),
        kind: "hold",
        config: Box::new(hold.clone()),
        options: options.into(),
        input: None,
        chain: None,
        consumers: Vec::new(),
    }
}

/// Returns a route to a durable channel.
fn to(channel: usize) -> Route {
    Route {
        to: Target::Channel(channel),
        entry: 0,
        tags: None,
    }
}

/// Returns a plan with a source for each result in `binds`, and one sink that reads from memory and is fed by all sources.
fn plan(data_dir: &Path, seen: &Arc<Seen>, binds: &[Result<(), Failure>]) -> Plan {
    let source = |(number, bind): (usize, &Result<(), Failure>)| SourcePlan {
        name: format!("in{number}").into(),
        kind: "one",
        source: Box::new(One {
            seen: seen.clone(),
            bind: bind.clone(),
        }),
        options: "".into(),
        routes: vec![Route {
            to: Target::Sink(0),
            entry: 0,
            tags: None,
        }],
        rejects: Vec::new(),
    };
    Plan {
        sources: binds.iter().enumerate().map(source).collect(),
        processors: Vec::new(),
        channels: Vec::new(),
        sinks: vec![SinkPlan {
            name: "out".into(),
            kind: "counter",
            sink: Arc::new(Counter(seen.clone())),
            options: "".into(),
            input: Input::Memory {
                queue_bytes: 1 << 20,
                tasks: Tasks::default(),
            },
            chain: None,
            rejects: Vec::new(),
        }],
        links: Vec::new(),
        settings: RunSettings {
            data_dir: data_dir.to_owned(),
            memory_max: 64 << 20,
            threads: 1,
            host: "here".into(),
            rejected: RejectedLimits::default(),
        },
    }
}

async fn start(plan: Plan) -> Result<(Running, Reloader), Failure> {
    let environment = Launch {
        once: true,
        open_memory: Memory::open,
        meters: Meters::default(),
    };
    launch(plan, environment).await
}

#[tokio::test]
async fn a_plan_runs_until_its_inputs_have_ended_and_everything_is_settled() {
    let (directory, seen) = (tempfile::tempdir().unwrap(), Arc::<Seen>::default());
    let started = start(plan(directory.path(), &seen, &[Ok(()), Ok(())])).await;
    let (mut running, _reloader) = started.unwrap();
    let ended = timeout(PATIENCE, running.ended()).await;
    assert_eq!(ended.expect("it ends"), []);
    assert_eq!(seen.records.load(SeqCst), 2 * RECORDS as usize);
    assert_eq!(running.pending_records(), 0);
}

#[tokio::test]
async fn a_node_that_fails_as_soon_as_it_starts_is_among_the_failures_of_the_run() {
    let seen = Arc::<Seen>::default();
    // Their thread runs while this thread starts the others, so a source may fail before its start is complete. In most
    // rounds none does.
    const SOURCES: usize = 200;
    for _ in 0..50 {
        let directory = tempfile::tempdir().unwrap();
        let mut damaged = plan(directory.path(), &seen, &vec![Ok(()); SOURCES]);
        for source in &mut damaged.sources {
            source.source = Box::new(DamagedSource);
        }
        let (mut running, _reloader) = start(damaged).await.unwrap();
        let ended = timeout(PATIENCE, running.ended()).await;
        assert_eq!(ended.expect("it ends").len(), SOURCES);
    }
}

#[tokio::test]
async fn no_node_runs_if_a_source_cannot_bind() {
    let (directory, seen) = (tempfile::tempdir().unwrap(), Arc::<Seen>::default());
    let failure = Failure::config("the port is in use");
    let broken = plan(directory.path(), &seen, &[Ok(()), Err(failure)]);
    let failure = start(broken).await.err().expect("the start fails");
    assert!(failure.message.contains("the port is in use"), "{failure}");
    assert_eq!(seen.bound.load(SeqCst), 2);
    sleep(WATCH).await;
    assert!(!seen.has_run.load(SeqCst));
    // The failed start has released the directory.
    start(plan(directory.path(), &seen, &[Ok(())]))
        .await
        .expect("a start");
}

#[tokio::test]
async fn a_second_start_in_the_same_directory_is_refused_before_it_binds() {
    let (directory, seen) = (tempfile::tempdir().unwrap(), Arc::<Seen>::default());
    let first = start(plan(directory.path(), &seen, &[])).await;
    assert!(first.is_ok());
    let second = start(plan(directory.path(), &seen, &[Ok(())])).await;
    let failure = second.err().expect("the start fails");
    assert!(
        failure.message.contains("another running Millstream"),
        "{failure}"
    );
    assert_eq!(seen.bound.load(SeqCst), 0);
}

#[tokio::test]
async fn a_refused_reload_changes_the_options_of_no_channel() {
    let (directory, seen) = (tempfile::tempdir().unwrap(), Arc::<Seen>::default());
    let changes = Arc::<AtomicUsize>::default();
    let with_options = |options: &str| {
        let mut plan = plan(directory.path(), &seen, &[Ok(())]);
        let changing = Hold {
            changes: Some(changes.clone()),
            ..Hold::default()
        };
        plan.channels = vec![
            hold("changing", options, &changing),
            hold("fixed", options, &Hold::default()),
        ];
        plan.sources[0].routes = vec![to(0), to(1)];
        plan
    };
    let (_running, mut reloader) = start(with_options("old")).await.unwrap();
    let failure = reloader.reload(with_options("new"), &[]).await.unwrap_err();
    let why = "fixed cannot change its options while it runs";
    assert!(failure.message.contains(why), "{failure}");
    assert_eq!(changes.load(SeqCst), 0);
}

#[tokio::test]
async fn a_channel_does_not_forget_a_sink_that_reads_it_again() {
    let (directory, holds) = (tempfile::tempdir().unwrap(), holds());
    let gate = Arc::new(Semaphore::new(0));
    let reading = |channel: usize| {
        let sink = Arc::new(Late(gate.clone()));
        reading(directory.path(), &holds, sink, Some(channel))
    };
    let (_running, mut reloader) = start(reading(0)).await.unwrap();
    reloader.reload(reading(1), &[]).await.unwrap();
    reloader.reload(reading(0), &[]).await.unwrap();
    // Until now, the first task of the sink has not ended.
    gate.close();
    let forgotten = |channel: usize| holds[channel].forgotten.lock().unwrap().clone();
    let left = async {
        while forgotten(1).is_empty() {
            sleep(WATCH).await;
        }
    };
    timeout(PATIENCE, left).await.expect("the sink leaves");
    sleep(WATCH).await;
    assert_eq!(forgotten(0), [""; 0]);
}

/// A plan with two durable channels, of which `out` reads the one with this index; `None`: it reads from memory.
fn reading(
    directory: &Path,
    holds: &[Hold; 2],
    sink: Arc<dyn Sink>,
    channel: Option<usize>,
) -> Plan {
    let mut plan = plan(directory, &Arc::default(), &[Ok(())]);
    plan.channels = vec![hold("one", "", &holds[0]), hold("other", "", &holds[1])];
    plan.sources[0].routes = vec![to(0), to(1)];
    plan.sinks[0].sink = sink;
    if let Some(channel) = channel {
        plan.channels[channel].consumers = vec!["out".into()];
        let tags = None;
        plan.sinks[0].input = Input::Channel(ChannelInput { channel, tags });
    }
    plan
}

fn holds() -> [Hold; 2] {
    [1, 2].map(|id| Hold {
        id,
        ..Hold::default()
    })
}

#[tokio::test]
async fn a_moved_sink_is_known_to_its_new_channel_before_its_earlier_task_has_ended() {
    let (directory, holds) = (tempfile::tempdir().unwrap(), holds());
    let gate = Arc::new(Semaphore::new(0));
    let plan = |channel| {
        let sink = Arc::new(Late(gate.clone()));
        reading(directory.path(), &holds, sink, Some(channel))
    };
    let (running, mut reloader) = start(plan(0)).await.unwrap();
    reloader.reload(plan(1), &[]).await.unwrap();
    let attached = |at: usize| holds[at].attached.lock().unwrap().clone();
    assert_eq!((attached(0), attached(1)), (vec![], vec!["out".to_owned()]));
    let state = || {
        let nodes = running.nodes.now();
        let out = nodes.iter().find(|node| &*node.name == "out");
        out.unwrap().state()
    };
    let is = async |wanted: NodeState| {
        while state() != wanted {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, is(NodeState::Planned)).await.unwrap();
    gate.close();
    timeout(PATIENCE, is(NodeState::Running)).await.unwrap();
}

#[tokio::test]
async fn a_refused_reload_leaves_no_consumer_and_forgets_nothing_of_running_nodes() {
    let (directory, holds) = (tempfile::tempdir().unwrap(), holds());
    let gate = Arc::new(Semaphore::new(0));
    let sink = || Arc::new(Late(gate.clone()));
    let plan = |channel| reading(directory.path(), &holds, sink(), channel);
    let (running, mut reloader) = start(plan(Some(0))).await.unwrap();
    // The earlier tasks of `out` have left, and their end is noticed by the next reload.
    reloader.reload(plan(Some(1)), &[]).await.unwrap();
    gate.close();
    sleep(WATCH).await;
    running.meters.of("out").counter("records_settled").add(7);
    let mut refused = plan(None);
    refused.sinks[0].name = "another".into();
    refused.sinks[0].input = Input::Channel(ChannelInput {
        channel: 0,
        tags: None,
    });
    refused.channels[0].consumers = vec!["another".into()];
    let more = self::plan(
        directory.path(),
        &Arc::default(),
        &[Ok(()), Err(Failure::config("the port is in use"))],
    );
    refused.sources.extend(more.sources.into_iter().skip(1));
    refused.sources[1].routes = vec![to(0)];
    let failure = reloader.reload(refused, &[]).await.unwrap_err();
    assert!(failure.message.contains("the port is in use"), "{failure}");
    assert_eq!(*holds[0].attached.lock().unwrap(), ["another"]);
    let forgotten = holds[0].forgotten.lock().unwrap().clone();
    assert!(forgotten.contains(&"another".to_owned()), "{forgotten:?}");
    assert_eq!(running.meters.value("out", "records_settled"), 7);
    // The port of the running source still exists: a sink that is connected to it is wired.
    let mut more = plan(Some(1));
    let memory = self::plan(directory.path(), &Arc::default(), &[]);
    more.sinks
        .extend(memory.sinks.into_iter().map(|sink| SinkPlan {
            name: "more".into(),
            ..sink
        }));
    more.sources[0].rejects = vec![Route {
        to: Target::Sink(1),
        entry: 0,
        tags: None,
    }];
    reloader.reload(more, &[]).await.unwrap();
    let nodes = running.nodes.now();
    assert!(nodes.iter().any(|node| &*node.name == "more"));
}

#[tokio::test]
async fn a_reload_whose_threads_cannot_start_is_refused_and_changes_nothing() {
    let (directory, holds) = (tempfile::tempdir().unwrap(), holds());
    let seen = Arc::<Seen>::default();
    let gate = Arc::new(Semaphore::new(0));
    gate.close();
    let plan = |channel| {
        let sink = Arc::new(Late(gate.clone()));
        reading(directory.path(), &holds, sink, Some(channel))
    };
    let (running, mut reloader) = start(plan(0)).await.unwrap();
    let before: Vec<_> = running
        .nodes
        .now()
        .iter()
        .map(|it| it.name.clone())
        .collect();
    reloader.starts_threads_with(|_| Err(std::io::Error::other("no more processes")));
    for new in [plan(1), {
        let mut new = plan(0);
        new.channels[0].consumers.push("more".into());
        new.sinks.push(SinkPlan {
            name: "more".into(),
            sink: Arc::new(Late(gate.clone())),
            input: Input::Channel(ChannelInput {
                channel: 0,
                tags: None,
            }),
            ..self::plan(directory.path(), &seen, &[]).sinks.remove(0)
        });
        new
    }] {
        let failure = reloader.reload(new, &[]).await.unwrap_err();
        let why = &failure.message;
        assert!(why.contains("cannot start a thread for"), "{why}");
        assert!(why.contains("no more processes"), "{why}");
        let nodes = running.nodes.now();
        let now: Vec<_> = nodes.iter().map(|it| it.name.clone()).collect();
        assert_eq!(now, before);
        assert!(nodes.iter().all(|it| it.state() == NodeState::Running));
    }
    let left: Vec<_> = holds[1].forgotten.lock().unwrap().clone();
    assert_eq!(left, ["out"], "the consumer that had joined is gone again");
    reloader.starts_threads_with(Parked::new);
    reloader.reload(plan(1), &[]).await.unwrap();
}

/// A sink whose state cannot be used.
struct Damaged;

impl Sink for Damaged {
    fn placement(&self) -> Placement {
        Placement::OwnThread
    }

    fn run<'a>(&'a self, _: &'a mut Inlet, _: SinkContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async { Err(Failure::state("its state is damaged")) })
    }

    fn promise(&self, _: bool) -> Promise {
        Promise::new(Guarantee::AtMostOnce, "a test")
    }
}

#[tokio::test]
async fn a_sink_that_failed_can_be_replaced_moved_and_removed() {
    for change in ["replace", "move", "remove"] {
        let (directory, holds) = (tempfile::tempdir().unwrap(), holds());
        let damaged = reading(directory.path(), &holds, Arc::new(Damaged), Some(0));
        let launched = launch(
            damaged,
            Launch {
                once: false,
                open_memory: Memory::open,
                meters: Meters::default(),
            },
        );
        let (mut running, mut reloader) = launched.await.unwrap();
        let nodes = running.nodes.clone();
        let state = || {
            let nodes = nodes.now();
            let out = nodes.iter().find(|node| &*node.name == "out");
            out.map(NodeStatus::state)
        };
        let is = async |wanted: fn(&Option<NodeState>) -> bool| {
            let waiting = async {
                while !wanted(&state()) {
                    sleep(Duration::from_millis(5)).await;
                }
            };
            timeout(PATIENCE, waiting).await.expect(change);
        };
        is(|state| matches!(state, Some(NodeState::Failed(_)))).await;
        let gate = Arc::new(Semaphore::new(0));
        gate.close();
        let late = Arc::new(Late(gate));
        let mut new = reading(
            directory.path(),
            &holds,
            late,
            Some(usize::from(change == "move")),
        );
        new.sinks[0].options = "repaired".into();
        if change == "remove" {
            new.sinks.clear();
            new.channels[0].consumers.clear();
        }
        reloader.reload(new, &[]).await.unwrap();
        match change {
            "remove" => is(Option::is_none).await,
            _ => is(|state| *state == Some(NodeState::Running)).await,
        }
        let forgotten = async {
            while change != "replace" && holds[0].forgotten.lock().unwrap().is_empty() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, forgotten).await.expect(change);
        // The failure is over, so the exit is orderly.
        let told = async {
            while !running.failures_now().is_empty() {
                let _ = timeout(WATCH, running.ended()).await;
            }
        };
        timeout(PATIENCE, told).await.expect(change);
    }
}
