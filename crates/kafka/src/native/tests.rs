//! Tests of accepted records, batches in flight and failures, and of peers that are not brokers.

mod brokers;

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    rc::Rc,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::{sync::mpsc, task::LocalSet};

use super::{
    Native,
    access::Access,
    accumulator::{Accumulator, SharedAccumulator},
    engine::Engine,
    lookups::{PROPAGATION, miss_partitions},
    wire::{Put, Take},
};
use crate::{Error, Kind, Outgoing, Producer as _, ProducerOptions, Record, Store};

const OFFSET_FETCH: i16 = 9;
const FIND_COORDINATOR: i16 = 10;
const API_VERSIONS: i16 = 18;

/// Options for a broker that does not exist.
fn options() -> ProducerOptions {
    ProducerOptions {
        brokers: vec!["127.0.0.1:1".to_owned()],
        ..ProducerOptions::default()
    }
}

fn shared(options: ProducerOptions) -> SharedAccumulator {
    SharedAccumulator::new(&options)
}

/// Records of one topic, numbered from `first` on. Their values are their numbers.
fn outgoing(first: usize, count: usize, key: Option<&str>) -> Outgoing {
    let mut outgoing = Outgoing {
        topics: vec!["t".to_owned()],
        ..Outgoing::default()
    };
    for number in first..first + count {
        let start = outgoing.bytes.len();
        outgoing
            .bytes
            .extend_from_slice(key.unwrap_or_default().as_bytes());
        let middle = outgoing.bytes.len();
        outgoing
            .bytes
            .extend_from_slice(number.to_string().as_bytes());
        outgoing.records.push(Record {
            number,
            topic: 0,
            key: key.map(|_| start..middle),
            value: middle..outgoing.bytes.len(),
            timestamp: 1,
        });
    }
    outgoing
}

/// Puts the next batch of partition 0 in flight, as [`super::engine`] does. Returns its serial number, its sequence number and the
/// number of its records; `None` if no batch may be sent.
fn send(state: &mut Accumulator) -> Option<(u64, i32, usize)> {
    let partition = state.partition((0, 0))?;
    if partition.in_flight {
        return None;
    }
    let (sequence, first) = (partition.sequence, partition.ready.front_mut()?);
    first.attempts += 1;
    let (serial, records) = (first.serial, first.records());
    partition.in_flight = true;
    Some((serial, sequence, records))
}

#[test]
fn a_partition_has_one_batch_in_flight_and_its_sequence_numbers_have_no_gaps() {
    let shared = shared(ProducerOptions {
        batch_records: 2,
        ..options()
    });
    let mut state = shared.lock();
    let now = Instant::now();
    let topic = state.topic("t");
    state.learn(topic, &[(0, 1)], now);
    assert_eq!(
        state.append_all(&outgoing(0, 5, None), 0..100, now),
        (5, false)
    );
    let (first, sequence, records) = send(&mut state).unwrap();
    assert_eq!((sequence, records), (0, 2));
    assert_eq!(send(&mut state), None, "one at a time");
    // Without an answer the batch is retried unchanged.
    state.retry((0, 0), first, now);
    assert_eq!(send(&mut state), Some((first, 0, 2)));
    state.succeed((0, 0), first);
    assert_eq!(state.records, 3);
    // A late answer is ignored.
    state.succeed((0, 0), first);
    assert_eq!(state.records, 3);
    // The broker did not write the rejected batch, so the next batch gets the same sequence numbers.
    let (second, sequence, _) = send(&mut state).unwrap();
    assert_eq!(sequence, 2);
    state.fail((0, 0), second, true, |at| {
        Error::new(Kind::Suspect, at.to_string())
    });
    let failed = std::mem::take(&mut state.failed);
    let failed: Vec<_> = failed
        .iter()
        .map(|one| (one.number, one.error.message.as_str()))
        .collect();
    assert_eq!(failed, [(2, "0"), (3, "1")]);
    state.flush();
    let (third, sequence, records) = send(&mut state).unwrap();
    assert_eq!((sequence, records), (2, 1));
    state.succeed((0, 0), third);
    assert_eq!(state.records, 0);
}

