//! The order in which tasks start, their threads and contexts, and tasks that cannot start.

use std::{task, thread, time::Duration};

use millstream_record::Position;
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use super::*;
use crate::{
    channel::{Attached, BoxFuture, Channel, Consumer, Delivered, Group},
    inlet::Inlet,
    node::LocalFuture,
    outlet::Edge,
    promise::{Guarantee, Promise},
    supervise::NodeState,
    unopened::Unopened,
};

/// A step of a test that takes longer than this fails.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a test watches for something that must not happen.
const WATCH: Duration = Duration::from_millis(50);

/// The report that a run of a node has begun.
#[derive(Debug)]
struct Begun {
    node: Arc<str>,
    thread: String,
    directory: PathBuf,
    lane: usize,
}

/// A source or sink that sends [`Begun`] when it begins. As a source, it ends at its stop. As a sink, it ends with its inlet.
#[derive(Clone)]
struct Told {
    begun: mpsc::Sender<Begun>,
    failure: Option<Failure>,
    /// Whether a run kills its task, as [`Deadly`] does.
    dies: bool,
}

/// A run that panics, and panics again when it is dropped. The supervision of nodes catches only the first panic.
struct Deadly;

impl Future for Deadly {
    type Output = Result<(), Failure>;

    fn poll(self: std::pin::Pin<&mut Self>, _: &mut task::Context<'_>) -> task::Poll<Self::Output> {
        panic!("injected");
    }
}

impl Drop for Deadly {
    fn drop(&mut self) {
        panic!("injected into the drop");
    }
}

impl Told {
    fn tell(&self, node: &Arc<str>, directory: PathBuf, lane: usize) -> Result<(), Failure> {
        let begun = Begun {
            node: node.clone(),
            thread: thread::current().name().unwrap_or_default().to_owned(),
            directory,
            lane,
        };
        self.begun.try_send(begun).unwrap();
        self.failure.clone().map_or(Ok(()), Err)
    }
}

impl Source for Told {
    fn bind(&mut self, _: &SourceContext) -> Result<(), Failure> {
        Ok(())
    }

    fn run<'a>(&'a mut self, mut context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        if self.dies {
            return Box::pin(Deadly);
        }
        Box::pin(async move {
            self.tell(&context.name, context.directory, 0)?;
            context.stop.stopped().await;
            Ok(())
        })
    }

    fn values(&self) -> &'static [&'static str] {
        &[]
    }

    fn promise(&self, _: bool) -> Promise {
        Promise::new(Guarantee::AtMostOnce, "a test")
    }
}

impl Sink for Told {
    fn placement(&self) -> Placement {
        Placement::DataThreads
    }

    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        context: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>> {
        if self.dies {
            return Box::pin(Deadly);
        }
        Box::pin(async move {
            self.tell(&context.name, context.directory, context.lane)?;
            inlet.resume(None)?;
            while inlet.next().await?.is_some() {}
            Ok(())
        })
    }

    fn promise(&self, _: bool) -> Promise {
        Promise::new(Guarantee::AtMostOnce, "a test")
    }
}

/// The reader of a channel without batches. It ends immediately if `has_ended` is true, and waits forever otherwise.
struct Empty {
    has_ended: bool,
    _held: Arc<()>,
}

impl Reader for Empty {
    fn resume(&mut self, _: Option<Position>) -> Result<(), Failure> {
        Ok(())
    }

    fn poll_next(
        &mut self,
        _: &mut task::Context<'_>,
    ) -> task::Poll<Result<Option<Delivered>, Failure>> {
        match self.has_ended {
            true => task::Poll::Ready(Ok(None)),
            false => task::Poll::Pending,
        }
    }

    fn commit(&mut self, _: Position) -> Result<(), Failure> {
        Ok(())
    }
}

/// A channel that has ended, and gives readers only to `out`.
struct Ended;

impl Channel for Ended {
    fn put(&self, _: Group) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    fn close(&self) {}

    fn attach(&self, consumer: Consumer) -> oneshot::Receiver<Result<Attached, String>> {
        let (answer, receiver) = oneshot::channel();
        let attached = || Attached {
            reader: reader(true, &Arc::new(())),
            is_new: false,
        };
        let known = (&*consumer.name == "out").then(attached);
        let _ = answer.send(known.ok_or_else(|| "it has no such consumer".to_owned()));
        receiver
    }
}

