//! Flume 1.11 as the sender: an agent with its Avro sink, and the RPC client of its SDK, with and without deflate and TLS.
//! Every event arrives with the same headers and bytes. (`faults/restarts.rs` kills the receiver.)
//!
//! `make deps` installs Flume into `target/clients/flume`.

use std::{fs, path::Path, process::Command};

use crate::peers::flume_agent::{AVRO, Agent, installed};
use crate::program::{Program, free_port, wait_until};
use millstream_testkit::Authority;
use rmpv::Value;

/// Events per run.
const EVENTS: usize = 2000;

fn configuration(directory: &Path, port: u16, source: &str, sink: &str) -> String {
    let place = directory.display();
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

/// Asserts that an agent delivers all `EVENTS` lines of its input.
fn deliver(variant: &str, source: &str, sink: impl Fn(&Path) -> String) {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("test root");
    authority.write_root(directory.path(), "ca");
    authority.issue(directory.path(), "server", &["127.0.0.1", "localhost"]);
    let port = free_port();
    let source = source.replace("DIRECTORY", &directory.path().display().to_string());
    let config = configuration(directory.path(), port, &source, "format: json");
    let program = Program::start(directory.path(), &config).listens(port);
    let agent = Agent::start(directory.path(), port, AVRO, &sink(directory.path()));
    let text: String = (0..EVENTS).map(|n| line(n) + "\n").collect();
    agent.give("input.txt", &text);
    let output = directory.path().join("out.log");
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

/// Creates the trust store that Java reads.
fn trust(directory: &Path) -> String {
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
        .arg(directory.join("ca.pem"))
        .arg("-keystore")
        .arg(directory.join("trust.p12"))
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
        directory.display()
    )
}

const TLS: &str = ", tls: { cert: DIRECTORY/server.pem, key: DIRECTORY/server.key }";

#[test]
fn an_agent_delivers_every_event_under_tls() {
    deliver("tls", TLS, trust);
}

#[test]
fn the_sdk_delivers_every_byte_and_header() {
    for variant in ["append", "batch", "append+deflate", "batch+deflate"] {
        let directory = tempfile::tempdir().unwrap();
        let port = free_port();
        let source = match variant.ends_with("+deflate") {
            true => ", compression: deflate",
            false => "",
        };
        let config = configuration(directory.path(), port, source, "format: msgpack");
        let program = Program::start(directory.path(), &config).listens(port);
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
        let output = directory.path().join("out.log");
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

/// Asserts that an entry is event `i` as `Rpc.java` creates it.
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
