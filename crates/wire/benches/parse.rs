//! Speed of parsing text fields: `cargo bench -p millstream-wire --bench parse`. Prints nanoseconds per record for a
//! batch of 512 records that stays in the cache. The fastest lap counts, because other work on the machine only makes
//! laps slower. `-- NAME` runs only the cases whose name contains `NAME`.

use std::{hint::black_box, time::Instant};

use millstream_record::Time;
use millstream_wire::{
    json,
    msgpack::{write_array_len, write_map_len, write_str, write_time},
    parse::{Input, ParseOptions, Parser, TextFormat, TimeOptions},
    syslog::TimeZone,
};

/// Records per lap.
const RECORDS: usize = 512;
/// Number of laps. The fastest is printed.
const LAPS: usize = 400;
/// 2026-11-21T06:40:31Z
const NOW: Time = Time(1_795_243_231_000_000_000);

/// An object of 10 fields and about 230 bytes.
fn object(n: usize) -> String {
    format!(
        r#"{{"level":"info","service":"checkout","msg":"request {n:06} has been answered by the backend","method":"GET","path":"/api/v1/items/{n:06}","status":200,"ms":12.25,"user":{{"id":{n},"name":"alice"}},"trace":"4bf92f3577b34da6a3ce929d0e0e4736"}}"#
    )
}

