//! A source on a free port, the channel that it sends to, and clients that write bytes.

mod bad_input;
mod cases;
mod lifetime;
mod secured;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

use millstream_config::Node;
use millstream_pipeline::{
    channel::{BoxFuture, Channel, Group, Note},
    delivery::Token,
    failure::Failure,
    meters::{Meters, NodeMeters},
    node::{Source, SourceContext},
    outlet::{Edge, Feed, Outlet},
    report::Reporter,
    stop::{Stopper, stop},
    threads::Threads,
};
use millstream_record::{Batch, Origin, Pool};
use millstream_wire::msgpack::{write_array_len, write_bin, write_map_len, write_str, write_uint};

use super::Forward;

/// A timeout that is long enough on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A channel that stores the batches it receives.
#[derive(Default)]
struct Taken {
    state: Mutex<State>,
    changed: Condvar,
    durable: bool,
}

#[derive(Default)]
struct State {
    batches: Vec<Batch>,
    /// Tokens that are held until the test settles them.
    held: Vec<Token>,
    holding: bool,
    /// Whether `put` waits.
    full: bool,
    notes: Vec<Note>,
}

impl Channel for Taken {
    fn put(&self, group: Group) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            while self.state.lock().unwrap().full {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let mut state = self.state.lock().unwrap();
            state.batches.extend(group.batches);
            if state.holding {
                state.held.push(group.token);
            } else {
                group.token.settle();
            }
            self.changed.notify_all();
        })
    }

    fn note(&self, note: Note) {
        self.state.lock().unwrap().notes.push(note);
        self.changed.notify_all();
    }

    fn close(&self) {}

    fn id(&self) -> Option<u128> {
        self.durable.then_some(1)
    }
}

impl Taken {
    fn durable() -> Arc<Self> {
        Arc::new(Self {
            durable: true,
            ..Self::default()
        })
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    /// Waits until `ready` returns true.
    fn wait(&self, what: &str, ready: impl Fn(&State) -> bool) -> std::sync::MutexGuard<'_, State> {
        let state = self.state.lock().unwrap();
        let (state, late) = self
            .changed
            .wait_timeout_while(state, PATIENCE, |state| !ready(state))
            .unwrap();
        assert!(!late.timed_out(), "timed out waiting for {what}");
        state
    }

    /// All batches, once they have this many records.
    fn records(&self, count: u32) -> Vec<Batch> {
        let what = format!("{count} records");
        let state = self.wait(&what, |state| records(&state.batches) >= count);
        assert_eq!(records(&state.batches), count);
        state.batches.clone()
    }

    fn is_empty(&self) -> bool {
        self.state.lock().unwrap().batches.is_empty()
    }
}

fn records(batches: &[Batch]) -> u32 {
    batches.iter().map(|batch| batch.count).sum()
}

/// All bodies, concatenated.
fn body(batches: &[Batch]) -> Vec<u8> {
    batches
        .iter()
        .flat_map(|batch| batch.body.to_vec())
        .collect()
}

fn chunk_ids(batches: &[Batch]) -> Vec<Vec<u8>> {
    let origins = batches.iter().flat_map(|batch| &batch.origins);
    let id = |origin: &Origin| match origin {
        Origin::Chunk(chunk) => Some(chunk.id.to_vec()),
        Origin::File(_) => None,
    };
    origins.filter_map(id).collect()
}

struct Server {
    address: SocketAddr,
    meters: NodeMeters,
    pool: Pool,
    stopper: Stopper,
    ended: std::sync::mpsc::Receiver<Result<(), Failure>>,
    rejected: Arc<Taken>,
    _threads: Threads,
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(future)
}

fn outlet(taken: &Arc<Taken>, meters: &NodeMeters, rejected: bool) -> Outlet {
    let edge = Edge::to(Feed::new(taken.clone()));
    Outlet::new(vec![edge], meters, rejected)
}

/// A source on a free port, with more options.
fn serve(taken: &Arc<Taken>, options: &str) -> Server {
    serve_at(taken, "tcp://127.0.0.1:0", options)
}

fn serve_at(taken: &Arc<Taken>, listen: &str, options: &str) -> Server {
    serve_within(Pool::new(256 << 20), taken, listen, options)
}

