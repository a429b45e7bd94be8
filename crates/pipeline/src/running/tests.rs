//! The states that `status` shows of nodes, and the order in which a pipeline ends.

use std::{collections::VecDeque, future::Future, task};

use tokio::sync::oneshot;

use super::*;
use crate::{stop::stop, supervise::End, unopened::Unopened};

struct Rig {
    running: Running,
    ends: mpsc::Sender<Event>,
    sources: Stop,
    sinks: Stop,
    _directory: tempfile::TempDir,
}

impl Rig {
    /// A pipeline whose nodes have started.
    fn new(once: bool, sources: usize, sinks: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (sender, ends) = mpsc::channel(16);
        let (stop_sources, stop_sinks) = (stop().0, stop().0);
        let watches = (stop_sources.watch(), stop_sinks.watch());
        let started = Arc::<Started>::default();
        (0..sources).for_each(|_| started.begin(true));
        (0..sinks).for_each(|_| started.begin(false));
        let running = Running {
            nodes: Nodes::default(),
            meters: Meters::default(),
            pool: Pool::new(1 << 20),
            ends,
            started,
            channels: Vec::new(),
            closed: Vec::new(),
            dropped_before: 0,
            stop_sources,
            stop_sinks,
            stopping: false,
            once,
            failures: Vec::new(),
            _threads: Threads::start(1).unwrap(),
            rejected_place: directory.path().join("rejected"),
            data_dir: DataDir::open(directory.path()).unwrap(),
        };
        Self {
            running,
            ends: sender,
            sources: watches.0,
            sinks: watches.1,
            _directory: directory,
        }
    }

    fn source_ends(&self, end: End) {
        let told = Event::of(true, &"in".into(), end, true);
        self.ends.try_send(told).unwrap();
    }

    fn sink_ends(&self, end: End) {
        let told = Event::of(false, &"out".into(), end, true);
        self.ends.try_send(told).unwrap();
    }

    /// Whether sources and sinks were asked to stop.
    fn stops(&self) -> (bool, bool) {
        (self.sources.is_stopped(), self.sinks.is_stopped())
    }

    /// Returns the failures; `None` if the pipeline has not ended.
    fn ended(&mut self) -> Option<Vec<Failure>> {
        let ended = std::pin::pin!(self.running.ended());
        match ended.poll(&mut task::Context::from_waker(task::Waker::noop())) {
            task::Poll::Ready(failures) => Some(failures),
            task::Poll::Pending => None,
        }
    }

    /// Opens a channel. A result that is sent through the returned sender closes it.
    fn open_channel(&mut self) -> oneshot::Sender<Result<(), Failure>> {
        let (close, closed) = oneshot::channel();
        let finished = async { closed.await.unwrap_or(Ok(())) };
        let channel = Arc::new(Unopened::default());
        let shown = (StateCell::new(), Reporter::new("c"));
        let open = Open::new(channel, Box::pin(finished), shown);
        self.running.started.add_channel(open);
        close
    }
}

fn node(name: &str, states: impl IntoIterator<Item = StateCell>, is_leaving: bool) -> NodeStatus {
    NodeStatus {
        name: name.into(),
        section: "sink",
        kind: "file",
        states: states.into_iter().collect(),
        reporter: Reporter::new(name),
        fills: Vec::new(),
        feeds: Vec::new(),
        consumer: None,
        is_leaving,
    }
}

/// The state of a task that has ended.
fn ended_state() -> StateCell {
    let state = StateCell::new();
    state.set(NodeState::Ended);
    state
}

#[test]
fn a_node_shows_the_worst_state_of_its_tasks() {
    let (running, failed) = (StateCell::new(), StateCell::failed("no space"));
    let state =
        |states: &[&StateCell]| node("out", states.iter().map(|it| (*it).clone()), false).state();
    let ended = ended_state();
    assert!(
        matches!(state(&[&ended, &failed, &running]), NodeState::Failed(why) if why.contains("no space"))
    );
    assert_eq!(state(&[&ended, &running]), NodeState::Running);
    assert_eq!(state(&[&ended, &ended]), NodeState::Ended);
    assert_eq!(state(&[]), NodeState::Running);
}

#[test]
fn a_removed_node_is_shown_until_it_has_ended() {
    let ended = ended_state();
    let nodes = Nodes::default();
    nodes.replace(
        vec![
            node("stays", [ended.clone()], false),
            node("leaves", [StateCell::new(), ended.clone()], true),
            node("left", [ended], true),
        ],
        Vec::new(),
    );
    let now = nodes.now();
    let names: Vec<_> = now.iter().map(|node| &*node.name).collect();
    assert_eq!(names, ["stays", "leaves"]);
}

#[tokio::test]
async fn the_pipeline_ends_with_its_last_task() {
    let mut rig = Rig::new(false, 1, 1);
    assert_eq!(rig.ended(), None);
    rig.source_ends(Ok(()));
    assert_eq!(rig.ended(), None);
    // Sinks are not stopped when the sources have ended: they must read their input to the end.
    assert_eq!(rig.stops(), (false, false));
    rig.sink_ends(Ok(()));
    assert_eq!(rig.ended(), Some(Vec::new()));
}