fn reader(has_ended: bool, held: &Arc<()>) -> Box<dyn Reader> {
    let _held = held.clone();
    Box::new(Empty { has_ended, _held })
}

/// Returns a lane whose reader never ends.
fn endless() -> Lane {
    lane(Supply::Reader(reader(false, &Arc::new(()))))
}

fn lane(supply: Supply) -> Lane {
    Lane {
        supply,
        chain: None,
        state: StateCell::new(),
        thread: None,
    }
}

struct Rig {
    starter: Starter,
    ends: mpsc::Receiver<Event>,
    begun: mpsc::Receiver<Begun>,
    /// A node that the starter can start.
    told: Told,
    reporter: Reporter,
}

impl Rig {
    fn new() -> Self {
        let (ends_sender, ends) = mpsc::channel(16);
        let (begun_sender, begun) = mpsc::channel(16);
        let starter = Starter {
            threads: Threads::start(2).unwrap(),
            pool: Pool::new(1 << 20),
            meters: Meters::default(),
            data_dir: "data".into(),
            unusable: None,
            host: "here".into(),
            once: true,
            stop_sources: stop().0,
            stop_sinks: stop().0,
            ends: ends_sender,
            started: Arc::default(),
            readings: Arc::default(),
            probation: Probation::new(std::path::Path::new("data")),
            sources: 0,
            park: Parked::new,
        };
        let told = Told {
            begun: begun_sender,
            failure: None,
            dies: false,
        };
        Self {
            starter,
            ends,
            begun,
            told,
            reporter: Reporter::new("node"),
        }
    }

    fn outlet(&self, edges: Vec<Edge>, rejected: bool) -> Outlet {
        Outlet::new(edges, &self.starter.meters.of("node"), rejected)
    }

    async fn source(&mut self, name: &str, before: Option<Stop>) -> Seated<Box<dyn Source>> {
        let ports = [false, true].map(|rejected| self.outlet(Vec::new(), rejected));
        let (seat, context) =
            self.starter
                .source_context(&name.into(), [].into(), &self.reporter, ports.into());
        let bound = BoundSource {
            source: Box::new(self.told.clone()),
            seat,
            context,
            state: StateCell::new(),
        };
        self.starter.source(bound, Vec::from_iter(before)).await
    }

    async fn sink(
        &mut self,
        name: &str,
        mut lanes: Vec<Lane>,
        is_on_threads: bool,
        before: Option<Stop>,
    ) -> Seated<Arc<dyn Sink>> {
        for lane in lanes.iter_mut().filter(|_| !is_on_threads) {
            lane.thread = Some(Parked::new(name).unwrap());
        }
        let laid = LaidSink {
            aside: None,
            name: name.into(),
            sink: Arc::new(self.told.clone()),
            lanes,
            is_on_threads,
            channel: None,
            input: None,
            queue: None,
            rejects: self.outlet(Vec::new(), true),
            reporter: self.reporter.clone(),
        };
        self.starter.sink(laid, Vec::from_iter(before)).await
    }

    /// Waits for the next task that begins.
    async fn begun(&mut self) -> Begun {
        within(self.begun.recv()).await.unwrap()
    }

    async fn assert_nothing_begins(&mut self) {
        let begun = timeout(WATCH, self.begun.recv()).await;
        assert!(begun.is_err(), "{begun:?}");
    }

    /// Waits for the next task that ends.
    async fn end(&mut self) -> (bool, supervise::End) {
        match self.told().await {
            Event::Ended { is_source } => (is_source, Ok(())),
            Event::Failed {
                is_source, failure, ..
            } => (is_source, Err(failure)),
            Event::Repaired(node) => panic!("{node} was repaired"),
        }
    }

    async fn told(&mut self) -> Event {
        within(self.ends.recv()).await.unwrap()
    }
}

async fn within<T>(step: impl Future<Output = T>) -> T {
    timeout(PATIENCE, step).await.expect("it takes too long")
}