#[test]
fn only_records_for_partitions_that_a_recreated_topic_lacks_fail() {
    let shared = shared(options());
    let (mut state, start) = (shared.lock(), Instant::now());
    let topic = state.topic("t");
    state.learn(topic, &[(0, 1), (1, 1)], start);
    for (number, key) in ["a", "b", "c", "d", "e", "f"].into_iter().enumerate() {
        state.append_all(&outgoing(number, 1, Some(key)), 0..100, start);
    }
    state.flush();
    let numbers = |state: &mut Accumulator, partition| {
        let ready = &state.partition((0, partition)).unwrap().ready;
        let numbers = ready.iter().flat_map(|batch| batch.numbers.clone());
        numbers.collect::<Vec<_>>()
    };
    let (stay, lost) = (numbers(&mut state, 0), numbers(&mut state, 1));
    assert!(!stay.is_empty() && !lost.is_empty());
    // A broker that does not know the partition for a moment changes nothing.
    state.learn(topic, &[(0, 1)], start);
    miss_partitions(&mut state, topic, start + PROPAGATION / 2);
    state.learn(topic, &[(0, 1), (1, 1)], start + PROPAGATION / 2);
    let again = start + PROPAGATION;
    state.learn(topic, &[(0, 1)], again);
    miss_partitions(&mut state, topic, again);
    assert!(state.failed.is_empty());
    miss_partitions(&mut state, topic, again + PROPAGATION);
    let failed = std::mem::take(&mut state.failed);
    let failed: Vec<_> = failed
        .iter()
        .map(|one| (one.number, one.error.kind))
        .collect();
    let lost: Vec<_> = lost.iter().map(|number| (*number, Kind::Fatal)).collect();
    assert_eq!(failed, lost);
    assert_eq!(numbers(&mut state, 0), stay);
}

#[test]
fn topics_that_do_not_exist_do_not_stay_in_memory() {
    let shared = shared(options());
    let (mut state, now) = (shared.lock(), Instant::now());
    let real = state.topic("real");
    state.learn(real, &[(0, 1)], now);
    for number in 0..1000 {
        let name = format!("unknown-{number}");
        let records = Outgoing {
            topics: vec![name.clone()],
            ..outgoing(number, 1, None)
        };
        assert_eq!(state.append_all(&records, 0..100, now), (1, false));
        let topic = state.known(&name).unwrap();
        state.unstage(topic, &Error::new(Kind::Refused, "it does not exist"));
        assert_eq!(state.known(&name), None);
        let failed = state.failed.pop().unwrap();
        assert_eq!((failed.number, failed.topic), (number, name));
    }
    assert_eq!((state.topics.len(), state.records), (2, 0));
    // The topic with partitions keeps its sequence numbers.
    state.take_back(None, &Error::new(Kind::Fatal, "no identity"));
    assert_eq!(state.known("real"), Some(real));
    assert!(state.topics.len() == 2 && state.wanting.is_empty());
}

