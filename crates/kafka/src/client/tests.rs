//! The consumer against brokers that are down, and against a cluster that librdkafka simulates.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use rdkafka::{
    mocking::MockCluster,
    producer::{BaseProducer, BaseRecord, Producer as _},
};

use super::{Librdkafka, config};
use crate::{Consumer, Partition, Polled, Settings, Taken};

const PATIENCE: Duration = Duration::from_secs(20);

/// A port where nothing listens.
fn dead() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

fn settings(brokers: &[String]) -> Settings {
    let mut settings = Settings::new(brokers);
    settings.set("group.id", "g");
    settings.set("auto.offset.reset", "error");
    settings.set("partition.assignment.strategy", "cooperative-sticky");
    settings.set("reconnect.backoff.ms", "10");
    settings.set("reconnect.backoff.max.ms", "50");
    settings
}

fn brokers(cluster: &MockCluster<'_, impl rdkafka::ClientContext>) -> Vec<String> {
    let all = cluster.bootstrap_servers();
    all.split(',').map(str::to_owned).collect()
}

fn produce(brokers: &[String], number: i32, values: &[&str]) {
    let producer: BaseProducer = config(&Settings::new(brokers)).create().unwrap();
    for value in values {
        let record = BaseRecord::<(), str>::to("t");
        producer
            .send(record.payload(*value).partition(number))
            .map_err(|(error, _)| error)
            .unwrap();
    }
    producer.flush(PATIENCE).unwrap();
}

fn partition(number: i32) -> Partition {
    Partition {
        topic: "t".to_owned(),
        number,
    }
}

/// Polls until `done` says so of the values that were read and of the last outcome.
fn poll(
    consumer: &mut Librdkafka,
    values: &mut Vec<String>,
    done: impl Fn(&[String], &Polled) -> bool,
) -> Polled {
    let start = Instant::now();
    loop {
        let polled = consumer.poll(Duration::from_millis(50), &mut |record| {
            let value = String::from_utf8_lossy(record.value.unwrap()).into_owned();
            values.push(value);
            Taken::More
        });
        let polled = polled.unwrap();
        if done(values, &polled) {
            return polled;
        }
        assert!(start.elapsed() < PATIENCE, "{values:?} {polled:?}");
    }
}

#[test]
fn brokers_that_cannot_be_reached_are_no_error() {
    let mut consumer = Librdkafka::new(&settings(&[dead(), dead()])).unwrap();
    consumer.subscribe(&["t".to_owned()]).unwrap();
    let mut values = Vec::new();
    for _ in 0..2 {
        poll(&mut consumer, &mut values, |_, polled| {
            *polled == Polled::Unreachable
        });
    }
    let until = Instant::now() + Duration::from_secs(1);
    poll(&mut consumer, &mut values, |_, _| Instant::now() > until);
    assert!(consumer.complaint().is_some());
}

#[test]
fn a_dead_bootstrap_broker_and_one_that_dies_later_end_nothing() {
    let cluster = MockCluster::new(3).unwrap();
    cluster.create_topic("t", 2, 3).unwrap();
    let living = brokers(&cluster);
    for number in 0..2 {
        // Broker 1 leads nothing, and does not coordinate.
        cluster
            .partition_leader("t", number, Some(number + 2))
            .unwrap();
        produce(&living, number, &["a"]);
    }
    let mut all = living.clone();
    all.insert(0, dead());
    let mut consumer = Librdkafka::new(&settings(&all)).unwrap();
    consumer
        .assign(&[(partition(0), 0), (partition(1), 0)])
        .unwrap();
    let mut values = Vec::new();
    poll(&mut consumer, &mut values, |values, _| values.len() == 2);
    cluster.broker_down(2).unwrap();
    cluster.partition_leader("t", 0, Some(3)).unwrap();
    produce(&living[2..], 1, &["b"]);
    poll(&mut consumer, &mut values, |values, _| values.len() == 3);
    let until = Instant::now() + Duration::from_secs(2);
    poll(&mut consumer, &mut values, |_, _| Instant::now() > until);
    cluster.broker_up(2).unwrap();
}

#[test]
fn a_member_can_begin_a_partition_later_and_give_up_one_that_it_never_began() {
    for strategy in ["cooperative-sticky", "range"] {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("t", 3, 1).unwrap();
        let brokers = brokers(&cluster);
        let mut settings = settings(&brokers);
        settings.set("partition.assignment.strategy", strategy);
        let mut consumer = Librdkafka::new(&settings).unwrap();
        consumer.subscribe(&["t".to_owned()]).unwrap();
        let is_assigned = |_: &[String], polled: &Polled| matches!(polled, Polled::Assigned(_));
        let mut values = Vec::new();
        let assigned = poll(&mut consumer, &mut values, is_assigned);
        let all: Vec<Partition> = (0..3).map(partition).collect();
        assert_eq!(assigned, Polled::Assigned(all.clone()));
        produce(&brokers, 0, &["a0"]);
        produce(&brokers, 1, &["b0"]);
        // The group's decision is answered, although nothing can be read yet.
        consumer.assign(&[]).unwrap();
        consumer.assign(&[(partition(0), 0)]).unwrap();
        poll(&mut consumer, &mut values, |values, _| values == ["a0"]);
        consumer.assign(&[(partition(1), 0)]).unwrap();
        poll(&mut consumer, &mut values, |values, _| values.len() == 2);
        produce(&brokers, 0, &["a1"]);
        poll(&mut consumer, &mut values, |values, _| values.len() == 3);
        assert_eq!(values, ["a0", "b0", "a1"], "{strategy}");
        // Partition 2 was never begun.
        consumer.unassign(&all).unwrap();
    }
}

#[test]
fn partitions_without_a_leader_are_named() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("t", 2, 1).unwrap();
    cluster.partition_leader("t", 1, None).unwrap();
    let mut consumer = Librdkafka::new(&settings(&brokers(&cluster))).unwrap();
    let all = [partition(0), partition(1)];
    let without = consumer.without_leader(&all, PATIENCE).unwrap();
    assert_eq!(without.into_iter().collect::<Vec<_>>(), [partition(1)]);
    let asked = Instant::now();
    let bounds = consumer.bounds(&partition(1), Duration::from_millis(200));
    assert!(bounds.is_err());
    assert!(asked.elapsed() < Duration::from_secs(2));
}
