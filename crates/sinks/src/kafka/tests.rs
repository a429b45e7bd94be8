mod divided;
mod give_up;
mod owners;
mod refusals;
mod timeouts;

use std::{sync::Arc, time::Duration};

use millstream_kafka::{Kind, fake::Broker};
use millstream_pipeline::failure::Again;
use millstream_record::{Batch, Position};

use super::{COMPONENT, Kafka, position::Committed};
use crate::rig::{self, Rig, Upstream};

const CHANNEL: u128 = 0xc0ffee;

struct Bench {
    broker: Broker,
    upstream: Upstream,
    rig: Rig,
    _directory: tempfile::TempDir,
}

/// A sink with these options (in JSON, without the braces) that writes to a broker in memory.
fn bench(upstream: Upstream, options: &str) -> Bench {
    let directory = tempfile::tempdir().unwrap();
    let options = format!(
        r#"{{"brokers": "b:1", "retry": {{"first": "1ms", "max": "2ms", "timeout": "1s"}}, {options}}}"#
    );
    let options = options.replace(
        r#""retry": {"first": "1ms", "max": "2ms", "timeout": "1s"}, "retry""#,
        r#""retry""#,
    );
    let mut rig = Rig::new(&COMPONENT, &options, &upstream, directory.path());
    let broker = Broker::default();
    let node = rig::node(serde_json::from_str(&options).unwrap());
    rig.sink = Arc::new(Kafka::new(&node, Arc::new(broker.clone())).unwrap());
    Bench {
        broker,
        upstream,
        rig,
        _directory: directory,
    }
}

fn exact(options: &str) -> Bench {
    bench(Upstream::durable(CHANNEL), options)
}

fn plain(options: &str) -> Bench {
    bench(Upstream::memory(), options)
}

const RAW: &str = r#""topic": "t", "format": "raw""#;

fn reasons(rejected: &[Batch]) -> String {
    let texts = rejected
        .iter()
        .map(|batch| String::from_utf8_lossy(&batch.body).into_owned());
    texts.collect()
}

/// The number of rejected records.
fn count(rejected: &[Batch]) -> u32 {
    rejected.iter().map(|batch| batch.count).sum()
}

const GROUP: &str = "millstream-00000000000000000000000000c0ffee-sink";

/// A position as another process would have committed it.
fn committed(seq: u64, owner: u64) -> String {
    let committed = Committed {
        channel: CHANNEL,
        position: Position { epoch: 1, seq },
        owner,
        part: None,
    };
    committed.text()
}

impl Bench {
    fn put(&self, text: &str) {
        drop(self.upstream.put(rig::packed("tag", text), false));
    }

    fn position(&self) -> Committed {
        let positions = self.broker.positions();
        assert_eq!(positions.len(), 1, "{positions:?}");
        Committed::parse(&positions[0].2).unwrap()
    }
}

#[tokio::test]
async fn records_are_committed_with_the_position_they_reach() {
    let mut bench = exact(RAW);
    bench.put("a\nb\n");
    bench.put("c\n");
    bench.upstream.close();
    bench.rig.run().await.unwrap();
    assert_eq!(bench.broker.values(), ["a", "b", "c"]);
    let committed = bench.position();
    assert_eq!((committed.channel, committed.position.seq), (CHANNEL, 2));
    assert_eq!(bench.upstream.settled(), 2);
    // The event time, in milliseconds.
    assert_eq!(bench.broker.kept()[0].timestamp, 1_600_000_000_000);
    let options = &bench.broker.producers()[0];
    let id = "millstream-00000000000000000000000000c0ffee-sink";
    assert_eq!(options.transactional_id.as_deref(), Some(id));
}

#[tokio::test]
async fn a_failed_commit_is_repeated_and_one_whose_answer_was_lost_is_not() {
    for (lost, times) in [(false, 1), (true, 1), (false, 5)] {
        let mut bench = exact(RAW);
        bench.put("a\nb\n");
        for _ in 0..times {
            if lost {
                bench.broker.doubt_commit(Kind::Fatal);
            } else {
                bench.broker.fail_commit(Kind::Abort);
            }
        }
        bench.upstream.close();
        bench.rig.run().await.unwrap();
        assert_eq!(bench.broker.values(), ["a", "b"], "lost: {lost}");
        assert_eq!(bench.position().position.seq, 1);
    }
}

#[tokio::test]
async fn a_start_continues_at_the_position_and_not_at_the_cursor() {
    let mut bench = exact(RAW);
    bench.put("a\n");
    bench.put("b\n");
    let committed = Committed {
        channel: CHANNEL,
        position: Position { epoch: 1, seq: 1 },
        owner: 9,
        part: None,
    };
    let group = "millstream-00000000000000000000000000c0ffee-sink";
    bench.broker.set_position(group, "t", &committed.text());
    bench.upstream.close();
    bench.rig.run().await.unwrap();
    assert_eq!(bench.broker.values(), ["b"]);
    assert_ne!(bench.position().owner, 9, "the new owner has claimed it");
}

