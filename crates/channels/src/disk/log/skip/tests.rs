//! Batches that are too old are skipped: by the option `max_age` of the channel for every consumer, and by `behind: { age, then: skip }` for
//! one.

use std::time::Duration;

use millstream_record::Position;
use millstream_testkit::{Crash, SimulatedDisk};

use super::super::{
    Behind, Error, Log, Options, Reader, Skipped, Sync, Then,
    tests::{SEGMENT, at, drain, keep, open_with, options, reader},
};

/// One batch per second is kept, so this is also the number of batches that are young.
const AGE: u64 = 40;
/// Old batches are found at most this much too late.
const LATE: u64 = AGE / 16 + 1;

/// Options of a channel whose newest segment holds all batches of a test.
fn with_age(max_age: u64) -> Options {
    Options {
        size_max: 160 * SEGMENT,
        segment_bytes: 16 * SEGMENT,
        max_age: Duration::from_secs(max_age),
        ..options(Sync::Batch)
    }
}

fn behind(age: u64, then: Then) -> Behind {
    Behind {
        size: 0,
        age: Duration::from_secs(age),
        then,
    }
}

/// The options of a channel and a consumer with the same limit of age.
fn ways() -> [(Options, Behind); 4] {
    [
        (with_age(AGE), Behind::default()),
        (with_age(0), behind(AGE, Then::Skip)),
        (with_age(AGE), behind(1000, Then::Skip)),
        (with_age(1000), behind(AGE, Then::Skip)),
    ]
}

fn skipped(log: &Log, records: u64) {
    let bytes = records * 1000;
    assert_eq!(log.skipped("sink"), Skipped { records, bytes });
}

/// Reads to the end, and returns the number of the first batch. The batches up to `last` must follow.
fn first_of(sink: &mut Reader, last: u64) -> u64 {
    let (numbers, lost) = drain(sink);
    assert_eq!(lost, [], "skipped batches are not a gap");
    let first = numbers[0];
    assert_eq!(numbers, (first..=last).collect::<Vec<_>>());
    first
}

#[test]
fn old_batches_of_the_newest_segment_are_skipped_and_young_ones_stay() {
    for (options, behind) in ways() {
        let disk = SimulatedDisk::new(1);
        let mut log = open_with(&disk, options);
        let mut sink = reader(&log, behind);
        keep(&mut log, 0..100).unwrap();
        let first = first_of(&mut sink, 99);
        assert!((99 - AGE - LATE..=99 - AGE + 1).contains(&first), "{first}");
        skipped(&log, first);
        sink.commit(sink.position()).unwrap();
        // The next ones become too old while nothing is kept.
        keep(&mut log, 100..110).unwrap();
        log.commit(at(109 + AGE + LATE)).unwrap();
        assert_eq!(drain(&mut sink), (vec![], vec![]));
        skipped(&log, first + 10);
        // A restart finds the same.
        drop((log, sink));
        disk.restart(Crash::Power);
        let mut log = open_with(&disk, options);
        let mut sink = reader(&log, behind);
        assert_eq!(drain(&mut sink), (vec![], vec![]));
        keep(&mut log, 400..403).unwrap();
        assert_eq!(first_of(&mut sink, 402), 400);
    }
}

#[test]
fn batches_that_a_sink_has_taken_are_skipped_only_if_it_gives_them_back() {
    for (options, behind) in ways() {
        for gives_back in [false, true] {
            let disk = SimulatedDisk::new(1);
            let mut log = open_with(&disk, options);
            let mut sink = reader(&log, behind);
            keep(&mut log, 0..5).unwrap();
            assert_eq!(first_of(&mut sink, 4), 0);
            keep(&mut log, 5..10).unwrap();
            log.commit(at(9 + AGE + LATE)).unwrap();
            match gives_back {
                true => sink.restart(),
                false => sink.commit(Position { epoch: 1, seq: 5 }).unwrap(),
            }
            assert_eq!(drain(&mut sink), (vec![], vec![]));
            skipped(&log, if gives_back { 10 } else { 5 });
        }
    }
}

#[test]
fn a_crash_at_any_call_of_a_skip_repeats_no_settled_batch_and_loses_no_young_one() {
    for call in 0..12 {
        let disk = SimulatedDisk::new(1);
        let mut log = open_with(&disk, with_age(AGE));
        let mut sink = reader(&log, Behind::default());
        keep(&mut log, 0..30).unwrap();
        drain(&mut sink);
        sink.commit(Position { epoch: 1, seq: 10 }).unwrap();
        disk.crash_at(disk.calls() + call);
        // Batches 10 to 19 are too old then.
        let _ = log.commit(at(20 + AGE));
        drop((log, sink));
        disk.restart(Crash::Power);
        let mut log = open_with(&disk, with_age(AGE));
        let mut sink = reader(&log, Behind::default());
        let first = first_of(&mut sink, 29);
        assert!(first == 10 || first == 20, "call {call}: {first}");
        drop(sink);
        let mut sink = reader(&log, Behind::default());
        log.commit(at(21 + AGE)).unwrap();
        let first = first_of(&mut sink, 29);
        assert!((20..=21).contains(&first), "call {call}: {first}");
    }
}

#[test]
fn with_max_age_a_full_channel_still_makes_its_sources_wait() {
    let disk = SimulatedDisk::new(1);
    let options = Options {
        max_age: Duration::from_secs(100_000),
        ..options(Sync::Batch)
    };
    let mut log = open_with(&disk, options);
    let _sink = reader(&log, Behind::default());
    let error = keep(&mut log, 0..200).unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "{error}");
    // The records that become too old free space.
    log.commit(at(200_000)).unwrap();
    keep(&mut log, 300_000..300_020).unwrap();
}

#[test]
fn old_batches_do_not_make_the_sources_wait_for_a_consumer_with_a_limit() {
    let disk = SimulatedDisk::new(1);
    let mut log = open_with(&disk, with_age(AGE));
    let limit = Behind {
        size: 2 * SEGMENT,
        ..behind(0, Then::Block)
    };
    let mut sink = reader(&log, limit);
    keep(&mut log, 0..20).unwrap();
    // Each of these rounds alone is within the limit.
    for round in 1..5 {
        let first = round * 1000;
        keep(&mut log, first..first + 20).unwrap();
    }
    assert_eq!(first_of(&mut sink, 4019), 4000);
    skipped(&log, 80);
}

#[test]
fn another_max_age_applies_at_once() {
    let disk = SimulatedDisk::new(1);
    let mut log = open_with(&disk, with_age(1000));
    let mut sink = reader(&log, Behind::default());
    keep(&mut log, 0..100).unwrap();
    log.commit(at(100)).unwrap();
    skipped(&log, 0);
    log.change(with_age(AGE));
    log.commit(at(100)).unwrap();
    assert_eq!(first_of(&mut sink, 99), 100 - AGE);
    skipped(&log, 100 - AGE);
}
