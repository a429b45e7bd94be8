//! State below `data_dir` is damaged between two runs. The process still starts, and every node works except the one with the
//! damaged state. `/health` names this node and the next step. No line is altered, and none is lost or duplicated without an error.
//!
//! Root ignores permissions, so a directory in place of the file simulates a file that cannot be read.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::program::{Program, free_port, victim::Random, wait_until};
use serde_json::Value;

/// The kinds of damaged state: the name of the pipeline, and the path of the state below `data_dir`.
const KINDS: [(&str, &str); 6] = [
    ("identity", "channels/identity/channel"),
    ("segments", "channels/segments/*.seg"),
    ("cursor", "channels/cursor/out_cursor.cursor"),
    ("record", "channel-records/record.record"),
    ("positions", "sources/in_positions/positions"),
    ("journal", "sinks/out_journal/journal.*"),
];
/// Lines per round.
const LINES: u64 = 20;

/// A Millstream with several pipelines, each of a tail source, a disk channel and a file sink. One more pipeline has a forward
/// source, and its state is never damaged.
struct Rig {
    directory: tempfile::TempDir,
    port: u16,
    api: u16,
    config: String,
    program: Option<Program>,
    /// The number of bytes of the log that were read.
    logged: usize,
}

impl Rig {
    fn new(names: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (port, api) = (free_port(), free_port());
        let place = directory.path().display();
        let (mut sources, mut channels, mut sinks) = (String::new(), String::new(), String::new());
        for name in names {
            fs::create_dir_all(directory.path().join("in").join(name)).unwrap();
            sources += &format!(
                "  in_{name}: {{ type: tail, paths: [\"{place}/in/{name}/*\"], tag: \"*\", start: beginning }}\n"
            );
            channels +=
                &format!("  {name}: {{ type: disk, inputs: [in_{name}], size_max: 64MiB }}\n");
            sinks += &format!(
                "  out_{name}: {{ type: file, inputs: [{name}], format: raw, path: \"{place}/out/{name}/{{tag}}.log\" }}\n"
            );
        }
        let config = format!(
            "data_dir: {place}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\nthreads: 2\n\
             sources:\n  fleet: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n{sources}\
             channels:\n  kept: {{ type: disk, inputs: [fleet], size_max: 64MiB }}\n{channels}\
             sinks:\n  safe: {{ type: file, inputs: [kept], path: \"{place}/safe.log\" }}\n{sinks}"
        );
        Self {
            directory,
            port,
            api,
            config,
            program: None,
            logged: 0,
        }
    }

    fn place(&self) -> &Path {
        self.directory.path()
    }

    /// The path of a file below `data_dir`.
    fn state(&self, path: &str) -> PathBuf {
        self.place().join("data").join(path)
    }

    fn start(&mut self) {
        let program = Program::start(self.place(), &self.config);
        self.program = Some(program.listens(self.api).listens(self.port));
    }

    /// Stops the program; returns the exit code.
    fn stop(&mut self) -> Option<i32> {
        self.program.take().unwrap().stop()
    }

