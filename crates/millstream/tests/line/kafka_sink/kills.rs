//! Kills of Millstream and the broker, and a zombie: a stopped Millstream that wakes up after a copy of it has taken over.

use std::{
    fs,
    io::Write,
    net::TcpStream,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use millstream_testkit::server::kafka::Broker;

use super::{receiver, topics, verify_topics};
use crate::program::{
    Program, free_port,
    victim::{Generator, Random, generate, in_storm},
    wait_until,
};

/// The numbers of kills of Millstream and of the broker. With `STORM=full` they take about 3 minutes.
fn rounds() -> (u64, u64) {
    (in_storm(18, 50), in_storm(7, 20))
}

#[test]
fn nothing_is_lost_or_duplicated_while_millstream_and_the_broker_are_killed() {
    const RATE: u64 = 5000;
    let (kills, restarts) = rounds();
    // A restart of the broker takes about 9 s. With this number of records, the generator sends until the last kill.
    let records = restarts * 9 * RATE;
    let directory = tempfile::tempdir().unwrap();
    let mut random = Random::new();
    let mut broker = Broker::start(directory.path(), &[]);
    broker.make_topic("positions", 1, &[]);
    let address = broker.address();
    let port = free_port();
    let config = receiver(directory.path(), "data", port, &address);
    // A broker that is down does not prevent a start.
    broker.server().kill();
    let mut program = Program::start(directory.path(), &config).listens(port);
    broker.server().restart();
    let (number, rate) = (records.to_string(), RATE.to_string());
    let generator = Generator::start(&generate(directory.path(), port, &number, &rate));
    let mut killed = 0;
    for round in 1..=restarts {
        match random.below(3) {
            0 => broker.server().stop(),
            _ => broker.server().kill(),
        }
        broker.server().restart();
        // Some kills happen while the broker is still down, some while it starts, and some while it works.
        while killed * restarts < kills * round {
            thread::sleep(Duration::from_millis(300 + random.below(1200)));
            program.kill();
            program = Program::start(directory.path(), &config).listens(port);
            killed += 1;
        }
        // Some transactions must complete between two kills of the broker.
        broker.wait_ready();
        thread::sleep(Duration::from_millis(1000 + random.below(1500)));
    }
    println!("{killed} kills, {restarts} restarts of the broker");
    generator.finish();
    verify_topics(directory.path(), &broker, records);
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn a_zombie_that_wakes_up_after_its_successor_took_over_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let broker = Broker::start(directory.path(), &[]);
    broker.make_topic("positions", 1, &[]);
    let address = broker.address();
    let port = free_port();
    let config = receiver(directory.path(), "data", port, &address);
    let zombie = Program::start(directory.path(), &config).listens(port);
    let generator = Generator::start(&generate(directory.path(), port, "150000", "15000"));
    wait_until("some records are committed", || {
        topics(&broker)
            .iter()
            .any(|topic| !broker.read_with_kcat(topic, "%o\n").is_empty())
    });
    thread::sleep(Duration::from_millis(1500));
    zombie.signal("STOP");
    // The successor has the same disk contents, like a moved volume or a restored snapshot.
    let copied = Command::new("cp")
        .args(["-r", "data", "heir"])
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .status();
    assert!(copied.unwrap().success());
    let heir_port = free_port();
    let home = directory.path().join("home");
    fs::create_dir_all(&home).unwrap();
    let heir_config = receiver(directory.path(), "heir", heir_port, &address);
    let heir = Program::start(&home, &heir_config).listens(heir_port);
    let generator = generator.turn_to(heir_port);
    generator.finish();
    thread::sleep(Duration::from_secs(2));
    zombie.signal("CONT");
    // The zombie learns of its successor only when it writes. It may have nothing left to write, so send it a record.
    let late = b"\x93\xa4late\xce\x65\x00\x00\x00\x81\xa7message\xa4late";
    let mut sender = TcpStream::connect(("127.0.0.1", port)).unwrap();
    sender.write_all(late).unwrap();
    wait_until("the zombie notices its successor", || {
        zombie.log().contains("has taken over")
    });
    assert_eq!(zombie.ended(), Some(1));
    // The zombie has not published the late record. The record would be in a separate topic. This topic may exist, because asking the
    // broker for a topic creates it.
    if topics(&broker).contains(&"out.late".to_owned()) {
        assert_eq!(broker.read_with_kcat("out.late", "%s\n"), "");
    }
    verify_topics(directory.path(), &broker, 150_000);
    assert_eq!(heir.stop(), Some(0));
}
