//! Chunks of Fluent Bit with groups, as its OpenTelemetry input writes them.

use millstream_record::{Batch, Encoding, Tag, Time, Values};

use super::*;
use crate::{
    json,
    msgpack::{Walker, entry_head},
    record::records,
};

fn packed(json: &str) -> Vec<u8> {
    let mut out = Vec::new();
    json::to_msgpack(json.as_bytes(), &mut out).unwrap();
    out
}

/// `[[time, metadata], body]` with an EventTime.
fn entry(seconds: i32, metadata: &str, body: &str) -> Vec<u8> {
    [
        &[0x92, 0x92, 0xd7, 0][..],
        &seconds.to_be_bytes(),
        &[0, 0, 0, 7],
        &packed(metadata),
        &packed(body),
    ]
    .concat()
}

const SHARED: &str =
    r#"{"resource":{"attributes":{"service.name":"shop"}},"scope":{"name":"lib"}}"#;

fn begin() -> Vec<u8> {
    entry(-1, r#"{"schema":"otlp","resource_id":0}"#, SHARED)
}

fn end() -> Vec<u8> {
    entry(-2, "{}", "{}")
}

/// Sifts a payload. Returns the metadata and the body of each record, as JSON, and the entries that are no records.
fn sifted(payload: &[u8]) -> (Vec<(String, String)>, Vec<u8>) {
    let mut walker = Walker::new();
    walker.walk(payload).unwrap();
    assert_eq!(walker.whole(), payload.len());
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    let received = Time(5_000_000_000);
    let counts = sift(payload, received, &mut good, &mut bad);
    assert!(good.len() <= sifted_bytes_max(payload) + 16 * payload.len());
    // The result has no marks any more.
    let mut again = Walker::new();
    again.walk(&good).unwrap();
    assert_eq!((again.entries(), again.misfits()), (counts.good, 0));
    let batch = Batch {
        tag: Tag::from("t"),
        plain: false,
        encoding: Encoding::Packed,
        body: good.into(),
        count: counts.good,
        received,
        values: std::sync::Arc::new(Values::new()),
        origins: Vec::new(),
    };
    let json = |bytes: &[u8]| {
        let mut out = Vec::new();
        json::write_value(bytes, 0, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let found = records(&batch).map(|(range, timed)| {
        let record = entry_head(&batch.body, range.start).unwrap().record;
        let metadata = match timed.metadata {
            [] => String::new(),
            map => json(map),
        };
        (metadata, json(&batch.body[record..range.end]))
    });
    (found.collect(), bad)
}

#[test]
fn the_marks_of_a_group_are_no_records_and_its_records_get_what_it_shares() {
    let payload = [
        entry(9, "{}", r#"{"n":0}"#),
        begin(),
        entry(9, r#"{"otlp":{"severity_number":9}}"#, r#"{"n":1}"#),
        entry(9, r#"{"scope":"own"}"#, r#"{"n":2}"#),
        packed(r#"[3,{"n":3}]"#),
        packed(r#"[null,{"n":4}]"#),
        vec![0x07],
        end(),
        entry(9, r#"{"a":1}"#, r#"{"n":5}"#),
        packed(r#"[[-1,{}],{"x":"y"}]"#),
        entry(9, "{}", r#"{"n":6}"#),
    ]
    .concat();
    let shared = &SHARED[1..SHARED.len() - 1];
    let group = r#""group":{"schema":"otlp","resource_id":0}"#;
    let resource = r#""resource":{"attributes":{"service.name":"shop"}}"#;
    let expected = [
        "{}".to_owned(),
        format!(r#"{{"otlp":{{"severity_number":9}},{shared},{group}}}"#),
        format!(r#"{{"scope":"own",{resource},{group}}}"#),
        format!("{{{shared},{group}}}"),
        format!("{{{shared},{group}}}"),
        r#"{"a":1}"#.to_owned(),
        r#"{"x":"y"}"#.to_owned(),
    ];
    let (found, bad) = sifted(&payload);
    let metadata: Vec<&String> = found.iter().map(|(metadata, _)| metadata).collect();
    assert_eq!(metadata, expected.iter().collect::<Vec<_>>());
    let bodies: Vec<&str> = found.iter().map(|(_, body)| &**body).collect();
    let wanted: Vec<String> = (0..7).map(|n| format!("{{\"n\":{n}}}")).collect();
    assert_eq!(bodies, wanted);
    assert_eq!(bad, [0x07]);
}

#[test]
fn records_of_1969_and_2106_are_no_marks() {
    for plain in [
        r#"[-1,{}]"#,
        r#"[-2,{}]"#,
        r#"[4294967295,{}]"#,
        r#"[[-3,{}],{}]"#,
    ] {
        assert_eq!(
            crate::msgpack::entry_shape(&packed(plain)),
            crate::msgpack::Shape::Good
        );
    }
    assert_eq!(
        crate::msgpack::entry_shape(&end()),
        crate::msgpack::Shape::Mark
    );
}

#[test]
fn the_repeated_metadata_of_a_large_group_are_counted_before_they_are_written() {
    let shared = format!(r#"{{"resource":"{}"}}"#, "x".repeat(100_000));
    let mut payload = entry(-1, "{}", &shared);
    (0..1000).for_each(|_| payload.extend(entry(9, "{}", "{}")));
    assert!(sifted_bytes_max(&payload) >= 100_000_000);
    assert!(sifted_bytes_max(&entry(9, "{}", "{}")) == 14);
}
