//! The scenario `idle`: see its README for what is measured.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{
    Bench,
    process::{Process, free_port},
    scenario::{Goal, Latency, Row, Run},
    server::Server,
};
use crate::{
    Failure,
    generate::{Mode, Probe},
};

const FILES: &str = include_str!("../../scenarios/idle/files.yaml");
const DISCARD: &str = include_str!("../../scenarios/idle/discard.yaml");
const PROCESSORS: &str = include_str!("../../scenarios/idle/processors.yaml");
/// The number of silent connections.
const CLIENTS: usize = 300;
/// How long the silent connections are measured.
const SILENCE: Duration = Duration::from_secs(10);
/// The limit of CPU seconds. Some kernels count CPU time only in hundredths of a second, so a measured hundredth may be a rounding
/// error.
const CPU_MAX: f64 = 0.02;
/// The number of idle files, and how long they are measured.
const FILE_COUNT: usize = 10_000;
const FILES_SILENCE: Duration = Duration::from_secs(30);
/// The limit of CPU seconds: enough for one or two checks of all files.
const FILES_CPU_MAX: f64 = 0.15;
/// The number of messages whose acks are timed, and the pause between them.
const MESSAGES: usize = 250;
const PAUSE: Duration = Duration::from_millis(20);
/// The pause between two reloads.
const RELOAD_PAUSE: Duration = Duration::from_millis(50);
/// The limit of the median time to an ack, in seconds. It allows two wake-ups in the client and two in the server, on a busy
/// machine. A pipeline that waited for a timer would exceed it.
const LATENCY_MAX: f64 = 1e-3;

const SILENT: &str = "300 silent connections, 10 s";
const IDLE_FILES: &str = "10,000 idle files, 30 s";
const ACKED: &str = "one message, then its ack";
const PROCESSED: &str = "the same through three processors";
const RELOADED: &str = "the same, processors replaced 20 times a second";
const BARE: &str = "ack of millbench flow, without millstream";

/// Runs the scenario.
pub fn run(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let mut rows = vec![
        Row::new(
            SILENT,
            false,
            vec![Goal::Cpu(CPU_MAX), Goal::Memory(100_000_000)],
        ),
        Row::new(
            IDLE_FILES,
            false,
            vec![Goal::Cpu(FILES_CPU_MAX), Goal::Memory(200_000_000)],
        ),
        Row::new(BARE, true, Vec::new()),
        Row::new(ACKED, false, vec![Goal::Latency(LATENCY_MAX)]),
        Row::new(PROCESSED, false, vec![Goal::Latency(LATENCY_MAX)]),
        Row::new(RELOADED, false, vec![Goal::Latency(LATENCY_MAX)]),
    ];
    bench.choose(&mut rows);
    bench.rounds(rows, |row| {
        Ok(Some(match &*row.name {
            SILENT => silent(bench)?,
            IDLE_FILES => files(bench)?,
            ACKED => answered(bench, DISCARD)?,
            PROCESSED => answered(bench, PROCESSORS)?,
            RELOADED => reloaded(bench)?,
            _ => bare(bench)?,
        }))
    })
}

fn silent(bench: &Bench) -> Result<Run, Failure> {
    let mut server = Server::start(bench, DISCARD, &[("THREADS", "2")])?;
    server.ready()?;
    let clients = (0..CLIENTS)
        .map(|_| TcpStream::connect(server.address))
        .collect::<Result<Vec<_>, _>>()?;
    thread::sleep(Duration::from_secs(1));
    let run = at_rest(server, SILENCE);
    drop(clients);
    run
}

/// Measures an idle server for `time`, then stops it.
pub fn at_rest(server: Server, time: Duration) -> Result<Run, Failure> {
    let (before, started) = (server.usage()?, Instant::now());
    thread::sleep(time);
    Ok(Run {
        records: 0,
        bytes: 0,
        seconds: started.elapsed().as_secs_f64(),
        usage: server.usage()?.since(before),
        latency: None,
        variant: None,
        wrong: server.stop(),
    })
}

