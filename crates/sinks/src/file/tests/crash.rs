//! Crashes at every call of a simulated disk, which then may lose data that was not synced. Afterwards every record is in the
//! files exactly once, in order.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use millstream_config::Node;
use millstream_pipeline::{
    channel::{Bounds, Delivered, Reader},
    failure::{Again, Failure},
    inlet::Inlet,
    meters::Meters,
    node::{Sink, SinkContext},
    outlet::Outlet,
    report::Reporter,
    stop::stop,
};
use millstream_record::{Batch, Pool, Position, Time};
use millstream_sys::disk::{Disk, Open, OutputMode};
use millstream_testkit::{Call, Crash, Random, SimulatedDisk, logged_errors};
use millstream_wire::compression::{Codec, Inflated, Inflater};

use super::block_on;
use crate::{
    file::{
        FileSink,
        files::{Files, Handling},
        recover::{Channel, recover},
        rotate::Rules,
        writer::{Style, Writer},
    },
    rig::lines,
};

/// Changes the disk before the channel delivers the batch with this index.
type Meddle = fn(&SimulatedDisk, usize);

/// A durable channel that asks for a checkpoint every few batches.
struct Feed {
    batches: Vec<Batch>,
    checkpoint_every: usize,
    meddle: Option<(SimulatedDisk, Meddle)>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
pub(super) struct State {
    next: usize,
    pub(super) settled: usize,
    /// The last error of each run that has logged one.
    pub(super) errors: Vec<String>,
}

impl Reader for Feed {
    fn resume(&mut self, after: Option<Position>) -> Result<(), Failure> {
        let mut state = self.state.lock().unwrap();
        state.next = after.map_or(state.settled, |after| after.seq as usize);
        assert!(
            state.next >= state.settled,
            "the sink has forgotten what it has settled"
        );
        Ok(())
    }

    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>> {
        let mut state = self.state.lock().unwrap();
        let Some(batch) = self.batches.get(state.next).cloned() else {
            return Poll::Ready(Ok(None));
        };
        if let Some((disk, meddle)) = &self.meddle {
            meddle(disk, state.next);
        }
        state.next += 1;
        let position = Some(Position {
            epoch: 1,
            seq: state.next as u64,
        });
        Poll::Ready(Ok(Some(Delivered::new(batch, position, None))))
    }

    fn commit(&mut self, position: Position) -> Result<(), Failure> {
        self.state.lock().unwrap().settled = position.seq as usize;
        Ok(())
    }

    fn bounds(&self) -> Option<Bounds> {
        let position = |count: usize| Position {
            epoch: 1,
            seq: count as u64,
        };
        let settled = self.state.lock().unwrap().settled;
        Some(Bounds {
            committed: (settled > 0).then(|| position(settled)),
            kept: position(self.batches.len()),
        })
    }

    fn hurry(&self) -> bool {
        self.state
            .lock()
            .unwrap()
            .next
            .is_multiple_of(self.checkpoint_every)
    }
}

/// A configuration of the sink and its channel.
pub(super) struct Case {
    pub(super) options: &'static str,
    checkpoint_every: usize,
    meddle: Option<Meddle>,
}

impl Case {
    /// Batches of numbered lines under three tags. Later lines are longer.
    pub(super) fn batches() -> Vec<Batch> {
        let batch = |n: usize| {
            let tag = ["a", "b", "c"][n * n % 3];
            let text: String = (0..4)
                .map(|k| format!("{tag} {n} {k} {}\n", "x".repeat(17 * n + 30 * k)))
                .collect();
            Batch {
                received: Time::from_parts(60 * n as i64, 0),
                ..lines(tag, &text)
            }
        };
        (0..12).map(batch).collect()
    }

    /// Runs the sink once on `disk`.
    pub(super) fn run(
        &self,
        disk: &SimulatedDisk,
        state: &Arc<Mutex<State>>,
    ) -> Result<(), Failure> {
        self.run_over(Self::batches(), disk, state)
    }

