//! Cost of the formats: `cargo bench -p millstream-wire --bench formats`. Prints nanoseconds per record: the best and
//! the median of 300 rounds. Each round passes twice over a batch of 8192 records (in most cases of 122 bytes) and
//! writes into the same buffer. The batch and the buffer stay in the cache.

use std::{hint::black_box, sync::Arc, time::Instant};

use jiff::tz::TimeZone;
use millstream_record::{Batch, Encoding, Time, Values};
use millstream_wire::{
    format::{Add, Format, Options},
    json,
    msgpack::{write_array_len, write_event_time, write_map_len, write_str, write_uint},
    template::Template,
};

/// Records per batch: a chunk of the forward protocol, about 1 MB.
const RECORDS: u32 = 8192;
/// Passes over the batch in each round.
const LAPS: u32 = 2;
/// Number of rounds. The best and the median are printed.
const ROUNDS: usize = 300;

fn batch(encoding: Encoding, body: Vec<u8>, count: u32) -> Batch {
    let mut values = Values::new();
    values.set("host", "web-1");
    Batch {
        tag: "web.front".into(),
        plain: false,
        encoding,
        body: body.into(),
        count,
        received: Time(1_700_000_000_123_456_789),
        values: Arc::new(values),
        origins: Vec::new(),
    }
}

/// Records whose times are a microsecond apart, with the fields that `fields` writes.
fn packed(fields: impl Fn(&mut Vec<u8>, u32)) -> Batch {
    let mut body = Vec::new();
    for number in 0..RECORDS {
        write_array_len(&mut body, 2);
        write_event_time(&mut body, 1_700_000_000, number * 1000);
        fields(&mut body, number);
    }
    batch(Encoding::Packed, body, RECORDS)
}

/// Records with one field `message` of 100 bytes, `tabs` of which are tabs. With the time, a record has 122 bytes.
fn message(tabs: usize) -> Batch {
    packed(|body, number| {
        let mut text = format!("{number:0100}").into_bytes();
        for tab in 0..tabs {
            text[10 + 15 * tab] = b'\t';
        }
        write_map_len(body, 1);
        write_str(body, b"message");
        write_str(body, &text);
    })
}

/// Eight fields, some of them numbers.
fn fields() -> Batch {
    packed(|body, number| {
        write_map_len(body, 8);
        for (name, value) in [
            ("host", "web-1"),
            ("method", "GET"),
            ("path", "/api/v1/items/123456"),
            ("agent", "Mozilla/5.0 (X11; Linux)"),
            ("referer", "-"),
        ] {
            write_str(body, name.as_bytes());
            write_str(body, value.as_bytes());
        }
        for (name, value) in [("status", 200), ("size", number * 7 + 1000), ("ms", 3)] {
            write_str(body, name.as_bytes());
            write_uint(body, u64::from(value));
        }
    })
}

fn text(line: usize) -> Batch {
    let text: String = (0..RECORDS)
        .map(|number| format!("{number:0line$}\n"))
        .collect();
    batch(Encoding::Lines, text.into_bytes(), RECORDS)
}

#[allow(clippy::print_stdout)]
fn measure(name: &str, mut work: impl FnMut()) {
    let mut figures: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..LAPS {
                work();
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(LAPS * RECORDS)
        })
        .collect();
    figures.sort_by(f64::total_cmp);
    println!(
        "{name:<44} {:6.1} ns a record (median {:.1})",
        figures[0],
        figures[ROUNDS / 2]
    );
}

fn encode(name: &str, options: &Options, batch: &Batch) {
    let mut encoder = options
        .encoder(&TimeZone::UTC)
        .expect("the options go together");
    let (mut out, mut rejects) = (Vec::new(), Vec::new());
    measure(name, || {
        out.clear();
        let encoded = encoder.encode(black_box(batch), &mut out, &mut rejects);
        assert_eq!((encoded, rejects.len()), (RECORDS, 0));
        black_box(&out);
    });
}

fn add(text: &str) -> Option<Add> {
    let template = Template::parse(text).expect("a template");
    Some(Add::from(vec![("added".to_owned(), template)]))
}

fn main() {
    formats();
    others();
}

fn formats() {
    let json = Options::default();
    let bare = Options {
        add: Some(Add::default()),
        ..Options::default()
    };
    let raw = Options {
        format: Format::Raw,
        ..Options::default()
    };
    let template = Options {
        format: Format::Template,
        template: Template::parse("%FT%T.%9fZ {host} {.message}\n").ok(),
        ..Options::default()
    };
    let (clean, tabs) = (message(0), message(5));
    encode("json, 5 tabs", &json, &tabs);
    encode("json, no tabs", &json, &clean);
    encode("json, 5 tabs, add: {}", &bare, &tabs);
    encode("json, no tabs, add: {}", &bare, &clean);
    encode("json, 8 fields", &json, &fields());
    for (name, text) in [
        ("json, add of a batch's value", "{host}"),
        ("json, add of a field", "{.message}"),
        ("json, add of a text with the time", "%F %T {host}"),
    ] {
        let options = Options {
            add: add(text),
            ..Options::default()
        };
        encode(name, &options, &clean);
    }
    encode("json of lines of 100 bytes", &json, &text(99));
    encode("raw", &raw, &clean);
    encode(
        "raw, first of 2 fields",
        &raw,
        &packed(|body, _| {
            write_map_len(body, 2);
            write_str(body, b"message");
            write_str(body, &[b'x'; 90]);
            write_str(body, b"n");
            write_uint(body, 1);
        }),
    );
    encode("template", &template, &clean);
    separated(&clean, &tabs);
    let msgpack = Options {
        format: Format::Msgpack,
        add: add("{host}"),
        ..Options::default()
    };
    encode("msgpack with add", &msgpack, &clean);
}

fn separated(clean: &Batch, tabs: &Batch) {
    let ltsv = Options {
        format: Format::Ltsv,
        ..Options::default()
    };
    let csv = |columns: &[&str]| Options {
        format: Format::Csv,
        columns: columns.iter().map(|column| column.parse().ok()).collect(),
        ..Options::default()
    };
    encode("ltsv, 5 tabs", &ltsv, tabs);
    encode("ltsv, no tabs", &ltsv, clean);
    encode("ltsv, 8 fields", &ltsv, &fields());
    encode("csv, time and message", &csv(&["time", "message"]), clean);
    let columns = ["time", "host", "status", "ms", "path"];
    encode("csv, 5 columns of 8 fields", &csv(&columns), &fields());
}

fn others() {
    let mut text = Vec::new();
    let bare = Options {
        add: Some(Add::default()),
        ..Options::default()
    };
    let mut encoder = bare
        .encoder(&TimeZone::UTC)
        .expect("the options go together");
    encoder.encode(&message(0), &mut text, &mut Vec::new());
    let mut out = Vec::new();
    measure("JSON text of 113 bytes to MessagePack", || {
        out.clear();
        let mut rest = black_box(&text[..]);
        while let Ok(json::Progress::Consumed(length)) = json::to_msgpack(rest, &mut out) {
            rest = &rest[length..];
        }
        black_box(&out);
    });
    let mut source = vec![0_u8; 1 << 20];
    let mut target = vec![0_u8; 1 << 20];
    measure("(a copy of 122 bytes a record)", || {
        let bytes = 122 * RECORDS as usize;
        target[..bytes].copy_from_slice(black_box(&source[..bytes]));
        source[0] = black_box(target[1]);
    });
}