#[test]
fn sequence_numbers_with_an_unknown_outcome_are_never_reused() {
    let shared = shared(ProducerOptions {
        batch_records: 1,
        ..options()
    });
    let (mut state, now) = (shared.lock(), Instant::now());
    let topic = state.topic("t");
    state.learn(topic, &[(0, 1)], now);
    let uncertain = |state: &mut Accumulator| state.partition((0, 0)).unwrap().uncertain;
    let refused = |_| Error::new(Kind::Refused, "no");
    state.append_all(&outgoing(0, 5, None), 0..100, now);
    state.flush();
    // Rejected at the first attempt: it was not written.
    let (first, ..) = send(&mut state).unwrap();
    assert!(!state.is_repeated((0, 0), first));
    state.fail((0, 0), first, true, refused);
    assert!(!uncertain(&mut state));
    // Rejected at a retry: the first attempt may have been written.
    let (second, ..) = send(&mut state).unwrap();
    state.retry((0, 0), second, now);
    send(&mut state).unwrap();
    assert!(state.is_repeated((0, 0), second));
    state.fail((0, 0), second, true, refused);
    assert!(uncertain(&mut state));
    // A new identity restarts the sequence numbers.
    state.renumber();
    assert!(!uncertain(&mut state));
    let (third, ..) = send(&mut state).unwrap();
    state.fail((0, 0), third, false, refused);
    assert!(uncertain(&mut state));
    state.renumber();
    // `take_back` fails all batches. A batch that was sent may have been written; a batch that was never sent cannot.
    state.take_back(None, &refused(0));
    assert!(!uncertain(&mut state));
    state.append_all(&outgoing(5, 1, None), 0..100, now);
    state.flush();
    send(&mut state).unwrap();
    state.take_back(None, &refused(0));
    assert!(uncertain(&mut state));
}

#[test]
fn records_wait_until_partitions_are_known_and_the_buffer_has_space() {
    let shared = shared(ProducerOptions {
        buffer_bytes: 1024,
        ..options()
    });
    let mut state = shared.lock();
    let now = Instant::now();
    let (taken, too_large) = state.append_all(&outgoing(0, 100, Some("k")), 0..100, now);
    assert!(taken > 10 && taken < 100 && !too_large, "{taken}");
    assert_eq!(state.wanting.len(), 1);
    state.flush();
    let topic = state.topic("t");
    state.learn(topic, &[(0, 1), (1, 1), (2, -1)], now);
    assert!(state.wanting.is_empty());
    assert_eq!(state.records, taken);
    // All records of a key have one partition. A flush was requested, so the batch does not linger.
    assert_eq!(state.active.len(), 1);
    let place = *state.active.first().unwrap();
    assert_eq!(
        state
            .partition(place)
            .unwrap()
            .ready
            .front()
            .unwrap()
            .records(),
        taken
    );
    // Each record fails once.
    state.take_back(None, &Error::new(Kind::Again, "enough"));
    let mut numbers: Vec<_> = state.failed.iter().map(|one| one.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..taken).collect::<Vec<_>>());
    assert_eq!(state.records, 0);
    assert_eq!(
        state
            .append_all(&outgoing(0, 100, Some("k")), 0..100, now)
            .0,
        taken
    );
}

#[test]
fn a_record_that_is_too_large_is_refused_and_its_neighbours_are_accepted() {
    let shared = shared(ProducerOptions {
        record_bytes: 5,
        ..options()
    });
    let mut outgoing = outgoing(0, 3, None);
    let start = outgoing.bytes.len();
    outgoing.bytes.extend_from_slice(b"123456");
    outgoing.records[1].value = start..start + 6;
    let (mut state, now) = (shared.lock(), Instant::now());
    assert_eq!(state.append_all(&outgoing, 0..100, now), (1, true));
    assert_eq!(state.append_all(&outgoing, 2..100, now), (1, false));
}

/// A peer that answers every request with these bytes.
fn peer(answer: &'static [u8]) -> ProducerOptions {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut asked = [0; 4096];
            while stream.read(&mut asked).is_ok_and(|bytes| bytes > 0) {
                if stream.write_all(answer).is_err() {
                    break;
                }
            }
        }
    });
    ProducerOptions {
        brokers: vec![address],
        ..options()
    }
}