    /// Sends one record through the pipeline whose state is never damaged, and waits until it is acked and written.
    fn beside(&self, number: u64) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let mut frame = b"\x94\xa1t\xce\x60\x00\x00\x00\x81\xa1n\xcf".to_vec();
        frame.extend(number.to_be_bytes());
        frame.extend(b"\x81\xa5chunk\xb0");
        frame.extend(format!("{number:016}").bytes());
        stream.write_all(&frame).unwrap();
        let mut ack = [0; 22];
        stream.read_exact(&mut ack).unwrap();
        wait_until("the node beside the damage writes", || {
            let text = fs::read_to_string(self.place().join("safe.log")).unwrap_or_default();
            text.lines().count() as u64 == number + 1
        });
    }

    fn get(&self, path: &str) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.api)).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap()
    }

    /// The nodes that `/health` names: their states and reasons.
    fn failing(&self) -> BTreeMap<String, (String, String)> {
        troubled(&self.get("/health")["failing"], "node")
    }

    /// The nodes that `/status` reports as not working, without the delay of `/health`.
    fn troubled(&self) -> BTreeMap<String, (String, String)> {
        troubled(&self.get("/status")["nodes"], "name")
    }

    /// The peak memory of the program.
    fn peak_kib(&self) -> u64 {
        let id = self.program.as_ref().unwrap().id();
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        peak.unwrap()
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap()
    }

    /// Runs the program with damaged state. Asserts that exactly `nodes` fail and name the next step (`helps`), that the other nodes
    /// work, and that memory stays low.
    fn fails_alone(&mut self, number: u64, nodes: &[&str], helps: &str) {
        self.start();
        self.beside(number);
        wait_until("health names the nodes", || {
            self.failing().len() == nodes.len()
        });
        let failing = self.failing();
        assert_eq!(failing.keys().collect::<Vec<_>>(), nodes, "{failing:?}");
        for (state, why) in failing.values() {
            assert_eq!(state, "failed", "{failing:?}");
            assert!(why.contains(helps), "{why}");
        }
        let peak = self.peak_kib();
        assert!(peak < 1 << 20, "it took {peak} KiB");
        assert_eq!(self.stop(), Some(1), "a node has failed");
    }

    /// Adds lines to the input of a pipeline.
    fn write(&self, name: &str, from: u64) -> Vec<String> {
        let lines: Vec<String> = (from..from + LINES)
            .map(|number| format!("{name} {number} the line of this number, up to its end"))
            .collect();
        let path = self.place().join("in").join(name).join("file");
        let file = fs::File::options().append(true).create(true).open(path);
        let text = lines.iter().map(|line| format!("{line}\n"));
        file.unwrap()
            .write_all(text.collect::<String>().as_bytes())
            .unwrap();
        lines
    }

    /// The number of times that each line occurs in the outputs of a pipeline.
    fn lines(&self, name: &str) -> BTreeMap<String, u32> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(self.place().join("out").join(name))
            .into_iter()
            .flatten()
        {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            // A line without an end is still being written, or was being written when the program was killed.
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            for line in whole.split('\n').filter(|line| !line.is_empty()) {
                *found.entry(line.to_owned()).or_default() += 1;
            }
        }
        found
    }

    /// The log since the last call.
    fn log(&mut self) -> String {
        let log = fs::read_to_string(self.place().join("log")).unwrap();
        let new = log[self.logged..].to_owned();
        self.logged = log.len();
        new
    }
}

/// The nodes of a list that fail, retry or lose records: their states and reasons.
fn troubled(nodes: &Value, name: &str) -> BTreeMap<String, (String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let nodes = nodes.as_array().unwrap().iter();
    let nodes = nodes.map(|node| {
        (
            text(&node[name]),
            (text(&node["state"]), text(&node["why"])),
        )
    });
    let is_troubled = |state: &str| ["failed", "retrying", "losing"].contains(&state);
    nodes.filter(|(_, (state, _))| is_troubled(state)).collect()
}

/// The files that match a pattern with one star.
fn matching(pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().unwrap().to_str().unwrap();
    let Some((begin, end)) = name.split_once('*') else {
        return vec![pattern.to_owned()];
    };
    let entries = fs::read_dir(pattern.parent().unwrap())
        .into_iter()
        .flatten()
        .flatten();
    let names = entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with(begin) && name.ends_with(end) && !name.starts_with("free-")
    });
    let mut paths: Vec<PathBuf> = names.collect();
    paths.sort();
    paths
}

/// A function that damages state, the nodes that then do not run, and words of the message that names the next step.
type Case<'a> = (&'a dyn Fn(), &'a [&'a str], &'a str);

