//! Publishing against a destination in memory: exactly once under any failure and any delayed writer.

mod memory;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use jiff::tz::TimeZone;
use millstream_pipeline::{
    channel::{Delivered, Reader},
    failure::{Again, Failure},
    inlet::Inlet,
    meters::Meters,
    node::SinkContext,
    outlet::Outlet,
    report::Reporter,
    stop::stop,
};
use millstream_record::{Batch, Pool, Position, Time};
use millstream_testkit::Random;
use millstream_wire::{compression::Codec, template::Template};
use tokio::sync::Notify;

use super::{Rotate, Settings, run, text};
use crate::{format::Formatting, rig::lines};
use memory::{After, Faults, Gate, Memory, State};

const BATCHES: usize = 12;

/// A durable channel that asks for a checkpoint every few batches. A copy of a data_dir has a separate copy of the channel.
#[derive(Clone, Default)]
struct Channel(Arc<Mutex<Cursor>>);

#[derive(Clone, Default)]
struct Cursor {
    next: usize,
    settled: usize,
    cut_every: usize,
    /// Whether this is a memory channel, which has no positions.
    memory: bool,
}

impl Reader for Channel {
    fn resume(&mut self, after: Option<Position>) -> Result<(), Failure> {
        let mut cursor = self.0.lock().unwrap();
        cursor.next = after.map_or(cursor.settled, |after| after.seq as usize);
        assert!(cursor.next >= cursor.settled, "what is settled may be gone");
        Ok(())
    }

    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>> {
        let mut cursor = self.0.lock().unwrap();
        if cursor.next >= BATCHES {
            return Poll::Ready(Ok(None));
        }
        let batch = batch(cursor.next);
        cursor.next += 1;
        let seq = cursor.next as u64;
        Poll::Ready(Ok(Some(Delivered::new(
            batch,
            (!cursor.memory).then_some(Position { epoch: 1, seq }),
            None,
        ))))
    }

    fn commit(&mut self, position: Position) -> Result<(), Failure> {
        self.0.lock().unwrap().settled = position.seq as usize;
        Ok(())
    }

    fn settled(&self) -> Option<Position> {
        let cursor = self.0.lock().unwrap();
        let seq = cursor.settled as u64;
        (!cursor.memory).then_some(Position { epoch: 1, seq })
    }

    fn hurry(&self) -> bool {
        let cursor = self.0.lock().unwrap();
        cursor.next.is_multiple_of(cursor.cut_every.max(1))
    }
}

/// Numbered lines of three tags.
fn batch(n: usize) -> Batch {
    let tag = ["a", "b", "c"][n * n % 3];
    let text: String = (0..4).map(|k| format!("{tag} {n} {k}\n")).collect();
    Batch {
        received: Time::from_parts(60 * n as i64, 0),
        ..lines(tag, &text)
    }
}

/// A configuration of the sink and its store.
#[derive(Clone, Copy)]
struct Case {
    records: u64,
    interval: Option<Duration>,
    open_max: usize,
    held_max: usize,
    cut_every: usize,
    renames: bool,
    codec: Option<Codec>,
}

/// Creates a manifest at every checkpoint, in a store that renames.
const EVERY_CUT: Case = Case {
    records: u64::MAX,
    interval: Some(Duration::ZERO),
    open_max: 100,
    held_max: 1 << 20,
    cut_every: 2,
    renames: true,
    codec: None,
};

/// Creates a manifest when outputs are full, with many outputs, in a store of uploads.
const FULL: Case = Case {
    records: 7,
    interval: None,
    open_max: 2,
    held_max: 90,
    cut_every: 3,
    renames: false,
    codec: Some(Codec::Gzip),
};

const CASES: [Case; 2] = [EVERY_CUT, FULL];