    /// Runs the sink once over these batches of the channel.
    pub(super) fn run_over(
        &self,
        batches: Vec<Batch>,
        disk: &SimulatedDisk,
        state: &Arc<Mutex<State>>,
    ) -> Result<(), Failure> {
        let node = Node::parse("test.yaml", self.options).unwrap();
        let sink = FileSink::new(&node, Arc::new(disk.clone())).unwrap();
        let (_stopper, stop) = stop();
        let meters = Meters::default().of("sink");
        let channel = Feed {
            batches,
            checkpoint_every: self.checkpoint_every,
            meddle: self.meddle.map(|meddle| (disk.clone(), meddle)),
            state: state.clone(),
        };
        let rejects = Outlet::new(Vec::new(), &meters, true);
        let mut inlet = Inlet::new(
            "sink",
            Box::new(channel),
            Some(7),
            rejects,
            stop.clone(),
            &meters,
        );
        let context = SinkContext {
            name: "sink".into(),
            stop,
            pool: Pool::new(1 << 20),
            meters,
            reporter: Reporter::new("sink"),
            directory: "/data/sinks/sink".into(),
            lane: 0,
        };
        let (ended, errors) = logged_errors(|| block_on(sink.run(&mut inlet, context)));
        state.lock().unwrap().errors.extend(errors.last().cloned());
        ended
    }

    /// Restarts the sink after each failure, as the supervisor does, until a run ends without a failure.
    pub(super) fn run_to_the_end(&self, disk: &SimulatedDisk, state: &Arc<Mutex<State>>) {
        for _ in 0..20 {
            match self.run(disk, state) {
                Ok(()) => return,
                Err(failure) => assert_ne!(failure.again, Again::Never, "{failure}"),
            }
        }
        panic!("{:?}", self.run(disk, state));
    }

    /// Compares the content of the files, by tag, with the lines that were sent.
    fn check(&self, disk: &SimulatedDisk, what: &str) {
        let mut expected: BTreeMap<String, String> = BTreeMap::new();
        for batch in Self::batches() {
            let text = String::from_utf8(batch.body.to_vec()).unwrap();
            expected
                .entry(batch.tag.to_string())
                .or_default()
                .push_str(&text);
        }
        let mut found: BTreeMap<String, String> = BTreeMap::new();
        for path in files(disk, Path::new("/out")) {
            let mut bytes = Vec::new();
            disk.open(&path, Open::Read)
                .unwrap()
                .read_at(&mut bytes, 1 << 20, 0)
                .unwrap();
            let text = records(&path, bytes);
            let rotated = path.to_string_lossy().contains(".1970");
            assert!(!rotated || !text.is_empty(), "{what}: {path:?} is empty");
            for line in text.split_inclusive('\n') {
                assert!(line.ends_with('\n'), "{what}: half a record in {path:?}");
                found
                    .entry(line[..1].to_owned())
                    .or_default()
                    .push_str(line);
            }
        }
        assert!(
            found == expected,
            "{what}: {}",
            difference(&found, &expected)
        );
    }
}

/// Decodes the content of a file: returns the lines that were sent. Asserts that every record is complete and, in a compressed
/// file, that the stream is complete.
pub(super) fn records(path: &Path, mut bytes: Vec<u8>) -> String {
    let name = path.to_string_lossy().into_owned();
    let codec = [("gz", Codec::Gzip), ("zst", Codec::Zstd)]
        .into_iter()
        .find(|(end, _)| name.ends_with(end));
    if let Some((_, codec)) = codec {
        let mut text = Vec::with_capacity(1 << 20);
        let done = Inflater::new(codec).unwrap().inflate(&bytes, &mut text);
        assert_eq!(done, Ok(Inflated::Done), "{path:?} is no whole stream");
        bytes = text;
    }
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let each = |part: &dyn Fn(&str) -> String| -> String {
        let text = text(bytes.clone());
        let lines = text.split_inclusive('\n').map(|line| {
            let line = line.strip_suffix('\n').expect("half a record");
            part(line) + "\n"
        });
        lines.collect()
    };
    match name.split(['/', '.']).find(|part| part.starts_with("all-")) {
        Some("all-json") => each(&|line| {
            let json: serde_json::Value = serde_json::from_str(line).unwrap();
            json["message"].as_str().unwrap().to_owned()
        }),
        Some("all-ltsv") => each(&|line| line.strip_prefix("message:").unwrap().to_owned()),
        Some("all-csv") => {
            let rows = each(&|line| line.to_owned());
            let rows = rows.strip_prefix("message\n");
            rows.map_or_else(|| bytes_are_none(&bytes), str::to_owned)
        }
        Some("all-msgpack") => {
            let mut rest = &bytes[..];
            let mut text = String::new();
            while !rest.is_empty() {
                let entry = rmpv::decode::read_value(&mut rest).expect("half a record");
                text += entry[1]["message"].as_str().unwrap();
                text.push('\n');
            }
            text
        }
        _ => text(bytes),
    }
}

fn bytes_are_none(bytes: &[u8]) -> String {
    assert_eq!(bytes, b"", "a file without its header");
    String::new()
}

/// Returns all files below `directory`: the rotated files in the order of their numbers, then the current ones.
pub(super) fn files(disk: &SimulatedDisk, directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for name in disk.list(directory).unwrap() {
        let path = directory.join(name);
        match disk.metadata(&path).unwrap().directory {
            true => files.extend(self::files(disk, &path)),
            false => files.push(path),
        }
    }
    files.sort_by_key(|path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        let name = name.strip_suffix(".gz").unwrap_or(name);
        let name = name.strip_suffix(".zst").unwrap_or(name);
        name.rsplit_once(['-', '~'])
            .map_or(u64::MAX, |(_, number)| number.parse().unwrap_or(u64::MAX))
    });
    files
}

