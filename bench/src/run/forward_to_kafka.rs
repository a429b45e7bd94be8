//! The scenario `forward_to_kafka`: see its README for what is measured.

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{
    Bench,
    kafka::{Broker, java},
    process::Process,
    scenario::{By, Goal, Row, Run},
    server::{self, Load, Protocol, Server},
};
use crate::Failure;

/// The sender's SO_SNDBUF. It is small, because over loopback the kernel charges a part of the sender's work to the receiver's CPU
/// time, and this part grows with the buffer.
const SEND_BUFFER: &str = "128KiB";
/// The bytes of a record's text.
const SIZE: &str = "125";
/// The number of lines in the file that the other producers send.
const LINES: u64 = 4_000_000;

/// Once Millstream has used no CPU for this time, it has finished. The time is longer than the pause of 1 s before Millstream commits
/// the last transaction.
const QUIET: Duration = Duration::from_secs(3);

const MEMORY: &str = include_str!("../../scenarios/forward_to_kafka/memory.yaml");
const EXACT: &str = include_str!("../../scenarios/forward_to_kafka/exact.yaml");

/// How a row is measured.
#[derive(Clone, Copy)]
enum Work {
    /// Kafka's console producer with these options.
    Java(&'static [&'static str]),
    Kcat,
    Millstream {
        config: &'static str,
        format: &'static str,
        compression: &'static str,
    },
}

const JAVA: &str = "java console producer";

fn works() -> Vec<(&'static str, Work, Vec<Goal>)> {
    let goals = || {
        let java = Goal::Share(3.0, JAVA.to_owned(), By::Cpu);
        vec![Goal::PerCpu(1.5e6), java]
    };
    let millstream = |config, format, compression| Work::Millstream {
        config,
        format,
        compression,
    };
    let large: &[&str] = &["--batch-size", "1048576"];
    vec![
        (JAVA, Work::Java(&[]), Vec::new()),
        (
            "java console producer, 1 MiB",
            Work::Java(large),
            Vec::new(),
        ),
        ("kcat", Work::Kcat, Vec::new()),
        ("millstream raw", millstream(MEMORY, "raw", "none"), goals()),
        (
            "millstream raw, lz4",
            millstream(MEMORY, "raw", "lz4"),
            goals(),
        ),
        (
            "millstream json",
            millstream(MEMORY, "json", "none"),
            Vec::new(),
        ),
        (
            "millstream exact raw",
            millstream(EXACT, "raw", "none"),
            Vec::new(),
        ),
    ]
}

/// Runs the scenario.
pub fn run(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let works = works();
    let row = |(name, work, goals): &(&str, Work, Vec<Goal>)| {
        let reference = !matches!(work, Work::Millstream { .. });
        Row::new(*name, reference, goals.clone())
    };
    let mut rows: Vec<Row> = works.iter().map(row).collect();
    bench.choose(&mut rows);
    let mut broker = Broker::start(&bench.work)?;
    let lines = bench.work.join("lines.log");
    make(bench, &lines)?;
    bench.rounds(rows, |row| {
        let Some((_, work, _)) = works.iter().find(|(name, ..)| *name == row.name) else {
            return Ok(None);
        };
        let topic = broker.make_topic()?;
        let mut run = measure(bench, &broker, &topic, *work, &lines)?;
        run.wrong = run.wrong.or(server::outcome(&broker.read(&topic)?)?);
        broker.delete_topic(&topic)?;
        Ok(Some(run))
    })
}

fn make(bench: &Bench, lines: &Path) -> Result<(), Failure> {
    let made = Command::new(&bench.millbench)
        .args(["generate", "--size", SIZE, "--file"])
        .arg(lines)
        .args(["--records", &LINES.to_string()])
        .output()?;
    if !made.status.success() {
        let error = String::from_utf8_lossy(&made.stderr);
        return Err(Failure::Other(format!("no input: {error}")));
    }
    Ok(())
}

fn measure(
    bench: &Bench,
    broker: &Broker,
    topic: &str,
    work: Work,
    lines: &Path,
) -> Result<Run, Failure> {
    let address = broker.address.to_string();
    match work {
        Work::Java(more) => {
            let mut command = java()?;
            command.arg("org.apache.kafka.tools.ConsoleProducer");
            command.args(["--bootstrap-server", &address, "--topic", topic]);
            command.args(more).stdin(File::open(lines)?);
            peer(command, lines)
        }
        Work::Kcat => {
            let mut command = Command::new("kcat");
            command.args(["-P", "-b", &address, "-t", topic, "-l"]);
            command.arg(lines).stdin(Stdio::null());
            peer(command, lines)
        }
        Work::Millstream {
            config,
            format,
            compression,
        } => {
            let settings = [
                ("BROKER", &*address),
                ("TOPIC", topic),
                ("FORMAT", format),
                ("COMPRESSION", compression),
            ];
            let mut server = Server::start(bench, config, &settings)?;
            if config == EXACT {
                server = server.quiet_after(QUIET);
            }
            let load = Load {
                protocol: Protocol::ForwardOf(&["--size", SIZE]),
                mode: "packed",
                connections: 2,
                acks: config == EXACT,
                single_writes: false,
                send_buffer: SEND_BUFFER,
                tls: false,
            };
            let mut run = server::measure(&mut server, bench, &load, false)?;
            run.wrong = run.wrong.or(server.stop());
            Ok(run)
        }
    }
}

/// Measures another producer that sends the lines, from its start to its end.
fn peer(mut command: Command, lines: &Path) -> Result<Run, Failure> {
    let started = Instant::now();
    let process = Process::start(command.stdout(Stdio::null()))?;
    let (status, usage) = process.finish()?;
    Ok(Run {
        records: LINES,
        bytes: fs::metadata(lines)?.len(),
        seconds: started.elapsed().as_secs_f64(),
        usage,
        latency: None,
        variant: None,
        wrong: (!status.success()).then(|| format!("it ended with {status}")),
    })
}
