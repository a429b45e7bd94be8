//! Millstream and the server are killed and stopped at random moments. An instance on a copy of the data_dir takes over.

use std::{fs, process::Command, thread::sleep, time::Duration};

use millstream_testkit::server::versitygw::Versitygw;

use super::{EVENTS, SINKS, Sink, config, forward, objects, publish_all, verify_all};
use crate::program::{
    Program, free_port,
    victim::{Generator, Random, generate, kill_at_start},
    wait_until,
};

/// The numbers of kills of the program and of restarts of the server, the longest pause before a kill, and the number of records.
struct Storm {
    kills: u64,
    restarts: u64,
    pause_ms_max: u64,
    records: &'static str,
}

fn storm(sinks: &[Sink], storm: &Storm) {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let mut server = Versitygw::start(place, "lake");
    let mut random = Random::new();
    let port = free_port();
    let data = place.join("data");
    let config = config(&data, &forward(port), &server.endpoint(), sinks);
    // A store that is down does not prevent a start.
    server.server.kill();
    let mut program = Program::start(place, &config).listens(port);
    let generator = Generator::start(&generate(place, port, storm.records, "14000"));
    sleep(Duration::from_millis(500));
    server.server.restart();
    let (kills, restarts) = (storm.kills, storm.restarts);
    for kill in 0..kills {
        sleep(Duration::from_millis(random.below(storm.pause_ms_max)));
        if kill * restarts / kills < (kill + 1) * restarts / kills {
            server.server.kill();
            sleep(Duration::from_millis(random.below(200)));
            server.server.restart();
        }
        if kill == kills / 2 {
            // The stopped server accepts connections and answers nothing, for longer than the request timeout.
            server.server.signal("STOP");
            sleep(Duration::from_secs(6));
            server.server.signal("CONT");
        }
        program.kill();
        kill_at_start(place, &config, &mut random);
        program = Program::start(place, &config).listens(port);
    }
    server.server.wait_ready();
    generator.finish();
    program.kill();
    publish_all(place, &data, &server, sinks);
    verify_all(place, &server, sinks);
}

#[test]
fn every_record_is_published_once_when_the_program_and_the_server_are_killed() {
    let often = Storm {
        kills: 50,
        restarts: 20,
        pause_ms_max: 600,
        records: "250000",
    };
    storm(&SINKS, &often);
}

#[test]
fn every_avro_and_parquet_record_is_published_once_when_the_program_and_the_server_are_killed() {
    // With these pauses, some kills hit a program that is publishing.
    let few = Storm {
        kills: 10,
        restarts: 4,
        pause_ms_max: 2000,
        records: "250000",
    };
    storm(&EVENTS, &few);
}

/// The program is stopped with SIGSTOP, a copy of its data_dir takes over, and then the original wakes up.
#[test]
fn a_writer_that_wakes_up_after_its_successor_took_over_publishes_nothing_and_reports_it() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let server = Versitygw::start(place, "lake");
    let (old, new) = (place.join("old"), place.join("new"));
    fs::create_dir_all(&old).unwrap();
    fs::create_dir_all(&new).unwrap();
    let port = free_port();
    let input = forward(port);
    let zombie = Program::start(
        &old,
        &config(&old.join("data"), &input, &server.endpoint(), &SINKS),
    );
    let zombie = zombie.listens(port);
    let generator = Generator::start(&generate(place, port, "150000", "20000"));
    wait_until("an object is published", || {
        objects(&server.bucket("lake")).len() > 4
    });
    zombie.signal("STOP");
    let copied = Command::new("cp")
        .arg("-a")
        .args([old.join("data"), new.join("data")])
        .status();
    assert!(copied.unwrap().success());
    let port = free_port();
    let data = new.join("data");
    let config = config(&data, &forward(port), &server.endpoint(), &SINKS);
    let successor = Program::start(&new, &config).listens(port);
    let generator = generator.turn_to(port);
    sleep(Duration::from_secs(2));
    zombie.signal("CONT");
    let log = zombie.log();
    let ended = zombie.ended();
    let told = fs::read_to_string(old.join("log")).unwrap();
    assert_eq!(ended, Some(1), "{log}");
    assert!(told.contains("was taken by another writer"), "{told}");
    generator.finish();
    let log = successor.log();
    assert_eq!(successor.stop(), Some(0), "{log}");
    publish_all(&new, &data, &server, &SINKS);
    verify_all(place, &server, &SINKS);
}