#[test]
fn damaged_state_fails_only_its_own_node_and_health_names_the_next_step() {
    let mut rig = Rig::new(&["a"]);
    rig.start();
    rig.beside(0);
    let sent = rig.write("a", 0);
    wait_until("the lines arrive", || rig.lines("a").len() == sent.len());
    assert_eq!(rig.stop(), Some(0));
    let positions = rig.state("sources/in_a/positions");
    let (channel, record) = (
        rig.state("channels/a/channel"),
        rig.state("channel-records/a.record"),
    );
    let whole = fs::read(&positions).unwrap();
    let mut flipped = whole.clone();
    flipped[40] ^= 1;
    let sparse = || {
        fs::File::create(&positions)
            .unwrap()
            .set_len(8 << 30)
            .unwrap()
    };
    let no_identity = || {
        fs::write(&channel, "").unwrap();
        fs::write(&record, "").unwrap();
    };
    let identity = [fs::read(&channel).unwrap(), fs::read(&record).unwrap()];
    let directory = || {
        fs::remove_file(&channel).unwrap();
        fs::create_dir(&channel).unwrap();
    };
    let cases: [Case<'_>; 4] = [
        (
            &|| fs::write(&positions, &flipped).unwrap(),
            &["in_a"],
            "remove it and restart",
        ),
        (&sparse, &["in_a"], "at most 256MiB"),
        (
            &no_identity,
            &["a", "in_a", "out_a"],
            "restore it from a backup",
        ),
        (&directory, &["a", "in_a", "out_a"], "restart Millstream"),
    ];
    for (number, (damage, nodes, helps)) in (1..).zip(cases) {
        damage();
        rig.fails_alone(number, nodes, helps);
        // Follow the advice: repair or restore the damaged files.
        if channel.is_dir() {
            fs::remove_dir(&channel).unwrap();
        }
        fs::write(&positions, &whole).unwrap();
        fs::write(&channel, &identity[0]).unwrap();
        fs::write(&record, &identity[1]).unwrap();
    }
    rig.start();
    rig.beside(5);
    let more = rig.write("a", LINES);
    wait_until("the new lines arrive", || {
        rig.lines("a").len() == sent.len() + more.len()
    });
    assert_eq!(rig.failing(), BTreeMap::new());
    assert_eq!(rig.stop(), Some(0));
    assert!(rig.lines("a").values().all(|count| *count == 1));
}

/// Sends an entry that is not a record, and returns the ack. Fails if no ack arrives within 2 s.
fn send_bad(port: u16) -> std::io::Result<[u8; 22]> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut frame = b"\x93\xa1t\x91\x92\xce\x60\x00\x00\x00\x05\x81\xa5chunk\xb0".to_vec();
    frame.extend(b"the bad one's id");
    stream.write_all(&frame)?;
    let mut ack = [0; 22];
    stream.read_exact(&mut ack)?;
    Ok(ack)
}

/// The channel for the rejected records of a source is damaged. The source works, but does not ack a chunk if it rejects some of its
/// records.
#[test]
fn records_rejected_into_a_channel_that_does_not_run_are_not_acknowledged() {
    let mut rig = Rig::new(&[]);
    let place = rig.place().display().to_string();
    let channel = "  refused: { type: disk, inputs: [fleet.rejected], size_max: 64MiB }\nsinks:\n";
    let sink = format!("  bad: {{ type: file, inputs: [refused], path: \"{place}/bad.log\" }}\n");
    rig.config = rig.config.replace("sinks:\n", channel) + &sink;
    let arrived = |count: usize| {
        let text = fs::read_to_string(format!("{place}/bad.log")).unwrap_or_default();
        text.lines().count() == count
    };
    rig.start();
    assert!(send_bad(rig.port).unwrap().starts_with(b"\x81\xa3ack"));
    wait_until("the rejected record arrives", || arrived(1));
    assert_eq!(rig.stop(), Some(0));
    let paths =
        ["channels/refused/channel", "channel-records/refused.record"].map(|path| rig.state(path));
    let whole = paths.each_ref().map(|path| fs::read(path).unwrap());
    paths.iter().for_each(|path| fs::write(path, "").unwrap());
    rig.start();
    assert_eq!(rig.failing().keys().collect::<Vec<_>>(), ["bad", "refused"]);
    rig.beside(0);
    assert!(
        send_bad(rig.port).is_err(),
        "a record was acknowledged whose channel does not run"
    );
    rig.program.take().unwrap().kill();
    for (path, bytes) in paths.iter().zip(whole) {
        fs::write(path, bytes).unwrap();
    }
    rig.start();
    assert!(send_bad(rig.port).unwrap().starts_with(b"\x81\xa3ack"));
    rig.beside(1);
    assert_eq!(rig.stop(), Some(0));
}

/// A pipeline whose state is damaged.
struct Pipeline {
    name: &'static str,
    pattern: &'static str,
    /// The lines that its outputs must hold.
    sent: BTreeSet<String>,
    count: u64,
    /// The number of times that each line occurred at the last check.
    before: BTreeMap<String, u32>,
    /// Copies of its state files from earlier rounds.
    stale: BTreeMap<PathBuf, Vec<u8>>,
    /// The damage since the last check.
    damage: Vec<String>,
    /// Whether one of its nodes has logged an error since the last check.
    named: bool,
    /// Whether one of these errors has reported missing data.
    loss_named: bool,
}