#[tokio::test]
async fn a_sink_begins_when_all_tasks_of_the_earlier_sink_have_ended() {
    let mut rig = Rig::new();
    let first = rig
        .sink("out", vec![endless(), endless()], true, None)
        .await;
    for _ in 0..2 {
        rig.begun().await;
    }
    let before = Some(first.ended.clone());
    rig.sink("next", vec![endless(), endless()], true, before)
        .await;
    first.seats[0].leave();
    assert_eq!(rig.end().await, (false, Ok(())));
    rig.assert_nothing_begins().await;
    first.seats[1].leave();
    for _ in 0..2 {
        assert_eq!(&*rig.begun().await.node, "next");
    }
}

#[tokio::test]
async fn a_source_begins_when_the_earlier_source_has_ended() {
    let mut rig = Rig::new();
    let first = rig.source("in", None).await;
    rig.begun().await;
    rig.source("next", Some(first.ended)).await;
    rig.assert_nothing_begins().await;
    first.seats[0].leave();
    assert_eq!(rig.end().await, (true, Ok(())));
    assert_eq!(&*rig.begun().await.node, "next");
    assert_eq!(rig.starter.started.all(), 2);
    rig.starter.stop_sources.stop();
    assert_eq!(rig.end().await, (true, Ok(())));
}

#[tokio::test]
async fn sources_and_lanes_are_dealt_to_the_data_threads_in_turn() {
    let mut rig = Rig::new();
    for expected in ["data-0", "data-1", "data-0"] {
        rig.source("in", None).await;
        assert_eq!(rig.begun().await.thread, expected);
    }
    rig.sink("out", vec![endless(), endless(), endless()], true, None)
        .await;
    let mut begun = [rig.begun().await, rig.begun().await, rig.begun().await];
    begun.sort_by_key(|begun| begun.lane);
    let places = begun.map(|begun| (begun.lane, begun.thread));
    let expected = [(0, "data-0"), (1, "data-1"), (2, "data-0")];
    assert_eq!(
        places.each_ref().map(|(lane, thread)| (*lane, &**thread)),
        expected
    );
    assert_eq!(
        (rig.starter.started.sources(), rig.starter.started.all()),
        (3, 6)
    );
}

#[tokio::test]
async fn a_sink_that_may_block_has_a_thread_and_every_node_a_directory() {
    let mut rig = Rig::new();
    rig.sink("out", vec![endless()], false, None).await;
    let begun = rig.begun().await;
    assert_eq!(begun.thread, "out");
    assert_eq!(begun.directory, PathBuf::from("data/sinks/out"));
    rig.source("in", None).await;
    assert_eq!(
        rig.begun().await.directory,
        PathBuf::from("data/sources/in")
    );
}

#[tokio::test]
async fn a_lane_whose_channel_has_no_reader_for_it_fails_and_the_others_run() {
    let mut rig = Rig::new();
    let feed = Feed::new(Arc::new(Ended));
    let supplies = [(
        Supply::Channel(feed, "other".into()),
        "it has no such consumer",
    )];
    for (number, (supply, why)) in supplies.into_iter().enumerate() {
        let lanes = vec![lane(supply), endless()];
        let states = lanes.iter().map(|lane| lane.state.clone());
        let states: Vec<_> = states.collect();
        let seated = rig.sink("out", lanes, true, None).await;
        let (is_source, end) = rig.end().await;
        assert!(!is_source);
        assert_eq!(end.unwrap_err().message, why);
        assert_eq!(states[0].get(), NodeState::Failed(why.to_owned()));
        let errors = [("error", "failed", number as u64 + 1)];
        assert_eq!(rig.reporter.events(), errors);
        assert_eq!(rig.begun().await.lane, 1, "only the other lane begins");
        assert_eq!(states[1].get(), NodeState::Running);
        seated.seats[1].leave();
        assert_eq!(rig.end().await, (false, Ok(())));
        rig.assert_nothing_begins().await;
    }
}

