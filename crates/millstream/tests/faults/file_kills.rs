//! File sinks with every format, compression and kind of rotation read the same disk channel, while the program is killed at
//! random moments. Every record is in each output once, complete and in order. Third-party tools read the outputs, and the
//! generator's verifier checks them.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::Duration,
};

use crate::program::{
    Program, free_port,
    victim::{Generator, Random, Victim, arrived, generate, in_storm, settle, verify},
    wait_until,
};

/// The longest pause between two kills.
const PAUSE_MS_MAX: u64 = 600;

/// The sinks: the name, the path below the directory of this name, and the options.
const SINKS: [(&str, &str, &str); 9] = [
    ("raw", "{tag}.log", "format: raw, rotate: { size: 3MB }"),
    (
        "raw-gzip",
        "{tag}.gz",
        "format: raw, compression: gzip, rotate: { size: 300KB, keep: 0 }",
    ),
    ("raw-zstd", "%M/{tag}.zst", "format: raw, compression: zstd"),
    (
        "json-zstd",
        "all.zst",
        "compression: zstd, rotate: { records: 40000 }",
    ),
    (
        "json-gzip",
        "all.%F-%H%M%S.gz",
        "compression: gzip, open_files: 2, latest: \"LINK\"",
    ),
    (
        "ltsv",
        "all",
        "format: ltsv, rotate: { interval: 2s, idle: 1s }, dirty_max: 1MB",
    ),
    (
        "csv",
        "{tag}.csv",
        "format: csv, columns: [time, message], header: true, rotate: { size: 5MB }",
    ),
    (
        "msgpack-zstd",
        "all.zst",
        "format: msgpack, compression: zstd, rotate: { size: 400KB }",
    ),
    (
        "template",
        "{tag}",
        "format: template, template: \"%F {.message}\\n\", rotate: { records: 30000 }",
    ),
];

/// The configuration of these sinks, which write below `directory`; the channel is in `data`.
fn config(directory: &Path, data: &Path, port: u16, sinks: &[(&str, &str, &str)]) -> String {
    let (place, data) = (directory.display(), data.display());
    let mut text = format!(
        "data_dir: {data}\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB, sync: batch }}\nsinks:\n"
    );
    for (name, path, options) in sinks {
        let options = options.replace("LINK", &format!("{place}/latest.gz"));
        text += &format!(
            "  {name}: {{ type: file, inputs: [kept], path: \"{place}/out/{name}/{path}\", {options} }}\n"
        );
    }
    text
}

/// All files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(self::files(&path)),
            false => files.push(path),
        }
    }
    files
}

/// The bytes of a file, decompressed by a third-party tool.
fn unpack(path: &Path) -> Vec<u8> {
    let tool = match path.extension().and_then(|end| end.to_str()) {
        Some("gz") => "zcat",
        Some("zst") => "zstdcat",
        _ => "cat",
    };
    let output = Command::new(tool).arg(path).output();
    let output = output.unwrap_or_else(|error| panic!("{tool}: {error}: run `make deps`"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} {path:?}: {said}");
    output.stdout
}

/// The records of a file, converted to the lines that the generator sent.
fn lines(sink: &str, path: &Path) -> Vec<u8> {
    let bytes = unpack(path);
    if sink.starts_with("msgpack") {
        let (mut rest, mut lines) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let entry = rmpv::decode::read_value(&mut rest).expect("half a record");
            lines.extend_from_slice(entry[1]["message"].as_str().unwrap().as_bytes());
            lines.push(b'\n');
        }
        return lines;
    }
    if sink == "ltsv" {
        let text = String::from_utf8(bytes).unwrap();
        let message = |line: &str| -> String {
            let fields = line.strip_suffix('\n').expect("half a record").split('\t');
            let mut messages = fields.filter_map(|field| field.strip_prefix("message:"));
            messages.next().unwrap().to_owned() + "\n"
        };
        return text
            .split_inclusive('\n')
            .map(message)
            .collect::<String>()
            .into();
    }
    if sink == "csv" {
        let rows = bytes.strip_prefix(b"time,message\n");
        let rows = rows.unwrap_or_else(|| panic!("{path:?} has no header"));
        let none = !rows.windows(13).any(|part| part == b"time,message\n");
        assert!(none, "{path:?} has a second header");
        return rows.to_vec();
    }
    bytes
}

