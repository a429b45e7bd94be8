//! A full disk: settled segments are released, new ones get smaller, and nothing is lost.

use std::{ops::Range, path::Path, time::Duration};

use millstream_sys::disk::{Disk, File, Open};
use millstream_testkit::{Call, Crash, SimulatedDisk};

use super::{
    Behind, Error, Log, Options, Reader, Sync,
    tests::{DIRECTORY, at, batch, drain, keep, names, open_with, options, reader},
};

const MIB: u64 = 1 << 20;

fn large() -> Options {
    Options {
        size_max: 1 << 30,
        segment_bytes: MIB,
        ..options(Sync::Batch)
    }
}

/// Fills the disk: a new file takes all the free space.
fn fill(disk: &SimulatedDisk, name: &str) -> std::sync::Arc<dyn File> {
    let ballast = disk.open(Path::new(name), Open::Create).unwrap();
    let free = disk.space(Path::new(DIRECTORY)).unwrap().free;
    ballast.allocate(free).unwrap();
    assert_eq!(disk.space(Path::new(DIRECTORY)).unwrap().free, 0);
    ballast
}

/// Keeps batches from number `next` on until there is no space. Returns the error and the number of the batch that stays staged.
fn keep_until_full(log: &mut Log, next: u64) -> (Error, u64) {
    for number in next..next + 100_000 {
        if let Err(error) = keep(log, number..number + 1) {
            assert!(matches!(error, Error::NoRoom { .. }), "{error}");
            return (error, number);
        }
    }
    panic!("the disk never gets full");
}

fn settle(sink: &mut Reader) -> Vec<u64> {
    let (numbers, lost) = drain(sink);
    assert_eq!(lost, []);
    sink.commit(sink.position()).unwrap();
    numbers
}

fn all(range: Range<u64>) -> Vec<u64> {
    range.collect()
}

#[test]
fn a_channel_on_a_full_disk_continues_in_the_space_of_settled_segments() {
    let disk = SimulatedDisk::new(1);
    disk.set_capacity(64 * MIB);
    let mut log = open_with(&disk, large());
    let mut sink = reader(&log, Behind::default());
    keep(&mut log, 0..1).unwrap();
    fill(&disk, "/ballast");
    let (mut next, mut seen) = (1, 0);
    for round in 0..20 {
        let (_, waits) = keep_until_full(&mut log, next);
        assert!(waits > next + 100, "round {round}: {next} to {waits}");
        // The batch stays staged until there is space, and every kept batch can still be read.
        assert!(log.commit(at(waits)).unwrap_err().is_for_now());
        assert_eq!(settle(&mut sink), all(seen..waits), "round {round}");
        log.commit(at(waits)).unwrap();
        (seen, next) = (waits, waits + 1);
    }
    assert_eq!(settle(&mut sink), all(seen..next));
}

#[test]
fn a_restart_on_a_full_disk_releases_settled_segments() {
    for crash in [None, Some(Crash::Kill), Some(Crash::Power)] {
        let disk = SimulatedDisk::new(1);
        disk.set_capacity(64 * MIB);
        let mut log = open_with(&disk, large());
        let mut sink = reader(&log, Behind::default());
        keep(&mut log, 0..1).unwrap();
        let mut ballast = vec![fill(&disk, "/ballast")];
        let (mut next, mut seen) = (1, 0);
        for round in 0..6 {
            let (_, waits) = keep_until_full(&mut log, next);
            drop(sink);
            match crash {
                // The staged batch is lost with the log. That is correct, because it was not acknowledged.
                None => drop(log),
                Some(crash) => {
                    drop(log);
                    disk.restart(crash);
                }
            }
            // Other programs take the space that is free before the next start.
            if disk.space(Path::new("/")).unwrap().free > 0 {
                ballast.push(fill(&disk, &format!("/ballast-{round}")));
            }
            log = open_with(&disk, large());
            sink = reader(&log, Behind::default());
            assert_eq!(settle(&mut sink), all(seen..waits), "{crash:?} {round}");
            keep(&mut log, waits..waits + 1).unwrap();
            (seen, next) = (waits, waits + 1);
        }
    }
}

