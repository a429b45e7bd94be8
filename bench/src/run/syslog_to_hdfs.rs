//! The scenario `syslog_to_hdfs`: see its README for what is measured.

use std::{fs, time::Duration};

use super::{
    Bench,
    hdfs::Cluster,
    scenario::{Goal, Row, Run},
    server::{self, Load, Protocol, Server},
};
use crate::{Failure, verify};

/// The sender's SO_SNDBUF. It is small, because over loopback the kernel charges a part of the sender's work to the receiver's CPU
/// time, and this part grows with the buffer.
const SEND_BUFFER: &str = "128KiB";
/// Options for messages of 300 bytes: a header, a text of `--size` bytes, and a newline.
const FORM: &[&str] = &["--form", "rfc3164", "--size", "254"];
/// Once Millstream has used no CPU for this time, it has finished. The time is longer than the 1 s after which Millstream publishes a
/// file, so the measurement includes the publishing of the last file.
const QUIET: Duration = Duration::from_millis(1500);

const MEMORY: &str = include_str!("../../scenarios/syslog_to_hdfs/memory.yaml");
const EXACT: &str = include_str!("../../scenarios/syslog_to_hdfs/exact.yaml");

/// A row: its name, its configuration, and the value of the sink's option `headers`. With `flume`, the headers of the events have the
/// names that Flume uses. With `own`, they have the names of Millstream's fields.
const ROWS: [(&str, &str, &str); 3] = [
    ("flume headers", MEMORY, "flume"),
    ("own headers", MEMORY, "own"),
    ("exact, flume headers", EXACT, "flume"),
];

/// Runs the scenario.
pub fn run(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let row = |(name, ..): &(&str, &str, &str)| Row::new(*name, false, vec![Goal::PerCpu(1e6)]);
    let mut rows: Vec<Row> = ROWS.iter().map(row).collect();
    bench.choose(&mut rows);
    let cluster = Cluster::start(&bench.work)?;
    bench.rounds(rows, |row| {
        let found = ROWS.iter().find(|(name, ..)| *name == row.name);
        let run = found.map(|(_, config, headers)| measure(bench, &cluster, config, headers));
        run.transpose()
    })
}

fn measure(bench: &Bench, cluster: &Cluster, config: &str, headers: &str) -> Result<Run, Failure> {
    let conf = cluster.conf.to_string_lossy();
    let settings = [
        ("CLUSTER", &*cluster.url),
        ("CONF", &*conf),
        ("HEADERS", headers),
    ];
    let load = Load {
        protocol: Protocol::Syslog(FORM),
        mode: "",
        connections: 1,
        acks: false,
        single_writes: false,
        send_buffer: SEND_BUFFER,
        tls: false,
    };
    let mut server = Server::start(bench, config, &settings)?.quiet_after(QUIET);
    // `true`: a warm-up sends the load once before the measurement. Without it, the figures would include the time in which
    // Millstream connects to HDFS. During this time, the memory fills up and the sender has to wait.
    let mut run = server::measure(&mut server, bench, &load, true)?;
    run.wrong = run.wrong.or(server.stop());
    let bodies = cluster.take("/bench")?;
    let report = verify::strict(vec![bodies.clone()])?;
    fs::remove_dir_all(&bodies)?;
    let wrong = (!report.right).then(|| report.wrong.join("; "));
    run.wrong = run.wrong.or(wrong);
    Ok(run)
}
