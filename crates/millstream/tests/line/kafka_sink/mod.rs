//! The sink `kafka` against a real broker: kcat and Java's console consumer read its records back. Nothing is lost or duplicated
//! if Millstream or the broker is killed, the broker is cut off or its disk is full, or Millstream wakes up after a copy of it has
//! taken over.

mod cluster;
mod faults;
mod formats;
mod kills;
mod refusals;

use std::{fs, path::Path, process::Command, thread, time::Duration};

use crate::program::{
    victim::{CHAINS, verify},
    wait_until,
};
use millstream_testkit::server::kafka::Broker;

/// The configuration of a receiver of the forward protocol that writes to Kafka exactly once.
fn receiver(directory: &Path, data: &str, port: u16, broker: &str) -> String {
    let place = directory.display();
    format!(
        "data_dir: {place}/{data}\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         {CHAINS}\
         channels:\n  kept: {{ type: disk, inputs: [halves.some, halves.rest], size_max: 1GiB, sync: batch }}\n\
         sinks:\n  bus: {{ type: kafka, inputs: [parts.some, parts.rest], brokers: [\"{broker}\"], topic: \"out.{{tag}}\", format: raw, \
         compression: lz4, key: \"{{tag}}\", position: positions, retry: {{ first: 200ms, max: 1s }} }}\n"
    )
}

/// The topics of the generator's records.
fn topics(broker: &Broker) -> Vec<String> {
    let listed = Command::new("kcat")
        .args(["-L", "-q", "-b", &broker.address()])
        .output()
        .unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let topics = listed.lines().filter_map(|line| {
        let name = line.trim().strip_prefix("topic \"")?.split('"').next()?;
        name.starts_with("out.").then(|| name.to_owned())
    });
    topics.collect()
}

/// Reads the committed records in the generator's topics with kcat, and compares them with the generator's ledger.
fn verify_topics(directory: &Path, broker: &Broker, sent: u64) {
    let out = directory.join("out");
    fs::create_dir_all(&out).unwrap();
    let topics = topics(broker);
    assert!(!topics.is_empty());
    let read = || -> Vec<String> {
        let text = topics
            .iter()
            .map(|topic| broker.read_with_kcat(topic, "%s\n"));
        text.collect()
    };
    // The last records become visible when the transaction of the last checkpoint is committed.
    wait_until("everything is there", || {
        read()
            .iter()
            .map(|text| text.lines().count() as u64)
            .sum::<u64>()
            >= sent
    });
    thread::sleep(Duration::from_secs(2));
    for (topic, text) in topics.iter().zip(read()) {
        fs::write(out.join(format!("{topic}.log")), text).unwrap();
    }
    verify(&out, &directory.join("ledger"));
}