#[test]
fn segments_are_smaller_on_a_small_disk() {
    let disk = SimulatedDisk::new(1);
    disk.set_capacity(18 * MIB);
    let whole = Options {
        size_max: 1 << 30,
        ..Options::default()
    };
    let mut log = open_with(&disk, whole);
    let mut sink = reader(&log, Behind::default());
    let (error, waits) = keep_until_full(&mut log, 0);
    assert!(waits * 1000 > 12 * MIB, "{waits}");
    let text = error.to_string();
    assert!(
        text.contains("256KiB are needed and") && text.contains("the sources wait"),
        "{text}"
    );
    let segments = names(&disk).iter().filter(|n| n.ends_with(".seg")).count();
    assert!(segments > 4, "{:?}", names(&disk));
    assert_eq!(settle(&mut sink), all(0..waits));
    log.commit(at(waits)).unwrap();
    // With ample space, segments get their usual size again, and the small ones are removed.
    disk.set_capacity(1 << 40);
    let usual = || {
        let files = disk.list(Path::new(DIRECTORY)).unwrap();
        let bytes = |name| disk.metadata(&Path::new(DIRECTORY).join(name)).unwrap().len;
        files.into_iter().map(bytes).any(|bytes| bytes == 64 * MIB)
    };
    let (mut next, mut seen) = (waits + 1, waits);
    while !usual() {
        keep(&mut log, next..next + 100).unwrap();
        next += 100;
        assert!(next < waits + 40_000, "{:?}", names(&disk));
        assert_eq!(settle(&mut sink), all(seen..next));
        seen = next;
    }
}

#[test]
fn a_channel_that_is_not_settled_waits_and_continues_when_space_returns() {
    let disk = SimulatedDisk::new(1);
    disk.set_capacity(3 * MIB);
    let mut log = open_with(&disk, large());
    let mut sink = reader(&log, Behind::default());
    let (_, waits) = keep_until_full(&mut log, 0);
    let before = names(&disk);
    for _ in 0..5 {
        assert!(log.commit(at(waits)).unwrap_err().is_for_now());
    }
    assert_eq!(names(&disk), before, "waiting leaves no files behind");
    disk.set_capacity(1 << 40);
    log.commit(at(waits)).unwrap();
    assert_eq!(settle(&mut sink), all(0..waits + 1));
}

#[test]
fn a_channel_on_a_full_disk_continues_if_only_some_frames_of_a_commit_had_space() {
    // With one of the two starts, the last commit before the disk is full writes its first group and not its second one.
    for start in [1, 2] {
        let disk = SimulatedDisk::new(1);
        disk.set_capacity(64 * MIB);
        let mut log = open_with(&disk, large());
        let mut sink = reader(&log, Behind::default());
        keep(&mut log, 0..start).unwrap();
        fill(&disk, "/ballast");
        let mut next = start;
        let full = loop {
            for number in next..next + 2 {
                log.append(vec![batch(number, 1000)], at(number)).unwrap();
            }
            next += 2;
            if let Err(error) = log.commit(at(next)) {
                break error;
            }
        };
        assert!(matches!(full, Error::NoRoom { .. }), "{full}");
        let seen = settle(&mut sink).len() as u64;
        log.commit(at(next)).unwrap();
        assert_eq!(settle(&mut sink), all(seen..next), "{start}");
    }
}

#[test]
fn a_full_channel_syncs_what_it_has_kept_when_the_sync_is_due() {
    for seed in 0..8 {
        let disk = SimulatedDisk::new(seed);
        let each = Options {
            segment_bytes: MIB,
            size_max: 3 * MIB,
            ..options(Sync::Every(Duration::from_secs(60)))
        };
        let mut log = open_with(&disk, each);
        let sink = reader(&log, Behind::default());
        let mut next = 0;
        while keep(&mut log, next..next + 1).is_ok() {
            next += 1;
        }
        assert!(log.is_unsynced(), "{seed}");
        let full = log.commit(at(next + 61)).unwrap_err();
        assert!(matches!(full, Error::Full { .. }), "{full}");
        drop((log, sink));
        disk.restart(Crash::Power);
        let log = open_with(&disk, each);
        let (numbers, lost) = drain(&mut reader(&log, Behind::default()));
        assert_eq!((numbers.len() as u64, lost), (next, Vec::new()), "{seed}");
    }
}

#[test]
fn a_commit_ends_if_other_programs_take_the_space_that_the_channel_frees() {
    let disk = SimulatedDisk::new(1);
    disk.set_capacity(64 * MIB);
    let mut log = open_with(&disk, large());
    let mut sink = reader(&log, Behind::default());
    keep(&mut log, 0..1).unwrap();
    fill(&disk, "/ballast");
    let (_, waits) = keep_until_full(&mut log, 1);
    settle(&mut sink);
    disk.fail(Call::Allocate, 1000, 28);
    assert!(log.commit(at(waits)).unwrap_err().is_for_now());
    disk.fail(Call::Allocate, 0, 28);
    log.commit(at(waits)).unwrap();
    assert_eq!(settle(&mut sink), all(waits..waits + 1));
    // The sender repeats the chunk that had to wait.
    log.append(vec![batch(waits, 1000)], at(waits)).unwrap();
    log.commit(at(waits)).unwrap();
    assert_eq!(settle(&mut sink), all(0..0));
}