#[test]
fn each_format_compression_and_rotation_loses_and_doubles_nothing_when_the_program_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let mut random = Random::new();
    let port = free_port();
    let config = config(place, &place.join("data"), port, &SINKS);
    let mut program = Victim::start(place.to_owned(), port, config);
    let records = in_storm(500_000, 2_000_000).to_string();
    let generator = Generator::start(&generate(place, port, &records, "20000"));
    for _ in 0..in_storm(50, 200) {
        sleep(Duration::from_millis(random.below(PAUSE_MS_MAX)));
        program.kill_and_restart(&mut random);
    }
    generator.finish();
    settle(&place.join("out"));
    program.stop();
    for (sink, ..) in SINKS {
        let read = place.join("read").join(sink);
        fs::create_dir_all(&read).unwrap();
        let files = files(&place.join("out").join(sink));
        assert!(!files.is_empty());
        for (n, path) in files.iter().enumerate() {
            fs::write(read.join(format!("{n}.log")), lines(sink, path)).unwrap();
        }
        println!("{sink}: {} files", files.len());
        verify(&read, &place.join("ledger"));
    }
    let latest = fs::read_link(place.join("latest.gz")).unwrap();
    let newest = files(&place.join("out/json-gzip")).into_iter().max();
    assert_eq!(Some(latest), newest);
}

/// All files below a directory and their contents.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let read = |path: PathBuf| (path.clone(), fs::read(path).unwrap());
    files(directory).into_iter().map(read).collect()
}

/// Stops a program with SIGSTOP at a moment when a file below `out` is open and not empty. The sink has locked this file and noted it
/// in its journal. At other moments the program may hold no lock, or may only have a directory open to sync it.
fn stop_while_it_writes(program: &Program, out: &Path) {
    let of = |what: &str| format!("/proc/{}/{what}", program.id());
    wait_until("it is stopped while it writes", || {
        sleep(Duration::from_millis(20));
        program.signal("STOP");
        wait_until("all its threads are stopped", || {
            let threads = fs::read_dir(of("task")).unwrap().flatten();
            let mut states = threads.map(|thread| fs::read_to_string(thread.path().join("stat")));
            states.all(|state| state.unwrap().contains(") T "))
        });
        let open = fs::read_dir(of("fd")).unwrap().flatten();
        let mut open = open.flat_map(|file| fs::read_link(file.path()));
        let has_bytes = |path: &Path| {
            let found = fs::metadata(path);
            found.is_ok_and(|found| found.is_file() && found.len() > 0)
        };
        let writes = open.any(|path| path.starts_with(out) && has_bytes(&path));
        if !writes {
            program.signal("CONT");
        }
        writes
    });
}

/// While the program is stopped with SIGSTOP, one instance starts on the program's data_dir, and another one on a copy of this data_dir.
#[test]
fn a_stopped_writer_keeps_its_files_and_continues_when_it_wakes_up() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (data, out, port) = (place.join("data"), place.join("out"), free_port());
    // With this rotation, only the newest of the files that the program wrote since the last checkpoint is open.
    let sinks = [("raw", "{tag}.log", "format: raw, rotate: { size: 300KB }")];
    let zombie = Program::start(place, &config(place, &data, port, &sinks)).listens(port);
    let generator = Generator::start(&generate(place, port, "300000", "50000"));
    wait_until("records are written", || {
        out.is_dir() && !files(&out).is_empty()
    });
    sleep(Duration::from_millis(Random::new().below(2500)));
    stop_while_it_writes(&zombie, &out);
    let before = contents(&out);
    let (heir, copy) = (place.join("heir"), place.join("copy"));
    fs::create_dir(&heir).unwrap();
    fs::create_dir(&copy).unwrap();

    let other = free_port();
    let refused = Program::start(&heir, &config(place, &data, other, &sinks)).ended();
    let told = fs::read_to_string(heir.join("log")).unwrap();
    assert_eq!(refused, Some(1), "{told}");
    let what = "belongs to another running Millstream; stop it, or set another `data_dir`";
    assert!(told.contains(what), "{told}");

    let copied = Command::new("cp")
        .arg("-a")
        .args([&data, &copy.join("data")])
        .status();
    assert!(copied.unwrap().success());
    let config = config(place, &copy.join("data"), other, &sinks);
    let refused = Program::start(&copy, &config).listens(other);
    let what = "is being written by another sink or process, which holds its lock";
    wait_until("the copy reports the owner of the file", || {
        refused.log().contains(what)
    });
    // Give the copy time to retry.
    sleep(Duration::from_secs(2));
    refused.kill();
    let touched: Vec<_> = {
        let (before, after) = (before.iter(), contents(&out));
        let same = |file: &(&PathBuf, &Vec<u8>)| after.get(file.0) == Some(file.1);
        before
            .filter(|file| !same(file))
            .map(|file| file.0.clone())
            .collect()
    };
    assert!(touched.is_empty(), "the copy has changed {touched:?}");

    zombie.signal("CONT");
    generator.finish();
    arrived(&out, &place.join("ledger"));
    let log = zombie.log();
    assert_eq!(zombie.stop(), Some(0), "{log}");
    verify(&out, &place.join("ledger"));
}