impl Case {
    fn settings(&self) -> Settings {
        Settings {
            sink: "lake".into(),
            directory: Template::parse("{tag}/%H%M").unwrap(),
            zone: TimeZone::UTC,
            prefix: String::new(),
            extension: ".log".into(),
            rotate: Rotate {
                size: u64::MAX,
                records: self.records,
                interval: self.interval,
                idle: None,
            },
            open_max: self.open_max,
            held_max: self.held_max,
        }
    }

    fn channel(&self) -> Channel {
        Channel(Arc::new(Mutex::new(Cursor {
            cut_every: self.cut_every,
            ..Cursor::default()
        })))
    }

    /// Runs the sink once.
    async fn run(
        &self,
        store: Memory,
        channel: &Channel,
        directory: &Path,
        id: Option<u128>,
    ) -> Result<(), Failure> {
        let (_stopper, stop) = stop();
        let meters = Meters::default().of("lake");
        let rejects = Outlet::new(Vec::new(), &meters, true);
        let reader = Box::new(channel.clone());
        let mut inlet = Inlet::new("lake", reader, id, rejects, stop.clone(), &meters);
        let context = SinkContext {
            name: "lake".into(),
            stop,
            pool: Pool::new(1 << 20),
            meters,
            reporter: Reporter::new("lake"),
            directory: directory.to_owned(),
            lane: 0,
        };
        let node = millstream_config::Node::parse("test.yaml", "format: raw").unwrap();
        let (format, _): (Formatting, serde_json::Value) = Formatting::with(&node).unwrap();
        let encode = text(&format, self.codec).unwrap();
        run(&self.settings(), store, encode, &mut inlet, context).await
    }

    /// Restarts the sink after each failure, as the supervisor does, until a run ends without a failure.
    fn run_to_the_end(&self, state: &Arc<Mutex<State>>, channel: &Channel, directory: &Path) {
        for _ in 0..20 {
            let store = Memory::new(state, self.renames);
            match block_on(self.run(store, channel, directory, Some(7))) {
                Ok(()) => return,
                Err(failure) => assert_ne!(failure.again, Again::Never, "{failure}"),
            }
        }
        panic!("the sink failed in every run");
    }

    /// Checks that every record is published once and no output is left in use.
    fn check(&self, state: &Arc<Mutex<State>>, channel: &Channel, what: &str) {
        let state = state.lock().unwrap();
        let mut found: Vec<String> = Vec::new();
        for (path, bytes) in state.files.iter().filter(|(p, _)| !p.starts_with('_')) {
            let bytes = match self.codec {
                None => bytes.clone(),
                Some(codec) => inflate(codec, bytes),
            };
            let text = String::from_utf8(bytes).unwrap();
            for line in text.lines() {
                assert!(
                    path.starts_with(&line[..2].replace(' ', "/")),
                    "{path}: {line}"
                );
                found.push(line.to_owned());
            }
        }
        found.sort();
        let mut sent: Vec<String> = (0..BATCHES)
            .flat_map(|n| {
                let batch = batch(n);
                let text = String::from_utf8(batch.body.to_vec()).unwrap();
                text.lines().map(str::to_owned).collect::<Vec<_>>()
            })
            .collect();
        sent.sort();
        assert_eq!(found, sent, "{what}");
        assert_eq!(channel.0.lock().unwrap().settled, BATCHES, "{what}");
        assert!(state.in_use.is_empty(), "{what}: {:?}", state.in_use.keys());
    }
}

fn inflate(codec: Codec, bytes: &[u8]) -> Vec<u8> {
    let mut output = Vec::with_capacity(1 << 20);
    let mut inflater = millstream_wire::compression::Inflater::new(codec).unwrap();
    inflater.inflate(bytes, &mut output).unwrap();
    output
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(future)
}

/// The number of calls of a run without faults.
fn calls(case: &Case) -> usize {
    let (state, channel) = (Arc::default(), case.channel());
    let directory = tempfile::tempdir().unwrap();
    case.run_to_the_end(&state, &channel, directory.path());
    case.check(&state, &channel, "no fault");
    state.lock().unwrap().calls
}

