//! A server whose disk is full, and one behind a network that is cut. Needs root.

use millstream_testkit::server::{
    network::Network,
    versitygw::{Setup, Versitygw},
};

use super::{SINKS, Sink, config, forward, objects, publish_all, verify_all};
use crate::program::{
    Program,
    cuts::cut_now_and_then,
    disk::Small,
    free_port,
    victim::{Generator, generate},
    wait_until,
};

/// Small objects, and objects that are uploaded in several parts.
const BOTH: [Sink; 2] = [
    SINKS[0],
    (
        "large",
        "{tag}",
        "format: raw, part: 5MiB, rotate: { size: 12MiB, interval: 3s }",
    ),
];

/// The answer of a server whose disk is full.
const FULL: &str = "507 Insufficient Storage";
/// The number of log lines that report a failed operation on the bucket for the reason `why`.
fn complaints(program: &Program, why: &str) -> usize {
    let log = program.log();
    let told = |line: &&str| {
        ["s3://lake/", ": cannot ", why]
            .iter()
            .all(|part| line.contains(part))
    };
    log.lines().filter(told).count()
}

#[test]
fn a_full_disk_at_the_server_loses_nothing_and_publishing_resumes_when_there_is_space() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    // The disk has space for only some of the objects.
    let small = Small::mount(place.join("objects"), "16m");
    let server = Versitygw::start(place, "lake");
    let (port, data) = (free_port(), place.join("data"));
    let config = config(&data, &forward(port), &server.endpoint(), &BOTH);
    let program = Program::start(place, &config).listens(port);
    let generator = Generator::start(&generate(place, port, "300000", "100000"));
    wait_until("the log names the bucket that accepts nothing", || {
        complaints(&program, FULL) > 0
    });
    // The channel is on another disk: it accepts everything while nothing can be published.
    generator.finish();
    let told = complaints(&program, FULL);
    program.kill();
    let program = Program::start(place, &config).listens(port);
    wait_until("the next run names the bucket, too", || {
        complaints(&program, FULL) > told
    });
    let large = server.bucket("lake").join("large");
    let published = objects(&large).len();
    small.grow("1g");
    wait_until("publishing continues", || objects(&large).len() > published);
    let log = program.log();
    assert_eq!(program.stop(), Some(0), "{log}");
    publish_all(place, &data, &server, &BOTH);
    verify_all(place, &server, &BOTH);
}

#[test]
fn a_network_that_is_cut_while_objects_are_uploaded_loses_and_repeats_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let network = Network::new();
    let setup = Setup {
        network: Some(&network),
        ..Setup::default()
    };
    let server = Versitygw::start_with(place, "lake", &setup);
    let (port, data) = (free_port(), place.join("data"));
    let config = config(&data, &forward(port), &server.endpoint(), &BOTH);
    let program = Program::start(place, &config).listens(port);
    let generator = Generator::start(&generate(place, port, "600000", "14000"));
    cut_now_and_then(&network, &server.server);
    generator.finish();
    let log = program.log();
    // The kernel reports a cut connection, or the request ends after a time without an answer.
    let cuts = ["error sending request", "no response within"].map(|cut| complaints(&program, cut));
    assert!(cuts.iter().sum::<usize>() > 0, "{log}");
    assert_eq!(program.stop(), Some(0), "{log}");
    publish_all(place, &data, &server, &BOTH);
    verify_all(place, &server, &BOTH);
}