/// The journal of the file sink. The test damages it after each run.
struct Journal {
    directory: PathBuf,
    /// Copies of its files from an earlier run.
    old: Vec<Vec<u8>>,
}

impl Journal {
    fn paths(&self) -> [PathBuf; 2] {
        ["journal.0", "journal.1"].map(|name| self.directory.join(name))
    }

    /// The number of bytes in use. The last 24 bytes of the file do not count, because they describe the other file of the journal.
    fn used(path: &Path) -> u64 {
        let bytes = fs::read(path).unwrap();
        let used = bytes[..bytes.len() - 24]
            .iter()
            .rposition(|byte| *byte != 0);
        used.map_or(1, |at| at as u64 + 1)
    }

    fn damage(&mut self, random: &mut Random) -> String {
        let paths = self.paths();
        let path = &paths[random.below(2) as usize];
        let at = random.below(Self::used(path));
        let file = fs::File::options().read(true).write(true).open(path);
        let file = file.unwrap();
        let now: Vec<Vec<u8>> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
        let what = match random.below(7) {
            0 | 1 => {
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                byte[0] ^= 1 << random.below(8);
                file.write_all_at(&byte, at).unwrap();
                format!("flip {at} of {path:?}")
            }
            2 => {
                let bytes = 1 + random.below(2000);
                file.write_all_at(&vec![0; bytes as usize], at).unwrap();
                format!("{bytes} zeros at {at} of {path:?}")
            }
            3 => {
                file.set_len(at).unwrap();
                format!("cut {path:?} to {at}")
            }
            4 => {
                fs::remove_file(path).unwrap();
                format!("remove {path:?}")
            }
            5 => {
                let between = self.directory.join("between");
                fs::rename(&paths[0], &between).unwrap();
                fs::rename(&paths[1], &paths[0]).unwrap();
                fs::rename(&between, &paths[1]).unwrap();
                "swap".to_owned()
            }
            _ => {
                for (path, old) in paths.iter().zip(&self.old) {
                    fs::write(path, old).unwrap();
                }
                "an old copy".to_owned()
            }
        };
        if random.below(2) == 0 {
            self.old = now;
        }
        what
    }
}

/// The number of times that each line occurs in the outputs. Asserts that every line was sent. If `doubtful`, files may end with half
/// a record, because the sink has continued without truncating them.
fn tally(out: &Path, doubtful: bool) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    for path in files(out) {
        let text = fs::read_to_string(&path).unwrap();
        for line in text.split_inclusive('\n') {
            let Some(line) = line.strip_suffix('\n') else {
                assert!(doubtful, "half a record in {path:?}");
                continue;
            };
            let end = line.rsplit(' ').next();
            assert_eq!(end, Some("end"), "{path:?} holds {line:?}");
            *found.entry(line.to_owned()).or_default() += 1;
        }
    }
    found
}

