//! Cost of writing an Avro container of Flume events: `cargo bench -p millstream-wire --bench avro`. Prints
//! nanoseconds per record and records per second: the best and the median of 60 rounds. Each round passes 20 times over
//! a batch that stays in the cache.

use std::{hint::black_box, sync::Arc, time::Instant};

use jiff::tz::TimeZone;
use millstream_record::{Batch, Encoding, Time, Values};
use millstream_wire::{
    avro::container::{Codec, Container, Packer, Sync},
    format::{Format, Headers, Options},
    syslog::{After, Decoder, Framing, Received, Settings, TooLong},
};

/// Records per batch.
const RECORDS: usize = 1000;
/// Length of a syslog line with its newline.
const LINE_BYTES: usize = 300;
/// Number of measured rounds. The best and the median are printed.
const ROUNDS: usize = 60;
/// Passes over the batch in each round.
const LAPS: usize = 20;

fn batch(encoding: Encoding, body: Vec<u8>) -> Batch {
    Batch {
        tag: "syslog".into(),
        plain: false,
        encoding,
        body: body.into(),
        count: RECORDS as u32,
        received: Time(1_700_000_000_123_456_789),
        values: Arc::new(Values::new()),
        origins: Vec::new(),
    }
}

/// Lines as a load generator writes them: the same letter fills each line up to its length.
fn padded() -> Vec<u8> {
    fill(|_, length| "X".repeat(length))
}

/// Lines that do not repeat: random words from a list of 64.
fn words() -> Vec<u8> {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    fill(move |_, length| {
        let mut text = String::new();
        while text.len() < length {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            text.push_str(&format!("w{:x} ", (random >> 20) % 64 * 40_503 % 65_536));
        }
        text.truncate(length);
        text
    })
}

fn fill(mut text: impl FnMut(usize, usize) -> String) -> Vec<u8> {
    let mut out = Vec::new();
    for n in 0..RECORDS {
        let head = format!("<13>1 2026-11-21T06:40:31.{n:06}Z web-1.example.org hammer - - - {n} ");
        let text = text(n, LINE_BYTES - 1 - head.len());
        out.extend_from_slice(format!("{head}{text}\n").as_bytes());
    }
    out
}

/// Parses the lines into records, as the source `syslog` does.
fn parsed(lines: &[u8]) -> Batch {
    let mut decoder = Decoder::new(Settings {
        framing: Framing::Auto,
        bytes_max: 1 << 20,
        too_long: TooLong::Split,
        strict: false,
        zone: TimeZone::UTC,
    });
    let from = Received {
        now: Time(1_700_000_000_000_000_000),
        host: b"peer",
        peer: None,
    };
    let mut body = Vec::with_capacity(4 * lines.len());
    decoder.run(lines, After::Quiet, &from, &mut body, usize::MAX);
    batch(Encoding::Packed, body)
}

#[allow(clippy::print_stdout)]
fn measure(name: &str, codec: Codec, headers: Headers, batch: &Batch) {
    let options = Options {
        format: Format::AvroEvent,
        headers: Some(headers),
        ..Options::default()
    };
    let mut encoder = options
        .encoder(&TimeZone::UTC)
        .expect("the options go together");
    let mut packer = Packer::new(codec).expect("memory");
    let mut container = Container::new(Sync::of(b"bench"));
    let (mut out, mut rejects) = (Vec::new(), Vec::new());
    let mut bytes = 0;
    let mut figures: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..LAPS {
                out.clear();
                let range = 0..batch.body.len();
                let (out, rejects) = (&mut out, &mut rejects);
                let taken = container.encode(
                    &mut encoder,
                    &mut packer,
                    black_box(batch),
                    range,
                    out,
                    rejects,
                );
                assert_eq!(taken.ok(), Some(RECORDS as u32));
                container.end_block(&mut packer, out).expect("memory");
                bytes = out.len();
                black_box(&out);
            }
            start.elapsed().as_secs_f64() * 1e9 / (LAPS * RECORDS) as f64
        })
        .collect();
    figures.sort_by(f64::total_cmp);
    let (best, median) = (figures[0], figures[ROUNDS / 2]);
    println!(
        "{name:<44} {best:6.1} ns (median {median:6.1}), {:5.2} M/s (median {:5.2}), {:3} bytes a record",
        1e3 / best,
        1e3 / median,
        bytes / RECORDS
    );
}

fn main() {
    let (padded, words) = (padded(), words());
    for (name, lines) in [("padded", &padded), ("words", &words)] {
        let records = parsed(lines);
        for (codec, word) in [
            (Codec::Null, "null"),
            (Codec::Snappy, "snappy"),
            (Codec::Deflate, "deflate"),
            (Codec::Zstandard, "zstandard"),
        ] {
            let what = format!("{name}, syslog, {word}");
            measure(&what, codec, Headers::Own, &records);
        }
        let what = format!("{name}, syslog, headers: flume, snappy");
        measure(&what, Codec::Snappy, Headers::Flume, &records);
        let what = format!("{name}, lines, snappy");
        let lines = batch(Encoding::Lines, lines.clone());
        measure(&what, Codec::Snappy, Headers::Own, &lines);
    }
}
