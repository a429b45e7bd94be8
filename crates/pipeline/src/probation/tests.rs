//! Runs of a path that end in all ways: which positions come out, and which are set aside.

use std::{
    sync::Mutex,
    task::{Context, Poll, Waker},
};

use millstream_record::{Encoding, Time};

use super::*;
use crate::{
    chain::{ChainReader, Swap},
    channel::{Bounds, Channel, Delivered, Group, Reader},
    meters::Meters,
    outlet::{Edge, Feed},
    reject::Rejected,
};

const CHANNEL: u128 = 7;

fn at(seq: u64) -> Position {
    Position { epoch: 1, seq }
}

/// The reader of a channel with the positions 1 to `kept`, of which those up to `settled` are settled.
struct Kept {
    settled: u64,
    next: u64,
    kept: u64,
}

impl Reader for Kept {
    fn resume(&mut self, after: Option<Position>) -> Result<(), Failure> {
        self.next = after.map_or(self.settled, |position| position.seq) + 1;
        Ok(())
    }

    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>> {
        if self.next > self.kept {
            return Poll::Pending;
        }
        let batch = Batch {
            tag: "t".into(),
            plain: false,
            encoding: Encoding::Lines,
            body: format!("line {}\n", self.next).into(),
            count: 1,
            received: Time(0),
            values: Arc::default(),
            origins: Vec::new(),
        };
        self.next += 1;
        let position = Some(at(self.next - 1));
        Poll::Ready(Ok(Some(Delivered::new(batch, position, None))))
    }

    fn commit(&mut self, position: Position) -> Result<(), Failure> {
        self.settled = position.seq;
        Ok(())
    }

    fn settled(&self) -> Option<Position> {
        Some(at(self.settled))
    }

    fn bounds(&self) -> Option<Bounds> {
        let committed = Some(at(self.settled));
        let kept = at(self.kept);
        Some(Bounds { committed, kept })
    }
}

/// Keeps rejected records.
#[derive(Clone, Default)]
struct Store(Arc<Mutex<Vec<Batch>>>);

impl Channel for Store {
    fn put(&self, group: Group) -> BoxFuture<'_, ()> {
        self.0.lock().unwrap().extend(group.batches);
        group.token.settle();
        Box::pin(async {})
    }

    fn close(&self) {}
}

/// A path whose process can be ended.
struct Rig {
    directory: tempfile::TempDir,
    store: Store,
    kept: u64,
    settled: u64,
}

/// A running process with one path.
struct Process {
    path: Arc<Path>,
    reader: Watched,
    reporter: Reporter,
    _probation: Probation,
}

impl Rig {
    fn new(kept: u64) -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            store: Store::default(),
            kept,
            settled: 0,
        }
    }

    fn start(&self) -> Process {
        self.start_beside(&Probation::new(self.directory.path()), "out")
    }

    fn start_beside(&self, probation: &Probation, name: &str) -> Process {
        let reporter = Reporter::new(name);
        let edge = Edge::to(Feed::new(Arc::new(self.store.clone())));
        let aside = Outlet::new(vec![edge], &Meters::default().of(name), true);
        let aside = Some((CHANNEL, (name.into(), aside)));
        let entrance = probation.entrance(&name.into(), aside, &reporter);
        let path = entrance.open().unwrap();
        let kept = Kept {
            settled: self.settled,
            next: 0,
            kept: self.kept,
        };
        let gate = Gate::new(Box::new(kept), path.clone());
        let chain = ChainReader::new(Box::new(gate), None, Arc::new(Swap::default()));
        let mut reader = Watched::new(chain, path.clone());
        reader.resume(None).unwrap();
        Process {
            path,
            reader,
            reporter,
            _probation: probation.clone(),
        }
    }

    /// The rejected records: their reasons and lines.
    fn rejected(&self) -> Vec<(String, String)> {
        let batches = self.store.0.lock().unwrap();
        let read = |batch: &Batch| {
            let rejected = Rejected::read(&batch.body).unwrap();
            let line = String::from_utf8(rejected.message.to_vec()).unwrap();
            (rejected.reason.to_owned(), line)
        };
        batches.iter().map(read).collect()
    }
}

impl Process {
    /// Takes the next batch: its position and the number of its records. `None` if there is none now.
    async fn next(&mut self) -> Option<(u64, u32)> {
        // tokio lets a task take a limited number of permits before the task yields.
        tokio::task::yield_now().await;
        let mut context = Context::from_waker(Waker::noop());
        match self.reader.poll_next(&mut context) {
            Poll::Pending => None,
            Poll::Ready(polled) => {
                let delivered = polled.unwrap().unwrap();
                Some((delivered.position.unwrap().seq, delivered.batch.count))
            }
        }
    }

    /// Takes all batches.
    async fn all(&mut self) -> Vec<(u64, u32)> {
        let mut all = Vec::new();
        while let Some(next) = self.next().await {
            all.push(next);
        }
        all
    }

    /// Takes batches up to the one at `seq`, on which the process then dies.
    async fn dies_on(mut self, seq: u64, has_evidence: bool) {
        while self
            .next()
            .await
            .is_some_and(|(position, _)| position < seq)
        {}
        self.dies(has_evidence);
    }

    fn dies(self, has_evidence: bool) {
        if has_evidence {
            self.path.mark().suspect().unwrap();
        }
        let Self { reader, .. } = self;
        std::mem::forget(reader);
    }
}