#[test]
fn a_crash_or_a_lost_answer_at_any_call_loses_and_repeats_nothing() {
    for case in CASES {
        let calls = calls(&case);
        assert!(calls > 40, "{calls}");
        for call in 0..calls {
            for after in [After::Nothing, After::Work, After::Late] {
                let (state, channel) = (Arc::default(), case.channel());
                let directory = tempfile::tempdir().unwrap();
                let mut store = Memory::new(&state, case.renames);
                store.faults = Faults::At(call, after);
                let first = block_on(case.run(store, &channel, directory.path(), Some(7)));
                assert!(first.is_err(), "call {call} was to fail");
                case.run_to_the_end(&state, &channel, directory.path());
                case.check(&state, &channel, &format!("call {call}, after {after:?}"));
            }
        }
    }
}

#[test]
fn many_faults_in_a_row_lose_and_repeat_nothing() {
    for seed in 0..400 {
        let case = CASES[seed as usize % CASES.len()];
        let (state, channel) = (Arc::default(), case.channel());
        let directory = tempfile::tempdir().unwrap();
        let mut random = Random::new(seed);
        for _ in 0..10 {
            let mut store = Memory::new(&state, case.renames);
            store.faults = Faults::Random(Random::new(random.bits()), 20);
            match block_on(case.run(store, &channel, directory.path(), Some(7))) {
                Ok(()) => break,
                Err(failure) => assert_ne!(failure.again, Again::Never, "seed {seed}: {failure}"),
            }
        }
        case.run_to_the_end(&state, &channel, directory.path());
        case.check(&state, &channel, &format!("seed {seed}"));
    }
}

/// For each call: a writer is suspended at this call while a copy of it continues and ends, and then the writer resumes.
#[test]
fn a_superseded_writer_publishes_nothing_more() {
    for case in CASES {
        let calls = calls(&case);
        let mut fenced = 0;
        for call in 0..calls {
            let state = Arc::default();
            let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let channel = case.channel();
            let gate = Gate {
                call,
                reached: Arc::new(Notify::new()),
                open: Arc::new(Notify::new()),
            };
            let mut store = Memory::new(&state, case.renames);
            store.gate = Some(gate.clone());
            let successor = block_on(async {
                let zombie = case.run(store, &channel, old.path(), Some(7));
                let others = async {
                    gate.reached.notified().await;
                    let copy = channel.0.lock().unwrap().clone();
                    let copy = Channel(Arc::new(Mutex::new(copy)));
                    if let Ok(note) = std::fs::read(old.path().join("published")) {
                        std::fs::write(new.path().join("published"), note).unwrap();
                    }
                    let store = Memory::new(&state, case.renames);
                    let ended = case.run(store, &copy, new.path(), Some(7)).await;
                    ended.unwrap();
                    gate.open.notify_one();
                    copy
                };
                let (zombie, copy) = tokio::join!(zombie, others);
                match zombie {
                    Err(failure) if failure.again == Again::Never => fenced += 1,
                    // The zombie had nothing left to publish, or its outputs were deleted while it was suspended. A restart would
                    // find that the chain is complete.
                    Err(_) | Ok(()) => {}
                }
                copy
            });
            case.run_to_the_end(&state, &successor, new.path());
            case.check(&state, &successor, &format!("call {call}"));
        }
        assert!(fenced > 0, "no writer was fenced");
    }
}

#[test]
fn names_contain_positions_and_are_the_same_when_batches_are_read_again() {
    let names = |fault: Faults| {
        let (state, channel) = (Arc::default(), EVERY_CUT.channel());
        let directory = tempfile::tempdir().unwrap();
        let mut store = Memory::new(&state, true);
        store.faults = fault;
        let _ = block_on(EVERY_CUT.run(store, &channel, directory.path(), Some(7)));
        EVERY_CUT.run_to_the_end(&state, &channel, directory.path());
        let state = state.lock().unwrap();
        let outputs = state.files.keys().filter(|path| !path.starts_with('_'));
        outputs.cloned().collect::<Vec<_>>()
    };
    let once = names(Faults::None);
    assert_eq!(
        once[0],
        "a/0000/lake-0000000000000000-1-0000000001-0000.log"
    );
    assert_eq!(names(Faults::At(9, After::Nothing)), once);
}

