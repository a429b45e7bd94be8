//! Appending to the disk channel, compared with the bare disk.
//!
//! Each round measures the following; the figures are medians of three rounds.
//!
//! - Bare: files of 64 MiB, which were allocated and written before, are overwritten in calls of 1 MB, with and without an fdatasync per
//!   call.
//! - Log: the same bytes, as batches of 8192 records of 122 bytes, pass through [`Log`] alone.
//! - Channel: the same batches pass through the queue, the writer's thread, and a reader that settles every 16 MiB.
//!
//! `MILLSTREAM_BENCH_DIR` is the directory to write to (default: the directory for temporary files), `MILLSTREAM_BENCH_SECONDS` is the
//! duration of each measurement (default: 1).

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    missing_docs,
    reason = "a bench"
)]

use std::{
    io::IoSlice,
    path::{Path, PathBuf},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use millstream_channels::disk::{
    self,
    log::{Behind, ChannelId, Item, Log, Options, Sync},
};
use millstream_config::Node;
use millstream_pipeline::{
    channel::Group,
    delivery,
    meters::{Meter, Meters},
    node::{Build, ChannelContext},
    report::Reporter,
};
use millstream_record::{Batch, Encoding, Pool, Tag, Time, Values};
use millstream_sys::disk::{Disk, File, HostDisk, Open};

const RECORD: usize = 122;
const RECORDS: usize = 8192;
const SEGMENT: u64 = 64 << 20;
const SEGMENTS: usize = 16;
/// The consumer settles after this many bytes.
const SETTLE_BYTES: u64 = 16 << 20;

struct Figure {
    bytes: u64,
    wall: Duration,
    cpu: f64,
}

impl Figure {
    fn gigabytes(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.wall.as_secs_f64()
    }

    fn print(&self, name: &str, bare: f64) {
        let records = self.bytes as f64 / RECORD as f64 / 1e6;
        println!(
            "{name:32} {:6.2} GB/s  {:6.1} M records/s  {:6.1} M records/CPU-s  {:4.0} % of bare",
            self.gigabytes(),
            records / self.wall.as_secs_f64(),
            records / self.cpu,
            self.gigabytes() / bare * 100.0,
        );
    }
}

/// CPU seconds of this process, all threads.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    // utime and stime, in ticks of 10 ms.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

/// Calls `step` repeatedly for `time`. Each call returns the number of bytes that it has written.
fn measure(time: Duration, mut step: impl FnMut() -> u64) -> Figure {
    let (started, cpu_before, mut bytes) = (Instant::now(), cpu(), 0);
    while started.elapsed() < time {
        bytes += step();
    }
    Figure {
        bytes,
        wall: started.elapsed(),
        cpu: (cpu() - cpu_before).max(0.01),
    }
}

fn body() -> Bytes {
    (0..RECORD * RECORDS)
        .map(|i| {
            if i % RECORD == RECORD - 1 {
                b'\n'
            } else {
                b'a' + (i % 23) as u8
            }
        })
        .collect::<Vec<u8>>()
        .into()
}

fn batch(body: &Bytes) -> Batch {
    Batch {
        tag: Tag::from("bench.tag"),
        plain: false,
        encoding: Encoding::Lines,
        body: body.clone(),
        count: RECORDS as u32,
        received: Time::now(),
        values: Arc::new(Values::new()),
        origins: Vec::new(),
    }
}

struct Bare {
    files: Vec<Arc<dyn File>>,
    at: u64,
    file: usize,
}

impl Bare {
    fn new(directory: &Path) -> Self {
        let zeros = vec![1; SEGMENT as usize];
        let file = |number| {
            let path = directory.join(format!("bare-{number}"));
            let file = HostDisk.open(&path, Open::Create).unwrap();
            file.allocate(SEGMENT).unwrap();
            file.write_at(&[IoSlice::new(&zeros)], 0).unwrap();
            file.sync().unwrap();
            file
        };
        Self {
            files: (0..SEGMENTS).map(file).collect(),
            at: 0,
            file: 0,
        }
    }

    fn write(&mut self, body: &[u8], sync: bool) -> u64 {
        if self.at + body.len() as u64 > SEGMENT {
            self.at = 0;
            self.file = (self.file + 1) % self.files.len();
        }
        let file = &self.files[self.file];
        file.write_at(&[IoSlice::new(body)], self.at).unwrap();
        if sync {
            file.sync().unwrap();
        }
        self.at += body.len() as u64;
        body.len() as u64
    }
}

/// The log alone, with its reader on the same thread.
fn log(directory: &Path, sync: Sync, time: Duration, body: &Bytes) -> Figure {
    let options = Options {
        sync,
        size_max: 1 << 30,
        ..Options::default()
    };
    let id = ChannelId([1; 16]);
    let (mut log, _) = Log::open(Arc::new(HostDisk), directory, options, id).unwrap();
    let mut reader = log
        .reader("sink", Behind::default(), Pool::new(64 << 20))
        .unwrap();
    let mut unsettled = 0;
    let mut step = || {
        log.append(vec![batch(body)], Time::now()).unwrap();
        log.commit(Time::now()).unwrap();
        unsettled += body.len() as u64;
        while let Some(Item::Batch(position, _)) = reader.read().unwrap() {
            if unsettled >= SETTLE_BYTES {
                unsettled = 0;
                reader.commit(position).unwrap();
            }
        }
        body.len() as u64
    };
    // Create and recycle the segments once before measuring.
    for _ in 0..3 * SEGMENT / body.len() as u64 {
        step();
    }
    let figure = measure(time, step);
    drop(reader);
    log.close(Time::now()).unwrap();
    figure
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// The whole channel: queue, writer's thread, and a reader on its own thread.
fn channel(directory: &Path, options: &str, time: Duration, body: &Bytes) -> Figure {
    let Build::Channel(build) = disk::COMPONENT.build else {
        unreachable!("it is a channel")
    };
    let options = Node::parse("bench", options).unwrap();
    let context = ChannelContext {
        name: "bench".into(),
        pool: Pool::new(64 << 20),
        meters: Meters::default().of("bench"),
        reporter: Reporter::new("bench"),
        directory: directory.to_owned(),
    };
    let config = build("bench", &options).unwrap();
    let mut opened = config.open(context, &["sink".into()]).unwrap();
    let mut reader = opened.readers.pop().unwrap();
    let reading = thread::spawn(move || {
        reader.resume(None).unwrap();
        let mut unsettled = 0;
        while let Some(delivered) =
            run(std::future::poll_fn(|context| reader.poll_next(context))).unwrap()
        {
            unsettled += delivered.batch.len() as u64;
            if unsettled >= SETTLE_BYTES {
                unsettled = 0;
                reader.commit(delivered.position.unwrap()).unwrap();
            }
        }
    });
    let put = || {
        let (token, receipt) = delivery::receipt(true, 1, Meter::default());
        run(opened.channel.put(Group::new(vec![batch(body)], token)));
        receipt
    };
    for _ in 0..3 * SEGMENT / body.len() as u64 {
        put();
    }
    run(put()).unwrap();
    let mut last = None;
    let mut figure = measure(time, || {
        last = Some(put());
        body.len() as u64
    });
    let started = Instant::now();
    run(last.unwrap()).unwrap();
    figure.wall += started.elapsed();
    opened.channel.close();
    run(opened.finished).unwrap();
    reading.join().unwrap();
    figure
}

fn median(mut figures: Vec<Figure>) -> Figure {
    figures.sort_by(|a, b| a.gigabytes().total_cmp(&b.gigabytes()));
    figures.swap_remove(figures.len() / 2)
}

fn main() {
    let base =
        std::env::var_os("MILLSTREAM_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let seconds = std::env::var("MILLSTREAM_BENCH_SECONDS");
    let seconds = seconds.ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let time = Duration::from_secs(seconds);
    let directory = tempfile::tempdir_in(base).unwrap();
    let body = body();
    let mut bare = Bare::new(directory.path());
    let mut figures: [Vec<Figure>; 6] = Default::default();
    for round in 0..3 {
        let at = |name: &str| directory.path().join(format!("{name}-{round}"));
        let every = Sync::Every(Duration::from_secs(1));
        let measured = [
            measure(time, || bare.write(&body, true)),
            log(&at("log-batch"), Sync::Batch, time, &body),
            channel(&at("batch"), "{ size_max: 1GiB, sync: batch }", time, &body),
            measure(time, || bare.write(&body, false)),
            log(&at("log-1s"), every, time, &body),
            channel(&at("1s"), "{ size_max: 1GiB, sync: 1s }", time, &body),
        ];
        for (all, figure) in figures.iter_mut().zip(measured) {
            all.push(figure);
        }
    }
    let [synced, log_batch, batch, written, log_1s, one_second] = figures.map(median);
    synced.print("bare, fdatasync per MB", synced.gigabytes());
    log_batch.print("log, sync: batch", synced.gigabytes());
    batch.print("channel, sync: batch", synced.gigabytes());
    written.print("bare, no sync", written.gigabytes());
    log_1s.print("log, sync: 1s", written.gigabytes());
    one_second.print("channel, sync: 1s", written.gigabytes());
}
