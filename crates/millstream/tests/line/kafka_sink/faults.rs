//! A broker whose disk is full, and one that is stopped or cut off. Needs root.

use std::{thread::sleep, time::Duration};

use millstream_testkit::server::{
    kafka::{Broker, Listeners},
    network::Network,
};

use super::{receiver, verify_topics};
use crate::program::{
    Program,
    cuts::cut_now_and_then,
    disk::Small,
    free_port,
    victim::{Generator, generate},
    wait_until,
};

#[test]
fn a_broker_that_is_cut_off_or_stopped_loses_and_duplicates_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let network = Network::new();
    let with = Listeners {
        network: Some(&network),
        ..Listeners::default()
    };
    let mut broker = Broker::start_with(place, with, &[]);
    broker.make_topic("positions", 1, &[]);
    let port = free_port();
    let config = receiver(place, "data", port, &broker.address());
    let program = Program::start(place, &config).listens(port);
    let generator = Generator::start(&generate(place, port, "400000", "10000"));
    cut_now_and_then(&network, broker.server());
    // Then the network is intact, but the broker is stopped for longer than the transaction timeout.
    broker.server().signal("STOP");
    sleep(Duration::from_secs(12));
    broker.server().signal("CONT");
    generator.finish();
    verify_topics(place, &broker, 400_000);
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn a_full_disk_at_the_broker_loses_and_duplicates_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let small = Small::mount(place.join("kafka"), "32m");
    let mut broker = Broker::start(place, &[]);
    broker.make_topic("positions", 1, &[]);
    let port = free_port();
    let config = receiver(place, "data", port, &broker.address());
    let config = config.replace("compression: lz4", "compression: none");
    let program = Program::start(place, &config).listens(port);
    let generator = Generator::start(&generate(place, port, "600000", "100000"));
    // A broker whose only disk is full exits.
    wait_until("the broker exits", || broker.server().has_ended());
    // The channel is on another disk, so it accepts all records while the broker is down.
    generator.finish();
    small.grow("1g");
    broker.server().kill();
    broker.server().restart();
    broker.wait_ready();
    verify_topics(place, &broker, 600_000);
    assert_eq!(program.stop(), Some(0));
}
