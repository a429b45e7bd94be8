//! Tests of records that begin in one file and end in the file that has its name after a rotation.

use std::{fs, path::PathBuf, thread, time::Duration};

use super::{
    Place, append,
    framed::{STACKS, cri, messages},
};
use crate::rig::{Downstream, until};

const CRI: &str = r#", "framing": "cri", "rotate_wait": "500ms""#;

/// A log and the name that the kubelet gives to a rotated one.
fn log(place: &Place) -> (PathBuf, PathBuf) {
    (place.log("0.log"), place.log("0.log.20260102-030406"))
}

const FIRST: [&str; 4] = ["out F one", "out P two-", "err P bad-", "err F end"];
const SECOND: [&str; 3] = ["err F alone", "out P begun-", "out F ended"];

fn lines(parts: &[&str]) -> String {
    let line = |part: &&str| {
        let mut words = part.splitn(3, ' ');
        let mut next = || words.next().unwrap();
        cri(&format!("std{}", next()), next(), next())
    };
    parts.iter().map(line).collect()
}

const EXPECTED: [&str; 4] = ["one", "bad-end", "alone", "two-begun-ended"];

fn sorted(mut all: Vec<String>) -> Vec<String> {
    all.sort();
    all
}

#[test]
fn a_record_that_ends_in_the_next_file_is_joined_while_the_source_runs() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let place = Place::new();
        let (path, rotated) = log(&place);
        append(&path, &lines(&FIRST));
        let running = place.start("*.log", CRI, &to);
        until("the first", || messages(&to).contains(&"one".to_owned()));
        fs::rename(&path, &rotated).unwrap();
        thread::sleep(Duration::from_millis(30));
        append(&path, &lines(&SECOND[..1]));
        thread::sleep(Duration::from_millis(100));
        append(&path, &lines(&SECOND[1..]));
        append(&path, &lines(&["out F last"]));
        until("the last", || messages(&to).contains(&"last".to_owned()));
        until("the old one is closed", || running.meter("open_files") == 1);
        running.stop();
        place.once("*.log", CRI, &to);
        let mut expected = EXPECTED.map(str::to_owned).to_vec();
        expected.push("last".to_owned());
        assert_eq!(sorted(messages(&to)), sorted(expected));
        assert_eq!(messages(&to).last().unwrap(), "last", "in order");
        assert_eq!(to.repeats(), 0);
    }
}

#[test]
fn a_record_that_ends_in_the_next_file_is_joined_if_the_source_was_down() {
    for once in [true, false] {
        for to in [Downstream::memory(), Downstream::durable()] {
            let place = Place::new();
            let (path, rotated) = log(&place);
            append(&path, &lines(&FIRST[..1]));
            place.once("*.log", CRI, &to);
            append(&path, &lines(&FIRST[1..]));
            fs::rename(&path, &rotated).unwrap();
            append(&path, &lines(&SECOND));
            for _ in 0..2 {
                match once {
                    true => drop(place.once("*.log", CRI, &to)),
                    false => {
                        let running = place.start("*.log", CRI, &to);
                        until("all", || messages(&to).len() == 4);
                        until("the old one is closed", || running.meter("open_files") == 1);
                        running.stop();
                    }
                }
                assert_eq!(
                    sorted(messages(&to)),
                    sorted(EXPECTED.map(str::to_owned).to_vec())
                );
            }
            assert_eq!(to.repeats(), 0);
        }
    }
}

#[test]
fn a_joined_record_that_is_dropped_is_sent_again_and_the_old_position_waits_for_it() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let place = Place::new();
        let (path, rotated) = log(&place);
        append(&path, &lines(&["out F one", "out P two-"]));
        let running = place.start("*.log", CRI, &to);
        until("the first", || messages(&to) == ["one"]);
        to.hold();
        fs::rename(&path, &rotated).unwrap();
        append(&path, &lines(&["out F end", "out F three"]));
        until("it is sent", || messages(&to).len() == 3);
        to.drop_held();
        until("it is sent again", || messages(&to).len() == 3);
        until("the old one is closed", || running.meter("open_files") == 1);
        running.stop();
        place.once("*.log", CRI, &to);
        assert_eq!(messages(&to), ["one", "two-end", "three"]);
    }
}

#[test]
fn after_a_kill_before_the_joined_record_is_kept_it_is_joined_again() {
    let (place, to) = (Place::new(), Downstream::durable());
    let (path, rotated) = log(&place);
    append(&path, &lines(&["out F one", "out P two-"]));
    let running = place.start("*.log", CRI, &to);
    until("the first", || messages(&to) == ["one"]);
    to.hold();
    fs::rename(&path, &rotated).unwrap();
    append(&path, &lines(&["out F end"]));
    until("it is sent", || messages(&to).len() == 2);
    // The channel forgets what it has not kept, and the source stops before it sends it again.
    to.drop_held();
    running.stop();
    place.once("*.log", CRI, &to);
    place.once("*.log", CRI, &to);
    assert_eq!(messages(&to), ["one", "two-end"]);
}

#[test]
fn a_record_whose_end_never_comes_is_delivered_alone() {
    for next in [&["err F other"][..], &[]] {
        let (place, to) = (Place::new(), Downstream::durable());
        let (path, rotated) = log(&place);
        append(&path, &lines(&["out P half"]));
        place.once("*.log", CRI, &to);
        append(&path, &lines(&["out P again"]));
        fs::rename(&path, &rotated).unwrap();
        append(&path, &lines(next));
        place.once("*.log", CRI, &to);
        let mut expected = vec!["half".to_owned(), "again".to_owned()];
        expected.extend(next.iter().map(|_| "other".to_owned()));
        assert_eq!(sorted(messages(&to)), sorted(expected));
    }
}

#[test]
fn a_stack_trace_that_ends_in_the_next_file_is_one_record() {
    for down in [true, false] {
        let (place, to) = (Place::new(), Downstream::durable());
        let (path, rotated) = (place.log("a.log"), place.log("a.log.1"));
        append(&path, "1 one\n  at a\n2 two\n  at b\n");
        let running = place.start("a.log", STACKS, &to);
        until("the first", || messages(&to) == ["1 one\n  at a"]);
        let running = match down {
            true => {
                running.stop();
                None
            }
            false => Some(running),
        };
        fs::rename(&path, &rotated).unwrap();
        append(&path, "  at c\n3 three\n");
        let running = running.unwrap_or_else(|| place.start("a.log", STACKS, &to));
        until("all", || messages(&to).len() == 3);
        running.stop();
        assert_eq!(
            messages(&to),
            ["1 one\n  at a", "2 two\n  at b\n  at c", "3 three"]
        );
    }
}