fn difference(found: &BTreeMap<String, String>, expected: &BTreeMap<String, String>) -> String {
    let short = |map: &BTreeMap<String, String>, tag: &String| -> Vec<String> {
        let lines = map.get(tag).map_or("", String::as_str).lines();
        lines
            .map(|line| line.split(' ').take(3).collect::<Vec<_>>().join(" "))
            .collect()
    };
    let parts = expected.keys().map(|tag| {
        format!(
            "\n found {:?}\n sent  {:?}",
            short(found, tag),
            short(expected, tag)
        )
    });
    parts.collect()
}

pub(super) const ONE_FILE: Case = Case {
    options: "{ path: /out/all, format: raw }",
    checkpoint_every: 2,
    meddle: None,
};
pub(super) const DIRECTORIES: Case = Case {
    options: "{ path: '/out/x/{tag}/%H', format: raw, open_files: 1 }",
    checkpoint_every: 3,
    meddle: None,
};
pub(super) const ROTATED: Case = Case {
    options: "{ path: /out/all, format: raw, rotate: { size: 2KB, records: 11, interval: 4m } }",
    checkpoint_every: 3,
    meddle: None,
};
pub(super) const GZIP: Case = Case {
    options: "{ path: '/out/{tag}.log.gz', format: raw, compression: gzip, latest: /link/last }",
    checkpoint_every: 2,
    meddle: None,
};
pub(super) const ZSTD_ROTATED: Case = Case {
    options: "{ path: /out/all.zst, format: raw, compression: zstd, dirty_max: 1KB, rotate: { size: 300B, records: 11 } }",
    checkpoint_every: 3,
    meddle: None,
};
pub(super) const CSV_ROTATED: Case = Case {
    options: "{ path: /out/all-csv, format: csv, columns: [message], header: true, rotate: { size: 2KB }, latest: /out2/x }",
    checkpoint_every: 2,
    meddle: None,
};
const JSON_GZIP_ROTATED: Case = Case {
    options: "{ path: /out/all-json.gz, compression: gzip, rotate: { records: 7 } }",
    checkpoint_every: 3,
    meddle: None,
};
const LTSV: Case = Case {
    options: "{ path: /out/all-ltsv, format: ltsv, add: {}, dirty_max: 1KB }",
    checkpoint_every: 3,
    meddle: None,
};
const MSGPACK_ZSTD: Case = Case {
    options: "{ path: /out/all-msgpack.zst, format: msgpack, compression: zstd, rotate: { interval: 4m } }",
    checkpoint_every: 2,
    meddle: None,
};
const CASES: [Case; 10] = [
    ONE_FILE,
    DIRECTORIES,
    ROTATED,
    MOVED,
    GZIP,
    ZSTD_ROTATED,
    CSV_ROTATED,
    JSON_GZIP_ROTATED,
    LTSV,
    MSGPACK_ZSTD,
];
/// After a commit another process renames the file, without syncing the directory.
const MOVED: Case = Case {
    options: "{ path: /out/all, format: raw }",
    checkpoint_every: 2,
    meddle: Some(|disk, batch| {
        if batch == 5 && disk.metadata(Path::new("/out/all~0")).is_err() {
            let _ = disk.rename(Path::new("/out/all"), Path::new("/out/all~0"));
        }
    }),
};

/// For each call that a run makes to the disk: crashes in that call and in random calls of the next two runs, then runs to the end
/// and checks the files.
fn crash_at_every_step(case: &Case, crash: Crash) {
    for call in 0.. {
        let seed = call ^ 0x5eed;
        let mut random = Random::new(seed);
        let disk = SimulatedDisk::new(seed);
        let state = Arc::new(Mutex::new(State::default()));
        disk.crash_at(call);
        let ended = case.run(&disk, &state);
        if !disk.crashed() {
            ended.unwrap();
            case.check(&disk, "without a crash");
            assert!(call > 30, "a run makes more calls than {call}");
            return;
        }
        disk.restart(crash);
        for _ in 0..2 {
            disk.crash_at(disk.calls() + random.below(60));
            let _ = case.run(&disk, &state);
            disk.restart(random.pick(&[Crash::Kill, Crash::Power]).copied().unwrap());
        }
        case.run_to_the_end(&disk, &state);
        case.check(
            &disk,
            &format!("{}, {crash:?} in call {call}", case.options),
        );
    }
}

