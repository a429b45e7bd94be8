//! Real Flume 1.11: an agent with its Avro sink, and the RPC client of its SDK, with and without deflate and TLS. Every
//! event that they send arrives, header for header and byte for byte; and nothing is lost while the receiver is killed.
//!
//! Flume is installed by `make deps` into `target/clients/flume`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "what cannot be done fails the test, which says what it did"
)]

mod program;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use millstream_testkit::Authority;
use program::{Program, free_port, tree, wait_until};
use rmpv::Value;

/// Events of a run that is compared.
const EVENTS: usize = 2000;
/// Events of a transaction of the agent's sink: what may come twice when a connection breaks.
const BATCH: usize = 100;
/// How often the receiver is stopped or killed.
const BREAKS: usize = 20;

fn installed() -> String {
    let folder = tree().join("target/clients/flume/target");
    assert!(
        folder.join("flume-1.jar").exists(),
        "{} is missing: run `make deps`",
        folder.display()
    );
    format!("{0}/*:{0}/dependency/*", folder.display())
}

/// A Flume agent that sends the files of a folder. Killed when dropped.
struct Agent {
    child: Child,
    spool: PathBuf,
}

impl Agent {
    /// `sink`: more lines for the Avro sink.
    fn start(folder: &Path, port: u16, sink: &str) -> Self {
        let spool = folder.join("spool");
        fs::create_dir_all(&spool).unwrap();
        let config = format!(
            "a.sources = s\na.channels = c\na.sinks = k\n\
             a.sources.s.type = spooldir\na.sources.s.spoolDir = {spool}\na.sources.s.channels = c\n\
             a.sources.s.basenameHeader = true\na.sources.s.basenameHeaderKey = file\n\
             a.sources.s.deserializer.maxLineLength = 100000\na.sources.s.pollDelay = 50\n\
             a.sources.s.interceptors = i t\na.sources.s.interceptors.i.type = static\n\
             a.sources.s.interceptors.i.key = message\na.sources.s.interceptors.i.value = of the agent\n\
             a.sources.s.interceptors.t.type = timestamp\n\
             a.channels.c.type = memory\na.channels.c.capacity = 100000\na.channels.c.transactionCapacity = 1000\n\
             a.sinks.k.type = avro\na.sinks.k.channel = c\na.sinks.k.hostname = 127.0.0.1\n\
             a.sinks.k.port = {port}\na.sinks.k.batch-size = {BATCH}\n{sink}",
            spool = spool.display(),
        );
        let path = folder.join("agent.properties");
        fs::write(&path, config).unwrap();
        let log = File::create(folder.join("agent.log")).unwrap();
        let child = Command::new("java")
            .args(["-Xmx256m", "-cp", &installed()])
            .args(["org.apache.flume.node.Application", "-n", "a", "-f"])
            .arg(&path)
            .arg("--no-reload-conf")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, spool }
    }

    /// Gives it a file to send, whole from the first moment.
    fn give(&self, name: &str, text: &str) {
        let beside = self.spool.with_file_name("next");
        fs::write(&beside, text).unwrap();
        fs::rename(beside, self.spool.join(name)).unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn configuration(folder: &Path, port: u16, source: &str, sink: &str) -> String {
    let place = folder.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: flume, listen: \"tcp://127.0.0.1:{port}\"{source} }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n  out: {{ type: file, inputs: [kept], path: \"{place}/out.log\", {sink} }}\n"
    )
}

fn line(n: usize) -> String {
    let long = if n % 50 == 3 { 5000 } else { n % 90 };
    format!("event {n} \"{}\" ünïcödé 漢字 \\", "x".repeat(long))
}

/// An agent delivers `EVENTS` lines.
fn deliver(variant: &str, source: &str, sink: impl Fn(&Path) -> String) {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("test root");
    authority.write_root(folder.path(), "ca");
    authority.issue(folder.path(), "server", &["127.0.0.1", "localhost"]);
    let port = free_port();
    let source = source.replace("FOLDER", &folder.path().display().to_string());
    let config = configuration(folder.path(), port, &source, "format: json");
    let program = Program::start(folder.path(), &config).listens(port);
    let agent = Agent::start(folder.path(), port, &sink(folder.path()));
    let text: String = (0..EVENTS).map(|n| line(n) + "\n").collect();
    agent.give("input.txt", &text);
    let output = folder.path().join("out.log");
    let count = || fs::read(&output).map_or(0, |b| b.iter().filter(|b| **b == b'\n').count());
    wait_until("all events have arrived", || count() >= EVENTS);
    drop(agent);
    assert_eq!(program.stop(), Some(0), "{variant}");
    let text = fs::read_to_string(&output).unwrap();
    for (n, got) in text.lines().enumerate() {
        let got: serde_json::Value = serde_json::from_str(got).unwrap();
        let millis: i64 = got["timestamp"].as_str().unwrap().parse().unwrap();
        let time = got["time"].as_str().unwrap();
        assert!(
            time.ends_with(&format!(".{:03}000000Z", millis % 1000)),
            "{got}"
        );
        assert_eq!(got["message"], line(n), "{variant}");
        assert_eq!(got["message_header"], "of the agent");
        assert_eq!(got["file"], "input.txt");
        assert_eq!(got.as_object().unwrap().len(), 5);
    }
    assert_eq!(count(), EVENTS, "{variant}");
}

#[test]
fn an_agent_delivers_every_event() {
    deliver("plain", "", |_| String::new());
}

#[test]
fn an_agent_delivers_every_event_compressed() {
    deliver("deflate", ", compression: deflate", |_| {
        "a.sinks.k.compression-type = deflate\n".to_owned()
    });
}