/// Measures millstream while it follows ten thousand idle files in a hundred directories. Each file has one line. The measurement
/// begins after all lines are read.
fn files(bench: &Bench) -> Result<Run, Failure> {
    let logs = bench.work.join("idle-files");
    for number in 0..FILE_COUNT {
        let directory = logs.join(format!("{}", number % 100));
        fs::create_dir_all(&directory)?;
        fs::write(directory.join(format!("{number}.log")), "a line\n")?;
    }
    let pattern = format!("{}/*/*.log", logs.display());
    let settings = [("THREADS", "2"), ("IN", &*pattern)];
    let mut server = Server::start(bench, FILES, &settings)?;
    server.ready()?;
    server.settled()?;
    thread::sleep(Duration::from_secs(2));
    let run = at_rest(server, FILES_SILENCE)?;
    fs::remove_dir_all(&logs)?;
    Ok(run)
}

/// Times the acks of millstream with this configuration.
fn answered(bench: &Bench, config: &str) -> Result<Run, Failure> {
    let mut server = Server::start(bench, config, &[("THREADS", "2")])?;
    server.ready()?;
    let before = server.usage()?;
    let mut run = acked(server.address, MESSAGES, PAUSE)?;
    run.usage = server.usage()?.since(before);
    run.wrong = server.stop();
    Ok(run)
}

/// Times the acks of millstream through three processors that are replaced continually.
fn reloaded(bench: &Bench) -> Result<Run, Failure> {
    let mut server = Server::start(bench, PROCESSORS, &[("THREADS", "2")])?;
    server.ready()?;
    let before = server.usage()?;
    let other = PROCESSORS.replace("prod", "test");
    let is_over = AtomicBool::new(false);
    let reload = || -> Result<(), Failure> {
        for config in [&*other, PROCESSORS].into_iter().cycle() {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            server.reload(config)?;
            thread::sleep(RELOAD_PAUSE);
        }
        Ok(())
    };
    let mut run = thread::scope(|scope| {
        let reloads = scope.spawn(reload);
        let run = acked(server.address, MESSAGES, PAUSE);
        is_over.store(true, Ordering::Relaxed);
        match reloads.join() {
            Ok(ended) => ended.and(run),
            Err(_) => Err(Failure::Other("the thread that reloads panicked".into())),
        }
    })?;
    run.usage = server.usage()?.since(before);
    run.wrong = server.stop();
    Ok(run)
}

fn bare(bench: &Bench) -> Result<Run, Failure> {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let mut command = Command::new(&bench.millbench);
    command.args(["flow", "--listen", &address.to_string()]);
    let mut server = Process::start(command.stdout(Stdio::null()))?;
    server.ready(address)?;
    acked(address, MESSAGES, PAUSE)
}

/// Sends messages one at a time, with a pause before each, and measures the time until each is acknowledged.
pub(super) fn acked(address: SocketAddr, messages: usize, pause: Duration) -> Result<Run, Failure> {
    timed(address, messages, pause, |written| {
        Ok(written.elapsed().as_secs_f64())
    })
}

/// Sends messages like [`acked`], but lets the caller measure the latency. After each ack, calls `time` with the time at which the
/// message was written. The result, in seconds, counts as the latency of the message.
pub(super) fn timed(
    address: SocketAddr,
    messages: usize,
    pause: Duration,
    mut time: impl FnMut(Instant) -> Result<f64, Failure>,
) -> Result<Run, Failure> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut probe = Probe::new(Mode::Message);
    let (started, mut bytes) = (Instant::now(), 0);
    let mut latencies = Vec::with_capacity(messages);
    for _ in 0..messages {
        thread::sleep(pause);
        let (message, ack) = probe.next();
        bytes += message.len() as u64;
        let written = Instant::now();
        stream.write_all(message)?;
        let mut answer = vec![0; ack.len()];
        stream.read_exact(&mut answer)?;
        latencies.push(time(written)?);
        if answer != ack {
            return Err(Failure::Other(
                "the server's answer is not the message's ack".into(),
            ));
        }
    }
    Ok(Run {
        records: messages as u64,
        bytes,
        seconds: started.elapsed().as_secs_f64(),
        usage: super::process::Usage::default(),
        latency: Latency::of(latencies),
        variant: None,
        wrong: None,
    })
}