#[test]
fn an_idle_file_is_closed_and_leaves_the_journal_unless_a_rule_needs_it() {
    let open = |rules: Rules| {
        let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(1));
        let reporter = Reporter::new("sink");
        let channel = Channel {
            id: 7,
            bounds: Bounds::default(),
        };
        let recovered =
            recover(&disk, Path::new("/state"), Some(channel), None, &reporter).unwrap();
        let handling = Handling {
            open_max: 10,
            durable: true,
            drops_cache: true,
            mode: OutputMode::Umask,
            replaces_links: false,
            codec: None,
        };
        let files = Files::new(disk, reporter.clone(), handling);
        Writer::new(
            files,
            recovered,
            rules,
            Style::default(),
            reporter,
            &Meters::default().of("sink"),
        )
        .unwrap()
    };
    let records = Rules {
        records: 100,
        ..Rules::default()
    };
    for (rules, rows) in [(Rules::default(), 0), (records, 3)] {
        let mut writer = open(rules);
        for path in ["/out/a", "/out/b", "/out/c"] {
            let id = writer.file(path.as_bytes(), Time(0)).unwrap().unwrap();
            writer.add_shared(id, "1\n".into(), 1);
        }
        let position = Some(Position { epoch: 1, seq: 1 });
        writer.commit(position).unwrap();
        let due = writer.tick().unwrap().unwrap();
        assert!(due > writer.files.now + Duration::from_secs(59));
        assert!(
            writer
                .files
                .outputs
                .iter()
                .all(|(_, output)| output.file.is_some())
        );
        writer.files.now = due;
        writer.tick().unwrap();
        assert_eq!(
            (
                writer.ledger.table().rows.len(),
                writer.files.outputs.iter().count()
            ),
            (rows, rows)
        );
        assert!(
            writer
                .files
                .outputs
                .iter()
                .all(|(_, output)| output.file.is_none())
        );
        // The next record opens the file again.
        let id = writer.file(b"/out/b", Time(0)).unwrap().unwrap();
        writer.add_shared(id, "2\n".into(), 1);
        writer.commit(position).unwrap();
        assert_eq!(writer.files.outputs.get(id).length, 4);
    }
}

#[test]
fn a_kill_at_any_step_loses_and_repeats_nothing() {
    for case in CASES {
        crash_at_every_step(&case, Crash::Kill);
    }
}

#[test]
fn a_power_cut_at_any_step_loses_and_repeats_nothing() {
    for case in CASES {
        crash_at_every_step(&case, Crash::Power);
    }
}

#[test]
fn failing_calls_at_any_step_lose_and_repeat_nothing_even_when_the_power_fails_next() {
    for case in [
        ONE_FILE,
        DIRECTORIES,
        ROTATED,
        GZIP,
        ZSTD_ROTATED,
        CSV_ROTATED,
    ] {
        for (n, call) in [
            Call::Write,
            Call::Sync,
            Call::SyncDirectory,
            Call::Name,
            Call::Allocate,
        ]
        .into_iter()
        .cycle()
        .take(60)
        .enumerate()
        {
            let seed = n as u64;
            let disk = SimulatedDisk::new(seed);
            let state = Arc::new(Mutex::new(State::default()));
            let mut random = Random::new(seed);
            for round in 0..6 {
                // The next one or two calls of this kind fail (with EIO or ENOSPC), and the disk crashes at a later call.
                disk.crash_at(disk.calls() + 10 + random.below(80));
                disk.fail(
                    call,
                    1 + random.below(2) as u32,
                    if round % 2 == 0 { 5 } else { 28 },
                );
                let _ = case.run(&disk, &state);
                if random.chance(1, 2) {
                    let _ = case.run(&disk, &state);
                }
                disk.restart(if random.chance(1, 2) {
                    Crash::Power
                } else {
                    Crash::Kill
                });
            }
            case.run_to_the_end(&disk, &state);
            case.check(
                &disk,
                &format!("{}, {call:?} fails, seed {seed}", case.options),
            );
        }
    }
}