/// Makes the store of certificates that Java reads.
fn trust(folder: &Path) -> String {
    let made = Command::new("keytool")
        .args([
            "-importcert",
            "-noprompt",
            "-alias",
            "ca",
            "-storetype",
            "PKCS12",
        ])
        .args(["-storepass", "changeit", "-file"])
        .arg(folder.join("ca.pem"))
        .arg("-keystore")
        .arg(folder.join("trust.p12"))
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stdout)
    );
    format!(
        "a.sinks.k.ssl = true\na.sinks.k.truststore = {}/trust.p12\n\
         a.sinks.k.truststore-type = PKCS12\na.sinks.k.truststore-password = changeit\n",
        folder.display()
    )
}

const TLS: &str = ", tls: { cert: FOLDER/server.pem, key: FOLDER/server.key }";

#[test]
fn an_agent_delivers_every_event_under_tls() {
    deliver("tls", TLS, trust);
}

#[test]
fn the_sdk_delivers_every_byte_and_header() {
    for variant in ["append", "batch", "append+deflate", "batch+deflate"] {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let source = match variant.ends_with("+deflate") {
            true => ", compression: deflate",
            false => "",
        };
        let config = configuration(folder.path(), port, source, "format: msgpack");
        let program = Program::start(folder.path(), &config).listens(port);
        let sent = Command::new("java")
            .args([
                "-cp",
                &installed(),
                "Rpc",
                &port.to_string(),
                variant,
                "1500",
            ])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&sent.stderr);
        assert!(sent.status.success(), "{variant}: {said}");
        let output = folder.path().join("out.log");
        wait_until("all events have arrived", || entries(&output).len() >= 1500);
        assert_eq!(program.stop(), Some(0));
        let entries = entries(&output);
        assert_eq!(entries.len(), 1500, "{variant}");
        for (i, entry) in entries.iter().enumerate() {
            compare(i, entry);
        }
    }
}

fn entries(path: &Path) -> Vec<Value> {
    let bytes = fs::read(path).unwrap_or_default();
    let mut rest = &bytes[..];
    let mut entries = Vec::new();
    while let Ok(entry) = rmpv::decode::read_value(&mut rest) {
        entries.push(entry);
    }
    entries
}

/// Event `i` as `Rpc.java` makes it.
fn compare(i: usize, entry: &Value) {
    let millis = 1_700_000_000_123 + i as u64;
    let (_, time) = entry[0].as_ext().unwrap();
    let nanos = (millis % 1000) as u32 * 1_000_000;
    let expected = [((millis / 1000) as u32).to_be_bytes(), nanos.to_be_bytes()].concat();
    assert_eq!(time, expected);
    let fields = entry[1].as_map().unwrap();
    let field = |name: &str| {
        let found = fields.iter().find(|(key, _)| key.as_str() == Some(name));
        match found {
            Some((_, Value::String(text))) => Some(text.as_bytes().to_vec()),
            Some((_, other)) => panic!("{other}"),
            None => None,
        }
    };
    let body: Vec<u8> = (0..i * 7 % 997).map(|j| (i * 31 + j * 17) as u8).collect();
    assert_eq!(field("message"), Some(body));
    assert_eq!(field("n"), Some(i.to_string().into_bytes()));
    assert_eq!(field("timestamp"), Some(millis.to_string().into_bytes()));
    let third = i.is_multiple_of(3);
    assert_eq!(field("für"), third.then(|| "漢字 🦀".into()));
    assert_eq!(
        field("message_header"),
        third.then(|| b"a header of that name".to_vec())
    );
    for more in 0..20 {
        let name = format!("header{more}");
        assert_eq!(field(&name), (more < i % 20).then(Vec::new));
    }
    assert_eq!(fields.len(), 3 + 2 * usize::from(third) + i % 20);
}

#[test]
fn nothing_is_lost_while_the_receiver_is_killed_and_what_comes_twice_is_what_was_not_answered() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let config = configuration(folder.path(), port, "", "format: raw");
    let mut program = Program::start(folder.path(), &config).listens(port);
    let agent = Agent::start(folder.path(), port, "");
    let output = folder.path().join("out.log");
    let mut sent = 0;
    let mut give = |files: usize| {
        for _ in 0..files {
            let text: String = (sent..sent + 500).map(|n| format!("{n}\n")).collect();
            agent.give(&format!("{sent:09}.txt"), &text);
            sent += 500;
        }
        sent
    };
    let size = || fs::metadata(&output).map_or(0, |file| file.len());
    for round in 0..BREAKS {
        // There is more than it can send until then, and it is sending now.
        give(30);
        let before = size();
        wait_until("the agent sends", || size() > before);
        sleep(Duration::from_millis(round as u64 * 7 % 20));
        match round % 2 {
            0 => program.kill(),
            _ => drop(program.stop()),
        }
        program = Program::start(folder.path(), &config).listens(port);
    }
    let sent = give(5);
    let arrived = || {
        let text = fs::read_to_string(&output).unwrap();
        let last = text.lines().next_back().and_then(|line| line.parse().ok());
        last == Some(sent - 1)
    };
    wait_until("the last event has arrived", arrived);
    assert_eq!(program.stop(), Some(0));
    let text = fs::read_to_string(&output).unwrap();
    let (mut next, mut rewinds, mut twice) = (0, 0, 0);
    for line in text.lines() {
        let n: usize = line.parse().unwrap();
        assert!(n <= next, "{next} to {n} are lost");
        if n < next {
            let back = next - n;
            assert!(back <= BATCH, "{n} comes again behind {}", next - 1);
            rewinds += 1;
            twice += back;
        }
        next = n + 1;
    }
    println!("{sent} events, {BREAKS} breaks: 0 lost, {twice} twice in {rewinds} batches");
    assert_eq!(next, sent);
    assert!(rewinds <= BREAKS);
}