#[tokio::test]
async fn sinks_are_stopped_only_after_the_last_source_has_ended() {
    let mut rig = Rig::new(false, 2, 1);
    rig.running.stop();
    assert_eq!(rig.stops(), (true, false));
    rig.source_ends(Ok(()));
    assert_eq!((rig.ended(), rig.stops()), (None, (true, false)));
    rig.source_ends(Ok(()));
    assert_eq!((rig.ended(), rig.stops()), (None, (true, true)));
    rig.sink_ends(Ok(()));
    assert_eq!(rig.ended(), Some(Vec::new()));
}

#[tokio::test]
async fn a_node_that_fails_permanently_ends_the_pipeline() {
    let mut rig = Rig::new(false, 1, 1);
    let failure = Failure::config("no such topic");
    rig.sink_ends(Err(failure.clone()));
    assert_eq!((rig.ended(), rig.stops()), (None, (true, false)));
    rig.source_ends(Ok(()));
    assert_eq!(rig.ended(), Some(vec![failure]));
}

#[tokio::test]
async fn a_node_with_damaged_state_ends_no_other_node() {
    let failure = Failure::state("the cursor is damaged");
    let mut rig = Rig::new(false, 1, 1);
    rig.sink_ends(Err(failure.clone()));
    assert_eq!((rig.ended(), rig.stops()), (None, (false, false)));
    // A restart would find the same state, so the pipeline waits for its stop even if no task runs any more.
    rig.source_ends(Ok(()));
    assert_eq!(rig.ended(), None);
    rig.running.stop();
    assert_eq!(rig.ended(), Some(vec![failure.clone()]));

    let mut once = Rig::new(true, 0, 1);
    once.sink_ends(Err(failure.clone()));
    assert_eq!(once.ended(), Some(vec![failure]));
}

#[tokio::test]
async fn a_failure_that_a_reload_has_repaired_does_not_count() {
    let mut rig = Rig::new(false, 1, 1);
    rig.sink_ends(Err(Failure::state("the cursor is damaged")));
    rig.source_ends(Err(Failure::state("the journal is damaged")));
    assert_eq!(rig.ended(), None);
    for node in ["out", "in"] {
        rig.running.started.begin(false);
        rig.ends.try_send(Event::Repaired(node.into())).unwrap();
    }
    assert_eq!(rig.ended(), None);
    rig.running.stop();
    rig.sink_ends(Ok(()));
    rig.sink_ends(Ok(()));
    assert_eq!(rig.ended(), Some(Vec::new()));
}

#[tokio::test]
async fn the_pipeline_waits_until_its_channels_are_closed_and_reports_their_failures() {
    let mut rig = Rig::new(true, 0, 0);
    let mut closes = VecDeque::from([rig.open_channel(), rig.open_channel()]);
    assert!(!rig.running.is_all_kept().await);
    let failure = Failure::disk("no space");
    closes
        .pop_front()
        .unwrap()
        .send(Err(failure.clone()))
        .unwrap();
    tokio::task::yield_now().await;
    assert_eq!(rig.ended(), None);
    closes.pop_front().unwrap().send(Ok(())).unwrap();
    assert_eq!(rig.running.ended().await, [failure]);
}

#[tokio::test]
async fn closed_channels_hold_everything_unless_records_are_pending_or_one_has_failed() {
    for (end, pending, is_kept) in [
        (Ok(()), 0, true),
        (Ok(()), 1, false),
        (Err(Failure::disk("no space")), 0, false),
    ] {
        let mut rig = Rig::new(false, 1, 1);
        rig.running
            .meters
            .of("in")
            .gauge("pending_records")
            .add(pending);
        rig.open_channel().send(end).unwrap();
        assert_eq!(rig.running.is_all_kept().await, is_kept);
        assert_eq!(rig.running.pending_records(), pending);
    }
    let mut no_channels = Rig::new(false, 1, 1);
    assert!(!no_channels.running.is_all_kept().await);
}

#[tokio::test]
async fn only_records_that_are_dropped_after_the_stop_and_cannot_be_sent_again_are_lost() {
    let mut rig = Rig::new(false, 2, 0);
    rig.running.started.add_unanswering(&"syslog".into());
    let dropped = |node: &str| rig.running.meters.of(node).counter("records_dropped");
    let (syslog, forward) = (dropped("syslog"), dropped("forward"));
    syslog.add(10);
    rig.running.stop();
    syslog.add(3);
    forward.add(5);
    // A second stop does not restart the count.
    rig.running.stop();
    assert_eq!(rig.running.lost_records(), 3);
}

#[tokio::test]
async fn nodes_with_rejected_records_in_files_are_named() {
    let rig = Rig::new(false, 0, 0);
    for (node, records) in [("in", 4), ("out", 0)] {
        rig.running
            .meters
            .of(node)
            .counter(REJECTED_KEPT)
            .add(records);
    }
    assert_eq!(rig.running.rejected_records(), [("in".into(), 4)]);
    assert!(rig.running.rejected_place().ends_with("rejected"));
}
