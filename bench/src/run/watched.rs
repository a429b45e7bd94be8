//! The scenario `watched`: see its README for what is measured.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{
    Bench, idle,
    process::free_port,
    scenario::{By, Goal, Row, Run},
    server::{Load, Protocol, Server},
};
use crate::Failure;

const CONFIG: &str = include_str!("../../scenarios/watched/watched.yaml");
const WITHOUT_API: &str = include_str!("../../scenarios/watched/without_api.yaml");
/// The number of clients that receive the status (`/events`), as open dashboard pages do.
const PAGES: usize = 50;
/// The interval at which the metrics are read.
const SCRAPE: Duration = Duration::from_secs(1);
/// The time within which every client must receive something.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a client that waits for bytes checks whether the measurement has ended.
const LOOK: Duration = Duration::from_millis(200);

const NO_API: &str = "no API";
const UNUSED: &str = "API without clients";
const SCRAPED: &str = "metrics";
const WATCHED: &str = "metrics, 50 pages, a tap";
const AT_REST: &str = "metrics, 50 pages, no records, 10 s";
/// How long the row without records is measured, and its limit of CPU seconds.
const REST: Duration = Duration::from_secs(10);
const REST_CPU_MAX: f64 = 0.1;

/// Runs the scenario.
pub fn run(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let share = |of: &str| Goal::Share(0.99, of.to_owned(), By::Cpu);
    let more = Goal::MoreMemory(64_000_000, UNUSED.to_owned());
    let mut rows = vec![
        Row::new(NO_API, true, Vec::new()),
        Row::new(UNUSED, false, vec![share(NO_API)]),
        Row::new(SCRAPED, false, vec![share(UNUSED)]),
        Row::new(WATCHED, false, vec![share(UNUSED), more]),
        Row::new(AT_REST, false, vec![Goal::Cpu(REST_CPU_MAX)]),
    ];
    bench.choose(&mut rows);
    bench.rounds(rows, |row| {
        if row.name == AT_REST {
            return Ok(Some(at_rest(bench)?));
        }
        let paths: Vec<&'static str> = match &*row.name {
            SCRAPED => vec!["/metrics"],
            WATCHED => {
                let pages = std::iter::repeat_n("/events", PAGES);
                pages.chain(["/metrics", "/tap/in"]).collect()
            }
            _ => Vec::new(),
        };
        Ok(Some(measure(bench, row.name != NO_API, &paths)?))
    })
}

/// Measures Millstream while only API clients use it.
fn at_rest(bench: &Bench) -> Result<Run, Failure> {
    let api = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let mut server = Server::start(bench, CONFIG, &[("API", &api.port().to_string())])?;
    server.ready()?;
    let pages = std::iter::repeat_n("/events", PAGES);
    let paths: Vec<_> = pages.chain(["/metrics"]).collect();
    let clients = Clients::start(api, &paths);
    let missing = clients.silent(PATIENCE);
    let run = idle::at_rest(server, REST)?;
    clients.stop();
    let wrong = silent(missing);
    Ok(Run {
        wrong: wrong.or(run.wrong),
        ..run
    })
}

/// The defect of a run in which `missing` clients received nothing; `None` if all received something.
fn silent(missing: usize) -> Option<String> {
    (missing > 0).then(|| format!("{missing} clients received nothing"))
}

/// Loads Millstream while clients read these paths.
fn measure(bench: &Bench, has_api: bool, paths: &[&'static str]) -> Result<Run, Failure> {
    let api = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let config = match has_api {
        true => CONFIG,
        false => WITHOUT_API,
    };
    let mut server = Server::start(bench, config, &[("API", &api.port().to_string())])?;
    server.ready()?;
    let clients = Clients::start(api, paths);
    let load = Load {
        protocol: Protocol::Forward,
        mode: "packed",
        connections: 2,
        acks: true,
        single_writes: false,
        send_buffer: "128KiB",
        tls: false,
    };
    // The clients are checked only after a first load, because a tap (the sampled records of a node) shows nothing before the
    // first record.
    let warm = Bench {
        seconds: 0.5,
        ..bench.clone()
    };
    load.send(&warm, server.address)?;
    let missing = clients.silent(PATIENCE);
    let before = server.usage()?;
    let sent = load
        .send(bench, server.address)
        .map_err(|error| server.explain(&error.to_string()))?;
    let usage = server.usage()?.since(before);
    clients.stop();
    let wrong = silent(missing);
    Ok(Run {
        records: sent.records,
        bytes: sent.bytes,
        seconds: sent.seconds,
        usage,
        latency: None,
        variant: None,
        wrong: wrong.or(server.stop()),
    })
}

/// Clients of the API, each on its own thread.
struct Clients {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// Receives one message from each client, once the client has received something.
    received: mpsc::Receiver<()>,
}

impl Clients {
    fn start(api: SocketAddr, paths: &[&'static str]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        // Each client sends one message, so no send blocks.
        let (sender, received) = mpsc::sync_channel(paths.len().max(1));
        let client = |path: &&'static str| {
            let (path, stop, sender) = (*path, stop.clone(), sender.clone());
            thread::spawn(move || {
                // The error is ignored: a failed client sends no message, so `silent` counts the client as missing.
                let _ = match path {
                    "/metrics" => scrape(api, &stop, &sender),
                    path => stream(api, path, &stop, &sender),
                };
            })
        };
        Self {
            threads: paths.iter().map(client).collect(),
            stop,
            received,
        }
    }

    /// Waits until all clients have received something, but at most for `patience`. Returns the number of clients that have not.
    fn silent(&self, patience: Duration) -> usize {
        let end = Instant::now() + patience;
        let left = || end.saturating_duration_since(Instant::now());
        let missing = self.threads.iter();
        missing
            .filter(|_| self.received.recv_timeout(left()).is_err())
            .count()
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

fn ask(api: SocketAddr, path: &str, connection: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(api)?;
    stream.set_read_timeout(Some(LOOK))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {api}\r\nConnection: {connection}\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    Ok(stream)
}

/// Returns the response of `/metrics`, with its head.
pub(super) fn metrics(api: SocketAddr) -> io::Result<String> {
    let mut page = String::new();
    let mut stream = ask(api, "/metrics", "close")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.read_to_string(&mut page)?;
    Ok(page)
}

/// Reads the metrics each second.
fn scrape(api: SocketAddr, stop: &AtomicBool, received: &mpsc::SyncSender<()>) -> io::Result<()> {
    let (mut next, mut has_begun) = (Instant::now(), false);
    while !stop.load(Ordering::Relaxed) {
        if Instant::now() < next {
            thread::sleep(LOOK);
            continue;
        }
        next += SCRAPE;
        let page = metrics(api)?;
        if !has_begun && page.contains("\nmillstream_") {
            has_begun = true;
            let _ = received.send(());
        }
    }
    Ok(())
}

/// Reads a stream until the measurement ends. Sends a message to `received` at the first event, or at a tap's first record.
fn stream(
    api: SocketAddr,
    path: &str,
    stop: &AtomicBool,
    received: &mpsc::SyncSender<()>,
) -> io::Result<()> {
    let mut stream = ask(api, path, "keep-alive")?;
    let (mut bytes, mut has_begun) = (vec![0; 64 << 10], false);
    while !stop.load(Ordering::Relaxed) {
        let count = match stream.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        let content = bytes[..count].windows(6);
        let mut words = content.filter(|word| [&b"data: "[..], b"\"node\""].contains(word));
        if !has_begun && words.next().is_some() {
            has_begun = true;
            let _ = received.send(());
        }
    }
    Ok(())
}
