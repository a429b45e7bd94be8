//! The source `kafka` against a real broker. Records keep their contents, rebalances and kills lose nothing, and fixed
//! partitions with a disk channel also duplicate nothing.

mod cluster;

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::program::{PATIENCE, Program, victim::Random};
use millstream_testkit::server::kafka::Broker;

/// A configuration with a source, a disk channel and a file sink. `home` holds the data and the output.
fn reader(home: &Path, broker: &str, more: &str) -> String {
    into_file(
        home,
        &format!(
            "{{ type: kafka, brokers: [\"{broker}\"], topics: [numbers], group: readers, {more} }}"
        ),
    )
}

fn into_file(home: &Path, source: &str) -> String {
    let place = home.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 1\n\
         sources:\n  in: {source}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n  out: {{ type: file, inputs: [kept], format: raw, path: \"{place}/out.log\" }}\n"
    )
}

/// Sends numbered lines to a topic, with keys that spread them over its partitions.
fn send(broker: &Broker, numbers: std::ops::Range<u64>) {
    let child = Command::new("kcat")
        .args(["-P", "-b", &broker.address(), "-t", "numbers", "-K", "\t"])
        .args(["-X", "enable.idempotence=true"])
        .stdin(Stdio::piped())
        .spawn();
    let mut child = child.unwrap_or_else(|error| panic!("kcat: {error}: run `make deps`"));
    let text: String = numbers.map(|n| format!("k{n}\tnumber {n}\n")).collect();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    assert!(child.wait().unwrap().success());
}

/// The number of times that each number occurs in all outputs together.
fn counts(homes: &[&Path]) -> BTreeMap<u64, u64> {
    let mut counts = BTreeMap::new();
    for home in homes {
        let text = fs::read_to_string(home.join("out.log")).unwrap_or_default();
        // The last line may be incomplete.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in whole.lines() {
            let number = line
                .strip_prefix("number ")
                .unwrap_or_else(|| panic!("{line}"));
            *counts.entry(number.parse().unwrap()).or_default() += 1;
        }
    }
    counts
}

/// Runs the program once more, with an input that has ended, so that it writes everything that the channel holds and exits. This is
/// necessary because a stop leaves records in the channel, and the first start after a kill truncates lines that were not settled.
fn write_all(home: &Path) {
    let last = Program::start_with(home, &into_file(home, "{ type: stdin }"), &["--once"]);
    assert_eq!(last.ended(), Some(0), "{}", log(home));
}

fn log(home: &Path) -> String {
    fs::read_to_string(home.join("log")).unwrap_or_default()
}

