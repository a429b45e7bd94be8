//! Tests of files that are overwritten in place, as logrotate's `shred` does after it has compressed a file.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    thread,
    time::Duration,
};

use super::{Place, append, numbers, sorted, text};
use crate::rig::{Downstream, until};

/// Overwrites a file with lines of garbage, up to a multiple of the size of a block.
fn shred(path: &Path) {
    let len = fs::metadata(path).unwrap().len().next_multiple_of(4096) as usize;
    let file = OpenOptions::new().write(true).open(path).unwrap();
    for garbage in ["\u{fffd}junk\n", "\0rubbish\n"] {
        let bytes: Vec<u8> = garbage.bytes().cycle().take(len).collect();
        for (index, part) in bytes.chunks(1000).enumerate() {
            file.write_all_at(part, index as u64 * 1000).unwrap();
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_renamed_file_that_is_overwritten_is_not_read_any_more() {
    for pattern in ["a.log", "a.log*"] {
        for to in [Downstream::memory(), Downstream::durable()] {
            let place = Place::new();
            let (path, rotated) = (place.log("a.log"), place.log("a.log.1"));
            append(&path, &text(0..1000));
            let running = place.start(pattern, "", &to);
            until("all lines", || to.lines().len() == 1000);
            fs::rename(&path, &rotated).unwrap();
            append(&path, &text(1000..1100));
            until("the next file", || to.lines().len() == 1100);
            thread::sleep(Duration::from_millis(50));
            shred(&rotated);
            until("it is reported", || running.meter("files_overwritten") == 1);
            // Also a file that is left under its name is not read.
            thread::sleep(Duration::from_millis(100));
            append(&path, &text(1100..1101));
            until("the last line", || to.lines().len() > 1100);
            OpenOptions::new()
                .write(true)
                .open(&rotated)
                .unwrap()
                .set_len(0)
                .unwrap();
            fs::remove_file(&rotated).unwrap();
            running.stop();
            place.once(pattern, "", &to);
            assert_eq!(to.lines(), numbers(0..1101), "{pattern}");
        }
    }
}

#[test]
fn a_file_that_was_renamed_and_overwritten_while_the_source_was_down_is_not_read() {
    for pattern in ["a.log", "a.log*"] {
        let (place, to) = (Place::new(), Downstream::durable());
        let (path, rotated) = (place.log("a.log"), place.log("a.log.1"));
        append(&path, &text(0..1000));
        place.once(pattern, "", &to);
        fs::rename(&path, &rotated).unwrap();
        append(&path, &text(1000..1010));
        shred(&rotated);
        place.once(pattern, "", &to);
        assert_eq!(to.lines(), numbers(0..1010), "{pattern}");
    }
}

#[test]
fn a_renamed_file_that_is_truncated_and_written_again_is_read() {
    let (place, to) = (Place::new(), Downstream::durable());
    let (path, rotated) = (place.log("a.log"), place.log("a.log.1"));
    append(&path, &text(0..100));
    let running = place.start("a.log", "", &to);
    until("all lines", || to.lines().len() == 100);
    // The program keeps writing into the renamed file.
    fs::rename(&path, &rotated).unwrap();
    thread::sleep(Duration::from_millis(50));
    fs::write(&rotated, "").unwrap();
    until("the truncation", || running.meter("files_truncated") == 1);
    append(&rotated, "more\n");
    until("what came after", || to.lines().len() == 101);
    running.stop();
}

#[test]
fn a_file_that_is_overwritten_under_its_own_name_is_read_again() {
    let (place, to) = (Place::new(), Downstream::durable());
    let path = place.log("a.log");
    append(&path, &text(0..100));
    let running = place.start("a.log", "", &to);
    until("all lines", || to.lines().len() == 100);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let new: String = text(0..100).to_uppercase();
    file.write_all_at(new.as_bytes(), 0).unwrap();
    until("the new content", || to.lines().len() == 200);
    running.stop();
    let mut expected = numbers(0..100);
    expected.extend(new.lines().map(str::to_owned));
    assert_eq!(sorted(to.lines()), sorted(expected));
}

#[test]
fn a_file_that_is_overwritten_right_after_it_was_renamed_is_not_read() {
    for round in 0..10 {
        let (place, to) = (Place::new(), Downstream::durable());
        let (path, rotated) = (place.log("a.log"), place.log("a.log.1"));
        append(&path, &text(0..1000));
        let running = place.start("a.log*", r#", "rescan": "1h""#, &to);
        until("all lines", || to.lines().len() == 1000);
        thread::sleep(Duration::from_millis(round));
        fs::rename(&path, &rotated).unwrap();
        shred(&rotated);
        fs::remove_file(&rotated).unwrap();
        append(&path, "next\n");
        until("the next file", || to.lines().contains(&"next".to_owned()));
        running.stop();
        assert_eq!(to.lines().len(), 1001);
    }
}
