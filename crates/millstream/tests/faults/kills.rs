//! No loss and no duplicates: the generator, the receiver and the relay between them are killed at random moments while records
//! flow. Then the generator's verifier asserts that every record has arrived once.

use std::{path::Path, thread::sleep, time::Duration};

use crate::program::{
    free_port,
    victim::{Generator, Random, Victim, generate, in_storm, settle, storm, verify},
};

/// The longest pause between two kills.
const PAUSE_MS_MAX: u64 = 500;

fn receiver(directory: &Path, port: u16) -> String {
    let place = directory.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n  out: {{ type: file, inputs: [kept], format: raw, path: \"{place}/out/{{tag}}.log\" }}\n"
    )
}

fn relay(directory: &Path, port: u16, next: u16) -> String {
    let place = directory.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 1\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n  next: {{ type: forward, inputs: [kept], servers: [\"127.0.0.1:{next}\"], peer: millstream }}\n"
    )
}

#[test]
fn nothing_is_lost_or_doubled_when_sender_receiver_or_both_are_killed() {
    let (records, kills) = (in_storm(1_200_000, 5_000_000), in_storm(54, 300));
    storm(receiver, records, "40000", kills);
}

#[test]
fn nothing_is_lost_or_doubled_from_one_millstream_to_the_next_when_either_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let mut random = Random::new();
    let (port, next) = (free_port(), free_port());
    let mut last = Victim::start(
        directory.path().to_owned(),
        next,
        receiver(directory.path(), next),
    );
    let first = directory.path().join("relay");
    let mut first = Victim::start(first.clone(), port, relay(&first, port, next));
    let records = in_storm(600_000, 3_000_000).to_string();
    let generator = Generator::start(&generate(directory.path(), port, &records, "30000"));
    for kill in 0..in_storm(27, 200) {
        sleep(Duration::from_millis(random.below(PAUSE_MS_MAX)));
        let victim = if kill % 2 == 0 { &mut first } else { &mut last };
        victim.kill_and_restart(&mut random);
    }
    generator.finish();
    settle(&directory.path().join("out"));
    first.stop();
    last.stop();
    verify(
        &directory.path().join("out"),
        &directory.path().join("ledger"),
    );
}
