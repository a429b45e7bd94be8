//! Tests with several scripted brokers that disagree: one is no controller, or answers with old
//! data.

use std::{
    collections::HashMap,
    net::TcpListener,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use super::{
    super::wire::Put, API_VERSIONS, FIND_COORDINATOR, OFFSET_FETCH, options, outgoing, serve,
    tell_coordinator, tell_position, tell_versions,
};
use crate::{Error, Kind, Producer as _, ProducerOptions, Store, native::Native};

const PRODUCE: i16 = 0;
const METADATA: i16 = 3;
const CREATE_TOPICS: i16 = 19;
const INIT_PRODUCER_ID: i16 = 22;
/// The requests that a broker knows, each with its newest version.
const APIS: [(i16, i16); 6] = [
    (PRODUCE, 8),
    (METADATA, 8),
    // OffsetFetch 7 would have another format.
    (OFFSET_FETCH, 6),
    (FIND_COORDINATOR, 8),
    (CREATE_TOPICS, 8),
    (INIT_PRODUCER_ID, 8),
];

const UNKNOWN_TOPIC: i16 = 3;
const NOT_LEADER: i16 = 6;
const TOPIC_AUTHORIZATION_FAILED: i16 = 29;
const NOT_CONTROLLER: i16 = 41;

/// The answers of a broker.
#[derive(Clone, Copy)]
struct Script {
    controller: i32,
    /// The error of the topic `t` in metadata, and the leader of its partition.
    topic: i16,
    leader: i32,
    /// The error of the request to create a topic.
    creation: i16,
    /// The broker that it names as the coordinator of everything.
    coordinator: i32,
    /// The error of a batch of records.
    produce: i16,
}

/// A broker that knows everything: broker 2 is the controller, the leader and the coordinator.
const WELL: Script = Script {
    controller: 2,
    topic: 0,
    leader: 2,
    creation: 0,
    coordinator: 2,
    produce: 0,
};

/// Brokers 1, 2 ..., each with its script.
struct Brokers {
    ports: Vec<u16>,
    /// The number of requests, by broker and key.
    asked: Arc<Mutex<HashMap<(i32, i16), usize>>>,
    /// The port of a broker that is down.
    down: u16,
}

impl Brokers {
    fn start(scripts: &[Script]) -> Arc<Self> {
        let bind = |_: &Script| TcpListener::bind("127.0.0.1:0").unwrap();
        let listeners: Vec<_> = scripts.iter().map(bind).collect();
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let brokers = Arc::new(Self {
            ports: listeners.iter().map(port).collect(),
            asked: Arc::default(),
            down: port(&TcpListener::bind("127.0.0.1:0").unwrap()),
        });
        for (id, (listener, script)) in (1..).zip(listeners.into_iter().zip(scripts.to_vec())) {
            let brokers = brokers.clone();
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let (brokers, stream) = (brokers.clone(), stream.unwrap());
                    let answer = move |key, _, _: &[u8], out: &mut Vec<u8>| {
                        *brokers.asked.lock().unwrap().entry((id, key)).or_default() += 1;
                        brokers.answer(key, script, out);
                    };
                    thread::spawn(move || serve(stream, answer));
                }
            });
        }
        brokers
    }

    /// The options of a producer that bootstraps from broker 1.
    fn producer(&self, transactional: bool) -> Native {
        let more = ProducerOptions {
            brokers: self
                .ports
                .iter()
                .map(|port| format!("127.0.0.1:{port}"))
                .collect(),
            transactional_id: transactional.then(|| "me".to_owned()),
            ..options()
        };
        Native::new(more).unwrap()
    }

    fn asked(&self, broker: i32, key: i16) -> usize {
        let asked = self.asked.lock().unwrap();
        asked.get(&(broker, key)).copied().unwrap_or(0)
    }

    fn port(&self, broker: i32) -> u16 {
        let index = usize::try_from(broker - 1).unwrap();
        self.ports.get(index).copied().unwrap_or(self.down)
    }

    fn metadata(&self, script: Script, out: &mut Vec<u8>) {
        out.i32(0);
        out.count(self.ports.len());
        for (id, port) in (1..).zip(&self.ports) {
            out.i32(id);
            out.string("127.0.0.1");
            out.i32((*port).into());
            out.nullable(None);
        }
        out.nullable(Some("cluster"));
        out.i32(script.controller);
        out.count(1);
        out.i16(script.topic);
        out.string("t");
        out.i8(0);
        out.count(usize::from(script.topic == 0));
        if script.topic == 0 {
            out.i16(0);
            out.i32(0);
            out.i32(script.leader);
            out.count(0);
            out.count(0);
        }
    }

    fn answer(&self, key: i16, script: Script, out: &mut Vec<u8>) {
        match key {
            API_VERSIONS => tell_versions(&APIS, out),
            METADATA => self.metadata(script, out),
            FIND_COORDINATOR => {
                tell_coordinator(script.coordinator, self.port(script.coordinator), out)
            }
            CREATE_TOPICS => {
                out.i32(0);
                out.count(1);
                out.string("t");
                out.i16(script.creation);
                out.nullable(None);
            }
            INIT_PRODUCER_ID => {
                out.i32(0);
                out.i16(0);
                out.i64(7);
                out.i16(0);
            }
            OFFSET_FETCH => tell_position(out),
            _ => {
                out.count(1);
                out.string("t");
                out.count(1);
                out.i32(0);
                out.i16(script.produce);
                for _ in 0..3 {
                    out.i64(-1);
                }
                // No bad records, no text, not throttled.
                out.count(0);
                out.nullable(None);
                out.i32(0);
            }
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn a_topic_that_exists_is_not_created() {
    let refuses = Script {
        creation: TOPIC_AUTHORIZATION_FAILED,
        ..WELL
    };
    let brokers = Brokers::start(&[refuses, refuses]);
    assert_eq!(brokers.producer(true).make_topic("t", PATIENCE), Ok(()));
    assert_eq!(brokers.asked(1, CREATE_TOPICS), 0);
    assert_eq!(brokers.asked(2, CREATE_TOPICS), 0);
}

/// Lets the sink create the topic in a cluster whose controller is broker 2. Broker 1 names
/// `known` as the controller. Returns how often broker 1 was asked to create the topic.
fn create(known: i32) -> usize {
    let other = Script {
        controller: known,
        topic: UNKNOWN_TOPIC,
        creation: NOT_CONTROLLER,
        ..WELL
    };
    let controller = Script {
        topic: UNKNOWN_TOPIC,
        ..WELL
    };
    let brokers = Brokers::start(&[other, controller]);
    assert_eq!(brokers.producer(true).make_topic("t", PATIENCE), Ok(()));
    assert_eq!(brokers.asked(2, CREATE_TOPICS), 1);
    brokers.asked(1, CREATE_TOPICS)
}

/// A cluster with ZooKeeper: only the controller creates topics.
#[test]
fn the_controller_is_asked_to_create_a_topic() {
    assert_eq!(create(2), 0);
}

/// A broker that still names the last controller.
#[test]
fn another_broker_is_asked_who_the_controller_is() {
    assert_eq!(create(1), 1);
}

#[test]
fn a_cluster_without_a_controller_is_asked_with_pauses() {
    let without = Script {
        controller: -1,
        topic: UNKNOWN_TOPIC,
        creation: NOT_CONTROLLER,
        ..WELL
    };
    let brokers = Brokers::start(&[without, without]);
    let mut producer = brokers.producer(true);
    let made = producer.make_topic("t", Duration::from_secs(1));
    assert_eq!(made.map_err(|error| error.kind), Err(Kind::Again));
    let asked = brokers.asked(1, CREATE_TOPICS) + brokers.asked(2, CREATE_TOPICS);
    assert!((2..=12).contains(&asked), "{asked}");
}

#[test]
fn a_producer_that_may_not_create_topics_uses_one_that_only_another_broker_knows() {
    let refuses = |topic| Script {
        topic,
        creation: TOPIC_AUTHORIZATION_FAILED,
        ..WELL
    };
    let brokers = Brokers::start(&[refuses(UNKNOWN_TOPIC), refuses(0)]);
    assert_eq!(brokers.producer(true).make_topic("t", PATIENCE), Ok(()));
    let brokers = Brokers::start(&[refuses(UNKNOWN_TOPIC), refuses(UNKNOWN_TOPIC)]);
    let made = brokers.producer(true).make_topic("t", PATIENCE);
    let Err(Error { kind, message }) = made else {
        panic!("no broker knows the topic");
    };
    assert_eq!(kind, Kind::Refused);
    assert!(message.contains("cannot create the topic t"), "{message}");
}

#[test]
fn metadata_comes_from_another_broker_if_the_first_one_has_old_data() {
    let old_topic = Script {
        topic: UNKNOWN_TOPIC,
        ..WELL
    };
    let leaderless = Script { leader: -1, ..WELL };
    let unknown_leader = Script { leader: 9, ..WELL };
    // It takes itself for the leader in metadata, but not when it gets records.
    let old_leader = Script {
        leader: 1,
        produce: NOT_LEADER,
        ..WELL
    };
    for old in [old_topic, leaderless, unknown_leader, old_leader] {
        let brokers = Brokers::start(&[old, WELL]);
        let mut producer = brokers.producer(false);
        producer.send(&outgoing(0, 1, None), 0..100);
        producer.flush(Duration::from_secs(10));
        assert_eq!(producer.in_flight(), 0);
        assert_eq!(producer.take_failed(), []);
        assert_eq!(brokers.asked(2, PRODUCE), 1);
    }
}

#[test]
fn another_broker_is_asked_for_the_coordinator_if_the_one_that_the_first_names_is_down() {
    let old = Script {
        coordinator: 9,
        ..WELL
    };
    let brokers = Brokers::start(&[old, WELL]);
    let store = Store {
        group: "g".to_owned(),
        topic: "t".to_owned(),
    };
    let found = brokers.producer(true).committed(&store, false, PATIENCE);
    assert_eq!(found, Ok(Some("v5".to_owned())));
}
