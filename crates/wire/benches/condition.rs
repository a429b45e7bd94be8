//! Speed of conditions and changes of fields: `cargo bench -p millstream-wire --bench condition`. Prints millions of
//! records per second, for a batch that stays in the cache and whose records have 5 fields and about 250 bytes. The
//! fastest lap counts, because other work on the machine only makes laps slower.

use std::{hint::black_box, sync::Arc, time::Instant};

use jiff::tz::TimeZone;
use millstream_record::{Batch, Encoding, Time, Values};
use millstream_wire::{
    condition::{Matcher, TagTest, Where},
    edit::{Changes, Rename, Set},
    msgpack::{write_array_len, write_event_time, write_map_len, write_str, write_uint},
};
use serde_json::{Value, json};

/// Records per batch: about 1 MB.
const RECORDS: u32 = 4096;
/// Number of laps. Each lap is one pass over the batch.
const LAPS: usize = 1000;

fn batch() -> Batch {
    let mut body = Vec::new();
    for number in 0..RECORDS {
        write_array_len(&mut body, 2);
        write_event_time(&mut body, 1_700_000_000, number);
        write_map_len(&mut body, 5);
        // The values change irregularly from record to record, as in real streams.
        let mixed = number.wrapping_mul(2_654_435_761) >> 7;
        let level = ["debug", "error"][(mixed & 1) as usize];
        let message = format!("{number:0160}");
        for (name, value) in [("host", "web-1"), ("level", level), ("message", &message)] {
            write_str(&mut body, name.as_bytes());
            write_str(&mut body, value.as_bytes());
        }
        write_str(&mut body, b"ms");
        write_uint(&mut body, u64::from(mixed % 1000));
        write_str(&mut body, b"path");
        write_str(&mut body, b"/api/v1/items/123456");
    }
    let mut values = Values::new();
    values.set("host", "web-1");
    Batch {
        tag: "web.front".into(),
        plain: true,
        encoding: Encoding::Packed,
        body: body.into(),
        count: RECORDS,
        received: Time(1_700_000_000_123_456_789),
        values: Arc::new(values),
        origins: Vec::new(),
    }
}

#[allow(clippy::print_stdout)]
fn measure(name: &str, mut work: impl FnMut()) {
    let laps = (0..LAPS).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed()
    });
    let fastest = laps.min().unwrap_or_default();
    let speed = f64::from(RECORDS) / fastest.as_secs_f64() / 1e6;
    println!("{name:<40} {speed:6.1} M records/s");
}

fn matcher(conditions: &[Value]) -> Matcher {
    let read = conditions
        .iter()
        .map(|one| match serde_json::from_value(one.clone()) {
            Ok(Where::Map(condition)) => condition,
            other => panic!("{one}: {other:?}"),
        });
    let conditions: Vec<_> = read.collect();
    let tags = |_: &[String]| -> Result<TagTest, String> { Ok(Arc::new(|_: &str| true)) };
    Matcher::new(&conditions, &tags).expect("the patterns are valid")
}

fn main() {
    let batch = batch();
    for (name, conditions) in [
        (
            "where, half of the records",
            vec![json!({".level": "error"})],
        ),
        (
            "where, two fields",
            vec![json!({".level": ["error", "fatal"], ".ms": {"gt": 500}})],
        ),
        (
            "route, five conditions",
            vec![
                json!({".level": "fatal"}),
                json!({".ms": {"gt": 900}}),
                json!({".path": "/health"}),
                json!({".host": ["db-1", "db-2"]}),
                json!({".level": "error", ".ms": {"lt": 500}}),
            ],
        ),
        ("where, glob", vec![json!({".path": {"glob": "/api/*"}})]),
        (
            "where, regex",
            vec![json!({".path": {"regex": "items/[0-9]+$"}})],
        ),
    ] {
        let mut matcher = matcher(&conditions);
        let mut kept = Vec::new();
        measure(name, || {
            kept.clear();
            let body = black_box(&batch.body);
            matcher.runs(&batch, |run| {
                if run.condition.is_some() {
                    kept.extend_from_slice(body.get(run.range).unwrap_or_default());
                }
            });
            black_box(&kept);
        });
    }
    let read = |json: Value| serde_json::from_value::<Rename>(json).expect("fields");
    let rename = read(json!({".message": ".text"}));
    for (name, set) in [
        ("fields, three changes", json!({".env": "prod"})),
        (
            "fields, three changes and a template",
            json!({".env": "{host}-{.ms}"}),
        ),
    ] {
        let changes = Changes {
            rename: rename.clone(),
            set: serde_json::from_value::<Set>(set).expect("values"),
            remove: vec![".path".parse().expect("a field")],
            keep: None,
        };
        let mut edit = changes.compile(&TimeZone::UTC).expect("the changes fit");
        let (mut out, mut rejects) = (Vec::new(), Vec::new());
        measure(name, || {
            out.clear();
            let count = edit.apply(black_box(&batch), &mut out, &mut rejects);
            assert_eq!((count, rejects.len()), (RECORDS, 0));
            black_box(&out);
        });
    }
}
