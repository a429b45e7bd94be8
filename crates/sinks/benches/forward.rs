//! Measures the cost of the forward sink alone. The sink sends batches of 122-byte records, which are in memory already, over TCP
//! to a receiver that acks each chunk without looking at its records. The CPU time is that of the sink's thread; the receiver runs
//! on another thread.
//!
//! `cargo bench -p millstream-sinks --bench forward [-- SECONDS]`. The same run also measures a bare writer, which sends the same
//! bytes by `write_all` from one buffer, to a receiver that sends no acks. On one machine both figures vary by a fifth from run to
//! run, so compare their ratio.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use millstream_config::{Key, Map, Node, Place, Source, Text, Value};
use millstream_pipeline::{
    channel::{Delivered, Reader},
    failure::Failure,
    inlet::Inlet,
    meters::Meters,
    node::{Build, Sink, SinkContext},
    outlet::Outlet,
    report::Reporter,
    stop::stop,
};
use millstream_record::{Batch, Encoding, Pool, Position, Time, Values};
use millstream_wire::msgpack::{write_array_len, write_map_len, write_str, write_time};

/// Number of records in one chunk.
const RECORDS: u32 = 8192;
/// Bytes of one record on the wire.
const RECORD_BYTES: usize = 122;

fn main() {
    let seconds = std::env::args()
        .skip(1)
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(2);
    let time = Duration::from_secs(seconds);
    let batch = batch();
    assert_eq!(batch.len(), RECORD_BYTES * RECORDS as usize);
    for round in 1..=3 {
        report(round, "bare writer, no acks", bare_writer(&batch, time));
        report(round, "sink, memory, acks", sink(&batch, time, None, ""));
        report(
            round,
            "sink, memory, no acks",
            sink(&batch, time, None, "ack"),
        );
        report(
            round,
            "sink, durable ids, acks",
            sink(&batch, time, Some(7), ""),
        );
    }
}

/// Number of records, CPU time of this thread, wall-clock time.
type Cost = (u64, Duration, Duration);

fn report(round: u32, name: &str, (records, cpu, wall): Cost) {
    let millions = records as f64 / 1e6;
    println!(
        "{round}  {name:<26} {:7.1} M records per CPU-second  {:6.1} M records per second",
        millions / cpu.as_secs_f64(),
        millions / wall.as_secs_f64()
    );
}

fn batch() -> Batch {
    let mut body = Vec::new();
    for number in 0..RECORDS {
        write_array_len(&mut body, 2);
        write_time(&mut body, Time(1_700_000_000_000_000_000));
        write_map_len(&mut body, 1);
        write_str(&mut body, b"message");
        let rest = RECORD_BYTES - 20 - 2;
        write_str(&mut body, format!("{number:0rest$}").as_bytes());
    }
    Batch {
        tag: "bench".into(),
        plain: false,
        encoding: Encoding::Packed,
        body: body.into(),
        count: RECORDS,
        received: Time::now(),
        values: Arc::new(Values::new()),
        origins: Vec::new(),
    }
}

/// CPU time of this thread: the first field of schedstat, in nanoseconds.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Starts a receiver that reads all bytes and, if `acks`, acks each chunk. It finds the chunk's id after the payload.
fn receiver(acks: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || serve(stream.unwrap(), acks));
        }
    });
    address
}