#[test]
fn peers_that_are_not_brokers_are_reported_and_do_no_harm() {
    for (answer, said) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
            "is this a Kafka broker",
        ),
        (
            b"\x15\x03\x01\x00\x02\x02\x46\x00\x00\x00",
            "is this a Kafka broker",
        ),
        (b"\x00\x00\x00\x00", "is this a Kafka broker"),
        // Answers to unknown requests, truncated answers, and lengths beyond the end.
        (
            b"\x00\x00\x00\x04\x00\x00\x00\x09",
            "an answer to an unknown request",
        ),
        (b"\x00\x00\x00\x05\x00\x00\x00\x00\x00", "cannot be read"),
        (
            b"\x00\x00\x00\x0a\x00\x00\x00\x00\x00\x00\x7f\xff\xff\xff",
            "cannot be read",
        ),
        // An answer that lists no API.
        (
            b"\x00\x00\x00\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
            "Kafka 2.4 or later",
        ),
    ] {
        let mut producer = Native::new(peer(answer)).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let heard = loop {
            let asked = producer.cluster(Duration::from_millis(50));
            assert_eq!(asked.map_err(|error| error.kind), Err(Kind::Again));
            match producer.complaint() {
                Some(heard) if heard.contains(said) => break heard,
                heard => assert!(Instant::now() < deadline, "{said}: {heard:?}"),
            }
        };
        assert!(heard.contains("127.0.0.1:"), "{heard}");
    }
}

#[test]
fn a_panic_in_a_task_ends_the_producer() {
    let (shared, options) = (Arc::new(shared(options())), options());
    let access = Access::new(&options).unwrap();
    let engine = Rc::new(Engine::new(shared, access, options));
    let (_orders, ordered) = mpsc::channel(1);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, async {
        engine.start(async { panic!("the test wants it") });
        let ended = tokio::time::timeout(Duration::from_secs(20), engine.run(ordered));
        ended.await.unwrap();
    });
}

/// A broker that reports its versions and answers nothing else.
fn frozen() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        // The answer to request 0: no error, and one API, Metadata (3), in versions 0 to 12.
        let versions = b"\0\0\0\x10\0\0\0\0\0\0\0\0\0\x01\0\x03\0\0\0\x0c";
        let mut streams = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.read_exact(&mut [0; 4]).unwrap();
            stream.write_all(versions).unwrap();
            streams.push(stream);
        }
    });
    address
}

#[test]
fn another_broker_is_asked_if_one_is_frozen() {
    let mut well = peer(b"\0\0\0\0");
    well.brokers.insert(0, frozen());
    let mut producer = Native::new(well).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut heard = Vec::new();
    while heard.len() < 2 {
        assert!(Instant::now() < deadline, "{heard:?}");
        drop(producer.cluster(Duration::from_millis(50)));
        let complaint = producer.complaint();
        let new = complaint.filter(|complaint| !heard.contains(complaint));
        heard.extend(new);
    }
    assert!(heard[0].contains("asking another broker"), "{heard:?}");
    assert!(heard[1].contains("is this a Kafka broker"), "{heard:?}");
}

/// Answers each request on a connection. `answer` gets the key, the version and the bytes of the
/// request.
fn serve(mut stream: TcpStream, mut answer: impl FnMut(i16, i16, &[u8], &mut Vec<u8>)) {
    let mut length = [0; 4];
    while stream.read_exact(&mut length).is_ok() {
        let mut asked = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut asked).unwrap();
        let mut head = Take(&asked);
        let (key, version) = (head.i16().unwrap(), head.i16().unwrap());
        let mut out = Vec::new();
        out.i32(head.i32().unwrap());
        answer(key, version, &asked, &mut out);
        let length = u32::try_from(out.len()).unwrap().to_be_bytes();
        if stream.write_all(&[&length[..], &out].concat()).is_err() {
            return;
        }
    }
}

/// Answers ApiVersions: no error, and each API with its newest version.
fn tell_versions(apis: &[(i16, i16)], out: &mut Vec<u8>) {
    out.i16(0);
    out.count(apis.len());
    for (key, newest) in apis {
        out.i16(*key);
        out.i16(0);
        out.i16(*newest);
    }
}

