//! Tests of files that are as long as they will become before they are written, and of holes.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    thread,
    time::Duration,
};

use rustix::fs::FallocateFlags;

use super::{Place, append, numbers, text};
use crate::rig::{Downstream, until};

const LEN: usize = 1 << 20;

/// Makes a file of [`LEN`] NULs: a hole, NULs that are written, or blocks that are only reserved.
fn allocate(path: &Path, way: &str) -> File {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .unwrap();
    match way {
        "hole" => file.set_len(LEN as u64).unwrap(),
        "NULs" => file.write_all_at(&vec![0; LEN], 0).unwrap(),
        _ => rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, LEN as u64).unwrap(),
    }
    file
}

const FAST: &str = r#", "rotate_wait": "300ms", "rescan": "200ms""#;

#[test]
fn lines_that_are_written_in_place_arrive_before_and_after_a_restart_and_a_rotation() {
    for way in ["hole", "NULs", "reserved"] {
        for to in [Downstream::memory(), Downstream::durable()] {
            let place = Place::new();
            let path = place.log("a.log");
            let file = allocate(&path, way);
            let running = place.start("a.log", FAST, &to);
            thread::sleep(Duration::from_millis(50));
            let all = text(0..200);
            let (mut at, step) = (0, 333);
            while at < all.len() / 2 {
                file.write_all_at(&all.as_bytes()[at..at + step], at as u64)
                    .unwrap();
                at += step;
                thread::sleep(Duration::from_millis(5));
            }
            let written = all[..at].lines().count() - 1;
            until("the lines of the first half", || {
                to.lines().len() == written
            });
            assert!(
                running.meter("lag_bytes") < 20,
                "only a part of a line is unread"
            );
            running.stop();
            let running = place.start("a.log", FAST, &to);
            file.write_all_at(&all.as_bytes()[at..], at as u64).unwrap();
            until("all lines", || to.lines() == numbers(0..200));
            file.write_all_at(b"last", all.len() as u64).unwrap();
            fs::rename(&path, place.log("a.log.1")).unwrap();
            until("it is closed", || running.meter("open_files") == 0);
            let mut expected = numbers(0..200);
            expected.push("last".to_owned());
            assert_eq!(to.lines(), expected, "{way}");
            // The scans do not open it again and again.
            thread::sleep(Duration::from_millis(500));
            assert_eq!(running.meter("open_files"), 0);
            running.stop();
            place.once("a.log", "", &to);
            assert_eq!(to.lines(), expected, "{way}");
            assert_eq!((running_holes(&to), to.repeats()), (0, 0));
        }
    }
}

/// The number of records with a NUL.
fn running_holes(to: &Downstream) -> usize {
    to.lines().iter().filter(|line| line.contains('\0')).count()
}

#[test]
fn start_end_begins_behind_what_is_written_and_not_at_the_end_of_the_file() {
    for way in ["hole", "NULs", "reserved"] {
        let (place, to) = (Place::new(), Downstream::durable());
        let file = allocate(&place.log("a.log"), way);
        file.write_all_at(b"before\nhal", 0).unwrap();
        let running = place.start("a.log", r#", "start": "end""#, &to);
        until("it has begun", || place.state.join("positions").exists());
        file.write_all_at(b"f\nafter\n", 10).unwrap();
        until("the new lines", || to.lines() == ["half", "after"]);
        running.stop();
    }
}

#[test]
fn a_hole_that_no_truncation_explains_is_skipped_once_it_is_not_written_any_more() {
    let (place, to) = (Place::new(), Downstream::durable());
    for name in ["grows.log", "rests.log"] {
        let file = allocate(&place.log(name), "hole");
        file.write_all_at(format!("{name}\n").as_bytes(), LEN as u64)
            .unwrap();
    }
    let running = place.start("*.log", r#", "rotate_wait": "2s""#, &to);
    thread::sleep(Duration::from_millis(300));
    assert!(to.lines().is_empty(), "the holes may still be written");
    append(&place.log("grows.log"), "more\n");
    until("the file that grows", || {
        to.lines() == ["grows.log", "more"]
    });
    until("the other file", || to.lines().len() == 3);
    assert_eq!(running.meter("hole_bytes"), 2 * LEN as u64);
    running.stop();
}

#[test]
fn a_hole_is_not_skipped_before_it_is_written() {
    let (place, to) = (Place::new(), Downstream::durable());
    let file = allocate(&place.log("a.log"), "hole");
    file.write_all_at(b"at the end\n", LEN as u64 - 11).unwrap();
    let running = place.start("a.log", "", &to);
    thread::sleep(Duration::from_millis(100));
    file.write_all_at(b"first\nsecond\n", 0).unwrap();
    until("the lines before the hole", || {
        to.lines() == ["first", "second"]
    });
    running.stop();
}

#[test]
fn a_finished_file_with_nuls_at_its_end_is_done() {
    let (place, to) = (Place::new(), Downstream::durable());
    let path = place.log("a.log");
    allocate(&path, "NULs")
        .write_all_at(b"one\ntwo", 0)
        .unwrap();
    let more = r#", "when_done": "delete", "rotate_wait": "200ms""#;
    let running = place.start("a.log", more, &to);
    until("it is removed", || !path.exists());
    running.stop();
    assert_eq!(to.lines(), ["one", "two"]);
}

#[test]
fn records_of_several_lines_and_other_encodings_are_read_in_place() {
    let (place, to) = (Place::new(), Downstream::durable());
    let file = allocate(&place.log("a.log"), "NULs");
    let wide = |text: &str| -> Vec<u8> { text.encode_utf16().flat_map(u16::to_le_bytes).collect() };
    let running = place.start("a.log", r#", "encoding": "utf-16le""#, &to);
    file.write_all_at(&wide("one\ntw"), 0).unwrap();
    until("one line", || to.lines() == ["one"]);
    file.write_all_at(&wide("o\n"), 12).unwrap();
    until("two lines", || to.lines() == ["one", "two"]);
    running.stop();
}