/// A source that uses this memory.
fn serve_within(pool: Pool, taken: &Arc<Taken>, listen: &str, options: &str) -> Server {
    let text = format!("{{ listen: [\"tcp://127.0.0.1:0\", \"{listen}\"], {options} }}");
    let mut source = Forward::new(&Node::parse("test", &text).unwrap()).unwrap();
    let meters = Meters::default().of("in");
    let (stopper, stop) = stop();
    let threads = Threads::start(2).unwrap();
    let rejected = Arc::new(Taken::default());
    let context = SourceContext {
        name: "in".into(),
        follows: [].into(),
        outlet: outlet(taken, &meters, false),
        rejects: outlet(&rejected, &meters, true),
        threads: threads.clone(),
        stop,
        once: false,
        pool: pool.clone(),
        meters: meters.clone(),
        reporter: Reporter::new("in"),
        host: "here".into(),
        directory: "unused".into(),
    };
    source.bind(&context).unwrap();
    let (_, address) = source.server.addresses()[0];
    let (sender, ended) = std::sync::mpsc::sync_channel(1);
    let reporter = context.reporter.clone();
    let run = async move || {
        let end = source.run(context).await;
        drop(source);
        let _ = sender.send(end);
    };
    block_on(threads.spawn_on(0, &reporter, run));
    Server {
        address,
        meters,
        pool,
        stopper,
        ended,
        rejected,
        _threads: threads,
    }
}

impl Server {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Waits until a meter has a value.
    fn wait(&self, meter: &'static str, value: u64) {
        let since = Instant::now();
        loop {
            let now = self.count(meter);
            if now == value {
                return;
            }
            assert!(
                since.elapsed() < PATIENCE,
                "{meter} is {now} and not {value}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn count(&self, meter: &'static str) -> u64 {
        match meter {
            "connections" => self.meters.gauge(meter).get(),
            _ => self.meters.counter(meter).get(),
        }
    }
}

/// Reads this many bytes.
fn read(stream: &mut impl Read, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).expect("the server answers");
    bytes
}

/// Whether the server closes the connection without sending anything.
fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

fn entry(number: u64) -> Vec<u8> {
    let mut out = vec![0x92, 0xd7, 0];
    out.extend_from_slice(&1_700_000_000u32.to_be_bytes());
    out.extend_from_slice(&123_456_789u32.to_be_bytes());
    write_map_len(&mut out, 2);
    write_str(&mut out, b"n");
    write_uint(&mut out, number);
    write_str(&mut out, b"text");
    write_str(
        &mut out,
        b"some text of a usual length, as it stands in logs",
    );
    out
}

fn entries(range: std::ops::Range<u64>) -> Vec<u8> {
    range.flat_map(entry).collect()
}

/// The option map.
fn option(chunk: Option<&str>, compressed: &str) -> Vec<u8> {
    let mut out = Vec::new();
    write_map_len(&mut out, 1 + u32::from(chunk.is_some()));
    write_str(&mut out, b"compressed");
    write_str(&mut out, compressed.as_bytes());
    if let Some(chunk) = chunk {
        write_str(&mut out, b"chunk");
        write_str(&mut out, chunk.as_bytes());
    }
    out
}

fn packed_as(tag: &str, payload: &[u8], chunk: Option<&str>, compressed: &str) -> Vec<u8> {
    let mut out = Vec::new();
    write_array_len(&mut out, 3);
    write_str(&mut out, tag.as_bytes());
    write_bin(&mut out, payload);
    out.extend_from_slice(&option(chunk, compressed));
    out
}

fn packed(tag: &str, payload: &[u8], chunk: Option<&str>) -> Vec<u8> {
    packed_as(tag, payload, chunk, "text")
}

fn message(tag: &str, number: u64, chunk: Option<&str>) -> Vec<u8> {
    let mut out = Vec::new();
    write_array_len(&mut out, 3 + u32::from(chunk.is_some()));
    write_str(&mut out, tag.as_bytes());
    out.extend_from_slice(&entry(number)[1..]);
    if chunk.is_some() {
        out.extend_from_slice(&option(chunk, "text"));
    }
    out
}

fn ack(chunk: &str) -> Vec<u8> {
    let mut out = b"\x81\xa3ack".to_vec();
    write_str(&mut out, chunk.as_bytes());
    out
}

/// Asserts that the acks of these chunks arrive, in this order.
fn expect_acks(stream: &mut impl Read, chunks: &[&str]) {
    let expected: Vec<u8> = chunks.iter().flat_map(|chunk| ack(chunk)).collect();
    assert_eq!(read(stream, expected.len()), expected, "{chunks:?}");
}

fn write(stream: &mut impl Write, bytes: &[u8]) {
    stream.write_all(bytes).expect("the server reads");
}
