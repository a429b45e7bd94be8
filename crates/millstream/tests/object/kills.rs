//! Millstream and the server are killed and stopped at random moments; a copy of the data_dir goes on beside the first one.

use std::{fs, process::Command, thread::sleep, time::Duration};

use millstream_testkit::server::versitygw::Versitygw;

use crate::{
    SINKS, config, forward, objects,
    program::{
        Program, free_port,
        victim::{Generator, Random, generate},
        wait_until,
    },
    publish_all, verify_all,
};

/// How often the program is killed, and the server.
const KILLS: u64 = 50;
const RESTARTS: u64 = 20;
/// The longest pause between two kills.
const PAUSE_MS_MAX: u64 = 600;

#[test]
fn every_record_is_published_once_when_the_program_and_the_server_are_killed() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
    let mut server = Versitygw::start(place, "lake");
    let mut random = Random::new();
    let port = free_port();
    let data = place.join("data");
    let config = config(&data, &forward(port), &server.endpoint(), &SINKS);
    // A store that is away does not stop a start.
    server.server.kill();
    let mut program = Program::start(place, &config).listens(port);
    let generator = Generator::start(&generate(place, port, "250000", "14000"));
    sleep(Duration::from_millis(500));
    server.server.restart();
    for kill in 0..KILLS {
        sleep(Duration::from_millis(random.below(PAUSE_MS_MAX)));
        if kill * RESTARTS / KILLS < (kill + 1) * RESTARTS / KILLS {
            server.server.kill();
            sleep(Duration::from_millis(random.below(200)));
            server.server.restart();
        }
        if kill == KILLS / 2 {
            // It takes connections and answers nothing, for longer than anybody waits.
            server.server.signal("STOP");
            sleep(Duration::from_secs(6));
            server.server.signal("CONT");
        }
        program.kill();
        program = Program::start(place, &config).listens(port);
    }
    server.server.wait_ready();
    generator.finish();
    program.kill();
    publish_all(place, &data, &server, &SINKS);
    verify_all(place, &server, &SINKS);
}

/// The program is stopped, its data_dir copied, and the copy goes on; then the first one wakes up.
#[test]
fn a_writer_that_wakes_up_past_its_successor_publishes_nothing_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
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
    wait_until("something is published", || {
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