impl Pipeline {
    fn new((name, pattern): (&'static str, &'static str)) -> Self {
        Self {
            name,
            pattern,
            sent: BTreeSet::new(),
            count: 0,
            before: BTreeMap::new(),
            stale: BTreeMap::new(),
            damage: Vec::new(),
            named: false,
            loss_named: false,
        }
    }

    fn nodes(&self) -> [String; 3] {
        let name = self.name;
        [name.to_owned(), format!("in_{name}"), format!("out_{name}")]
    }

    /// Damages one of its state files in a random way.
    fn damage(&mut self, random: &mut Random, rig: &Rig) {
        let paths = matching(&rig.state(self.pattern));
        let Some(path) = paths.get(random.below(paths.len().max(1) as u64) as usize) else {
            return;
        };
        let Ok(mut bytes) = fs::read(path) else {
            return;
        };
        let used = bytes
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(1, |at| at as u64 + 1);
        let at = random.below(used) as usize;
        let now = bytes.clone();
        let what = random.below(9);
        match what {
            0 | 1 => bytes
                .get_mut(at)
                .into_iter()
                .for_each(|byte| *byte ^= 1 << random.below(8)),
            2 => {
                let end = bytes.len().min(at + 1 + random.below(3000) as usize);
                bytes[at..end].fill(0);
            }
            3 => bytes.truncate(at),
            4 => fs::remove_file(path).unwrap(),
            5 => {
                let other = &paths[random.below(paths.len() as u64) as usize];
                // An earlier damage may have left a directory there.
                if let Ok(others) = fs::read(other) {
                    fs::write(path, others).unwrap();
                    fs::write(other, &bytes).unwrap();
                }
            }
            6 => {
                // An earlier damage may have left a directory there.
                let _ = fs::write(path.with_file_name("0000000999.seg"), &bytes);
            }
            7 => bytes = self.stale.get(path).unwrap_or(&bytes).clone(),
            _ => {
                fs::remove_file(path).unwrap();
                fs::create_dir(path).unwrap();
            }
        }
        if [0, 1, 2, 3, 7].contains(&what) {
            fs::write(path, bytes).unwrap();
        }
        if random.below(2) == 0 {
            self.stale.insert(path.clone(), now);
        }
        self.damage
            .push(format!("damage {what} at {at} of {}", path.display()));
    }

    /// Reads the errors of its nodes from the log.
    fn take_errors(&mut self, log: &str) {
        let nodes = self.nodes().map(|node| format!("node=\"{node}\""));
        let is_own = |line: &&str| nodes.iter().any(|node| line.contains(node));
        let errors = log.lines().filter(|line| line.contains("ERROR"));
        let own: Vec<&str> = errors.filter(is_own).collect();
        let is_loss = |line: &&str| line.contains("missing") || line.contains("passed over");
        self.named |= !own.is_empty();
        self.loss_named |= own.iter().any(is_loss);
    }

    /// Whether one of its nodes has this state.
    fn is(&self, state: &str, troubled: &BTreeMap<String, (String, String)>) -> bool {
        let nodes = self.nodes();
        let mut found = nodes.iter().filter_map(|node| troubled.get(node));
        found.any(|(found, _)| found == state)
    }

    /// Whether no more lines will arrive. This holds if all lines have arrived, if one of its nodes has reported a loss and the lines
    /// `newest` have arrived, or if one of its nodes does not run.
    fn has_settled(&self, rig: &Rig, newest: &[String]) -> bool {
        let troubled = rig.troubled();
        if self.is("failed", &troubled) || self.is("retrying", &troubled) {
            return true;
        }
        let found = rig.lines(self.name);
        let has = |line: &String| found.contains_key(line);
        self.sent.iter().all(has) || self.is("losing", &troubled) && newest.iter().all(has)
    }

