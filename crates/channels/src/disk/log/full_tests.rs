//! A full disk: settled segments are released, new ones get smaller, and nothing is lost.

use std::{ops::Range, path::Path};

use millstream_sys::disk::{Disk, File, Open};
use millstream_testkit::{Crash, SimulatedDisk};

use super::{
    Behind, Error, Log, Options, Reader, Sync,
    tests::{DIRECTORY, at, drain, keep, names, open_with, options, reader},
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
