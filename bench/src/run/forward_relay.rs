//! The scenario `forward_relay`: see its README for what is measured.

use super::{
    Bench,
    scenario::{Goal, Row, Run},
    server::{self, Load, Protocol, Server},
};
use crate::Failure;

/// As in `forward_receive`: a receiver on the same machine must not do the sender's work.
const SEND_BUFFER: &str = "128KiB";

const RELAY: &str = include_str!("../../scenarios/forward_relay/relay.yaml");
const DISK: &str = include_str!("../../scenarios/forward_relay/disk.yaml");
const RECEIVE: &str = include_str!("../../scenarios/forward_relay/receive.yaml");

/// What a row does.
#[derive(Clone, Copy)]
struct Work {
    config: &'static str,
    connections: u16,
    /// The load is on the relay, not on what is compared with it.
    passes: bool,
}

fn works() -> Vec<(String, Work, Vec<Goal>)> {
    let mut works = Vec::new();
    for connections in [2, 8] {
        let work = |config, passes| Work {
            config,
            connections,
            passes,
        };
        let goals = vec![Goal::PerCpu(20e6), Goal::Memory(100_000_000)];
        let name = format!("relay, {connections} conn");
        works.push((name.clone(), work(RELAY, true), goals));
        let name = format!("{name}, compared: only received");
        works.push((name, work(RECEIVE, false), Vec::new()));
        let name = format!("relay, disk, {connections} conn");
        works.push((name, work(DISK, true), Vec::new()));
    }
    works
}

/// Runs the scenario.
pub fn run(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let works = works();
    let row = |(name, work, goals): &(String, Work, Vec<Goal>)| {
        Row::new(name, !work.passes, goals.clone())
    };
    let mut rows: Vec<Row> = works.iter().map(row).collect();
    bench.choose(&mut rows);
    for round in 1..=bench.runs {
        for row in &mut rows {
            eprintln!("{round}/{}: {}", bench.runs, row.name);
            if let Some((_, work, _)) = works.iter().find(|(name, ..)| *name == row.name) {
                row.runs.push(measure(bench, *work)?);
            }
        }
    }
    Ok(rows)
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
    if !work.passes {
        let mut server = Server::start(bench, work.config, &[])?;
        let mut run = server::measure(&mut server, bench, &load, false)?;
        run.wrong = run.wrong.or(server.stop());
        return Ok(run);
    }
    let mut next = Server::start_as(bench, "next", RECEIVE, &[])?;
    next.ready()?;
    let to = next.address.port().to_string();
    let mut relay = Server::start_as(bench, "relay", work.config, &[("TO", &to)])?;
    let mut run = server::measure(&mut relay, bench, &load, false)?;
    run.wrong = run.wrong.or(relay.stop()).or(next.stop());
    Ok(run)
}
