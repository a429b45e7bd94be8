//! The sink `http` under faults: Millstream is killed, the server restarts, the network is cut. Our source `http` receives
//! each record once. A server that ignores `Idempotency-Key` loses no record, but may receive some twice. OpenTelemetry's
//! decoder reads the OTLP that the sink writes.

use std::{
    fs,
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use super::http_peers::{Cut, Keeper};
use crate::program::{
    Program, free_port, millbench, tree,
    victim::{Generator, Random, Victim, generate, in_storm, settle},
    wait_until,
};
use serde_json::{Value, json};

/// The number of restarts of a server.
const RESTARTS: u64 = 20;
/// The longest pause between two faults.
const PAUSE_MS_MAX: u64 = 400;

/// The configuration of a sender: receives the forward protocol with acks, stores records in a disk channel, sends them by HTTP.
fn sender(directory: &Path, port: u16, url: &str, more: &str) -> String {
    format!(
        "data_dir: {}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB, sync: batch }}\n\
         sinks:\n  on: {{ type: http, inputs: [kept], url: \"{url}\", retry: {{ first: 20ms, max: 200ms, timeout: 2s }}{more} }}\n",
        directory.display()
    )
}

/// The configuration of a receiver: receives HTTP, stores records in a disk channel, writes them to a file.
fn receiver(directory: &Path, port: u16, out: &Path) -> String {
    format!(
        "data_dir: {}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: http, path: /in, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB, sync: batch }}\n\
         sinks:\n  out: {{ type: file, inputs: [kept], path: \"{}/all.log\", format: raw }}\n",
        directory.display(),
        out.display()
    )
}

#[test]
fn our_own_source_gets_each_record_once_however_often_both_ends_are_killed() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let out = place.join("out");
    let (entry, between) = (free_port(), free_port());
    let (one, two) = (place.join("one"), place.join("two"));
    let url = format!("http://127.0.0.1:{between}/in");
    let more = ", compression: zstd, batch: { size: 16KiB }";
    let config = sender(&one, entry, &url, more);
    let mut first = Victim::start(one, entry, config);
    let config = receiver(&two, between, &out);
    let mut second = Victim::start(two, between, config);
    let generator = Generator::start(&generate(place, entry, "150000", "8000"));
    let mut random = Random::new();
    for n in 0..in_storm(50, 100) {
        sleep(Duration::from_millis(random.below(PAUSE_MS_MAX)));
        let victim = if n % 2 == 0 { &mut first } else { &mut second };
        victim.kill_and_restart(&mut random);
    }
    generator.finish();
    settle(&out);
    first.stop();
    second.stop();
    // Several requests are in flight and may overtake each other.
    account(place, "reordered");
}

#[test]
fn a_server_without_idempotency_keys_loses_nothing_through_kills_restarts_and_cuts() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let out = place.join("out");
    fs::create_dir_all(&out).unwrap();
    let entry = free_port();
    let mut keeper = Keeper::start(out.join("all.log"));
    let cut = Cut::before(keeper.port());
    let one = place.join("one");
    let url = format!("http://127.0.0.1:{}/in", cut.port());
    let more = ", format: raw, compression: gzip";
    let config = sender(&one, entry, &url, more);
    let mut first = Victim::start(one, entry, config);
    let generator = Generator::start(&generate(place, entry, "150000", "8000"));
    let mut random = Random::new();
    for n in 0..50 {
        sleep(Duration::from_millis(random.below(PAUSE_MS_MAX / 2)));
        first.kill();
        if n % 2 == 0 && n / 2 < RESTARTS {
            keeper.restart();
        }
        first.restart();
        if n % 15 == 5 {
            // No bytes pass, and neither end is notified.
            cut.hold(true);
            // Some cuts last longer than the request timeout.
            sleep(Duration::from_millis(if n > 20 { 2300 } else { 300 }));
            cut.hold(false);
        }
    }
    generator.finish();
    settle(&out);
    first.stop();
    account(place, "duplicated,reordered");
}