/// Answers FindCoordinator: not throttled, no error, no text; the broker `id` on this port.
fn tell_coordinator(id: i32, port: u16, out: &mut Vec<u8>) {
    out.i32(0);
    out.i16(0);
    out.nullable(None);
    out.i32(id);
    out.string("127.0.0.1");
    out.i32(port.into());
}

/// Answers OffsetFetch up to version 6 with the position `v5`.
fn tell_position(out: &mut Vec<u8>) {
    out.extend(b"\0\0\0\0\0\0\0\x01\0\x01t\0\0\0\x01\0\0\0\0");
    out.extend(b"\0\0\0\0\0\0\0\x01\xff\xff\xff\xff\0\x02v5\0\0\0\0");
}

/// A broker that coordinates a group and supports OffsetFetch up to version `newest`. In version 7 it first answers that the offset
/// is not stable. The position that it returns is the version and `require_stable` of the request.
fn coordinator(newest: i16) -> ProducerOptions {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut is_stable = false;
        for stream in listener.incoming() {
            serve(stream.unwrap(), |key, version, asked, out| match key {
                API_VERSIONS => {
                    tell_versions(&[(FIND_COORDINATOR, 1), (OFFSET_FETCH, newest)], out);
                }
                FIND_COORDINATOR => tell_coordinator(1, address.port(), out),
                _ if version < 7 => tell_position(out),
                _ => {
                    let (flag, _) = asked.last_chunk::<2>().unwrap().split_at(1);
                    out.extend(b"\0\0\0\0\0\x02\x02t\x02\0\0\0\0");
                    out.extend(b"\0\0\0\0\0\0\0\x01\xff\xff\xff\xff\x03v");
                    out.push(b'0' + flag[0]);
                    // UNSTABLE_OFFSET_COMMIT, or no error.
                    out.extend(if is_stable { b"\0\0" } else { b"\0\x58" });
                    out.extend(b"\0\0\0\0\0");
                    is_stable = true;
                }
            });
        }
    });
    ProducerOptions {
        brokers: vec![address.to_string()],
        ..options()
    }
}

#[test]
fn a_position_is_read_again_until_its_transaction_is_completed_if_the_broker_supports_that() {
    let store = Store {
        group: "g".to_owned(),
        topic: "t".to_owned(),
    };
    for (newest, stable, expected) in [
        (5, true, "v5"),
        (6, true, "v5"),
        (9, true, "v1"),
        (9, false, "v0"),
    ] {
        let mut producer = Native::new(coordinator(newest)).unwrap();
        let found = producer.committed(&store, stable, Duration::from_secs(20));
        assert_eq!(found, Ok(Some(expected.to_owned())), "{newest}");
    }
}

#[test]
fn records_that_no_broker_accepts_can_be_purged() {
    let mut producer = Native::new(options()).unwrap();
    let sent = producer.send(&outgoing(0, 10, None), 0..100);
    assert_eq!((sent.taken, sent.refused), (10, None));
    producer.flush(Duration::from_millis(20));
    assert_eq!(producer.in_flight(), 10);
    producer.purge();
    assert_eq!(producer.in_flight(), 0);
    assert_eq!(producer.take_failed().len(), 10);
}

#[test]
fn a_record_that_waits_too_long_fails() {
    let mut producer = Native::new(ProducerOptions {
        transactional_id: Some("me".to_owned()),
        transaction_timeout: Duration::from_millis(100),
        ..options()
    })
    .unwrap();
    producer.send(&outgoing(0, 10, None), 0..100);
    let deadline = Instant::now() + Duration::from_secs(20);
    while producer.in_flight() > 0 {
        assert!(Instant::now() < deadline);
        producer.flush(Duration::from_millis(10));
    }
    let failed = producer.take_failed();
    assert_eq!(failed.len(), 10);
    assert_eq!(failed[0].error.kind, Kind::Again);
}
