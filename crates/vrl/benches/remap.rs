//! Speed of programs: `cargo bench --workspace --features millstream-vrl/vrl --bench remap`. Prints thousand records per
//! second, from packed bytes to packed bytes, beside the bare crate, which starts from a tree that is already there,
//! clones it for each record and stops at the tree. The fastest lap counts, because other work on the machine only makes
//! laps slower.

use std::{hint::black_box, sync::Arc, time::Instant};

use millstream_record::{Batch, Encoding, Time, Values};
use millstream_vrl::{Options, Outcome, Program, Remap};
use millstream_wire::{
    json,
    msgpack::{write_array_len, write_event_time},
};
use vrl::{
    compiler::{TargetValue, TimeZone, runtime::Runtime},
    value::{Secrets, Value},
};

const RECORDS: usize = 1000;
const LAPS: usize = 30;

/// The name of a program, its text, and the record that it runs on as JSON.
const CASES: [(&str, &str, &str); 3] = [
    (
        "3 of 20 fields",
        ".level = downcase(string!(.level))\n.slow = int!(.ms) > 500\ndel(.trace)",
        r#"{"time":"2026-11-23T12:00:00Z","level":"INFO","ms":734,"trace":"00-4bf92f3577b34da6a3ce929d0e0e4736-01","service":"checkout","version":"1.42.7","host":"shop-7.example.com","zone":"eu-central-1b","pod":"checkout-7d9c5b8f6-x2x4q","container":"app","method":"POST","path":"/api/v2/orders/5512/items","status":201,"bytes":1843,"user":"u-88123","session":"8c1f7a2e","agent":"Mozilla/5.0 (X11; Linux x86_64)","referer":"https://shop.example.com/cart","region":"de","message":"order accepted and handed over to the warehouse"}"#,
    ),
    (
        "parse_json",
        "parsed = object!(parse_json!(.message))\n. = merge(., parsed)\ndel(.message)\n.cluster = \"prod\"",
        r#"{"message":"{\"time\":\"2026-11-23T12:00:00Z\",\"level\":\"info\",\"service\":\"checkout\",\"status\":201,\"ms\":73.4,\"user\":{\"id\":88123,\"plan\":\"gold\"},\"text\":\"order accepted and handed over to the warehouse\"}","stream":"stdout","pod":"checkout-7d9c5b8f6-x2x4q"}"#,
    ),
    (
        "conditions",
        "text = string!(.message)\nif contains(text, \"error\") || starts_with(text, \"E\") {\n  .level = \"error\"\n} else if ends_with(text, \"slow\") {\n  .level = \"warn\"\n} else {\n  .level = \"info\"\n}\n.code = to_int(.status) ?? 0\n.short = truncate(text, 20)\n.who = join!([string!(.user), upcase(string!(.region))], \"-\")",
        r#"{"message":"order accepted and handed over to the warehouse","status":"201","user":"u-88123","region":"de","service":"checkout","host":"shop-7.example.com","path":"/api/v2/orders/5512/items","pod":"checkout-7d9c5b8f6-x2x4q"}"#,
    ),
];

fn batch(record: &str) -> Batch {
    let mut body = Vec::new();
    for _ in 0..RECORDS {
        write_array_len(&mut body, 2);
        write_event_time(&mut body, 1_700_000_000, 123_456_789);
        json::to_msgpack(record.as_bytes(), &mut body).expect("it is JSON");
    }
    Batch {
        tag: "app".into(),
        encoding: Encoding::Packed,
        plain: true,
        body: body.into(),
        count: RECORDS as u32,
        received: Time(1_700_000_000_000_000_000),
        values: Arc::new(Values::new()),
        origins: Vec::new(),
    }
}

/// Thousand records per second of the fastest lap.
fn fastest(mut lap: impl FnMut()) -> f64 {
    let laps = (0..LAPS).map(|_| {
        let start = Instant::now();
        lap();
        start.elapsed()
    });
    RECORDS as f64 / laps.min().unwrap_or_default().as_secs_f64() / 1e3
}

fn packed(text: &str, batch: &Batch) -> f64 {
    let (program, _) = Program::compile(text, &Options::default()).expect("it compiles");
    let mut remap = Remap::new(&program);
    let mut out = Vec::new();
    fastest(|| {
        out.clear();
        remap.begin(batch);
        let mut at = 0;
        while at < black_box(batch).body.len() {
            let outcome = remap.run(at, &mut out);
            assert!(matches!(outcome, Outcome::Written(1)), "{outcome:?}");
            at = remap.next();
        }
        black_box(&out);
    })
}

fn bare(text: &str, record: &str) -> f64 {
    let compiled = vrl::compiler::compile(text, &vrl::stdlib::all()).expect("it compiles");
    let tree: Value = {
        let Ok(Value::Object(map)) = json_value(record) else {
            unreachable!("it is an object")
        };
        Value::Object(map)
    };
    let mut runtime = Runtime::default();
    let zone = TimeZone::parse("UTC").expect("it is a zone");
    fastest(|| {
        for _ in 0..RECORDS {
            let mut target = TargetValue {
                value: black_box(&tree).clone(),
                metadata: Value::Object(Default::default()),
                secrets: Secrets::new(),
            };
            runtime
                .resolve(&mut target, &compiled.program, &zone)
                .expect("it runs");
            runtime.clear();
            black_box(&target);
        }
    })
}

/// JSON as a tree, by the language's own function.
fn json_value(text: &str) -> Result<Value, String> {
    let program = format!("parse_json!(s'{text}')");
    let compiled = vrl::compiler::compile(&program, &vrl::stdlib::all())
        .map_err(|_| "it does not compile".to_owned())?;
    let mut target = TargetValue {
        value: Value::Object(Default::default()),
        metadata: Value::Object(Default::default()),
        secrets: Secrets::new(),
    };
    let zone = TimeZone::default();
    Runtime::default()
        .resolve(&mut target, &compiled.program, &zone)
        .map_err(|error| error.to_string())
}

#[allow(clippy::print_stdout)]
fn main() {
    // Arguments choose cases by a part of their names.
    let chosen: Vec<String> = std::env::args()
        .skip(1)
        .filter(|one| !one.starts_with('-'))
        .collect();
    for (name, text, record) in CASES {
        if !chosen.is_empty() && !chosen.iter().any(|part| name.contains(&**part)) {
            continue;
        }
        let batch = batch(record);
        let (packed, bare) = (packed(text, &batch), bare(text, record));
        println!(
            "{name}: {packed:.0} k/s packed to packed, {bare:.0} k/s bare, {:.2} times",
            packed / bare
        );
    }
}
