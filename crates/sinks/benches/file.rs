//! Measures the file sink in records per CPU-second. The batches are in memory already. For comparison, also measures a bare
//! writer to a file.
//!
//! Usage: `cargo bench -p millstream-sinks --bench file [DIRECTORY]`.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::{
    fs,
    io::IoSlice,
    path::{Path, PathBuf},
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use millstream_config::Node;
use millstream_pipeline::{
    channel::{Delivered, Reader},
    failure::Failure,
    inlet::Inlet,
    meters::Meters,
    node::{Build, SinkContext},
    outlet::Outlet,
    report::Reporter,
    stop::stop,
};
use millstream_record::{Batch, Encoding, Pool, Position, Time, Values};
use millstream_sys::disk::{Disk, HostDisk, Open};
use millstream_wire::msgpack::{write_array_len, write_map_len, write_str, write_time};

/// A durable channel that delivers the same batch repeatedly.
struct Again {
    batch: Batch,
    left: u64,
    given: u64,
}

impl Reader for Again {
    fn resume(&mut self, _: Option<Position>) -> Result<(), Failure> {
        Ok(())
    }
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>> {
        if self.given == self.left {
            return Poll::Ready(Ok(None));
        }
        self.given += 1;
        let position = Some(Position {
            epoch: 1,
            seq: self.given,
        });
        Poll::Ready(Ok(Some(Delivered::new(self.batch.clone(), position, None))))
    }
    fn commit(&mut self, _: Position) -> Result<(), Failure> {
        Ok(())
    }
}

/// Returns 8192 entries of 122 bytes. The message has five tabs, as in the reference benchmark.
fn packed() -> Batch {
    let mut body = Vec::new();
    for n in 0..8192 {
        write_array_len(&mut body, 2);
        write_time(&mut body, Time(1_700_000_000_000_000_000 + n * 1_000_003));
        write_map_len(&mut body, 1);
        write_str(&mut body, b"message");
        let text = format!("{n:010}\tGET\t/index.html\t200\thost-7\t{}", "x".repeat(70));
        assert!(text.len() > 100, "the entry has 122 bytes");
        write_str(&mut body, &text.as_bytes()[..100]);
    }
    batch(Encoding::Packed, body, 8192)
}

/// Returns 8192 entries of two fields. The first field names one of ten files; consecutive entries name different files.
fn scattered() -> Batch {
    let mut body = Vec::new();
    for n in 0..8192 {
        write_array_len(&mut body, 2);
        write_time(&mut body, Time(1_700_000_000_000_000_000 + n));
        write_map_len(&mut body, 2);
        write_str(&mut body, b"host");
        write_str(&mut body, format!("{}", n * 7 % 10).as_bytes());
        write_str(&mut body, b"message");
        write_str(&mut body, "x".repeat(90).as_bytes());
    }
    batch(Encoding::Packed, body, 8192)
}

/// Returns 10,000 lines of 100 bytes.
fn lines() -> Batch {
    let line = format!("{}\n", "x".repeat(99));
    batch(Encoding::Lines, line.repeat(10_000).into_bytes(), 10_000)
}

fn batch(encoding: Encoding, body: Vec<u8>, count: u32) -> Batch {
    Batch {
        tag: "bench".into(),
        plain: false,
        encoding,
        body: body.into(),
        count,
        received: Time::now(),
        values: Arc::new(Values::new()),
        origins: Vec::new(),
    }
}

/// CPU time of the process in seconds.
fn cpu() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("this is Linux");
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("a number of ticks");
    (ticks(11) + ticks(12)) / 100.0
}

fn sink(directory: &Path, options: &str, batch: &Batch, rounds: u64) {
    let name = if batch.body[12..17] == *b"\xa4host" {
        "out.{.host}"
    } else {
        "out"
    };
    let path = directory.join(name);
    let yaml = format!("{{ path: {path:?}, {options} }}");
    let node = Node::parse("bench.yaml", &yaml).expect("the options are good");
    let file = millstream_sinks::COMPONENTS
        .iter()
        .find(|component| component.name == "file");
    let Some(Build::Sink(build)) = file.map(|component| component.build) else {
        panic!("no sink `file`")
    };
    let sink = build("bench", &node).expect("the options are good");
    let (_stopper, stop) = stop();
    let meters = Meters::default().of("bench");
    let reader = Box::new(Again {
        batch: batch.clone(),
        left: rounds,
        given: 0,
    });
    let rejects = Outlet::new(Vec::new(), &meters, true);
    let mut inlet = Inlet::new("bench", reader, Some(1), rejects, stop.clone(), &meters);
    let context = SinkContext {
        name: "bench".into(),
        stop,
        pool: Pool::new(64 << 20),
        meters: meters.clone(),
        reporter: Reporter::new("bench"),
        directory: directory.join("state"),
        lane: 0,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    runtime
        .block_on(sink.run(&mut inlet, context))
        .expect("the disk is good");
    assert_eq!(
        meters.counter("records_settled").get(),
        rounds * u64::from(batch.count)
    );
}

fn bare(directory: &Path, bytes: u64) {
    let file = HostDisk
        .open(&directory.join("bare"), Open::Create)
        .expect("a file");
    let buffer = vec![b'x'; 1 << 20];
    for at in (0..bytes).step_by(1 << 20) {
        file.write_uncached_at(&[IoSlice::new(&buffer)], at)
            .expect("room");
    }
    file.sync().expect("a disk");
}

fn main() {
    let directory = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let directory = PathBuf::from(directory.unwrap_or_else(|| "/tmp/millstream-bench".to_owned()));
    let cases = [
        ("packed -> json", "format: json", packed(), 1000),
        (
            "packed -> json, no time added",
            "format: json, add: {}",
            packed(),
            1000,
        ),
        ("packed -> raw", "format: raw", packed(), 1000),
        (
            "packed -> raw, cache: keep",
            "format: raw, cache: keep",
            packed(),
            500,
        ),
        (
            "packed -> raw, a file a host",
            "format: raw",
            scattered(),
            500,
        ),
        ("packed -> msgpack", "format: msgpack", packed(), 1000),
        ("lines -> raw", "format: raw", lines(), 1500),
        (
            "packed -> raw, rotate 64MiB",
            "format: raw, rotate: { size: 64MiB, keep: 3 }",
            packed(),
            1000,
        ),
    ];
    for (name, options, batch, rounds) in cases {
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("a directory");
        let (start, before) = (Instant::now(), cpu());
        sink(&directory, options, &batch, rounds);
        report(name, rounds * u64::from(batch.count), before, start);
    }
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).expect("a directory");
    let (start, before) = (Instant::now(), cpu());
    bare(&directory, 1 << 30);
    let (cpu, wall) = (cpu() - before, start.elapsed().as_secs_f64());
    println!(
        "bare writer, 1 MiB uncached: {:.2} GB/CPU-s, {:.2} GB/s",
        1.074 / cpu,
        1.074 / wall
    );
    let _ = fs::remove_dir_all(&directory);
}

fn report(name: &str, records: u64, before: f64, start: Instant) {
    let (cpu, wall) = (cpu() - before, start.elapsed().as_secs_f64());
    let millions = records as f64 / 1e6;
    println!(
        "{name}: {:.1} M/CPU-s, {:.1} M/s ({cpu:.2} CPU-s)",
        millions / cpu,
        millions / wall
    );
}
