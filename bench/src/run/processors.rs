//! The scenario `processors`: see its README for what is measured.

use std::{
    io::{self, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use super::{
    Bench,
    process::Process,
    scenario::{By, Goal, Row, Run},
    server::Server,
};
use crate::Failure;

/// Records per chunk. The size of a chunk is about 160 to 240 kB.
const RECORDS: u32 = 1000;
/// The number of senders.
const CONNECTIONS: usize = 2;
/// The number of chunks that the disk channel holds.
const DISK_CHUNKS: u64 = 8000;

/// The format of the records.
#[derive(Clone, Copy)]
enum Text {
    /// Five fields, about 250 bytes.
    Fields,
    /// One field with a JSON text of about 230 bytes. The formats below also have one field.
    Json,
    Nginx,
    Logfmt,
    Plain,
}

/// How a row is measured.
#[derive(Clone, Copy)]
struct Work {
    name: &'static str,
    /// The configuration of Millstream. `None`: `millbench reader` receives the records.
    config: Option<&'static str>,
    text: Text,
    goal: f64,
}

macro_rules! config {
    ($name:literal) => {
        Some(include_str!(concat!(
            "../../scenarios/processors/",
            $name,
            ".yaml"
        )))
    };
}

const FILL: &str = include_str!("../../scenarios/processors/fill.yaml");
const DISK: &str = include_str!("../../scenarios/processors/disk.yaml");
const STOPPED: &str = include_str!("../../scenarios/processors/stopped.yaml");

const WORKS: [Work; 10] = [
    work("bare reader", None, Text::Fields, 0.0),
    work("no processor", config!("none"), Text::Fields, 0.0),
    work("three that pass on", config!("pass"), Text::Fields, 0.0),
    work("filter, half kept", config!("where"), Text::Fields, 15e6),
    work(
        "route, five conditions",
        config!("route"),
        Text::Fields,
        8e6,
    ),
    work(
        "fields, three changes",
        config!("fields"),
        Text::Fields,
        6e6,
    ),
    work("parse json", config!("json"), Text::Json, 3e6),
    work("parse nginx", config!("nginx"), Text::Nginx, 2e6),
    work("parse logfmt", config!("logfmt"), Text::Logfmt, 2e6),
    work("parse regex, 8 groups", config!("regex"), Text::Plain, 1e6),
];

const fn work(name: &'static str, config: Option<&'static str>, text: Text, goal: f64) -> Work {
    Work {
        name,
        config,
        text,
        goal,
    }
}

/// A row whose processor reads from a disk channel.
struct Behind {
    name: &'static str,
    config: &'static str,
    tasks: &'static str,
    /// The goal, as a share of the rate of the first row in [`BEHIND`]; `None` without a goal.
    share: Option<f64>,
}

const BEHIND: [Behind; 3] = [
    Behind {
        name: "disk -> parse json, 1 task",
        config: DISK,
        tasks: "1",
        share: None,
    },
    Behind {
        name: "disk -> parse json, 2 tasks",
        config: DISK,
        tasks: "2",
        share: Some(1.5),
    },
    Behind {
        name: "disk -> parse json, beside a stopped sink",
        config: STOPPED,
        tasks: "1",
        share: Some(0.95),
    },
];

/// Runs the scenario.
pub fn run(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let row = |work: &Work| {
        let mut goals = match work.goal {
            0.0 => Vec::new(),
            goal => vec![Goal::PerCpu(goal)],
        };
        if work.name == "three that pass on" {
            goals.push(Goal::Share(0.9, "no processor".to_owned(), By::Cpu));
        }
        Row::new(work.name, work.config.is_none(), goals)
    };
    let mut rows: Vec<Row> = WORKS.iter().map(row).collect();
    for behind in &BEHIND {
        let goal = |share| Goal::Share(share, BEHIND[0].name.to_owned(), By::Wall);
        let goals = behind.share.map(goal).into_iter().collect();
        rows.push(Row::new(behind.name, false, goals));
    }
    bench.choose(&mut rows);
    bench.rounds(rows, |row| {
        let behind = BEHIND.iter().find(|behind| behind.name == row.name);
        let work = WORKS.iter().find(|work| work.name == row.name);
        match (behind, work) {
            (Some(behind), _) => behind_disk(bench, behind).map(Some),
            (None, Some(work)) => measure(bench, work).map(Some),
            (None, None) => Ok(None),
        }
    })
}

/// Sends chunks for the duration of the load, and measures until millstream has processed them.
fn measure(bench: &Bench, work: &Work) -> Result<Run, Failure> {
    let message = chunk(work.text);
    let seconds = Duration::from_secs_f64(bench.seconds);
    let Some(config) = work.config else {
        return bare(bench, &message, seconds);
    };
    let mut server = Server::start(bench, config, &[("THREADS", "1")])?;
    server.ready()?;
    let (before, started) = (server.usage()?, Instant::now());
    let sent = send(server.address, &message, |chunks, since: Instant| {
        chunks % 16 != 0 || since.elapsed() < seconds
    });
    let chunks = sent.map_err(|error| server.explain(&error.to_string()))?;
    let settled = server.settled()?.duration_since(started);
    let usage = server.usage()?.since(before);
    let wrong = server.stop();
    Ok(of(chunks, &message, settled, usage, wrong))
}

/// Measures the bare reader (`millbench reader`) with the same load.
fn bare(bench: &Bench, message: &[u8], seconds: Duration) -> Result<Run, Failure> {
    let address = SocketAddr::from(([127, 0, 0, 1], super::process::free_port()?));
    let mut command = std::process::Command::new(&bench.millbench);
    command.args(["reader", "--listen", &address.to_string()]);
    let mut process = Process::start(&mut command)?;
    process.ready(address)?;
    let (before, started) = (process.usage()?, Instant::now());
    let chunks = send(address, message, |chunks, since: Instant| {
        chunks % 16 != 0 || since.elapsed() < seconds
    })?;
    let usage = process.usage()?.since(before);
    Ok(of(chunks, message, started.elapsed(), usage, None))
}

/// Fills a disk channel, then restarts millstream and measures how it reads and processes the channel's contents.
fn behind_disk(bench: &Bench, behind: &Behind) -> Result<Run, Failure> {
    let message = chunk(Text::Json);
    let mut server = Server::start(bench, FILL, &[])?;
    server.ready()?;
    let sent = send(server.address, &message, |chunks, _| {
        chunks < DISK_CHUNKS / CONNECTIONS as u64
    });
    let chunks = sent.map_err(|error| server.explain(&error.to_string()))?;
    server.settled()?;
    if let Some(wrong) = server.stop() {
        return Err(Failure::Other(wrong));
    }
    // The address of the stopped sink: the kernel accepts connections, but no program reads from them.
    let stopped = TcpListener::bind("127.0.0.1:0")?;
    let next = stopped.local_addr()?.to_string();
    let settings = [("THREADS", "1"), ("TASKS", behind.tasks), ("NEXT", &next)];
    let started = Instant::now();
    let server = Server::start_again(bench, "millstream", behind.config, &settings)?;
    let settled = server.settled()?.duration_since(started);
    let usage = server.usage()?;
    let wrong = server.stop();
    Ok(of(chunks, &message, settled, usage, wrong))
}

fn of(
    chunks: u64,
    message: &[u8],
    time: Duration,
    usage: super::process::Usage,
    wrong: Option<String>,
) -> Run {
    Run {
        records: chunks * u64::from(RECORDS),
        bytes: chunks * message.len() as u64,
        seconds: time.as_secs_f64(),
        usage,
        latency: None,
        variant: None,
        wrong,
    }
}

/// Writes a message repeatedly over each connection, as long as `wants_more(messages, start)` is true. Returns the number of
/// messages.
fn send(
    address: SocketAddr,
    message: &[u8],
    wants_more: impl Fn(u64, Instant) -> bool + Sync,
) -> io::Result<u64> {
    let one = || {
        let mut stream = TcpStream::connect(address)?;
        let (mut chunks, since) = (0, Instant::now());
        while wants_more(chunks, since) {
            stream.write_all(message)?;
            chunks += 1;
        }
        Ok(chunks)
    };
    thread::scope(|scope| {
        let senders: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(one)).collect();
        let join = |sender: thread::ScopedJoinHandle<'_, io::Result<u64>>| {
            let ended = sender.join();
            ended.unwrap_or_else(|_| Err(io::Error::other("a sender panicked")))
        };
        senders.into_iter().map(join).sum()
    })
}