#[test]
fn segments_are_released_although_the_disk_has_no_space_for_another_name() {
    let segments = |disk: &SimulatedDisk| {
        let names = names(disk).into_iter();
        names.filter(|name| name.ends_with(".seg")).count()
    };
    // The rename fails, or the removal fails, too.
    for failures in [1, 2] {
        let disk = SimulatedDisk::new(1);
        let mut log = open_with(&disk, large());
        let mut sink = reader(&log, Behind::default());
        keep(&mut log, 0..5000).unwrap();
        let before = segments(&disk);
        assert!(before > 3, "{before}");
        settle(&mut sink);
        disk.fail(Call::Name, failures, 28);
        let used = log.used_bytes();
        match log.commit(at(5000)) {
            Ok(()) => assert_eq!(failures, 1),
            Err(error) => {
                assert!(failures == 2 && error.is_for_now(), "{error}");
                assert_eq!(log.used_bytes(), used, "nothing is forgotten");
                log.commit(at(5000)).unwrap();
            }
        }
        assert!(log.used_bytes() < used);
        keep(&mut log, 5000..6000).unwrap();
        assert_eq!(settle(&mut sink), all(5000..6000));
        log.commit(at(6000)).unwrap();
        let names = names(&disk);
        let free = names
            .iter()
            .filter(|name| name.starts_with("free-"))
            .count();
        assert!(segments(&disk) - free <= 2, "{names:?}");
    }
}

/// File systems that copy on write can be full for a write or a sync although the space was allocated. A file system that has found an
/// error becomes read-only until an operator has repaired it.
#[test]
fn a_channel_waits_for_space_that_it_has_allocated() {
    for (call, errno) in [
        (Call::Write, 28),
        (Call::Sync, 28),
        (Call::Sync, 122),
        (Call::Write, 30),
        (Call::Sync, 30),
    ] {
        let disk = SimulatedDisk::new(1);
        let mut log = open_with(&disk, large());
        let mut sink = reader(&log, Behind::default());
        keep(&mut log, 0..10).unwrap();
        disk.fail(call, 1000, errno);
        log.append(vec![batch(10, 1000)], at(10)).unwrap();
        assert!(log.commit(at(10)).unwrap_err().is_for_now());
        let files = names(&disk).len();
        for _ in 0..5 {
            let full = log.commit(at(10)).unwrap_err();
            assert!(matches!(full, Error::NoRoom { .. }), "{full}");
        }
        assert!(names(&disk).len() <= files + 2, "{:?}", names(&disk));
        log.append(vec![batch(11, 1000)], at(11)).unwrap();
        disk.fail(call, 0, errno);
        log.commit(at(11)).unwrap();
        drop((log, sink));
        disk.restart(Crash::Power);
        log = open_with(&disk, large());
        sink = reader(&log, Behind::default());
        assert_eq!(settle(&mut sink), all(0..12), "{call:?} {errno}");
    }
}

#[test]
fn blank_files_are_removed_before_a_channel_waits_for_space_that_it_has_allocated() {
    let disk = SimulatedDisk::new(1);
    let mut log = open_with(&disk, large());
    let mut sink = reader(&log, Behind::default());
    keep(&mut log, 0..5000).unwrap();
    settle(&mut sink);
    keep(&mut log, 5000..5001).unwrap();
    let blanks = |disk: &SimulatedDisk| {
        let names = names(disk).into_iter();
        names.filter(|name| name.starts_with("free-")).count() as u32
    };
    let before = blanks(&disk);
    assert!(before > 0);
    disk.fail(Call::Write, before, 28);
    keep(&mut log, 5001..5002).unwrap();
    assert_eq!(blanks(&disk), 0);
    assert_eq!(settle(&mut sink), all(5000..5002));
}

/// A log that has kept the batches 0..10 without a sync. Their sync has found the disk full.
fn with_failed_sync(disk: &SimulatedDisk) -> Log {
    with_failed_sync_of(disk, 1000)
}