fn serve(mut stream: TcpStream, acks: bool) {
    let payload = RECORD_BYTES * RECORDS as usize;
    // Before each payload are an array marker, the tag `bench` with its marker, and the head of a str 32.
    let head = 1 + 6 + 5;
    let mut buffer = vec![0; 1 << 20];
    let (mut held, mut skip) = (Vec::new(), head + payload);
    while let Ok(count) = stream.read(&mut buffer) {
        if count == 0 {
            return;
        }
        if !acks {
            continue;
        }
        let mut fresh = &buffer[..count];
        while !fresh.is_empty() {
            let skipped = skip.min(fresh.len());
            skip -= skipped;
            fresh = &fresh[skipped..];
            held.extend_from_slice(&fresh[..fresh.len().min(512)]);
            let mut reader = millstream_wire::msgpack::Reader::new(&held);
            let Ok(options) = reader.value() else {
                fresh = &[];
                continue;
            };
            let id = options
                .windows(6)
                .position(|bytes| bytes == b"\xa5chunk")
                .unwrap()
                + 6;
            let ack = [
                b"\x81\xa3ack",
                millstream_wire::msgpack::Reader::at(options, id)
                    .value()
                    .unwrap(),
            ]
            .concat();
            stream.write_all(&ack).unwrap();
            let used = fresh.len().min(512) - (held.len() - options.len());
            fresh = &fresh[used..];
            held.clear();
            skip = head + payload;
        }
    }
}

fn bare_writer(batch: &Batch, time: Duration) -> Cost {
    let mut stream = TcpStream::connect(receiver(false)).unwrap();
    socket2::SockRef::from(&stream)
        .set_send_buffer_size(128 << 10)
        .unwrap();
    let (start, before, mut chunks) = (Instant::now(), cpu(), 0);
    while start.elapsed() < time {
        stream.write_all(&batch.body).unwrap();
        chunks += 1;
    }
    (chunks * u64::from(RECORDS), cpu() - before, start.elapsed())
}

/// A channel that delivers the same batch repeatedly until the time is over.
struct Endless {
    batch: Batch,
    until: Instant,
    durable: bool,
    seq: u64,
}

impl Reader for Endless {
    fn resume(&mut self, _: Option<Position>) -> Result<(), Failure> {
        Ok(())
    }
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>> {
        if Instant::now() > self.until {
            return Poll::Ready(Ok(None));
        }
        self.seq += 1;
        Poll::Ready(Ok(Some(Delivered::new(
            self.batch.clone(),
            self.durable.then_some(Position {
                epoch: 1,
                seq: self.seq,
            }),
            None,
        ))))
    }
    fn commit(&mut self, _: Position) -> Result<(), Failure> {
        Ok(())
    }
}

fn sink(batch: &Batch, time: Duration, channel: Option<u128>, without: &str) -> Cost {
    let acks = without.is_empty();
    let sink = build(receiver(acks), acks);
    let meters = Meters::default().of("forward");
    let (_stopper, stop) = stop();
    let start = Instant::now();
    let reader = Endless {
        batch: batch.clone(),
        until: start + time,
        durable: channel.is_some(),
        seq: 0,
    };
    let rejects = Outlet::new(Vec::new(), &meters, true);
    let mut inlet = Inlet::new(
        "forward",
        Box::new(reader),
        channel,
        rejects,
        stop.clone(),
        &meters,
    );
    let context = SinkContext {
        name: "forward".into(),
        stop,
        pool: Pool::new(256 << 20),
        meters: meters.clone(),
        reporter: Reporter::new("forward"),
        directory: "unused".into(),
        lane: 0,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let before = cpu();
    tokio::task::LocalSet::new()
        .block_on(&runtime, sink.run(&mut inlet, context))
        .unwrap();
    let records = meters.counter("records_settled").get();
    (records, cpu() - before, start.elapsed())
}

fn build(server: SocketAddr, ack: bool) -> Arc<dyn Sink> {
    let place = Place::whole(Source::new("bench", "", 0));
    let entry = |name: &str, value| {
        let key = Key {
            text: name.to_owned(),
            place: place.clone(),
        };
        (
            key,
            Node {
                value,
                place: place.clone(),
            },
        )
    };
    let mut options = Map::default();
    options
        .entries
        .push(entry("servers", Value::Text(Text::new(server.to_string()))));
    options.entries.push(entry("ack", Value::Bool(ack)));
    let mut components = millstream_sinks::COMPONENTS.iter();
    let forward = components
        .find(|component| component.name == "forward")
        .unwrap();
    let Build::Sink(build) = forward.build else {
        unreachable!()
    };
    let node = Node {
        value: Value::Map(options),
        place: place.clone(),
    };
    build("forward", &node).unwrap()
}