#[test]
fn outputs_that_are_removed_before_they_are_published_are_written_again() {
    let case = FULL;
    let (state, channel) = (Arc::<Mutex<State>>::default(), case.channel());
    let directory = tempfile::tempdir().unwrap();
    // For each call: this call fails, and then an output that is not published yet is removed.
    let mut gone = false;
    for call in 0..calls(&case) {
        *state.lock().unwrap() = State::default();
        *channel.0.lock().unwrap() = case.channel().0.lock().unwrap().clone();
        let _ = std::fs::remove_file(directory.path().join("published"));
        let mut store = Memory::new(&state, case.renames);
        store.faults = Faults::At(call, After::Nothing);
        let failed = block_on(case.run(store, &channel, directory.path(), Some(7)));
        assert!(failed.is_err());
        let had = state.lock().unwrap().in_use.pop_first();
        gone |= had.is_some();
        case.run_to_the_end(&state, &channel, directory.path());
        case.check(&state, &channel, &format!("call {call}"));
    }
    assert!(gone);
}

#[test]
fn an_output_that_is_removed_after_it_is_settled_takes_no_other_with_it() {
    let case = FULL;
    let outputs = |state: &Arc<Mutex<State>>| -> Vec<String> {
        let state = state.lock().unwrap();
        let paths = state.files.keys().filter(|path| !path.starts_with('_'));
        paths.cloned().collect()
    };
    let mut number = 0;
    loop {
        let (state, channel) = (Arc::<Mutex<State>>::default(), case.channel());
        let directory = tempfile::tempdir().unwrap();
        case.run_to_the_end(&state, &channel, directory.path());
        let mut all = outputs(&state);
        if number == all.len() {
            break;
        }
        let removed = all.remove(number);
        state.lock().unwrap().files.remove(&removed);
        // Without the note, the sink does not know that all outputs of the newest manifest were published.
        std::fs::remove_file(directory.path().join("published")).unwrap();
        case.run_to_the_end(&state, &channel, directory.path());
        assert_eq!(outputs(&state), all, "{removed}");
        number += 1;
    }
    assert!(number > 3);
}

#[test]
fn old_manifests_are_removed_and_the_newest_stay() {
    let mut numbers: BTreeMap<u64, ()> = BTreeMap::new();
    let (state, channel) = (Arc::<Mutex<State>>::default(), EVERY_CUT.channel());
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..30 {
        EVERY_CUT.run_to_the_end(&state, &channel, directory.path());
    }
    for path in state.lock().unwrap().files.keys() {
        if let Some(number) =
            path.strip_prefix("_millstream/lake/00000000000000000000000000000007/")
        {
            numbers.insert(number.parse().unwrap(), ());
        }
    }
    assert_eq!(numbers.len(), 16);
    assert!(*numbers.keys().next().unwrap() > 15, "{numbers:?}");
}

#[test]
fn behind_memory_names_continue_after_a_restart() {
    let (state, directory) = (Arc::default(), tempfile::tempdir().unwrap());
    for _ in 0..3 {
        let channel = EVERY_CUT.channel();
        channel.0.lock().unwrap().memory = true;
        let store = Memory::new(&state, true);
        block_on(EVERY_CUT.run(store, &channel, directory.path(), None)).unwrap();
    }
    let state = state.lock().unwrap();
    let outputs = state.files.keys().filter(|path| !path.starts_with('_'));
    assert_eq!(outputs.count(), 3 * BATCHES);
}