/// The same, with batches of this size.
fn with_failed_sync_of(disk: &SimulatedDisk, bytes: usize) -> Log {
    let mut log = open_with(disk, hourly());
    for number in 0..10 {
        log.append(vec![batch(number, bytes)], at(number)).unwrap();
        log.commit(at(number)).unwrap();
    }
    disk.fail(Call::Sync, 1, 28);
    assert!(log.sync().unwrap_err().is_for_now());
    log
}

fn hourly() -> Options {
    Options {
        sync: Sync::Every(Duration::from_secs(3600)),
        segment_bytes: 16 * MIB,
        ..large()
    }
}

/// Kills the process, and checks that the next start finds the batches 0..10.
fn kill(disk: &SimulatedDisk, log: Log, place: &str) {
    drop(log);
    disk.restart(Crash::Kill);
    let log = open_with(disk, hourly());
    let found = drain(&mut reader(&log, Behind::default()));
    assert_eq!(found, (all(0..10), Vec::new()), "{place}");
}

#[test]
fn a_kill_in_any_step_after_a_failed_sync_loses_nothing_that_was_kept() {
    // Ten of the larger batches have more bytes than one call to the disk writes otherwise.
    for bytes in [1000, MIB as usize] {
        for call in 0.. {
            let disk = SimulatedDisk::new(call);
            let mut log = with_failed_sync_of(&disk, bytes);
            disk.crash_at(disk.calls() + call);
            let written = log.commit(at(10));
            let crashed = disk.crashed();
            kill(&disk, log, &format!("call {call}"));
            if !crashed {
                written.unwrap();
                assert!(call > 5, "{call}");
                break;
            }
        }
    }
}

#[test]
fn a_kill_while_the_disk_stays_full_loses_nothing_that_was_kept() {
    for call in [
        Call::Write,
        Call::Sync,
        Call::Allocate,
        Call::SyncDirectory,
        Call::Name,
    ] {
        let disk = SimulatedDisk::new(1);
        let mut log = with_failed_sync(&disk);
        disk.fail(call, 1000, 28);
        for _ in 0..3 {
            let full = log.commit(at(10)).unwrap_err();
            assert!(full.is_for_now(), "{call:?}: {full}");
        }
        kill(&disk, log, &format!("{call:?}"));
    }
}

#[test]
fn frames_that_were_kept_in_a_failed_segment_move_to_one_segment_or_stay() {
    // The failed segment is larger than those that the disk has space for afterwards.
    let disk = SimulatedDisk::new(1);
    let mut log = open_with(&disk, hourly());
    keep(&mut log, 0..500).unwrap();
    disk.fail(Call::Sync, 1, 28);
    assert!(log.sync().unwrap_err().is_for_now());
    let used = log.used_bytes();
    disk.set_capacity(used + MIB / 2);
    assert!(log.commit(at(500)).unwrap_err().is_for_now());
    let copy = disk.copied();
    copy.restart(Crash::Kill);
    let restarted = open_with(&copy, hourly());
    let found = drain(&mut reader(&restarted, Behind::default()));
    assert_eq!(found, (all(0..500), Vec::new()));
    disk.set_capacity(1 << 40);
    log.commit(at(500)).unwrap();
    let found = drain(&mut reader(&log, Behind::default()));
    assert_eq!(found, (all(0..500), Vec::new()));
}

#[test]
fn syncs_that_find_the_disk_full_do_not_fill_the_channel_with_unused_segments() {
    let disk = SimulatedDisk::new(1);
    let mut log = with_failed_sync(&disk);
    let mut sink = reader(&log, Behind::default());
    let segments = |disk: &SimulatedDisk| {
        let names = names(disk).into_iter();
        names.filter(|name| name.ends_with(".seg")).count()
    };
    // After the first round, everything is synced, so the other rounds make no sync.
    for _ in 0..20 {
        log.commit(at(10)).unwrap();
        disk.fail(Call::Sync, 1, 28);
        let _ = log.sync();
        disk.fail(Call::Sync, 0, 28);
    }
    assert!(segments(&disk) <= 3, "{:?}", names(&disk));
    // Each failed segment holds one batch more.
    for number in 10..60 {
        keep(&mut log, number..number + 1).unwrap();
        disk.fail(Call::Sync, 1, 28);
        assert!(log.sync().unwrap_err().is_for_now());
        log.commit(at(number)).unwrap();
    }
    // The open segment, and few bytes of each failed one.
    assert!(log.used_bytes() < 20 * MIB, "{}", log.used_bytes());
    assert_eq!(settle(&mut sink), all(0..60));
}