#[tokio::test]
async fn a_sink_gets_its_reader_from_a_running_channel() {
    let mut rig = Rig::new();
    let feed = Feed::new(Arc::new(Ended));
    let supply = Supply::Channel(feed, "out".into());
    rig.sink("out", vec![lane(supply)], false, None).await;
    rig.begun().await;
    // The sink ends, so it has the reader of that channel: only this reader ends.
    assert_eq!(rig.end().await, (false, Ok(())));
}

#[tokio::test]
async fn a_sink_that_failed_keeps_its_input_until_the_sources_stop() {
    let mut rig = Rig::new();
    rig.told.failure = Some(Failure::config("`path` is a directory"));
    let held = Arc::new(());
    let input = lane(Supply::Reader(reader(false, &held)));
    let mut seated = rig.sink("out", vec![input], true, None).await;
    assert!(rig.end().await.1.is_err());
    sleep(WATCH).await;
    assert_eq!(
        Arc::strong_count(&held),
        2,
        "the input is kept, so that the sources wait"
    );
    rig.starter.stop_sources.stop();
    within(seated.ended.stopped()).await;
    assert_eq!(Arc::strong_count(&held), 1);
}

#[tokio::test]
async fn a_sink_that_failed_runs_again_when_a_reload_replaces_it_and_ends_when_it_is_removed() {
    for removed_first in [false, true] {
        let mut rig = Rig::new();
        rig.told.failure = Some(Failure::state("its state is damaged"));
        let held = Arc::new(());
        let input = lane(Supply::Reader(reader(false, &held)));
        let state = input.state.clone();
        let mut seated = rig.sink("out", vec![input], true, None).await;
        let failed = rig.told().await;
        assert!(
            matches!(failed, Event::Failed { stops: false, .. }),
            "{failed:?}"
        );
        rig.begun().await;
        assert!(matches!(state.get(), NodeState::Failed(_)));
        if !removed_first {
            rig.told.failure = None;
            seated.seats[0].replace(Arc::new(rig.told.clone()));
            assert_eq!(rig.told().await, Event::Repaired("out".into()));
            rig.begun().await;
            assert_eq!(state.get(), NodeState::Running);
            assert_eq!(rig.starter.started.all(), 2, "the test ends no task");
        }
        seated.seats[0].leave();
        within(seated.ended.stopped()).await;
        assert_eq!(state.get(), NodeState::Ended);
        assert_eq!(Arc::strong_count(&held), 1, "the input is released");
        let told = match removed_first {
            true => Event::Repaired("out".into()),
            false => Event::Ended { is_source: false },
        };
        assert_eq!(rig.told().await, told);
    }
}

#[tokio::test]
async fn a_node_that_has_left_the_plan_does_not_stop_the_process_when_it_fails() {
    let mut rig = Rig::new();
    rig.told.failure = Some(Failure::config("the bucket is gone"));
    let first = rig.sink("out", vec![endless()], true, None).await;
    let failed = rig.told().await;
    assert!(
        matches!(failed, Event::Failed { stops: true, .. }),
        "{failed:?}"
    );
    let before = Some(first.ended.clone());
    let second = rig.sink("out", vec![endless()], true, before).await;
    second.seats[0].remove();
    first.seats[0].leave();
    assert_eq!(rig.told().await, Event::Repaired("out".into()));
    let failed = rig.told().await;
    assert!(
        matches!(failed, Event::Failed { stops: false, .. }),
        "{failed:?}"
    );
}

/// A sink whose earlier task never ends.
async fn planned(
    rig: &mut Rig,
    channel: Option<u128>,
) -> (Stopper, Seated<Arc<dyn Sink>>, StateCell) {
    let (earlier, before) = stop();
    let input = endless();
    let state = input.state.clone();
    let laid = LaidSink {
        name: "out".into(),
        sink: Arc::new(rig.told.clone()),
        lanes: vec![input],
        is_on_threads: true,
        channel,
        input: channel.map(|_| "c".into()),
        queue: None,
        rejects: rig.outlet(Vec::new(), true),
        aside: None,
        reporter: rig.reporter.clone(),
    };
    let seated = rig.starter.sink(laid, vec![before]).await;
    let is_planned = async {
        while state.get() != NodeState::Planned {
            sleep(Duration::from_millis(1)).await;
        }
    };
    within(is_planned).await;
    (earlier, seated, state)
}

