//! Real clients of the forward protocol, written by others, in every mode and ack setting they have: every record that
//! they send arrives in a file, value for value.
//!
//! The clients are installed by `make deps` into `target/clients`.

#![allow(clippy::unwrap_used, reason = "what cannot be done fails the test")]

mod program;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use program::{Program, free_port, tree, wait_until};
use serde_json::{Map, Value, json};

/// Records that each run sends.
const RECORDS: i64 = 300;

/// The time that clients give record n, where they can: 1700000000 + n seconds and these nanoseconds.
const SECONDS: i64 = 1_700_000_000;

/// Which numbers a client can say.
#[derive(Clone, Copy, PartialEq)]
enum Numbers {
    /// Whole numbers up to 2^53, as JavaScript has them.
    Double,
    /// The same, and its encoder writes those beyond 32 bits as floats (msgpack-lite).
    Float,
    /// All of 64 bits.
    Exact,
}

/// Which times a client says.
#[derive(Clone, Copy, PartialEq)]
enum Times {
    Seconds,
    Nanoseconds,
    Now,
}

fn record(n: i64, numbers: Numbers) -> Value {
    let mut record = json!({
        "n": n,
        "message": format!("line {n}\twith tabs, \"quotes\", \\ and ünïcödé 漢字 🦀"),
        "control": "\u{1}\n\r\u{7f}\u{0}",
        "empty": "",
        "none": null,
        "yes": true,
        "no": false,
        "half": n as f64 + 0.5,
        "tiny": 1.5e-300,
        "negative": -n - 1,
        "limits": [0, 127, 128, 255, 256, 65535, 65536, 4294967295_i64, -128, -129, -32769, -2147483649_i64, 9007199254740991_i64],
        "nested": {"a": [1, {"b": [[], {}, "c"]}], "z": "last"},
    });
    if numbers == Numbers::Exact {
        record["huge"] = json!([i64::MIN, i64::MAX, u64::MAX]);
    }
    if n % 100 == 7 {
        record["long"] = Value::from("x".repeat(70_000));
    }
    record
}

struct Case {
    /// The command, without its arguments.
    command: Vec<String>,
    variant: &'static str,
    numbers: Numbers,
    times: Times,
    unix: bool,
}

fn installed(path: &str) -> String {
    let path = tree().join("target/clients").join(path);
    assert!(
        path.exists(),
        "{} is missing: run `make deps`",
        path.display()
    );
    path.display().to_string()
}

fn run(case: &Case) {
    let folder = tempfile::tempdir().unwrap();
    let (port, socket) = (free_port(), folder.path().join("forward.sock"));
    let program =
        Program::start(folder.path(), &configuration(folder.path(), port, &socket)).listens(port);
    let records = folder.path().join("records.jsonl");
    let lines: String = (0..RECORDS)
        .map(|n| format!("{}\n", record(n, case.numbers)))
        .collect();
    fs::write(&records, lines).unwrap();
    let address = if case.unix {
        format!("unix:{}", socket.display())
    } else {
        format!("127.0.0.1:{port}")
    };
    let sent = Command::new(&case.command[0])
        .args(&case.command[1..])
        .args([address.as_str(), case.variant, "test.client"])
        .arg(&records)
        .output()
        .unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&sent.stdout),
        String::from_utf8_lossy(&sent.stderr)
    );
    assert!(
        sent.status.success(),
        "{:?} {}: {said}",
        case.command,
        case.variant
    );
    let output = folder.path().join("out/test.client.log");
    wait_until("all records have arrived", || {
        count_lines(&output) >= RECORDS as usize
    });
    assert_eq!(
        program.stop(),
        Some(0),
        "{:?} {}",
        case.command,
        case.variant
    );
    compare(&output, case);
}

fn configuration(folder: &Path, port: u16, socket: &Path) -> String {
    let place = folder.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: forward, listen: [\"tcp://127.0.0.1:{port}\", \"unix://{}\"] }}\n\
         sinks:\n  out: {{ type: file, inputs: [in], path: \"{place}/out/{{tag}}.log\" }}\n",
        socket.display()
    )
}

fn count_lines(path: &Path) -> usize {
    fs::read(path).map_or(0, |bytes| {
        bytes.iter().filter(|byte| **byte == b'\n').count()
    })
}

