//! The scenario `forward_receive`: see its README for what is measured.

use super::{
    Bench,
    scenario::{By, Goal, Row, Run},
    server::{self, Load, Protocol, Server},
};
use crate::{Failure, tls::Certificate};

/// The size of a packed record with a text of 100 bytes.
const RECORD: u64 = 122;

/// The sender's SO_SNDBUF. It is small, because over loopback the kernel charges a part of the sender's work to the receiver's
/// CPU time, and this part grows with the buffer.
const SEND_BUFFER: &str = "128KiB";
/// 0 keeps the system's default SO_SNDBUF, as real clients do. A small message takes more than a kilobyte of a send buffer, so
/// 128 KiB hold only about a hundred small messages. The receiver lets messages gather before it reads. With 128 KiB, the sender
/// would therefore stall after each hundred messages until the receiver reads again.
const SYSTEM_BUFFER: &str = "0";

/// How a row is measured.
enum Work {
    /// `millbench reader` receives the load.
    Reader(Load),
    /// `millbench writer` runs with these arguments.
    Writer(&'static [&'static str]),
    /// Millstream receives packed chunks with acks, under tags of every length up to that of [`TAG`].
    Tags { connections: u16 },
    /// Millstream receives the load.
    Server {
        load: Load,
        config: &'static str,
        threads: usize,
        settings: &'static [(&'static str, &'static str)],
        /// Whether the load is sent once before the measurement.
        warm: bool,
        /// Whether there is an output to verify.
        output: bool,
    },
}

/// The longest tag of [`Work::Tags`]. The other tags are its prefixes.
const TAG: &str = "tags.of.every.length.from.one.byte.to.sixty-four.in.turn.aaaaaaa";
/// The duration of the load under each tag, as a share of `--seconds`.
const TAG_SHARE: f64 = 0.25;

const DISCARD: &str = include_str!("../../scenarios/forward_receive/discard.yaml");
const DISK: &str = include_str!("../../scenarios/forward_receive/disk.yaml");
const TLS: &str = include_str!("../../scenarios/forward_receive/tls.yaml");
const FILE: &str = include_str!("../../scenarios/forward_receive/file.yaml");

/// The rows of the table, and how the row with each name is measured.
#[derive(Default)]
struct Rows {
    rows: Vec<Row>,
    works: Vec<(String, Work)>,
}

impl Rows {
    fn add(&mut self, name: String, goals: Vec<Goal>, work: Work) -> String {
        let reference = matches!(work, Work::Reader(_) | Work::Writer(_));
        self.rows.push(Row::new(&name, reference, goals));
        self.works.push((name.clone(), work));
        name
    }
}

fn load(mode: &'static str, connections: u16, acks: bool) -> Load {
    Load {
        protocol: Protocol::Forward,
        mode,
        connections,
        acks,
        single_writes: false,
        send_buffer: SEND_BUFFER,
        tls: false,
    }
}

fn share(least: f64, of: &str) -> Goal {
    Goal::Share(least, of.to_owned(), By::Cpu)
}

/// Adds rows that receive packed chunks and discard them, for several numbers of connections and threads, with and without acks.
fn packed(rows: &mut Rows) {
    for connections in [1, 2, 8] {
        for acks in [false, true] {
            let bare = rows.add(
                format!(
                    "bare reader{}, packed, {connections} conn",
                    if acks { " that acks" } else { "" }
                ),
                Vec::new(),
                Work::Reader(load("packed", connections, acks)),
            );
            let name = |threads| {
                let acks = if acks { ", acks" } else { "" };
                format!("packed -> discard, {connections} conn{acks}, {threads} thread")
            };
            let work = |threads| Work::Server {
                load: load("packed", connections, acks),
                config: DISCARD,
                threads,
                settings: &[],
                warm: false,
                output: false,
            };
            // One connection with acks has no goal, because the sender waits for each ack.
            let goals = match connections == 1 && acks {
                true => Vec::new(),
                false => vec![
                    Goal::PerCpu(55e6),
                    share(0.6, &bare),
                    Goal::Memory(100_000_000),
                ],
            };
            let one = rows.add(name(1), goals, work(1));
            if connections > 1 {
                rows.add(name(2), vec![share(0.75, &one)], work(2));
            }
            if connections == 2 && acks {
                let name = "packed, tags of 1-64 bytes -> discard, 2 conn, acks";
                let goals = vec![Goal::Even(0.9), share(0.6, &bare)];
                rows.add(name.to_owned(), goals, Work::Tags { connections });
            }
        }
    }
}

/// Adds rows that receive one record per message, sent in large writes or with one write per message.
fn messages(rows: &mut Rows) {
    for (how, single_writes, send_buffer) in [
        ("large writes", false, SEND_BUFFER),
        ("single writes", true, SEND_BUFFER),
        ("single writes, own SNDBUF", true, SYSTEM_BUFFER),
    ] {
        for connections in [1, 4, 8] {
            let load = Load {
                single_writes,
                send_buffer,
                ..load("message", connections, false)
            };
            let bare = rows.add(
                format!("bare reader, msgs, {how}, {connections} conn"),
                Vec::new(),
                Work::Reader(load.clone()),
            );
            let goals = match (single_writes, connections) {
                (false, _) => vec![Goal::PerCpu(30e6)],
                (true, 8) => vec![Goal::PerCpu(6e6), share(0.8, &bare)],
                (true, _) => vec![share(0.8, &bare)],
            };
            let work = Work::Server {
                load,
                config: DISCARD,
                threads: 1,
                settings: &[],
                warm: false,
                output: false,
            };
            rows.add(
                format!("msgs -> discard, {how}, {connections} conn"),
                goals,
                work,
            );
        }
    }
}