    /// Checks its outputs after a stop: they hold only lines that were sent, and no line is lost or repeated without an error.
    fn check(&mut self, rig: &Rig, round: u64) {
        let found = rig.lines(self.name);
        let (name, damage) = (self.name, self.damage.join("; "));
        for line in found.keys() {
            assert!(
                self.sent.contains(line),
                "round {round}, {name}, {damage}: {line:?} was never sent"
            );
        }
        let missing: Vec<&String> = self
            .sent
            .iter()
            .filter(|line| !found.contains_key(*line))
            .collect();
        assert!(
            missing.is_empty() || self.loss_named,
            "round {round}, {name}, {damage}: {} lines are missing, from {:?}, and no error reports it",
            missing.len(),
            missing.first()
        );
        let again =
            |line: &&String| found[*line] > self.before.get(*line).copied().unwrap_or(1).max(1);
        let doubled = found.keys().filter(again).count();
        assert!(
            doubled == 0 || self.named,
            "round {round}, {name}, {damage}: {doubled} lines arrived twice without an error"
        );
        println!(
            "round {round}, {name}, {damage}: {} missing, {doubled} twice",
            missing.len()
        );
        self.sent = found.keys().cloned().collect();
        self.before = found;
        self.damage.clear();
        (self.named, self.loss_named) = (false, false);
    }

    /// Acts as an operator after a stop or kill: removes the state of a pipeline that does not run. After a stop, also accepts losses and
    /// checks the outputs.
    fn mend(
        &mut self,
        rig: &Rig,
        round: u64,
        troubled: &BTreeMap<String, (String, String)>,
        kill: bool,
    ) {
        if self.is("failed", troubled) || self.is("retrying", troubled) {
            println!(
                "round {round}, {}, {}: it does not run",
                self.name,
                self.damage.join("; ")
            );
            self.begin_anew(rig);
        } else if !kill {
            if self.is("losing", troubled) {
                self.accept_loss(rig);
            }
            self.check(rig, round);
        }
    }

    /// Removes its state, input and outputs, as an operator may.
    fn begin_anew(&mut self, rig: &Rig) {
        let name = self.name;
        for path in [
            rig.state(&format!("channels/{name}")),
            rig.state(&format!("sources/in_{name}")),
            rig.state(&format!("sinks/out_{name}")),
            rig.place().join("out").join(name),
        ] {
            let _ = fs::remove_dir_all(path);
        }
        for end in ["record", "losses"] {
            let path = rig.state(&format!("channel-records/{name}.{end}"));
            let _ = fs::remove_file(&path);
            let _ = fs::remove_dir(&path);
        }
        fs::write(rig.place().join("in").join(name).join("file"), "").unwrap();
        *self = Self {
            count: self.count,
            ..Self::new((name, self.pattern))
        };
    }

    /// Accepts the loss, as an operator may.
    fn accept_loss(&self, rig: &Rig) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.args(["channel", "forget", "--accept-loss"]);
        let output = command
            .arg(rig.state(&format!("channels/{}", self.name)))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn random_damage_to_any_state_is_reported_and_affects_no_other_node() {
    let rounds = if std::env::var_os("STORM").is_some() {
        300
    } else {
        30
    };
    let mut random = Random::new();
    let names = KINDS.map(|(name, _)| name);
    let mut rig = Rig::new(&names);
    let mut pipelines = KINDS.map(Pipeline::new);
    for round in 0..=rounds {
        let mut newest = Vec::new();
        for pipeline in &mut pipelines {
            let lines = rig.write(pipeline.name, pipeline.count);
            pipeline.count += LINES;
            pipeline.sent.extend(lines.iter().cloned());
            newest.push(lines);
        }
        rig.start();
        rig.beside(round);
        let kill = random.below(4) == 0;
        if !kill {
            for (pipeline, newest) in pipelines.iter().zip(&newest) {
                wait_until(
                    &format!("{} settles, {:?}", pipeline.name, pipeline.damage),
                    || pipeline.has_settled(&rig, newest),
                );
            }
        }
        let troubled = rig.troubled();
        for (node, (state, why)) in &troubled {
            let owner = pipelines
                .iter()
                .find(|pipeline| pipeline.nodes().contains(node));
            let owner = owner.unwrap_or_else(|| panic!("round {round}: {node} is {state}: {why}"));
            assert!(
                !owner.damage.is_empty(),
                "round {round}: {node} was not damaged and is {state}: {why}"
            );
        }
        if kill {
            rig.program.take().unwrap().kill();
        } else {
            let has_failed = troubled.values().any(|(state, _)| state == "failed");
            assert_eq!(
                rig.stop(),
                Some(i32::from(has_failed)),
                "round {round}: {troubled:?}\n{}",
                rig.log()
            );
        }
        let log = rig.log();
        for pipeline in &mut pipelines {
            pipeline.take_errors(&log);
            pipeline.mend(&rig, round, &troubled, kill);
            if random.below(2) == 0 {
                pipeline.damage(&mut random, &rig);
            }
        }
    }
}
