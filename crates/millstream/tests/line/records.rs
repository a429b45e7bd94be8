//! Records for clients to send, and the check that every value arrives once, with its time.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::{Map, Value, json};

/// Records per run.
pub const RECORDS: i64 = 300;

/// If a client can set the time, record n has the time `SECONDS` + n seconds and 123456789 nanoseconds.
const SECONDS: i64 = 1_700_000_000;

/// The numbers that a client can send.
#[derive(Clone, Copy, PartialEq)]
pub enum Numbers {
    /// Integers up to 2^53, as in JavaScript.
    Double,
    /// Integers up to 2^53, of which those beyond 32 bits are encoded as floats (msgpack-lite).
    Float,
    /// All 64-bit integers.
    Exact,
}

/// The times that a client sends.
#[derive(Clone, Copy, PartialEq)]
pub enum Times {
    Seconds,
    Nanoseconds,
    Now,
}

/// The record with this number.
pub fn record(n: i64, numbers: Numbers) -> Value {
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

/// The number of lines in a file; 0 if it does not exist.
pub fn count_lines(path: &Path) -> usize {
    fs::read(path).map_or(0, |bytes| {
        bytes.iter().filter(|byte| **byte == b'\n').count()
    })
}

/// Asserts that the file holds all records with these numbers and times. `what` names the sender in failures.
pub fn compare(output: &Path, numbers: Numbers, times: Times, what: &str) {
    let text = fs::read_to_string(output).unwrap();
    let mut seen: BTreeMap<i64, Map<String, Value>> = BTreeMap::new();
    for line in text.lines() {
        let Value::Object(mut got) = serde_json::from_str(line).unwrap() else {
            panic!("no object: {line}")
        };
        let n = got["n"].as_i64().unwrap();
        let time = got.remove("time").unwrap();
        // Remove the fields that Python's logging handler adds.
        got.retain(|name, _| !name.starts_with("sys_"));
        let expected = match times {
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
        let (mut got, mut sent) = (Value::Object(got), record(n, numbers));
        if numbers == Numbers::Float {
            make_floats(&mut got);
            make_floats(&mut sent);
        }
        assert_eq!(got, sent, "{what}");
    }
    assert!(seen.is_empty(), "unexpected records: {seen:?}");
}

/// Turns every number into a float, so that the comparison ignores which numbers a client has encoded as floats.
fn make_floats(value: &mut Value) {
    match value {
        Value::Number(number) => *value = json!(number.as_f64()),
        Value::Array(list) => list.iter_mut().for_each(make_floats),
        Value::Object(map) => map.values_mut().for_each(make_floats),
        _ => {}
    }
}

/// Formats `SECONDS` (2023-11-14T22:13:20Z) plus less than an hour.
fn rfc3339(seconds: i64) -> String {
    let after = seconds - SECONDS + 13 * 60 + 20;
    format!("2023-11-14T22:{:02}:{:02}", after / 60, after % 60)
}