fn wait_for(homes: &[&Path], sent: u64) {
    let start = Instant::now();
    while (counts(homes).len() as u64) < sent {
        let found = counts(homes).len();
        assert!(
            start.elapsed() < PATIENCE,
            "only {found} of {sent} have arrived"
        );
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn records_become_fields_beside_their_metadata() {
    let directory = tempfile::tempdir().unwrap();
    let broker = Broker::start(directory.path(), &[]);
    broker.make_topic("orders", 1, &[]);
    let kcat = Command::new("kcat")
        .args([
            "-P",
            "-b",
            &broker.address(),
            "-t",
            "orders",
            "-K",
            "\t",
            "-H",
            "a=1",
        ])
        .stdin(Stdio::piped())
        .spawn();
    let mut kcat = kcat.unwrap();
    let lines =
        b"k1\t{\"n\": 18446744073709551615, \"key\": \"own\"}\nk2\tno json\nk3\t{\"n\": [1, {}]}\n";
    kcat.stdin.take().unwrap().write_all(lines).unwrap();
    assert!(kcat.wait().unwrap().success());
    let place = directory.path().display();
    let config = format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 1\n\
         sources:\n  in: {{ type: kafka, brokers: [\"{}\"], topics: [\"^ord.*\"], group: g, format: json, tag: \"t.{{topic}}\",\n\
         \x20   fields: {{ key: key, offset: o, topic: t, partition: p, headers: h }} }}\n\
         sinks:\n  out: {{ type: file, inputs: [in], path: \"{place}/{{tag}}.{{partition}}.log\", add: {{}} }}\n",
        broker.address()
    );
    // The exit code is 1 because the record that is not JSON was rejected.
    let program = Program::start_with(directory.path(), &config, &["--once"]);
    assert_eq!(
        program.ended(),
        Some(1),
        "{}",
        fs::read_to_string(directory.path().join("log")).unwrap()
    );
    let text = fs::read_to_string(directory.path().join("t.orders.0.log")).unwrap();
    let expected = concat!(
        r#"{"n":18446744073709551615,"key":"own","o":0,"t":"orders","p":0,"h":{"a":"1"}}"#,
        "\n",
        r#"{"n":[1,{}],"key":"k3","o":2,"t":"orders","p":0,"h":{"a":"1"}}"#,
        "\n",
    );
    assert_eq!(text, expected);
    let rejected = fs::read(directory.path().join("data/rejected/in.msgpack")).unwrap();
    assert!(String::from_utf8_lossy(&rejected).contains("no json"));
    // Everything was read and committed: a second run has nothing to do.
    let program = Program::start_with(directory.path(), &config, &["--once"]);
    assert_eq!(program.ended(), Some(0));
    assert_eq!(
        fs::read_to_string(directory.path().join("t.orders.0.log")).unwrap(),
        expected
    );
}

#[test]
fn two_members_lose_nothing_while_they_join_leave_and_are_killed() {
    const RECORDS: u64 = 40_000;
    let directory = tempfile::tempdir().unwrap();
    let mut random = Random::new();
    let broker = Broker::start(directory.path(), &[]);
    broker.make_topic("numbers", 6, &[]);
    let homes = [directory.path().join("a"), directory.path().join("b")];
    let more = "properties: { session.timeout.ms: \"2000\", heartbeat.interval.ms: \"500\" }";
    let start = |home: &Path| {
        fs::create_dir_all(home).unwrap();
        Program::start(home, &reader(home, &broker.address(), more))
    };
    let mut members = [Some(start(&homes[0])), Some(start(&homes[1]))];
    for round in 0..10_u64 {
        let step = RECORDS / 10;
        send(&broker, round * step..(round + 1) * step);
        thread::sleep(Duration::from_millis(500 + random.below(1000)));
        let member = (round % 2) as usize;
        let program = members[member].take().unwrap();
        if round % 3 == 0 {
            assert_eq!(program.stop(), Some(0), "{}", log(&homes[member]));
        } else {
            program.kill();
        }
        thread::sleep(Duration::from_millis(random.below(500)));
        members[member] = Some(start(&homes[member]));
    }
    wait_for(&[&homes[0], &homes[1]], RECORDS);
    for program in members.into_iter().flatten() {
        assert_eq!(
            program.stop(),
            Some(0),
            "{} {}",
            log(&homes[0]),
            log(&homes[1])
        );
    }
    write_all(&homes[0]);
    write_all(&homes[1]);
    let counts = counts(&[&homes[0], &homes[1]]);
    let twice = counts.values().filter(|count| **count > 1).count();
    println!("{} distinct, {twice} more than once", counts.len());
    assert_eq!(
        counts.keys().copied().collect::<Vec<_>>(),
        (0..RECORDS).collect::<Vec<_>>()
    );
}

#[test]
fn fixed_partitions_arrive_exactly_once_while_the_reader_and_the_broker_are_killed() {
    const RECORDS: u64 = 60_000;
    let directory = tempfile::tempdir().unwrap();
    let mut random = Random::new();
    let mut broker = Broker::start(directory.path(), &[]);
    broker.make_topic("numbers", 3, &[]);
    let home = directory.path().join("home");
    fs::create_dir_all(&home).unwrap();
    let config = reader(&home, &broker.address(), "partitions: all");
    let mut program = Program::start(&home, &config);
    for round in 0..20_u64 {
        let step = RECORDS / 20;
        send(&broker, round * step..(round + 1) * step);
        thread::sleep(Duration::from_millis(random.below(700)));
        program.kill();
        if round == 9 {
            broker.kill_and_restart();
        }
        program = Program::start(&home, &config);
        // kcat would exit if its only broker were down.
        broker.wait_ready();
    }
    wait_for(&[&home], RECORDS);
    assert_eq!(program.stop(), Some(0));
    write_all(&home);
    let counts = counts(&[&home]);
    assert_eq!(
        counts.keys().copied().collect::<Vec<_>>(),
        (0..RECORDS).collect::<Vec<_>>()
    );
    let twice: Vec<_> = counts.iter().filter(|(_, count)| **count > 1).collect();
    assert!(
        twice.is_empty(),
        "{} arrived more than once, such as {:?}",
        twice.len(),
        twice.first()
    );
}
