use std::{sync::Arc, time::Duration};

use millstream_kafka::{
    Incoming, Partition, Polled,
    fake::{Broker, Kept},
};
use millstream_pipeline::node::Source;
use millstream_record::{Batch, Origin, Time};
use millstream_testkit::{block_on, contract::SourceCase};

use super::{
    COMPONENT, Kafka, decode,
    options::{Fields, Format},
};
use crate::rig::{self, Downstream, Running};

fn put(broker: &Broker, topic: &str, values: &[&str]) {
    for value in values {
        broker.put(Kept {
            topic: topic.to_owned(),
            key: None,
            value: value.as_bytes().to_vec(),
            timestamp: 1_700_000_000_123,
            headers: Vec::new(),
        });
    }
}

/// A source with these options (JSON without the braces), connected to a broker in memory.
fn start(broker: &Broker, options: &str, downstream: &Downstream, once: bool) -> Running {
    let directory = tempfile::tempdir().unwrap();
    let options = format!(r#"{{"brokers": "b:1", "group": "g", {options}}}"#);
    let node = rig::node(serde_json::from_str(&options).unwrap());
    let source = Kafka::new(&node, Arc::new(broker.clone())).unwrap();
    Running::of(Box::new(source), downstream, directory.path(), once)
}

fn run_once(broker: &Broker, options: &str, downstream: &Downstream) {
    start(broker, options, downstream, true).ended().unwrap();
}

/// The field `message` of all records, in order.
fn messages(batches: &[Batch]) -> Vec<String> {
    let mut all = Vec::new();
    for batch in batches {
        for (_, event) in millstream_wire::record::records(batch) {
            let path = millstream_wire::record::FieldPath::top("message");
            let text = path.find(event.record).unwrap().text().unwrap().to_vec();
            all.push(String::from_utf8(text).unwrap());
            assert_eq!(event.time, Time(1_700_000_000_123_000_000));
        }
    }
    all
}

fn partition(topic: &str) -> Partition {
    Partition {
        topic: topic.to_owned(),
        number: 0,
    }
}

#[test]
fn all_topics_of_a_group_are_read_and_committed_once_they_are_settled() {
    let broker = Broker::default();
    put(&broker, "a", &["1", "2", "3"]);
    put(&broker, "b", &["4"]);
    put(&broker, "c", &["5"]);
    let downstream = Downstream::memory();
    run_once(&broker, r#""topics": ["a", "^b.*"]"#, &downstream);
    let mut got = messages(&downstream.batches());
    got.sort();
    assert_eq!(got, ["1", "2", "3", "4"]);
    let commits = broker.commits();
    assert_eq!(
        commits
            .iter()
            .rfind(|(of, _)| *of == partition("a"))
            .unwrap()
            .1,
        3
    );
    // The next run continues at the committed offset.
    put(&broker, "a", &["6"]);
    let downstream = Downstream::memory();
    run_once(&broker, r#""topics": ["a"]"#, &downstream);
    assert_eq!(messages(&downstream.batches()), ["6"]);
}

/// Counts the consumers.
struct Counted(Broker, Arc<std::sync::atomic::AtomicUsize>);

impl millstream_kafka::Connect for Counted {
    fn producer(
        &self,
        options: millstream_kafka::ProducerOptions,
    ) -> Result<Box<dyn millstream_kafka::Producer>, millstream_kafka::Error> {
        self.0.producer(options)
    }

    fn consumer(
        &self,
        settings: &millstream_kafka::Settings,
    ) -> Result<Box<dyn millstream_kafka::Consumer>, millstream_kafka::Error> {
        self.1.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        self.0.consumer(settings)
    }
}

#[test]
fn changed_certificates_are_read_by_a_new_client_that_continues_where_the_old_one_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    let root = |name| millstream_testkit::Authority::new(name).write_root(directory.path(), "ca");
    root("old");
    let broker = Broker::default();
    put(&broker, "a", &["1"]);
    let downstream = Downstream::memory();
    let options = serde_json::json!({
        "brokers": "b:1", "group": "g", "topics": ["a"], "tls": { "ca": ca.to_str().unwrap() }
    });
    let consumers = Arc::default();
    let client = Counted(broker.clone(), Arc::clone(&consumers));
    let source = Kafka::new(&rig::node(options), Arc::new(client)).unwrap();
    let running = Running::of(Box::new(source), &downstream, directory.path(), false);
    let made = || consumers.load(std::sync::atomic::Ordering::SeqCst);
    rig::until("the first record", || downstream.batches().len() == 1);
    std::fs::write(&ca, "half of a file").unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(made(), 1, "it waits for a file that can be used");
    root("new");
    rig::until("a new client", || made() == 2);
    put(&broker, "a", &["2"]);
    rig::until("the second record", || downstream.batches().len() == 2);
    assert_eq!(messages(&downstream.batches()), ["1", "2"]);
    running.stop();
}

#[test]
fn a_broker_that_refuses_immediately_is_not_asked_in_a_tight_loop() {
    let broker = Broker::default();
    put(&broker, "a", &["1"]);
    broker.refuse_offsets();
    let running = start(&broker, r#""topics": ["a"]"#, &Downstream::memory(), false);
    let started = std::time::Instant::now();
    rig::until("several questions", || broker.offsets_asked() >= 5);
    std::thread::sleep(Duration::from_secs(1));
    // The pause doubles from 5 ms to a second: eight questions in the first 1.3 s, then one in each second.
    let most = 9 + started.elapsed().as_secs() as usize;
    let asked = broker.offsets_asked();
    assert!(asked <= most, "{asked} questions, at most {most} expected");
    drop(running);
}

#[test]
fn a_partition_without_a_leader_holds_up_no_other_and_is_read_once_it_has_one() {
    type Change = fn(&Broker, bool);
    let leaderless: Change = |broker, well| broker.set_leader("b", well);
    let silent: Change = |broker, well| broker.set_answers("b", well);
    for fault in [leaderless, silent] {
        for partitions in ["", r#", "partitions": "all""#] {
            let broker = Broker::default();
            put(&broker, "a", &["1"]);
            put(&broker, "b", &["2"]);
            fault(&broker, false);
            let downstream = Downstream::durable();
            let options = format!(r#""topics": ["a", "b"]{partitions}"#);
            let running = start(&broker, &options, &downstream, false);
            rig::until("the topic with a leader", || {
                messages(&downstream.batches()) == ["1"]
            });
            put(&broker, "a", &["3"]);
            rig::until("its next record", || downstream.batches().len() == 2);
            fault(&broker, true);
            rig::until("the other topic", || downstream.batches().len() == 3);
            running.stop();
            assert_eq!(messages(&downstream.batches()), ["1", "3", "2"]);
        }
    }
}

#[test]
fn a_run_to_the_end_waits_for_partitions_without_a_leader() {
    let broker = Broker::default();
    put(&broker, "a", &["1"]);
    put(&broker, "b", &["2"]);
    broker.set_leader("b", false);
    let downstream = Downstream::memory();
    let running = start(&broker, r#""topics": ["a", "b"]"#, &downstream, true);
    std::thread::sleep(Duration::from_millis(1500));
    broker.set_leader("b", true);
    running.ended().unwrap();
    assert_eq!(messages(&downstream.batches()), ["1", "2"]);
}

#[test]
fn a_partition_that_is_revoked_while_it_has_no_leader_is_not_read_later() {
    let broker = Broker::default();
    put(&broker, "a", &["1"]);
    put(&broker, "b", &["2"]);
    broker.set_leader("b", false);
    let downstream = Downstream::memory();
    let running = start(&broker, r#""topics": ["a", "b"]"#, &downstream, false);
    rig::until("the first record", || downstream.batches().len() == 1);
    let partitions = vec![partition("b")];
    broker.rebalance(Polled::Revoked {
        partitions,
        lost: false,
    });
    std::thread::sleep(Duration::from_millis(300));
    broker.set_leader("b", true);
    std::thread::sleep(Duration::from_millis(1500));
    running.stop();
    assert_eq!(messages(&downstream.batches()), ["1"]);
}

/// The coordinator of the group may be one of the brokers that are down.
#[test]
fn fixed_partitions_need_no_coordinator_where_the_channel_knows_the_offsets() {
    let broker = Broker::default();
    put(&broker, "a", &["1"]);
    let options = r#""topics": ["a"], "partitions": "all""#;
    let downstream = Downstream::durable();
    run_once(&broker, options, &downstream);
    broker.refuse_offsets();
    put(&broker, "a", &["2"]);
    run_once(&broker, options, &downstream);
    assert_eq!(messages(&downstream.batches()), ["1", "2"]);
}

#[test]
fn brokers_that_cannot_be_reached_raise_a_condition_and_end_nothing() {
    let broker = Broker::default();
    put(&broker, "a", &["1"]);
    let downstream = Downstream::memory();
    let running = start(&broker, r#""topics": ["a"]"#, &downstream, false);
    rig::until("the first record", || downstream.batches().len() == 1);
    broker.rebalance(Polled::Unreachable);
    let conditions = || running.reporter.conditions();
    rig::until("a condition", || conditions().len() == 1);
    // Nothing is read, and brokers answer.
    rig::until("no condition", || conditions().is_empty());
    put(&broker, "a", &["2"]);
    rig::until("the second record", || downstream.batches().len() == 2);
    running.stop();
    assert_eq!(messages(&downstream.batches()), ["1", "2"]);
}

#[test]
fn unsettled_records_are_not_committed() {
    let broker = Broker::default();
    put(&broker, "a", &["1", "2"]);
    let downstream = Downstream::memory();
    downstream.hold();
    let running = start(&broker, r#""topics": ["a"]"#, &downstream, false);
    while downstream.batches().is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(1500));
    assert!(broker.commits().iter().all(|(_, offset)| *offset == 0));
    downstream.settle();
    running.stop();
    assert_eq!(broker.commits().last().unwrap().1, 2);
}

#[test]
fn a_revoked_partition_is_settled_and_committed_before_it_is_released() {
    let broker = Broker::default();
    put(&broker, "a", &["1", "2"]);
    let downstream = Downstream::memory();
    downstream.hold();
    let running = start(&broker, r#""topics": ["a"]"#, &downstream, false);
    while downstream.batches().is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    broker.rebalance(Polled::Revoked {
        partitions: vec![partition("a")],
        lost: false,
    });
    std::thread::sleep(Duration::from_millis(300));
    assert!(
        broker.commits().iter().all(|(_, offset)| *offset == 0),
        "it waits"
    );
    downstream.settle();
    while broker.commits().last().map(|(_, offset)| *offset) != Some(2) {
        std::thread::sleep(Duration::from_millis(5));
    }
    // The partition is not read any more.
    put(&broker, "a", &["3"]);
    std::thread::sleep(Duration::from_millis(300));
    running.stop();
    assert_eq!(messages(&downstream.batches()), ["1", "2"]);
}

#[test]
fn fixed_partitions_continue_at_the_offset_of_the_channel_and_not_of_the_group() {
    let broker = Broker::default();
    put(&broker, "a", &["1", "2", "3"]);
    let options = r#""topics": ["a"], "partitions": "all""#;
    let downstream = Downstream::durable();
    run_once(&broker, options, &downstream);
    let Origin::File(origin) = downstream.batches()[0].origins[0].clone() else {
        panic!("the origin of a batch is a range of offsets");
    };
    assert_eq!((origin.begin, origin.next), (0, 3));
    assert_eq!(downstream.origins(), [(origin.file, 3)]);
    // The group has lost its offset, the channel has not.
    let other = Broker::default();
    put(&other, "a", &["1", "2", "3", "4"]);
    run_once(&other, options, &downstream);
    assert_eq!(messages(&downstream.batches()), ["1", "2", "3", "4"]);
    assert_eq!(downstream.repeats(), 0);
}

/// Options for the two ways to read a topic: as a member of a group, and from fixed partitions.
const WAYS: [&str; 2] = [
    r#""topics": ["a"]"#,
    r#""topics": ["a"], "partitions": "all""#,
];

#[test]
fn a_recreated_topic_is_read_from_its_beginning() {
    for options in WAYS {
        let broker = Broker::default();
        put(&broker, "a", &["1", "2", "3"]);
        let downstream = Downstream::durable();
        run_once(&broker, options, &downstream);
        let recreated = Broker::default();
        put(&recreated, "a", &["4", "5"]);
        run_once(&recreated, options, &downstream);
        assert_eq!(messages(&downstream.batches()), ["1", "2", "3", "4", "5"]);
        assert_eq!(
            downstream.origins()[0].1,
            2,
            "the channel has the new offset"
        );
    }
}

#[test]
fn an_offset_within_an_open_transaction_is_not_taken_for_one_of_a_recreated_topic() {
    for options in WAYS {
        let broker = Broker::default();
        put(&broker, "a", &["1", "2", "3"]);
        let downstream = Downstream::durable();
        run_once(&broker, options, &downstream);
        broker.set_open(2);
        run_once(&broker, options, &downstream);
        broker.set_open(0);
        put(&broker, "a", &["4"]);
        run_once(&broker, options, &downstream);
        assert_eq!(messages(&downstream.batches()), ["1", "2", "3", "4"]);
    }
}

#[test]
fn start_decides_where_an_unread_partition_begins() {
    for (start, expected) in [
        ("beginning", 3),
        ("end", 0),
        ("2023-11-14T00:00:00Z", 3),
        ("2030-01-01T00:00:00Z", 0),
    ] {
        let broker = Broker::default();
        put(&broker, "a", &["1", "2", "3"]);
        let downstream = Downstream::memory();
        let options = format!(r#""topics": ["a"], "start": "{start}""#);
        run_once(&broker, &options, &downstream);
        assert_eq!(messages(&downstream.batches()).len(), expected, "{start}");
        // The offset that `start` yields is committed, so that it still holds after a restart.
        assert_eq!(broker.commits().last().unwrap().1, 3, "{start}");
    }
}

#[test]
fn a_value_that_cannot_be_decoded_is_rejected_alone() {
    let broker = Broker::default();
    put(
        &broker,
        "a",
        &[
            r#"{"message": "1"}"#,
            "no",
            "[1]",
            r#"{"message": "2"} x"#,
            r#" {"message": "3"} "#,
        ],
    );
    let downstream = Downstream::memory();
    let running = start(
        &broker,
        r#""topics": ["a"], "format": "json""#,
        &downstream,
        true,
    );
    let rejected = running.rejected.clone();
    running.ended().unwrap();
    assert_eq!(messages(&downstream.batches()), ["1", "3"]);
    assert_eq!(
        rejected
            .batches()
            .iter()
            .map(|batch| batch.count)
            .sum::<u32>(),
        3
    );
    assert_eq!(broker.commits().last().unwrap().1, 5);
}

#[test]
fn entries_and_maps_of_messagepack_are_both_records() {
    let map = [0x81, 0xa1, b'a', 1];
    let entry = [&[0x92, 5][..], &map].concat();
    let read = |value: &[u8]| {
        let mut out = Vec::new();
        let record = Incoming {
            topic: "t",
            partition: 0,
            offset: 0,
            timestamp: Some(7000),
            key: None,
            value: Some(value),
            headers: &[],
        };
        let fields = Fields::default();
        let done = decode::entry(
            Format::Msgpack,
            &fields,
            &record,
            Time(1),
            &mut Vec::new(),
            &mut out,
        );
        done.map(|()| out)
    };
    let time = |seconds: u8| [&[0x92, 0xd7, 0, 0, 0, 0, seconds, 0, 0, 0, 0][..], &map].concat();
    assert_eq!(read(&map).unwrap(), time(7));
    assert_eq!(read(&entry).unwrap(), time(5));
    for bad in [&[][..], &[1], &[0x81, 0xa1], &[map, map].concat()] {
        assert!(read(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn wrong_options_are_refused_and_named() {
    for (options, said) in [
        (r#"{"topics": "t", "group": "g"}"#, "brokers"),
        (r#"{"brokers": "a:1", "group": "g"}"#, "topics"),
        (r#"{"brokers": "a:1", "topics": "t"}"#, "group"),
        (
            r#"{"brokers": "a:1", "topics": "^(", "group": "g"}"#,
            "regex",
        ),
        (
            r#"{"brokers": "a:1", "topics": "t", "group": "g", "start": "yesterday"}"#,
            "yesterday",
        ),
        (
            r#"{"brokers": "a:1", "topics": "t", "group": "g", "partitions": "some"}"#,
            "all",
        ),
        (
            r#"{"brokers": "a:1", "topics": "t", "group": "g", "partitions": []}"#,
            "at least one",
        ),
        (
            r#"{"brokers": "a:1", "topics": "t", "group": "g", "tag": "{pod}"}"#,
            "pod",
        ),
        (
            r#"{"brokers": "a:1", "topics": "t", "group": "g", "properties": {"group.id": "x"}}"#,
            "group.id",
        ),
    ] {
        let problems = rig::try_build(&COMPONENT, options)
            .err()
            .unwrap_or_default();
        assert!(
            problems.join("\n").contains(said),
            "{options}: {problems:?}"
        );
    }
}

#[test]
fn it_keeps_the_contract_of_sources() {
    let options = r#"{"brokers": "b:1", "group": "g", "topics": ["a"], "format": "json"}"#;
    let options = rig::node(serde_json::from_str(options).unwrap());
    let build = || {
        let broker = Broker::default();
        let values = [r#"{"message": "1"}"#, "no", r#"{"message": "2"}"#];
        put(&broker, "a", &values);
        Box::new(Kafka::new(&options, Arc::new(broker)).unwrap()) as Box<dyn Source>
    };
    let directory = tempfile::tempdir().unwrap();
    let case = SourceCase {
        build: &build,
        peer: None,
        records: 3,
        rejected: 1,
        directory: directory.path(),
    };
    block_on(case.check());
}