fn compare(output: &Path, case: &Case) {
    let text = fs::read_to_string(output).unwrap();
    let mut seen: BTreeMap<i64, Map<String, Value>> = BTreeMap::new();
    for line in text.lines() {
        let Value::Object(mut got) = serde_json::from_str(line).unwrap() else {
            panic!("no object: {line}")
        };
        let n = got["n"].as_i64().unwrap();
        let time = got.remove("time").unwrap();
        // What the logging handler of Python adds of its own.
        got.retain(|name, _| !name.starts_with("sys_"));
        let expected = match case.times {
            Times::Seconds => Some(format!("{}.000000000Z", rfc3339(SECONDS + n))),
            Times::Nanoseconds => Some(format!("{}.123456789Z", rfc3339(SECONDS + n))),
            Times::Now => None,
        };
        assert!(
            expected.is_none_or(|expected| time == expected),
            "time {time} of record {n}"
        );
        assert!(seen.insert(n, got).is_none(), "record {n} came twice");
    }
    for n in 0..RECORDS {
        let got = seen
            .remove(&n)
            .unwrap_or_else(|| panic!("record {n} is missing"));
        let (mut got, mut sent) = (Value::Object(got), record(n, case.numbers));
        if case.numbers == Numbers::Float {
            make_floats(&mut got);
            make_floats(&mut sent);
        }
        assert_eq!(got, sent, "{:?} {}", case.command, case.variant);
    }
    assert!(seen.is_empty(), "records that nobody sent: {seen:?}");
}

/// Makes every number a float, for a client that does so with some of them.
fn make_floats(value: &mut Value) {
    match value {
        Value::Number(number) => *value = json!(number.as_f64()),
        Value::Array(list) => list.iter_mut().for_each(make_floats),
        Value::Object(map) => map.values_mut().for_each(make_floats),
        _ => {}
    }
}

/// `SECONDS` is 2023-11-14T22:13:20Z; the test adds less than an hour.
fn rfc3339(seconds: i64) -> String {
    let after = seconds - SECONDS + 13 * 60 + 20;
    format!("2023-11-14T22:{:02}:{:02}", after / 60, after % 60)
}

fn script(interpreter: &str, path: &str) -> Vec<String> {
    vec![interpreter.to_owned(), installed(path)]
}

/// Runs every variant of a client over TCP, and over the unix socket where it has that.
fn all(
    command: &[String],
    variants: &[&'static str],
    has_unix: bool,
    numbers: Numbers,
    times: fn(&str) -> Times,
) {
    for variant in variants {
        for unix in if has_unix {
            &[false, true][..]
        } else {
            &[false]
        } {
            run(&Case {
                command: command.to_vec(),
                variant,
                numbers,
                times: times(variant),
                unix: *unix,
            });
        }
    }
}

#[test]
fn fluent_logger_of_python_delivers_every_record() {
    let command = vec![
        installed("python/venv/bin/python"),
        installed("python/send.py"),
    ];
    all(
        &command,
        &["seconds", "nanoseconds", "async", "handler"],
        true,
        Numbers::Exact,
        |variant| match variant {
            "nanoseconds" => Times::Nanoseconds,
            "handler" => Times::Now,
            _ => Times::Seconds,
        },
    );
}

#[test]
fn fluent_org_logger_of_node_delivers_every_record() {
    let modes = [
        "Message",
        "Forward",
        "PackedForward",
        "CompressedPackedForward",
    ];
    let acked = [
        "Message+ack",
        "Forward+ack",
        "PackedForward+ack",
        "CompressedPackedForward+ack",
    ];
    for variants in [modes, acked] {
        all(
            &script("node", "node/org.js"),
            &variants,
            true,
            Numbers::Double,
            |_| Times::Nanoseconds,
        );
    }
}

#[test]
fn fluent_logger_of_node_delivers_every_record() {
    let modes = ["Message", "PackedForward", "CompressedPackedForward"];
    let acked = [
        "Message+ack",
        "PackedForward+ack",
        "CompressedPackedForward+ack",
    ];
    for variants in [modes, acked] {
        all(
            &script("node", "node/logger.js"),
            &variants,
            true,
            Numbers::Float,
            |_| Times::Nanoseconds,
        );
    }
}

#[test]
fn fluent_logger_golang_delivers_every_record() {
    let variants = [
        "plain",
        "nanoseconds",
        "ack",
        "ack+nanoseconds",
        "async",
        "async+ack+nanoseconds",
        "json",
        "json+ack",
    ];
    all(
        &[installed("go/send")],
        &variants,
        true,
        Numbers::Exact,
        |variant| {
            if variant.contains("nanoseconds") {
                Times::Nanoseconds
            } else {
                Times::Seconds
            }
        },
    );
}

#[test]
fn fluency_of_java_delivers_every_record() {
    let jars = format!(
        "{0}/*:{0}/dependency/*",
        PathBuf::from(installed("java/target/clients-1.jar"))
            .parent()
            .unwrap()
            .display()
    );
    let command: Vec<String> = ["java", "-cp", &jars, "Send"].map(str::to_owned).to_vec();
    let variants = [
        "plain",
        "seconds",
        "ack",
        "ack+seconds",
        "heap",
        "file",
        "ack+file",
    ];
    all(&command, &variants, false, Numbers::Exact, |variant| {
        if variant.contains("seconds") {
            Times::Seconds
        } else {
            Times::Nanoseconds
        }
    });
}
