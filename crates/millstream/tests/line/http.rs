//! Real clients of the source `http`: OpenTelemetry's SDKs for Python (OTLP in protobuf) and for JavaScript (OTLP in JSON),
//! curl, and requests with an Idempotency-Key while the receiver is killed.
//!
//! `make deps` installs the SDKs into `target/clients`.

use std::{
    fs,
    io::{self, Read, Write},
    net::TcpStream,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, sleep},
    time::Duration,
};

use crate::program::{
    Program, free_port, tree,
    victim::{Random, in_storm, kill_at_start},
    wait_until,
};
use millstream_testkit::Authority;
use serde_json::{Value, json};

/// Log records per run of the SDK.
const RECORDS: u64 = 3000;

fn configuration(directory: &Path, port: u16, source: &str, format: &str) -> String {
    let place = directory.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: http, listen: \"tcp://127.0.0.1:{port}\"{source} }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n  out: {{ type: file, inputs: [kept], path: \"{place}/out.log\", {format} }}\n"
    )
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    // The last line may still be incomplete.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Record `n` as `otlp.py` and `otlp.js` create it.
fn logged(n: u64) -> Value {
    let message = match n % 5 {
        0 => json!({"n": n, "text": format!("line {n}"), "list": [1, "two", null]}),
        _ => json!(format!("line {n}")),
    };
    json!({
        "time": format!("2023-11-14T22:13:20.{n:09}Z"),
        "message": message,
        "severity_text": "WARN",
        "severity_number": 13,
        "trace_id": format!("{:032x}", n + 1),
        "span_id": format!("{:016x}", n + 1),
        "flags": 1,
        "observed_time_unix_nano": 1_700_000_001_000_000_000_u64 + n,
        // Bytes that are not UTF-8 appear as base64.
        "attributes": {"n": n, "half": n as f64 + 0.5, "yes": true, "list": ["a", "b"], "bytes": "AP8=", "ünï": "漢字 🦀"},
        "resources": {"service.name": "shop", "replica": 3},
        "scope": {"name": "test.scope", "version": "1.2.3", "attributes": {"scoped": true}},
    })
}

/// The Python program that sends the log records.
fn python() -> Command {
    let python = tree().join("target/clients/python");
    let mut command = Command::new(python.join("venv/bin/python"));
    command.arg(python.join("otlp.py"));
    command
}

/// The JavaScript program that sends the log records.
fn node() -> Command {
    let mut command = Command::new("node");
    command.arg(tree().join("target/clients/node/otlp.js"));
    command
}

fn export(mut command: Command, variant: &str, tls: bool) {
    let directory = tempfile::tempdir().unwrap();
    let (place, port) = (directory.path().display(), free_port());
    let mut source = ", auth: { bearer: s3cret }".to_owned();
    let scheme = if tls { "https" } else { "http" };
    command
        .arg(format!("{scheme}://localhost:{port}"))
        .args([variant, &RECORDS.to_string()]);
    if tls {
        let authority = Authority::new("test root");
        authority.write_root(directory.path(), "ca");
        authority.issue(directory.path(), "server", &["localhost"]);
        source += &format!(", tls: {{ cert: {place}/server.pem, key: {place}/server.key }}");
        command.arg(directory.path().join("ca.pem"));
    }
    let config = configuration(directory.path(), port, &source, "format: json");
    let program = Program::start(directory.path(), &config).listens(port);
    let sent = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}: run `make deps`"));
    let said = String::from_utf8_lossy(&sent.stderr);
    assert!(
        sent.status.success() && said.is_empty(),
        "{variant}: {said}"
    );
    let output = directory.path().join("out.log");
    wait_until("all records have arrived", || {
        lines(&output).len() as u64 >= RECORDS
    });
    assert_eq!(program.stop(), Some(0));
    let got = lines(&output);
    assert_eq!(got.len() as u64, RECORDS, "{variant}");
    for (n, got) in (0..).zip(got) {
        assert_eq!(got, logged(n), "{variant}");
    }
}

#[test]
fn opentelemetrys_sdk_delivers_every_record() {
    export(python(), "none", false);
}

#[test]
fn opentelemetrys_sdk_delivers_every_record_compressed_under_tls() {
    export(python(), "gzip", true);
}

#[test]
fn opentelemetrys_sdk_for_javascript_delivers_every_record_as_json() {
    export(node(), "none", false);
}

#[test]
fn opentelemetrys_sdk_for_javascript_delivers_every_record_as_json_compressed_under_tls() {
    export(node(), "gzip", true);
}

