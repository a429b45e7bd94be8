//! Three brokers: the sink writes to a topic and the source reads it back, while brokers are killed
//! and restarted one after the other.

use std::{fs, io::Write as _, path::Path, thread, time::Duration};

use millstream_testkit::server::{free_port, kafka::Cluster};

use super::{Program, counts, log, wait_for, write_all};
use crate::program::victim::in_storm;

/// A writer with a templated topic, so that its position is in `_millstream`. It reads numbers from
/// a file.
fn writer(home: &Path, brokers: &[String]) -> String {
    let place = home.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 1\n\
         sources:\n  in: {{ type: tail, paths: [\"{place}/numbers\"], start: beginning, tag: numbers }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n  bus: {{ type: kafka, inputs: [kept], brokers: {brokers:?}, topic: \"{{tag}}\", format: raw, \
         key: \"{{.message}}\", batch: {{ linger: 5ms }}, retry: {{ first: 100ms, max: 1s }} }}\n"
    )
}

/// A reader. `more`: more options of the source.
fn reader(home: &Path, brokers: &[String], more: &str) -> String {
    let place = home.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 1\n\
         sources:\n  in: {{ type: kafka, brokers: {brokers:?}, topics: [numbers], {more} }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n  out: {{ type: file, inputs: [kept], format: raw, path: \"{place}/out.log\" }}\n"
    )
}

#[test]
fn nothing_is_lost_or_duplicated_while_the_brokers_of_a_cluster_are_killed_and_restarted() {
    const STEP: u64 = 3000;
    let rounds = in_storm(3, 12);
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(directory.path());
    cluster.broker(0).make_topic("numbers", 6, &[]);
    // The first bootstrap broker does not exist.
    let mut brokers = cluster.addresses();
    brokers.insert(0, format!("127.0.0.1:{}", free_port()));
    let homes = ["writer", "fixed", "group"].map(|name| directory.path().join(name));
    let [from, fixed, group] = &homes;
    for home in &homes {
        fs::create_dir_all(home).unwrap();
    }
    let mut numbers = fs::File::create(from.join("numbers")).unwrap();
    let writer = Program::start(from, &writer(from, &brokers));
    let fixed_reader = reader(fixed, &brokers, "group: fixed, partitions: all");
    let group_reader = reader(group, &brokers, "group: members");
    let readers = [
        Program::start(fixed, &fixed_reader),
        Program::start(group, &group_reader),
    ];
    let mut sent = 0;
    let mut send = || {
        let text: String = (sent..sent + STEP)
            .map(|n| format!("number {n}\n"))
            .collect();
        numbers.write_all(text.as_bytes()).unwrap();
        sent += STEP;
        sent
    };
    wait_for(&[fixed], send());
    for round in 0..rounds {
        let broker = cluster.broker(usize::try_from(round % 3).unwrap());
        send();
        if round % 2 == 0 {
            broker.server().kill();
        } else {
            broker.server().stop();
        }
        // The others elect leaders, and go on without it.
        wait_for(&[fixed], send());
        broker.server().restart();
        send();
        broker.wait_ready();
        thread::sleep(Duration::from_secs(2));
    }
    let sent = send();
    wait_for(&[fixed], sent);
    wait_for(&[group], sent);
    assert_eq!(writer.stop(), Some(0), "{}", log(from));
    for reader in readers {
        assert_eq!(reader.stop(), Some(0));
    }
    verify(fixed, group, sent);
}

/// Checks that both readers have everything, the one with fixed partitions once, and that neither
/// had to begin again.
fn verify(fixed: &Path, group: &Path, sent: u64) {
    for home in [fixed, group] {
        write_all(home);
        // A connection that fails is no reason to begin again. This is what the supervisor would
        // say.
        let log = log(home);
        let begun_again = |line: &str| line.contains("retrying in") && line.ends_with(" ms");
        assert!(!log.lines().any(begun_again), "{log}");
    }
    let all: Vec<u64> = (0..sent).collect();
    assert_eq!(counts(&[group]).into_keys().collect::<Vec<_>>(), all);
    let counts = counts(&[fixed]);
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), all);
    let twice: Vec<_> = counts.iter().filter(|(_, count)| **count > 1).collect();
    assert!(
        twice.is_empty(),
        "{} twice, such as {:?}",
        twice.len(),
        twice.first()
    );
}
