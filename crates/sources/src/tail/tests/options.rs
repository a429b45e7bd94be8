//! Tests of `ignore_older`, `rate_max`, `when_done`, links and holes.

use std::{
    fs::{self, File, OpenOptions},
    io::{Seek, SeekFrom, Write},
    os::unix::fs::symlink,
    thread,
    time::{Duration, Instant, SystemTime},
};

use super::{Place, append, numbers, sorted, text};
use crate::rig::{Downstream, until};

#[test]
fn a_file_older_than_ignore_older_is_skipped_until_it_is_written() {
    let (place, to) = (Place::new(), Downstream::memory());
    let path = place.log("old.log");
    append(&path, "old\n");
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    File::open(&path).unwrap().set_modified(hour_ago).unwrap();
    append(&place.log("young.log"), "young\n");
    let running = place.start("*.log", r#", "ignore_older": "10m", "rescan": "30ms""#, &to);
    until("the young one", || to.lines() == ["young"]);
    thread::sleep(Duration::from_millis(100));
    assert_eq!(to.lines(), ["young"]);
    append(&path, "again\n");
    until("the old one", || to.lines() == ["young", "old", "again"]);
    running.stop();
}

#[test]
fn rate_max_limits_one_file_without_delaying_others() {
    let (place, to) = (Place::new(), Downstream::memory());
    let text = text(0..20_000);
    append(&place.log("a.log"), &text);
    let started = Instant::now();
    let more = format!(r#", "rate_max": "{}B""#, text.len() / 2);
    let running = place.start("*.log", &more, &to);
    until("a first part", || !to.lines().is_empty());
    append(&place.log("b.log"), "other\n");
    until("the other file", || {
        to.lines().contains(&"other".to_owned())
    });
    assert!(to.lines().len() < 20_001);
    assert!(running.meter("lag_bytes_max") > 0);
    until("all lines", || to.lines().len() == 20_001);
    assert!(started.elapsed() > Duration::from_millis(900));
    running.stop();
}

#[test]
fn files_of_a_spool_directory_are_removed_or_renamed_when_they_are_settled() {
    for (when_done, to) in [
        ("delete", Downstream::memory()),
        ("rename", Downstream::durable()),
    ] {
        let place = Place::new();
        append(&place.log("a"), "one\ntwo");
        if when_done == "rename" {
            append(&place.log("taken.done"), "not to be read");
        }
        append(&place.log("taken"), "three\n");
        to.hold();
        let more = format!(r#", "when_done": "{when_done}", "rotate_wait": "50ms""#);
        let running = place.start("*", &more, &to);
        until("all lines", || {
            sorted(to.lines()) == ["one", "three", "two"]
        });
        thread::sleep(Duration::from_millis(150));
        assert!(place.log("a").exists(), "nothing is settled yet");
        to.settle();
        until("they are gone", || running.meter("files_done") == 2);
        append(&place.log("late"), "four\n");
        until("the late one", || running.meter("files_done") == 3);
        running.stop();
        let names = fs::read_dir(&place.logs).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let names = sorted(names.collect());
        match when_done {
            "delete" => assert!(names.is_empty(), "{names:?}"),
            _ => {
                assert_eq!(names, ["a.done", "late.done", "taken.1.done", "taken.done"]);
                let untouched = fs::read_to_string(place.log("taken.done")).unwrap();
                assert_eq!(untouched, "not to be read");
            }
        }
        place.once("*", &more, &to);
        assert_eq!(to.lines().len(), 4);
        assert_eq!(to.repeats(), 0);
    }
}

#[test]
fn a_spool_file_whose_last_line_is_being_written_stays() {
    let (place, to) = (Place::new(), Downstream::durable());
    append(&place.log("a"), "x");
    let more = r#", "when_done": "delete", "rotate_wait": "2s""#;
    let running = place.start("*", more, &to);
    for _ in 0..50 {
        thread::sleep(Duration::from_millis(100));
        append(&place.log("a"), "x");
    }
    append(&place.log("a"), "\n");
    until("the line", || to.lines() == ["x".repeat(51)]);
    until("it is gone", || !place.log("a").exists());
    running.stop();
}

#[test]
fn a_damaged_spool_file_stays_and_others_are_read() {
    let (place, to) = (Place::new(), Downstream::memory());
    let mut damaged = super::gzip::packed(&text(0..200_000));
    let middle = damaged.len() / 2;
    damaged[middle..middle + 64].fill(0x55);
    fs::write(place.log("a.gz"), damaged).unwrap();
    let more = r#", "when_done": "delete", "rotate_wait": "50ms""#;
    let running = place.start("*", more, &to);
    until("it is read up to the damage", || to.lines().len() > 1000);
    thread::sleep(Duration::from_millis(500));
    append(&place.log("b"), "plain\n");
    until("the plain file is gone", || !place.log("b").exists());
    assert_eq!(to.lines().last().map(String::as_str), Some("plain"));
    assert!(place.log("a.gz").exists());
    running.stop();
}

#[test]
fn a_compressed_spool_file_that_is_still_being_written_stays_until_it_is_complete() {
    let (place, to) = (Place::new(), Downstream::durable());
    let (one, mut two) = (
        super::gzip::packed(&text(0..1000)),
        super::gzip::packed("two\n"),
    );
    // The trailer of the first file is cut off, and so is the second member of the second file.
    let parts = [one.len() - 4, two.len() + 5];
    two.extend(super::gzip::packed("three\n"));
    let files = [("a.gz", one, parts[0]), ("b.gz", two, parts[1])];
    for (name, bytes, written) in &files {
        fs::write(place.log(name), &bytes[..*written]).unwrap();
    }
    let more = r#", "when_done": "delete", "rotate_wait": "50ms", "rescan": "50ms""#;
    let running = place.start("*", more, &to);
    until("what is written", || to.lines().len() == 1001);
    thread::sleep(Duration::from_millis(500));
    for (name, bytes, written) in &files {
        let mut file = File::options().append(true).open(place.log(name)).unwrap();
        file.write_all(&bytes[*written..]).unwrap();
    }
    until("they are gone", || running.meter("files_done") == 2);
    running.stop();
    let mut expected = numbers(0..1000);
    expected.extend(["two".to_owned(), "three".to_owned()]);
    assert_eq!(sorted(to.lines()), sorted(expected));
    assert_eq!(fs::read_dir(&place.logs).unwrap().count(), 0);
}

#[test]
fn with_once_a_spool_directory_is_emptied() {
    let (place, to) = (Place::new(), Downstream::durable());
    append(&place.log("a"), &text(0..1000));
    append(&place.log("b"), "last");
    place.once("*", r#", "when_done": "delete""#, &to);
    assert_eq!(to.lines().len(), 1001);
    assert_eq!(fs::read_dir(&place.logs).unwrap().count(), 0);
}

#[test]
fn a_file_that_has_two_names_is_read_once() {
    let (place, to) = (Place::new(), Downstream::durable());
    append(&place.log("a.log"), "one\n");
    symlink(place.log("a.log"), place.log("link.log")).unwrap();
    fs::hard_link(place.log("a.log"), place.log("second.log")).unwrap();
    let running = place.start("*.log", r#", "rescan": "20ms""#, &to);
    until("one line", || to.lines() == ["one"]);
    append(&place.log("a.log"), "two\n");
    until("two lines", || to.lines() == ["one", "two"]);
    // The link leads to another file now.
    append(&place.log("b"), "three\n");
    fs::remove_file(place.log("link.log")).unwrap();
    symlink(place.log("b"), place.log("link.log")).unwrap();
    until("the other file", || to.lines() == ["one", "two", "three"]);
    running.stop();
    place.once("*.log", "", &to);
    assert_eq!((to.lines().len(), to.repeats()), (3, 0));
}

/// Writes like a program that does not append, but keeps its own offset.
fn write_at(path: &std::path::Path, offset: u64, text: &str) {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap();
    file.seek(SeekFrom::Start(offset)).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

#[test]
fn the_hole_after_a_truncation_is_skipped() {
    for lines in [10, 3000] {
        for to in [Downstream::memory(), Downstream::durable()] {
            let place = Place::new();
            let path = place.log("a.log");
            let before = text(0..lines);
            append(&path, &before);
            let running = place.start("a.log", "", &to);
            until("all lines", || to.lines().len() == lines as usize);
            let at = before.len() as u64;
            fs::write(&path, "").unwrap();
            write_at(&path, at, "after\n");
            until("what came after", || to.lines().len() > lines as usize);
            write_at(&path, at + 6, "more\n");
            let mut expected = numbers(0..lines);
            expected.extend(["after".to_owned(), "more".to_owned()]);
            until("more", || to.lines() == expected);
            assert_eq!(running.meter("hole_bytes"), at);
            running.stop();
            write_at(&path, at + 11, "last\n");
            place.once("a.log", "", &to);
            expected.push("last".to_owned());
            assert_eq!(to.lines(), expected);
            assert_eq!(to.repeats(), 0);
        }
    }
}

#[test]
fn written_nuls_are_delivered() {
    let (place, to) = (Place::new(), Downstream::memory());
    append(&place.log("a.log"), "\0\0a\n\0\n\0\0\0\0\n");
    place.once("a.log", "", &to);
    assert_eq!(to.lines(), ["\0\0a", "\0", "\0\0\0\0"]);
}
