//! The scenario `forward_relay`: see its README for what is measured.

use super::{
    Bench,
    scenario::{Goal, Row, Run},
    server::{self, Load, Protocol, Server},
};
use crate::Failure;

/// The sender's SO_SNDBUF. It is small, because over loopback the kernel charges a part of the sender's work to the receiver's CPU time,
/// and this part grows with the buffer.
const SEND_BUFFER: &str = "128KiB";

const RELAY: &str = include_str!("../../scenarios/forward_relay/relay.yaml");
const DISK: &str = include_str!("../../scenarios/forward_relay/disk.yaml");
const RECEIVE: &str = include_str!("../../scenarios/forward_relay/receive.yaml");

/// How a row is measured.
#[derive(Clone, Copy)]
struct Work {
    what: What,
    connections: u16,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// `millbench relay` passes bytes on without interpreting them.
    Bare,
    /// Millstream only receives: it discards the records instead of sending them.
    Receive,
    /// Millstream relays with this configuration.
    Relay(&'static str),
}

fn works() -> Vec<(String, Work, Vec<Goal>)> {
    let mut works = Vec::new();
    for connections in [2, 8] {
        let work = |what| Work { what, connections };
        let name = format!("bare relay, {connections} conn");
        works.push((name, work(What::Bare), Vec::new()));
        let goals = vec![Goal::PerCpu(20e6), Goal::Memory(100_000_000)];
        let name = format!("relay, {connections} conn");
        works.push((name.clone(), work(What::Relay(RELAY)), goals));
        let name = format!("{name}, compared: only received");
        works.push((name, work(What::Receive), Vec::new()));
        let name = format!("relay, disk, {connections} conn");
        works.push((name, work(What::Relay(DISK)), Vec::new()));
    }
    works
}

/// Runs the scenario.
pub fn run(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let works = works();
    let row = |(name, work, goals): &(String, Work, Vec<Goal>)| {
        Row::new(name, !matches!(work.what, What::Relay(_)), goals.clone())
    };
    let mut rows: Vec<Row> = works.iter().map(row).collect();
    bench.choose(&mut rows);
    bench.rounds(rows, |row| {
        let work = works.iter().find(|(name, ..)| *name == row.name);
        work.map(|(_, work, _)| measure(bench, *work)).transpose()
    })
}

fn measure(bench: &Bench, work: Work) -> Result<Run, Failure> {
    let load = Load {
        protocol: Protocol::Forward,
        mode: "packed",
        connections: work.connections,
        acks: true,
        single_writes: false,
        send_buffer: SEND_BUFFER,
        tls: false,
    };
    if work.what == What::Receive {
        let mut server = Server::start(bench, RECEIVE, &[])?;
        let mut run = server::measure(&mut server, bench, &load, false)?;
        run.wrong = run.wrong.or(server.stop());
        return Ok(run);
    }
    let mut next = Server::start_as(bench, "next", RECEIVE, &[])?;
    next.ready()?;
    let mut run = match work.what {
        What::Relay(config) => {
            let to = next.address.port().to_string();
            let mut relay = Server::start_as(bench, "relay", config, &[("TO", &to)])?;
            let mut run = server::measure(&mut relay, bench, &load, false)?;
            run.wrong = run.wrong.or(relay.stop());
            run
        }
        What::Bare | What::Receive => server::bare_relay(bench, &load, next.address)?,
    };
    run.wrong = run.wrong.or(next.stop());
    Ok(run)
}