#[test]
fn curl_delivers_lines_plain_and_compressed() {
    let directory = tempfile::tempdir().unwrap();
    let port = free_port();
    let config = configuration(directory.path(), port, "", "format: json, add: {}");
    let program = Program::start(directory.path(), &config).listens(port);
    // The file is larger than one mebibyte, so that curl sends `Expect: 100-continue` first.
    let line = |n: u64| json!({"n": n, "big": u64::MAX - n, "text": "x".repeat(200)});
    let text: String = (0..10_000).map(|n| format!("{}\n", line(n))).collect();
    let file = directory.path().join("events.jsonl");
    fs::write(&file, text).unwrap();
    let gzipped = Command::new("gzip").arg("-k").arg(&file).status().unwrap();
    assert!(gzipped.success());
    let post = |file: &Path, headers: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["-sS", "--fail-with-body", "--data-binary"]);
        command.arg(format!("@{}", file.display()));
        for header in headers {
            command.args(["-H", header]);
        }
        let answer = command
            .arg(format!("http://127.0.0.1:{port}/"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&answer.stdout).into_owned();
        assert_eq!(
            said,
            "{\"accepted\":10000}\n",
            "{}",
            String::from_utf8_lossy(&answer.stderr)
        );
    };
    post(&file, &[]);
    let gzipped = directory.path().join("events.jsonl.gz");
    post(
        &gzipped,
        &[
            "Content-Encoding: gzip",
            "Content-Type: application/x-ndjson",
        ],
    );
    let output = directory.path().join("out.log");
    wait_until("all lines have arrived", || lines(&output).len() >= 20_000);
    assert_eq!(program.stop(), Some(0));
    for (n, got) in (0..).zip(lines(&output)) {
        assert_eq!(got, line(n % 10_000));
    }
}

/// Posts until the answer is 200; returns the number of attempts.
fn post(port: u16, key: &str, body: &str) -> u64 {
    let request = format!(
        "POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {key}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let once = || -> io::Result<bool> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.starts_with("HTTP/1.1 200"))
    };
    let mut tries = 1;
    while !once().unwrap_or(false) {
        tries += 1;
        sleep(Duration::from_millis(5));
    }
    tries
}

#[test]
fn requests_with_a_key_arrive_once_each_while_the_receiver_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let port = free_port();
    let config = configuration(directory.path(), port, "", "format: raw, field: .id");
    let mut program = Program::start(directory.path(), &config).listens(port);
    let done = Arc::new(AtomicBool::new(false));
    let senders: Vec<_> = (0..4)
        .map(|sender| {
            let done = done.clone();
            thread::spawn(move || {
                let (mut sent, mut tries) = (Vec::new(), 0);
                for request in 0.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    let ids: Vec<String> =
                        (0..20).map(|n| format!("{sender}-{request}-{n}")).collect();
                    let body: String = ids
                        .iter()
                        .map(|id| format!("{{\"id\":\"{id}\"}}\n"))
                        .collect();
                    tries += post(port, &format!("{sender}.{request}"), &body);
                    sent.extend(ids);
                }
                (sent, tries)
            })
        })
        .collect();
    let (kills, mut random) = (in_storm(20, 100), Random::new());
    for _ in 0..kills {
        sleep(Duration::from_millis(50 + random.below(200)));
        program.kill();
        kill_at_start(directory.path(), &config, &mut random);
        program = Program::start(directory.path(), &config).listens(port);
    }
    done.store(true, Ordering::Relaxed);
    let (mut sent, mut tries) = (Vec::new(), 0);
    for sender in senders {
        let (ids, tried) = sender.join().unwrap();
        sent.extend(ids);
        tries += tried;
    }
    let output = directory.path().join("out.log");
    let count = || fs::read_to_string(&output).map_or(0, |text| text.lines().count());
    wait_until("all records have arrived", || count() >= sent.len());
    assert_eq!(program.stop(), Some(0));
    let text = fs::read_to_string(&output).unwrap();
    let mut arrived: Vec<&str> = text.lines().collect();
    arrived.sort_unstable();
    sent.sort_unstable();
    assert!(
        arrived == sent,
        "{} sent, {} arrived",
        sent.len(),
        arrived.len()
    );
    let requests = sent.len() as u64 / 20;
    println!("{requests} requests in {tries} tries, {kills} kills: 0 lost, 0 twice");
    assert!(
        tries > requests,
        "no request was retried, so the test proves nothing"
    );
}