/// Adds rows that receive packed chunks over TLS, and a reader that only decrypts them with the same library.
fn secured(rows: &mut Rows) {
    for connections in [1, 4] {
        let load = Load {
            tls: true,
            ..load("packed", connections, false)
        };
        let bare = rows.add(
            format!("bare TLS reader, packed, {connections} conn"),
            Vec::new(),
            Work::Reader(load.clone()),
        );
        let work = Work::Server {
            load,
            config: TLS,
            threads: 1,
            settings: &[],
            warm: false,
            output: false,
        };
        let name = format!("packed over TLS -> discard, {connections} conn, 1 thread");
        rows.add(name, vec![share(0.7, &bare)], work);
    }
}

/// Adds rows that write to disk.
fn kept(rows: &mut Rows) {
    let overwrite = rows.add(
        "bare writer, overwrite + fdatasync per MiB".into(),
        Vec::new(),
        Work::Writer(&["--how", "overwrite", "--sync"]),
    );
    rows.add(
        "bare writer, new file, uncached".into(),
        Vec::new(),
        Work::Writer(&["--how", "uncached"]),
    );
    rows.add(
        "bare writer, new file, page cache, cold".into(),
        Vec::new(),
        Work::Writer(&["--how", "append"]),
    );
    let disk = |settings, warm| Work::Server {
        load: load("packed", 2, true),
        config: DISK,
        threads: 2,
        settings,
        warm,
        output: false,
    };
    let batch = vec![Goal::Share(0.5, overwrite, By::Wall)];
    let second = vec![Goal::PerCpu(15e6), Goal::Memory(100_000_000)];
    for (sync, settings, goals) in [
        ("1s", &[("SYNC", "1s")], second),
        ("batch", &[("SYNC", "batch")], batch),
    ] {
        let name = |state| format!("packed -> disk {sync} -> discard, 2 conn, acks, {state}");
        rows.add(name("cold"), Vec::new(), disk(settings, false));
        rows.add(name("warm"), goals, disk(settings, true));
    }
    for (format, least, settings) in [
        ("json", 7e6, &[("FORMAT", "json")]),
        ("raw", 8e6, &[("FORMAT", "raw")]),
    ] {
        let work = Work::Server {
            load: load("packed", 2, false),
            config: FILE,
            threads: 2,
            settings,
            warm: false,
            output: true,
        };
        let goals = vec![Goal::PerCpu(least), Goal::Memory(100_000_000)];
        rows.add(format!("packed -> file {format}, 2 conn"), goals, work);
    }
}

/// Runs the scenario.
pub fn run(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let mut rows = Rows::default();
    packed(&mut rows);
    messages(&mut rows);
    secured(&mut rows);
    kept(&mut rows);
    let Rows { mut rows, works } = rows;
    bench.choose(&mut rows);
    bench.rounds(rows, |row| {
        let work = works.iter().find(|(name, _)| *name == row.name);
        let runs = work.map(|(_, work)| measure(bench, work)).transpose()?;
        Ok(runs.unwrap_or_default())
    })
}

fn measure(bench: &Bench, work: &Work) -> Result<Vec<Run>, Failure> {
    let run = match work {
        Work::Reader(load) => server::bare_reader(bench, load, 1)?,
        Work::Writer(how) => {
            let directory = bench.work.join("writer");
            let directory = directory.to_string_lossy();
            let start = ["writer", "--directory", &directory, "--bytes", "4GiB"];
            server::reference(bench, &[&start[..], how].concat(), RECORD)?
        }
        Work::Tags { connections } => return tags(bench, *connections),
        Work::Server {
            load,
            config,
            threads,
            settings,
            warm,
            output,
        } => {
            let out = bench.work.join("out.log");
            let path = out.to_string_lossy();
            let threads = threads.to_string();
            let certificate = Certificate::in_directory(&bench.work)?;
            let (cert, key) = (
                certificate.cert.to_string_lossy(),
                certificate.key.to_string_lossy(),
            );
            let own = [
                ("OUT", &*path),
                ("THREADS", &threads),
                ("CERT", &cert),
                ("KEY", &key),
            ];
            let mut server = Server::start(bench, config, &[&own[..], settings].concat())?;
            let mut run = server::measure(&mut server, bench, load, *warm)?;
            run.wrong = run.wrong.or(server.stop());
            if *output {
                run.wrong = run.wrong.or(server::outcome(&out)?);
            }
            run
        }
    };
    Ok(vec![run])
}

/// Measures one millstream process with each tag in turn.
fn tags(bench: &Bench, connections: u16) -> Result<Vec<Run>, Failure> {
    let mut server = Server::start(bench, DISCARD, &[("THREADS", "1")])?;
    let bench = Bench {
        seconds: bench.seconds * TAG_SHARE,
        ..bench.clone()
    };
    let mut runs = Vec::new();
    for length in 1..=TAG.len() {
        let load = Load {
            protocol: Protocol::ForwardAs(&TAG[..length]),
            ..load("packed", connections, true)
        };
        let mut run = server::measure(&mut server, &bench, &load, false)?;
        run.variant = Some(format!("a tag of {length} bytes"));
        runs.push(run);
    }
    if let Some(last) = runs.last_mut() {
        last.wrong = last.wrong.take().or(server.stop());
    }
    Ok(runs)
}
