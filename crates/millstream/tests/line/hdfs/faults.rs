//! A cluster behind a network that is cut, and one whose disk is full. Needs root.

use std::{thread::sleep, time::Duration};

use millstream_testkit::server::{hdfs::Hdfs, network::Network};

use super::{AVRO, config, forward, log, publish_all, quick, start, verify_avro};
use crate::program::{
    cuts::cut_now_and_then,
    disk::Small,
    free_port,
    victim::{Generator, generate},
    wait_until,
};

#[test]
fn a_network_that_is_cut_while_files_are_written_loses_and_duplicates_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let network = Network::new();
    let cluster = Hdfs::start_in(&directory.join("cluster"), &network);
    let port = free_port();
    let sink = quick(&cluster, AVRO);
    let program = start(directory, &config(directory, &forward(port), &sink)).listens(port);
    let generator = Generator::start(&generate(directory, port, "400000", "12000"));
    cut_now_and_then(&network, &cluster.name_node);
    generator.finish();
    cluster.wait_writable();
    assert_eq!(program.stop(), Some(0), "{}", log(directory));
    publish_all(directory, &sink, &[]);
    assert!(
        log(directory).contains("no answer within"),
        "{}",
        log(directory)
    );
    verify_avro(&cluster, directory);
}

#[test]
fn a_full_disk_at_the_data_node_loses_and_duplicates_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let small = Small::mount(directory.join("cluster/data"), "48m");
    let cluster = Hdfs::start(&directory.join("cluster"));
    let port = free_port();
    let sink = quick(&cluster, "format: avro_event");
    let program = start(directory, &config(directory, &forward(port), &sink)).listens(port);
    let generator = Generator::start(&generate(directory, port, "600000", "100000"));
    // The channel is on another disk: it accepts everything meanwhile.
    generator.finish();
    wait_until("no block fits on the data node", || {
        log(directory).contains("could only be written to 0 of the 1 minReplication nodes")
    });
    // It stays full while the sink retries.
    sleep(Duration::from_secs(5));
    small.grow("1g");
    assert_eq!(program.stop(), Some(0), "{}", log(directory));
    publish_all(directory, &sink, &[]);
    verify_avro(&cluster, directory);
}
