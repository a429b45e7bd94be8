//! Programs with the records that they run on, and a timer. The benchmark of the processor `remap` uses them, too.

use std::{sync::Arc, time::Instant};

use millstream_record::{Batch, Encoding, Time, Values};
use millstream_wire::{
    json,
    msgpack::{write_array_len, write_event_time},
};

pub const RECORDS: usize = 1000;
const LAPS: usize = 30;

/// The name of a program, its text, and the record that it runs on, as JSON.
pub const CASES: [(&str, &str, &str); 3] = [
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

/// A batch of many equal records.
pub fn batch(record: &str) -> Batch {
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

/// The throughput of the fastest lap, in thousands of records per second.
pub fn fastest(mut lap: impl FnMut()) -> f64 {
    let laps = (0..LAPS).map(|_| {
        let start = Instant::now();
        lap();
        start.elapsed()
    });
    RECORDS as f64 / laps.min().unwrap_or_default().as_secs_f64() / 1e3
}

/// The cases whose names contain one of the words on the command line, or all cases if there are no words.
pub fn chosen() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|one| !one.starts_with('-'))
        .collect();
    let is_chosen =
        move |name: &str| words.is_empty() || words.iter().any(|word| name.contains(&**word));
    CASES.into_iter().filter(move |(name, ..)| is_chosen(name))
}
