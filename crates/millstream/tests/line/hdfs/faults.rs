//! A cluster behind a network that is cut, one whose disk is full, and one that has another file with the name of an output. Needs
//! root.

use std::{io::Write, net::TcpStream, thread::sleep, time::Duration};

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
    // The channel is on another disk, so it accepts all records while the sink cannot write.
    generator.finish();
    wait_until("no block fits on the data node", || {
        log(directory).contains("could only be written to 0 of the 1 minReplication nodes")
    });
    // The disk stays full for a while, and the sink retries.
    sleep(Duration::from_secs(5));
    small.grow("1g");
    assert_eq!(program.stop(), Some(0), "{}", log(directory));
    publish_all(directory, &sink, &[]);
    verify_avro(&cluster, directory);
}

#[test]
fn a_file_with_the_name_of_an_output_stays_and_the_output_is_published_when_it_is_moved_away() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let cluster = Hdfs::start(&directory.join("cluster"));
    let port = free_port();
    let sink = quick(&cluster, "format: raw");
    let listen = format!("{{ type: syslog, listen: \"tcp://127.0.0.1:{port}\" }}");
    let program = start(directory, &config(directory, &listen, &sink)).listens(port);
    let send = |text: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        writeln!(stream, "<13>1 2026-11-21T06:40:31.5Z web app 7 - - {text}").unwrap();
    };
    let published = || {
        let files = cluster.files("/logs");
        let mut files = files.into_iter();
        files.find(|path| !path.contains("/_millstream/"))
    };
    send("first");
    let mut first = None;
    wait_until("the first file is published", || {
        first = published();
        first.is_some()
    });
    // The names contain positions of the channel, so the name of the next file is predictable.
    let first = first.unwrap();
    let next = first.replace("-0000000001-", "-0000000002-");
    let other = directory.join("other");
    std::fs::write(&other, "other\n").unwrap();
    cluster.shell(&["-put", &other.display().to_string(), &next]);
    send("second");
    wait_until("the sink reports the name", || {
        log(directory).contains(&format!(
            "cannot publish {next}: another file has this name"
        ))
    });
    assert_eq!(cluster.shell(&["-cat", &next]), "other\n");
    cluster.shell(&["-mv", &next, "/moved"]);
    wait_until("the second file is published", || {
        cluster.files("/logs").contains(&next)
    });
    assert_eq!(cluster.shell(&["-cat", &next]), "second\n");
    assert_eq!(cluster.shell(&["-cat", &first]), "first\n");
    assert_eq!(cluster.shell(&["-cat", "/moved"]), "other\n");
    assert_eq!(program.stop(), Some(0), "{}", log(directory));
}