#[tokio::test]
async fn a_position_that_ends_the_process_is_set_aside_after_three_deaths_in_probation() {
    let rig = Rig::new(6);
    rig.start().dies_on(6, true).await;
    for _ in 0..3 {
        let process = rig.start();
        assert!(process.path.is_on_probation());
        process.dies_on(3, true).await;
        assert!(rig.rejected().is_empty());
    }
    let mut process = rig.start();
    let all = process.all().await;
    assert_eq!(all, [(1, 1), (2, 1), (3, 0), (4, 1), (5, 1), (6, 1)]);
    assert!(!process.path.is_on_probation(), "at full speed again");
    let [(reason, line)] = &rig.rejected()[..] else {
        panic!("{:?}", rig.rejected());
    };
    assert_eq!(line, "line 3\n");
    assert!(
        reason.contains("3 times in a row while the position 1.3"),
        "{reason}"
    );
    let held = process.reporter.conditions();
    assert!(
        held.len() == 1 && held[0].why.contains("`millstream rejected replay out`"),
        "{held:?}"
    );
    // It was not settled before the next death. The next start skips it, and blames another position.
    process.dies(true);
    for _ in 0..3 {
        rig.start().dies_on(5, true).await;
    }
    let mut process = rig.start();
    let all = process.all().await;
    assert_eq!(all, [(1, 1), (2, 1), (3, 0), (4, 1), (5, 0), (6, 1)]);
    let lines: Vec<_> = rig.rejected().into_iter().map(|(_, line)| line).collect();
    assert_eq!(lines, ["line 3\n", "line 5\n"]);
}

#[tokio::test]
async fn deaths_without_evidence_and_deaths_that_are_not_in_a_row_reject_nothing() {
    let rig = Rig::new(6);
    rig.start().dies_on(6, true).await;
    for turn in 0..40 {
        // Kills by an operator hit the same position again and again.
        rig.start().dies_on(3, false).await;
        // Another cause: it hits different positions.
        rig.start().dies_on(2 + turn % 3, true).await;
        rig.start().dies_on(5, true).await;
    }
    let mut process = rig.start();
    let all = process.all().await;
    assert_eq!(all.iter().map(|(_, count)| count).sum::<u32>(), 6);
    assert!(rig.rejected().is_empty() && process.reporter.conditions().is_empty());
}

#[tokio::test]
async fn an_orderly_end_leaves_no_mark_and_the_next_start_runs_at_full_speed() {
    let rig = Rig::new(6);
    let mut process = rig.start();
    assert!(!process.path.is_on_probation());
    process.all().await;
    drop(process.reader);
    let marks = rig.directory.path().join("probation");
    assert_eq!(std::fs::read_dir(marks).unwrap().count(), 0);
    assert!(!rig.start().path.is_on_probation());
}

#[tokio::test]
async fn probation_covers_what_was_handed_out_and_not_settled_and_only_what_is_kept() {
    let mut rig = Rig::new(1000);
    rig.start().dies_on(1, false).await;
    let mut process = rig.start();
    assert_eq!(process.all().await.len(), 1000);
    // Position 1 and those that are noted together with it.
    assert_eq!(
        process.path.mark().upto().seq,
        1 + 256 + 1 + 256 + 1 + 256 + 1 + 256
    );
    process.dies(false);
    rig.settled = 1000;
    let process = rig.start();
    assert!(!process.path.is_on_probation(), "nothing was in flight");
    process.dies(false);
    rig.settled = 999;
    let mut process = rig.start();
    assert!(process.path.is_on_probation());
    assert_eq!(process.next().await, Some((1000, 1)));
    assert_eq!(process.next().await, None);
    assert!(!process.path.is_on_probation());
}

#[tokio::test]
async fn a_position_that_waits_for_its_destination_is_not_suspected() {
    let rig = Rig::new(3);
    rig.start().dies_on(3, false).await;
    let mut process = rig.start();
    process.next().await;
    let is_watched = |process: &Process| process.path.shared.work().is_some();
    assert!(is_watched(&process));
    process.path.parked();
    assert!(!is_watched(&process));
    process.path.unparked();
    assert!(is_watched(&process));
    process.path.mark().suspect().unwrap();
    process.path.shared.work().as_mut().unwrap().suspected();
    // The destination hangs, and an operator kills the process.
    process.path.parked();
    process.dies(false);
    let mark = Mark::open(&rig.directory.path().join("probation"), "out", CHANNEL);
    assert_eq!(mark.unwrap().begin(at(0)).unwrap(), 0);
}

#[tokio::test]
async fn a_thread_that_blocks_for_its_destination_gives_no_evidence_meanwhile() {
    let rig = Rig::new(3);
    rig.start().dies_on(3, false).await;
    let mut process = rig.start();
    process.next().await;
    let is_watched = || process.path.shared.work().is_some();
    assert!(is_watched());
    assert!(!waiting(is_watched));
    assert!(is_watched());
}

#[tokio::test]
async fn paths_take_turns() {
    let rig = Rig::new(3);
    for name in ["one", "two"] {
        rig.start_beside(&Probation::new(rig.directory.path()), name)
            .dies_on(3, false)
            .await;
    }
    let probation = Probation::new(rig.directory.path());
    let mut one = rig.start_beside(&probation, "one");
    let mut two = rig.start_beside(&probation, "two");
    assert_eq!(one.next().await, Some((1, 1)));
    assert_eq!(
        two.next().await,
        None,
        "the other path has an active position"
    );
    one.path.parked();
    assert_eq!(two.next().await, Some((1, 1)), "the other path waits");
    drop(two.reader);
    assert_eq!(one.next().await, Some((2, 1)));
}