fn object_with_time(n: usize) -> String {
    let rest = object(n);
    format!(r#"{{"time":"2026-11-21T06:40:31.{n:06}Z",{}"#, &rest[1..])
}

fn access(n: usize) -> String {
    format!(
        r#"203.0.113.{} - - [21/Nov/2026:06:40:31 +0000] "GET /api/v1/items/{n:06}?page=2 HTTP/1.1" 200 {} "https://www.example.com/start" "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0""#,
        n % 256,
        n * 7
    )
}

fn logfmt(n: usize) -> String {
    format!(
        r#"ts=2026-11-21T06:40:31.{n:06}Z level=info caller=http.go:142 method=GET path=/api/v1/items/{n:06} status=200 duration=12.25ms bytes={} user=alice trace=4bf92f3577b34da6 msg="request has been answered by the backend""#,
        n * 7
    )
}

fn ltsv(n: usize) -> String {
    format!(
        "time:2026-11-21T06:40:31Z\thost:203.0.113.7\tmethod:GET\tpath:/api/v1/items/{n:06}\tstatus:200\tsize:{}\treqtime:0.012\tua:Mozilla/5.0 (X11; Linux x86_64)",
        n * 7
    )
}

fn csv(n: usize) -> String {
    format!(
        r#"2026-11-21T06:40:31Z,web-1,GET,/api/v1/items/{n:06},200,{},"Mozilla/5.0 (X11, Linux)",alice"#,
        n * 7
    )
}

fn syslog(n: usize) -> String {
    format!(
        "<13>1 2026-11-21T06:40:31.{n:06}Z web-1 sshd {n} ID47 - the quick brown fox jumps over the lazy dog again and again"
    )
}

/// Matches a line of nginx. Each capture group ends at a byte that cannot be part of the group.
const PLAIN: &str = r#"^(?<remote>[^ ]*) (?<ident>[^ ]*) (?<user>[^ ]*) \[(?<time>[^\]]*)\] "(?<method>[^ "]*) (?<path>[^ "]*)(?: [^"]*)?" (?<code>[^ ]*) (?<size>[^ ]*) "#;
/// The same expression, but the request is matched as in Fluentd's expression, which can match a text in several
/// ways.
const PATTERN: &str = r#"^(?<remote>[^ ]*) (?<ident>[^ ]*) (?<user>[^ ]*) \[(?<time>[^\]]*)\] "(?<method>\S+) (?<path>[^"]*?)(?: \S*)?" (?<code>[^ ]*) (?<size>[^ ]*)"#;

#[allow(clippy::print_stdout)]
fn measure(name: &str, options: &ParseOptions, records: &[Vec<u8>], lines: bool) {
    let only = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    if only.is_some_and(|only| !name.contains(&only)) {
        return;
    }
    let mut parser = Parser::new(options, TimeZone::UTC).expect("the options go together");
    let mut out = Vec::with_capacity(1 << 20);
    let mut least = f64::MAX;
    for _ in 0..LAPS {
        let start = Instant::now();
        out.clear();
        for record in records {
            let input = match lines {
                true => Input::Line(record),
                false => Input::Entry(record),
            };
            let parsed = parser.entry(black_box(input), NOW, &mut out);
            assert!(parsed.is_ok(), "{parsed:?}");
        }
        black_box(&out);
        least = least.min(start.elapsed().as_secs_f64() * 1e9 / RECORDS as f64);
    }
    let bytes = records.iter().map(Vec::len).sum::<usize>() / RECORDS;
    println!(
        "{name:<44} {bytes:4} bytes {least:6.0} ns ({:.1} M/s)",
        1e3 / least
    );
}

fn lines(text: impl Fn(usize) -> String) -> Vec<Vec<u8>> {
    (0..RECORDS).map(|n| text(n).into_bytes()).collect()
}

/// Entries with the text in `message`, and two other fields.
fn entries(text: impl Fn(usize) -> String) -> Vec<Vec<u8>> {
    let entry = |n| {
        let mut entry = Vec::new();
        write_array_len(&mut entry, 2);
        write_time(&mut entry, NOW);
        write_map_len(&mut entry, 3);
        for (name, value) in [
            ("stream", "stdout"),
            ("message", &*text(n)),
            ("pod", "web-7d9c"),
        ] {
            write_str(&mut entry, name.as_bytes());
            write_str(&mut entry, value.as_bytes());
        }
        entry
    };
    (0..RECORDS).map(entry).collect()
}

#[allow(clippy::print_stdout)]
fn main() {
    let of = ParseOptions::new;
    measure("json", &of(TextFormat::Json), &lines(object), true);
    measure(
        "json, beside two fields",
        &of(TextFormat::Json),
        &entries(object),
        false,
    );
    measure(
        "json, with its time",
        &of(TextFormat::Json),
        &lines(object_with_time),
        true,
    );
    measure("nginx", &of(TextFormat::Nginx), &lines(access), true);
    measure(
        "apache, beside two fields",
        &of(TextFormat::Apache),
        &entries(access),
        false,
    );
    let timed = ParseOptions {
        time: Some(TimeOptions {
            field: Some("ts".to_owned()),
            ..TimeOptions::default()
        }),
        ..of(TextFormat::Logfmt)
    };
    measure("logfmt", &of(TextFormat::Logfmt), &lines(logfmt), true);
    measure("logfmt, with its time", &timed, &lines(logfmt), true);
    measure(
        "ltsv, with its time",
        &of(TextFormat::Ltsv),
        &lines(ltsv),
        true,
    );
    let columns = [
        "time", "host", "method", "path", "status", "size", "agent", "user",
    ];
    let columns = ParseOptions {
        columns: Some(columns.map(str::to_owned).to_vec()),
        ..of(TextFormat::Csv)
    };
    measure("csv, 8 columns with a time", &columns, &lines(csv), true);
    measure("syslog", &of(TextFormat::Syslog), &lines(syslog), true);
    let pattern = ParseOptions {
        pattern: Some(PATTERN.to_owned()),
        ..of(TextFormat::Regex)
    };
    let plain = ParseOptions {
        pattern: Some(PLAIN.to_owned()),
        ..of(TextFormat::Regex)
    };
    measure("regex, 8 groups", &plain, &lines(access), true);
    measure("regex, 8 groups, ambiguous", &pattern, &lines(access), true);
    let records = lines(object);
    let mut out = Vec::with_capacity(1 << 20);
    let mut least = f64::MAX;
    for _ in 0..LAPS {
        let start = Instant::now();
        out.clear();
        for record in &records {
            let read = json::to_msgpack(black_box(record), &mut out);
            assert!(read.is_ok());
        }
        black_box(&out);
        least = least.min(start.elapsed().as_secs_f64() * 1e9 / RECORDS as f64);
    }
    println!("(JSON to MessagePack alone) {least:.0} ns");
}