/// Returns a PackedForward message of the forward protocol.
fn chunk(text: Text) -> Vec<u8> {
    let mut entries = Vec::new();
    for number in 0..RECORDS {
        entries.extend_from_slice(b"\x92\xd7\x00\x65\x53\xf1\x00\x00\x00\x00\x00");
        record(text, number, &mut entries);
    }
    let mut message = b"\x92\xa5bench\xc6".to_vec();
    message.extend_from_slice(&(entries.len() as u32).to_be_bytes());
    message.extend_from_slice(&entries);
    message
}

fn record(text: Text, number: u32, out: &mut Vec<u8>) {
    let level = if number.is_multiple_of(2) {
        "info"
    } else {
        "debug"
    };
    let words = "GET the quick brown fox jumps over the lazy dog and runs away from it as fast as it can, until nothing is left";
    let line = match text {
        Text::Fields => {
            out.push(0x85);
            for (name, value) in [
                ("level", level.to_owned()),
                ("user", format!("user-{}", number % 97)),
                ("path", format!("/api/v1/items/{number:06}/details")),
                ("message", format!("{words} ({number:06}) {words:.30}")),
            ] {
                string(name, out);
                string(&value, out);
            }
            string("status", out);
            out.extend_from_slice(&[0xcd, 0, 200]);
            return;
        }
        Text::Json => format!(
            "{{\"level\":\"{level}\",\"user\":\"user-{}\",\"status\":200,\"path\":\"/api/v1/items/{number:06}\",\"ms\":{}.5,\"message\":\"{words}\"}}",
            number % 97,
            number % 300
        ),
        Text::Nginx => format!(
            "192.168.1.{} - - [14/Nov/2023:22:13:{:02} +0000] \"GET /api/v1/items/{number:06} HTTP/1.1\" 200 {} \"https://example.org/start\" \"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36\"",
            number % 250,
            number % 60,
            number * 7
        ),
        Text::Logfmt => format!(
            "level={level} user=user-{} status=200 path=/api/v1/items/{number:06} ms={}.5 msg=\"{words}\"",
            number % 97,
            number % 300
        ),
        Text::Plain => format!(
            "192.168.1.{} user-{} [14/Nov/2023:22:13:{:02} +0000] \"GET /api/v1/items/{number:06}\" 200 {} \"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36\"",
            number % 250,
            number % 97,
            number % 60,
            number * 7
        ),
    };
    out.push(0x81);
    string("message", out);
    string(&line, out);
}

/// Appends a MessagePack string.
fn string(text: &str, out: &mut Vec<u8>) {
    match text.len() {
        short @ 0..=31 => out.push(0xa0 | short as u8),
        long => out.extend_from_slice(&[0xda, (long >> 8) as u8, long as u8]),
    }
    out.extend_from_slice(text.as_bytes());
}
