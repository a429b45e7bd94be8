//! A broker whose disk is full, and one that stands still or is cut off. Needs root.

use std::{thread::sleep, time::Duration};

use millstream_testkit::server::{
    kafka::{Broker, Listeners},
    network::Network,
};

use crate::{
    program::{
        Program,
        disk::Small,
        free_port,
        victim::{Generator, Random, generate},
        wait_until,
    },
    receiver, verify_topics,
};

/// How often the network is cut, for how long at most, and how long it is whole at most.
const CUTS: u64 = 10;
const CUT_MS_MAX: u64 = 4000;
const WHOLE_MS_MAX: u64 = 3000;

#[test]
fn a_broker_that_is_cut_off_or_stands_still_loses_and_doubles_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
    let network = Network::new();
    let with = Listeners {
        network: Some(&network),
        ..Listeners::default()
    };
    let mut broker = Broker::start_with(place, with, &[]);
    broker.make_topic("positions", 1, &[]);
    let port = free_port();
    let config = receiver(place, "data", port, &broker.address());
    let mut random = Random::new();
    let program = Program::start(place, &config).listens(port);
    let generator = Generator::start(&generate(place, port, "400000", "10000"));
    for cut in 0..CUTS {
        sleep(Duration::from_millis(random.below(WHOLE_MS_MAX)));
        if cut % 2 == 0 {
            // What is under way now has reached the broker, which takes it; its answer reaches nobody.
            broker.server().signal("STOP");
            sleep(Duration::from_millis(300));
        }
        match cut {
            // Nothing is cut: it only stands still.
            8 => {}
            _ => network.cut(),
        }
        if cut != 8 {
            broker.server().signal("CONT");
        }
        match cut {
            // Longer than a transaction may take.
            4 | 8 => sleep(Duration::from_secs(12)),
            _ => sleep(Duration::from_millis(random.below(CUT_MS_MAX))),
        }
        broker.server().signal("CONT");
        network.heal();
    }
    generator.finish();
    verify_topics(place, &broker, 400_000);
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn a_full_disk_at_the_broker_loses_and_doubles_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
    let small = Small::mount(place.join("kafka"), "32m");
    let mut broker = Broker::start(place, &[]);
    broker.make_topic("positions", 1, &[]);
    let port = free_port();
    let config = receiver(place, "data", port, &broker.address());
    let config = config.replace("compression: lz4", "compression: none");
    let program = Program::start(place, &config).listens(port);
    let generator = Generator::start(&generate(place, port, "600000", "100000"));
    // A broker whose only disk is full ends.
    wait_until("the broker gives up", || broker.server().has_ended());
    // The channel stands on another disk: all of it is accepted meanwhile.
    generator.finish();
    small.grow("1g");
    broker.server().kill();
    broker.server().restart();
    broker.wait_ready();
    verify_topics(place, &broker, 600_000);
    assert_eq!(program.stop(), Some(0));
}