#[tokio::test]
async fn a_sink_that_waits_for_its_earlier_task_says_so_and_ends_when_it_must_leave() {
    for channel in [None, Some(7)] {
        let mut rig = Rig::new();
        let (_earlier, mut seated, state) = planned(&mut rig, channel).await;
        let held = rig.reporter.conditions();
        assert!(held[0].why.contains("--forget out"), "{held:?}");
        // Another sink takes its place before it begins.
        seated.seats[0].replace(Arc::new(rig.told.clone()));
        rig.assert_nothing_begins().await;
        assert_eq!(state.get(), NodeState::Planned);
        seated.seats[0].leave();
        within(seated.ended.stopped()).await;
        assert_eq!(rig.end().await, (false, Ok(())));
        assert_eq!(rig.reporter.conditions(), []);
        rig.assert_nothing_begins().await;
    }
}

#[tokio::test]
async fn at_a_stop_a_sink_that_waits_ends_in_order_if_its_channel_keeps_everything() {
    let mut rig = Rig::new();
    let (_earlier, mut seated, _) = planned(&mut rig, Some(7)).await;
    rig.starter.stop_sinks.stop();
    within(seated.ended.stopped()).await;
    assert_eq!(rig.end().await, (false, Ok(())));
    rig.assert_nothing_begins().await;
    // Behind memory, what was accepted is still delivered.
    let mut rig = Rig::new();
    let (earlier, seated, _) = planned(&mut rig, None).await;
    rig.starter.stop_sinks.stop();
    rig.assert_nothing_begins().await;
    drop(earlier);
    rig.begun().await;
    drop(seated);
}

#[tokio::test]
async fn the_context_of_a_source_has_its_name_and_stops_with_its_seat_or_with_all_sources() {
    let rig = Rig::new();
    let starter = &rig.starter;
    let somewhere = Edge::to(Feed::new(Arc::new(Unopened::default())));
    let context = |name: &str| {
        let ports = (rig.outlet(Vec::new(), false), rig.outlet(Vec::new(), true));
        starter.source_context(&name.into(), [].into(), &rig.reporter, ports)
    };
    let ports = (
        rig.outlet(vec![somewhere], false),
        rig.outlet(Vec::new(), true),
    );
    let before: Arc<[Arc<str>]> = ["old".into()].into();
    let (seat, one) = starter.source_context(&"in".into(), before.clone(), &rig.reporter, ports);
    assert_eq!(one.follows, before);
    assert!(!one.outlet.leads_nowhere() && one.rejects.leads_nowhere());
    assert_eq!((&*one.name, &*one.host, one.once), ("in", "here", true));
    assert_eq!(one.directory, PathBuf::from("data/sources/in"));
    assert_eq!((one.threads.count(), one.reporter.node()), (2, "node"));
    one.meters.counter("records_sent").add(3);
    assert_eq!(starter.meters.value("in", "records_sent"), 3);
    let (_seat, other) = context("other");
    seat.leave();
    assert!(one.stop.is_stopped() && !other.stop.is_stopped());
    starter.stop_sinks.stop();
    assert!(!other.stop.is_stopped());
    starter.stop_sources.stop();
    assert!(other.stop.is_stopped());
}

#[tokio::test]
async fn a_source_whose_task_dies_has_failed_at_once() {
    let mut rig = Rig::new();
    rig.told.dies = true;
    let seated = rig.source("in", None).await;
    let (is_source, end) = rig.end().await;
    assert!(is_source && end.unwrap_err().message.contains("died"));
    within(seated.ended.clone().stopped()).await;
}

#[tokio::test]
async fn a_sink_whose_thread_dies_has_failed_at_once() {
    for is_on_threads in [true, false] {
        let mut rig = Rig::new();
        rig.told.dies = true;
        let lane = endless();
        let state = lane.state.clone();
        let seated = rig.sink("out", vec![lane], is_on_threads, None).await;
        let (is_source, end) = rig.end().await;
        assert!(!is_source && end.unwrap_err().message.contains("died"));
        assert!(matches!(state.get(), NodeState::Failed(_)));
        within(seated.ended.clone().stopped()).await;
    }
}