#[test]
fn journal_damage_destroys_nothing_settled_and_every_doubt_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (out, input, port) = (place.join("out"), place.join("in"), free_port());
    fs::create_dir(&input).unwrap();
    fs::create_dir(&out).unwrap();
    let config = format!(
        "data_dir: {0}/data\napi: {{ listen: \"127.0.0.1:{port}\" }}\nthreads: 2\n\
         sources:\n  in: {{ type: tail, paths: [\"{0}/in/*\"], tag: \"*\", start: beginning }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n  out: {{ type: file, inputs: [kept], format: raw, path: \"{0}/out/{{tag}}.log\", rotate: {{ size: 20KB }} }}\n",
        place.display()
    );
    let mut random = Random::new();
    let mut journal = Journal {
        directory: place.join("data/sinks/out"),
        old: Vec::new(),
    };
    let (mut sent, mut before, mut damage) = (0, BTreeMap::new(), "none".to_owned());
    let mut doubtful = false;
    for round in 0..=in_storm(12, 300) {
        let logged = fs::read_to_string(place.join("log")).map_or(0, |log| log.len());
        let program = Program::start(place, &config).listens(port);
        let mut started_at = None;
        wait_until("the channel is open", || {
            started_at = kept_at_start(&program.log()[logged..]);
            started_at.is_some()
        });
        let settled = || {
            let cursor = fs::read(place.join("data/channels/kept/out.cursor"));
            cursor.ok().and_then(|slots| settled(&slots))
        };
        for wave in 0..=random.below(3) {
            for name in ["a", "b", "c"] {
                let path = input.join(name);
                let mut file = fs::File::options().append(true).create(true).open(path);
                let lines: String = (0..100)
                    .map(|n| {
                        format!(
                            "{name} {} the line of this number, up to its end\n",
                            sent + n
                        )
                    })
                    .collect();
                file.as_mut().unwrap().write_all(lines.as_bytes()).unwrap();
            }
            sent += 100;
            wait_until("all lines have arrived", || {
                tally_all(&out).len() == 3 * sent as usize
            });
            // The sink recognizes an old copy of its journal only if a checkpoint after the one in the copy was settled. At its
            // start, the sink only settles the position in its journal again, and this position is at most `started_at`. So wait
            // until more is settled.
            if wave == 0 {
                wait_until("a checkpoint of this run is settled", || {
                    settled() > started_at
                });
            }
            sleep(Duration::from_millis(random.below(1300)));
        }
        match random.below(3) {
            0 => assert_eq!(program.stop(), Some(0), "round {round}"),
            _ => program.kill(),
        }
        let log = fs::read_to_string(place.join("log")).unwrap();
        let named = log[logged..].contains("No output is cut back");
        doubtful |= named;
        let found = tally(&out, doubtful);
        let again = |line: &&String| found[*line] > before.get(*line).copied().unwrap_or(1).max(1);
        let doubled = found.keys().filter(again).count();
        println!("round {round} after {damage}: {doubled} lines arrived twice, named: {named}");
        assert!(
            doubled == 0 || named,
            "round {round} after {damage}: {doubled} lines arrived twice and no error says so:\n{}",
            &log[logged..]
        );
        assert!(
            doubled <= 900,
            "round {round} after {damage}: {doubled} lines arrived twice"
        );
        before = found;
        if journal.old.is_empty() {
            journal.old = journal.paths().map(|path| fs::read(path).unwrap()).to_vec();
        }
        damage = journal.damage(&mut random);
    }
}

/// The end of the channel when the program started: epoch and sequence number.
fn kept_at_start(log: &str) -> Option<(u32, u64)> {
    let (_, end) = log.rsplit_once("kept up to ")?;
    let (epoch, seq) = end.split_whitespace().next()?.split_once('.')?;
    Some((epoch.parse().unwrap(), seq.parse().unwrap()))
}

/// The position in the newer of the two slots of a cursor file. See the channel's `cursor.rs` for the format.
fn settled(slots: &[u8]) -> Option<(u32, u64)> {
    let at = |offset: usize| slots.get(offset..)?.first_chunk::<8>().copied();
    let slot = |start: usize| {
        let generation = u64::from_le_bytes(at(start + 16)?);
        let [a, b, c, d, ..] = at(start + 48)?;
        let epoch = u32::from_le_bytes([a, b, c, d]);
        Some((generation, (epoch, u64::from_le_bytes(at(start + 56)?))))
    };
    Some(slot(0)?.max(slot(4096)?).1)
}

/// The lines in the outputs while they are written.
fn tally_all(out: &Path) -> std::collections::BTreeSet<String> {
    let mut lines = std::collections::BTreeSet::new();
    for path in files(out) {
        let text = fs::read_to_string(path).unwrap_or_default();
        lines.extend(
            text.lines()
                .map(str::to_owned)
                .filter(|line| line.ends_with(" end")),
        );
    }
    lines
}
