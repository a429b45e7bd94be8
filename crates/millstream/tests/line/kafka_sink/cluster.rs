//! Clusters whose brokers are killed and restarted one after the other, and one with ZooKeeper.

use std::{path::Path, thread::sleep, time::Duration};

use millstream_testkit::server::kafka::Cluster;

use super::{topics, verify_topics};
use crate::program::{
    Program, free_port,
    victim::{Generator, Random, generate, in_storm},
    wait_until,
};

/// The number of records per second.
const RATE: u64 = 1000;

/// A configuration with a templated topic and without the option `position`: the sink creates the
/// topic of its position, `_millstream`.
fn receiver(directory: &Path, port: u16, brokers: &[String]) -> String {
    let place = directory.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 1\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB, sync: batch }}\n\
         sinks:\n  bus: {{ type: kafka, inputs: [kept], brokers: {brokers:?}, topic: \"out.{{tag}}\", \
         format: raw, compression: lz4, key: \"{{tag}}\", retry: {{ first: 200ms, max: 1s }} }}\n"
    )
}

fn start_generator(directory: &Path, port: u16, records: u64) -> Generator {
    let (records, rate) = (records.to_string(), RATE.to_string());
    Generator::start(&generate(directory, port, &records, &rate))
}

/// Waits for up to `milliseconds` and a second more.
fn rest(milliseconds: u64, random: &mut Random) {
    sleep(Duration::from_millis(milliseconds + random.below(1000)));
}

#[test]
fn nothing_is_lost_or_duplicated_while_the_brokers_of_a_cluster_are_killed_and_restarted() {
    let rounds = in_storm(3, 15);
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let mut random = Random::new();
    let mut cluster = Cluster::start(place);
    // The first bootstrap broker does not exist.
    let mut brokers = cluster.addresses();
    brokers.insert(0, format!("127.0.0.1:{}", free_port()));
    let port = free_port();
    let config = receiver(place, port, &brokers);
    let mut program = Program::start(place, &config).listens(port);
    // A round takes at least 15 s.
    let records = rounds * 15 * RATE;
    let generator = start_generator(place, port, records);
    wait_until("there are topics", || !topics(cluster.broker(0)).is_empty());
    for round in 0..rounds {
        let victim = match round % 3 {
            0 => cluster.controller(),
            1 => cluster.coordinator(),
            _ => usize::try_from(random.below(3)).unwrap(),
        };
        let broker = cluster.broker(victim);
        match round % 3 {
            2 => broker.server().stop(),
            _ => broker.server().kill(),
        }
        // Others take over its roles. Sometimes Millstream is killed before that.
        rest(0, &mut random);
        program.kill();
        program = Program::start(place, &config).listens(port);
        rest(3000, &mut random);
        broker.server().restart();
        broker.wait_ready();
        // A broker that is killed before the last one has caught up would leave partitions without
        // enough replicas.
        rest(3000, &mut random);
    }
    generator.finish();
    verify_topics(place, cluster.broker(0), records);
    assert_eq!(program.stop(), Some(0));
}

/// Only the controller of a cluster with ZooKeeper creates topics, and it is not the broker that
/// the sink knows.
#[test]
fn a_cluster_with_zookeeper_gets_every_record_once() {
    let rounds = in_storm(1, 6);
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let mut random = Random::new();
    let mut cluster = Cluster::start_with_zookeeper(place);
    let controller = cluster.controller();
    let other = cluster.addresses().swap_remove(1 - controller);
    let port = free_port();
    let program = Program::start(place, &receiver(place, port, &[other])).listens(port);
    let records = (rounds + 1) * 15 * RATE;
    let generator = start_generator(place, port, records);
    wait_until("there are topics", || !topics(cluster.broker(0)).is_empty());
    rest(2000, &mut random);
    for _ in 0..rounds {
        // The other broker becomes the controller.
        let controller = cluster.controller();
        let broker = cluster.broker(controller);
        broker.server().kill();
        rest(5000, &mut random);
        broker.server().restart();
        broker.wait_ready();
        rest(3000, &mut random);
    }
    generator.finish();
    verify_topics(place, cluster.broker(0), records);
    assert_eq!(program.stop(), Some(0));
}