/// The predecessor was killed when its transaction was committed, but the group's coordinator did not know that yet.
#[tokio::test]
async fn a_transaction_that_is_still_being_completed_at_a_start_is_not_repeated() {
    let mut bench = exact(RAW);
    bench.put("a\n");
    bench.put("b\n");
    bench.broker.set_position(GROUP, "t", &committed(0, 9));
    let completed = committed(1, 9);
    bench.broker.set_unstable_position(GROUP, "t", &completed);
    bench.upstream.close();
    bench.rig.run().await.unwrap();
    assert_eq!(bench.broker.values(), ["b"]);
}

#[tokio::test]
async fn behind_memory_a_failed_record_is_resent_before_anything_is_settled() {
    let mut bench = plain(RAW);
    let receipt = bench.upstream.put(rig::packed("tag", "a\nb\nc\n"), true);
    bench.broker.fail_record(Kind::Fatal);
    bench.broker.fail_record(Kind::Refused);
    bench.upstream.close();
    bench.rig.run().await.unwrap();
    let mut values = bench.broker.values();
    values.sort();
    assert_eq!(values, ["a", "b", "c"]);
    assert_eq!(receipt.await, Ok(()));
    assert_eq!(bench.broker.producers()[0].transactional_id, None);
}

#[tokio::test]
async fn topics_keys_and_headers_come_from_the_record() {
    let options = r#""topic": "t.{.message}", "key": "{tag}/{.message}", "headers": {"a": "{.message}", "b": "x"}, "format": "raw""#;
    for durable in [true, false] {
        let mut bench = if durable {
            exact(options)
        } else {
            plain(options)
        };
        bench.put("one\nt wo\nthree\n");
        bench.upstream.close();
        bench.rig.run().await.unwrap();
        let kept = bench.broker.kept();
        let topics: Vec<&str> = kept.iter().map(|kept| kept.topic.as_str()).collect();
        assert_eq!(topics, ["t.one", "t.three"]);
        assert_eq!(kept[1].key.as_deref(), Some(b"tag/three".as_slice()));
        let headers = [("a", "three"), ("b", "x")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()));
        assert_eq!(kept[1].headers, headers);
        let rejected = bench.upstream.rejected();
        assert_eq!(rejected.len(), 1);
        assert!(reasons(&rejected).contains("`t.t wo` is not a topic name"));
    }
}

#[tokio::test]
async fn connect_writes_the_key_and_value_of_lines() {
    let mut bench = exact(r#""topic": "t", "format": "connect""#);
    drop(bench.upstream.put(rig::lines("tg", "a\nb\n"), false));
    bench.upstream.close();
    bench.rig.run().await.unwrap();
    let kept = bench.broker.kept();
    assert_eq!(kept.len(), 2);
    let key = r#"{"schema":{"type":"string","optional":false},"payload":"tg"}"#;
    assert_eq!(kept[0].key.as_deref(), Some(key.as_bytes()));
    assert!(String::from_utf8_lossy(&kept[1].value).ends_with(r#""payload":{"message":"b"}}"#));
}

#[test]
fn wrong_options_are_reported_by_name() {
    for (options, said) in [
        (r#"{"topic": "t"}"#, "brokers"),
        (r#"{"brokers": "a:1"}"#, "topic"),
        (r#"{"brokers": "a:1", "topic": "a b"}"#, "not a topic name"),
        (
            r#"{"brokers": "a:1", "topic": "t", "position": "a/b"}"#,
            "not a topic name",
        ),
        (r#"{"brokers": "a:1", "topic": "t", "acks": 0}"#, "acks"),
        (
            r#"{"brokers": "a:1", "topic": "t", "timezone": "Mars"}"#,
            "Mars",
        ),
        (
            r#"{"brokers": "a:1", "topic": "t", "format": "template"}"#,
            "template",
        ),
        (
            r#"{"brokers": "a:1", "topic": "t", "format": "connect", "add": {"a": "b"}}"#,
            "connect",
        ),
        (
            r#"{"brokers": "a:1", "topic": "t", "compression": "brotli"}"#,
            "brotli",
        ),
        (
            r#"{"brokers": "a:1", "topic": "t", "tls": {"nope": "x"}}"#,
            "nope",
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
    let whole = r#"{"brokers": ["a:1", "b:2"], "topic": "logs.{tag}", "tls": true, "partitioner": "crc32",
        "auth": {"sasl": "scram-sha-512", "username": "u", "password": "p"}, "compression": "zstd",
        "batch": {"size": "100KiB", "records": 500, "linger": "20ms"}, "client_id": "me"}"#;
    assert!(rig::try_build(&COMPONENT, whole).is_ok());
}

#[tokio::test]
async fn it_keeps_the_contract_of_sinks() {
    let bench = plain(RAW);
    let broker = bench.broker.clone();
    let (directory, arrived) = (bench.rig.context.directory, move || broker.values());
    rig::check_contract(&bench.rig.sink, &directory, arrived, Some(rig::misfit())).await;
}