/// Asserts that every record of the ledger is in the output. `allowed` names the defects that the verifier accepts.
fn account(place: &Path, allowed: &str) {
    let account = Command::new(millbench())
        .args(["verify", "--allow", allowed, "--ledger"])
        .args([place.join("ledger"), place.join("out")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&account.stdout).into_owned();
    println!("{said}");
    let errors = String::from_utf8_lossy(&account.stderr);
    assert!(account.status.success(), "{said}{errors}");
}

/// A running decoder, `otlp_receive.py`. Killed when dropped.
struct Decoder(Child);

impl Decoder {
    /// Listens on `port` and writes a line for each log record to `file`.
    fn start(port: u16, file: &Path) -> Self {
        let python = tree().join("target/clients/python");
        let interpreter = python.join("venv/bin/python");
        let place = interpreter.display();
        assert!(interpreter.exists(), "{place} is missing: run `make deps`");
        let child = Command::new(interpreter)
            .arg(python.join("otlp_receive.py"))
            .args([port.to_string().as_ref(), file.as_os_str()])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the decoder listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Self(child)
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The records to send: one with fields that OTLP does not define, one with OTLP's own fields, and one with a long value.
fn records() -> [Value; 3] {
    [
        json!({"message": "plain", "level": "error", "n": 5, "deep": {"a": [1, {"b": [true, null, -2.5]}], "ü": "漢字 🦀"}}),
        json!({"message": {"n": i64::MIN, "big": u64::MAX}, "trace_id": "0102030405060708090a0b0c0d0e0f10", "span_id": "0102030405060708",
               "severity_text": "WARN", "severity_number": 13, "flags": 1, "event_name": "e", "attributes": {"k": "v"},
               "resources": {"service.name": "other"}, "scope": {"name": "s", "version": "1", "attributes": {"x": 1}}, "dropped_attributes_count": 2}),
        json!({"long": "x".repeat(20_000), "trace_id": "no id"}),
    ]
}

/// Asserts that the decoder has read the records that were sent.
fn check(first: &Value, second: &Value, third: &Value) {
    assert_eq!(first["body"], "plain");
    let severity = |seen: &Value| (seen["severity"].clone(), seen["severity_text"].clone());
    assert_eq!(severity(first), (json!(17), json!("error")));
    assert_eq!(first["resource"], json!({"service.name": "shop"}));
    let deep = json!({"a": [1, {"b": [true, null, -2.5]}], "ü": "漢字 🦀"});
    let attributes = json!({"level": "error", "n": 5, "deep": deep});
    assert_eq!(first["attributes"], attributes);
    assert!(first["time"].as_u64().unwrap() > 1_700_000_000_000_000_000);
    // An integer above 63 bits becomes text.
    let body = json!({"n": i64::MIN, "big": u64::MAX.to_string()});
    assert_eq!(second["body"], body);
    assert_eq!(second["trace_id"], "0102030405060708090a0b0c0d0e0f10");
    assert_eq!(second["span_id"], "0102030405060708");
    assert_eq!(severity(second), (json!(13), json!("WARN")));
    assert_eq!(
        (&second["flags"], &second["dropped"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(second["attributes"], json!({"k": "v"}));
    assert_eq!(second["resource"], json!({"service.name": "other"}));
    assert_eq!(second["scope"], json!(["s", "1", {"x": 1}]));
    assert_eq!(third["body"], Value::Null);
    let long = third["attributes"]["long"].as_str().unwrap();
    assert_eq!(long.len(), 20_000);
    assert_eq!(third["attributes"]["trace_id"], "no id");
}

#[test]
fn opentelemetrys_decoder_reads_the_otlp_that_the_sink_writes() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (port, input) = (free_port(), free_port());
    let read = place.join("read.jsonl");
    let decoder = Decoder::start(port, &read);
    let sink = |name: &str, framing: &str| {
        format!(
            "  {name}: {{ type: http, inputs: [in], url: \"http://127.0.0.1:{port}/{name}\", framing: {framing}, \
             compression: gzip, resource: {{ service.name: \"{{tag}}\" }} }}\n"
        )
    };
    let config = format!(
        "data_dir: {}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: http, listen: \"tcp://127.0.0.1:{input}\", tag: shop }}\nsinks:\n{}{}",
        place.display(),
        sink("protobuf", "otlp"),
        sink("json", "otlp_json")
    );
    let program = Program::start(place, &config).listens(input);
    let body: String = records()
        .iter()
        .map(|record| format!("{record}\n"))
        .collect();
    let file = place.join("body");
    fs::write(&file, body).unwrap();
    let posted = Command::new("curl")
        .args(["-sS", "--fail-with-body", "--data-binary"])
        .arg(format!("@{}", file.display()))
        .arg(format!("http://127.0.0.1:{input}/"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&posted.stdout);
    assert!(posted.status.success(), "{said}");
    // The answer 200 means that both sinks have settled the records of the request.
    let text = fs::read_to_string(&read).unwrap();
    drop(decoder);
    assert_eq!(program.stop(), Some(0));
    let lines = text.lines();
    let seen: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(seen.len(), 6);
    for path in ["/protobuf", "/json"] {
        let seen: Vec<_> = seen.iter().filter(|seen| seen["path"] == path).collect();
        let [first, second, third] = seen[..] else {
            panic!("{path}: {} records", seen.len());
        };
        check(first, second, third);
    }
}
