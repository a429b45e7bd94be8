//! Tests of files that are renamed, removed, truncated or copied, and of reused inodes, at rest and under load.

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use super::{Place, append, numbers, sorted, text};
use crate::rig::{Downstream, until};

#[test]
fn a_renamed_file_is_read_to_its_end_and_the_new_one_from_its_beginning() {
    let (place, to) = (Place::new(), Downstream::durable());
    let (path, rotated) = (place.log("a.log"), place.log("a.log.1"));
    append(&path, "one\n");
    let running = place.start("*.log", r#", "rotate_wait": "100ms", "rescan": "1h""#, &to);
    until("one line", || to.lines() == ["one"]);
    fs::rename(&path, &rotated).unwrap();
    append(&rotated, "late, and without an end");
    append(&path, "new\n");
    until("the new file", || to.lines().contains(&"new".to_owned()));
    until("the rest of the old one", || {
        to.lines().contains(&"late, and without an end".to_owned())
    });
    until("the old one is closed", || running.meter("open_files") == 1);
    running.stop();
    assert_eq!(to.lines().len(), 3);
}

#[test]
fn a_file_renamed_while_the_source_was_down_is_found_and_its_rest_is_read() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let place = Place::new();
        append(&place.log("a.log"), "one\n");
        append(&place.log("foreign.log.1"), "foreign\n");
        // Waits longer than a clock tick of the kernel, the precision of birth times.
        thread::sleep(Duration::from_millis(50));
        place.once("*.log", "", &to);
        append(&place.log("a.log"), "two\n");
        fs::rename(place.log("a.log"), place.log("a.log.1")).unwrap();
        append(&place.log("a.log"), "three\n");
        let running = place.start("*.log", r#", "rotate_wait": "50ms""#, &to);
        until("all lines", || {
            sorted(to.lines()) == ["one", "three", "two"]
        });
        until("the old one is closed", || running.meter("open_files") == 1);
        running.stop();
        place.once("*.log", "", &to);
        assert_eq!(to.lines().len(), 3);
    }
}

/// Renames `a.log` to the first rotated name, and each rotated file to the next one.
fn rotate(place: &Place, rotated: u32) {
    for number in (1..=rotated).rev() {
        let (from, to) = (format!("a.log.{number}"), format!("a.log.{}", number + 1));
        fs::rename(place.log(&from), place.log(&to)).unwrap();
    }
    fs::rename(place.log("a.log"), place.log("a.log.1")).unwrap();
}

#[test]
fn files_created_and_renamed_while_the_source_was_down_are_read_oldest_first() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let place = Place::new();
        let path = place.log("a.log");
        append(&place.log("a.log.old"), "was always there\n");
        append(&path, &text(0..10));
        thread::sleep(Duration::from_millis(50));
        place.once("a.log", "", &to);
        for rotated in 0..3 {
            append(&path, &text(rotated * 1000 + 10..rotated * 1000 + 1010));
            rotate(&place, rotated);
            // The precision of file times is a clock tick of the kernel.
            thread::sleep(Duration::from_millis(20));
        }
        append(&path, &text(3010..3020));
        for _ in 0..2 {
            place.once("a.log", "", &to);
            assert!(
                to.lines() == numbers(0..3020),
                "lines are lost, repeated or out of order"
            );
        }
        assert_eq!(to.repeats(), 0);
    }
}

#[test]
fn files_created_and_renamed_between_two_scans_are_read() {
    let (place, to) = (Place::new(), Downstream::durable());
    append(&place.log("a.log.old"), "was always there\n");
    let running = place.start("a.log", r#", "rescan": "1h""#, &to);
    until("it has begun", || place.state.join("positions").exists());
    for rotated in 0..20 {
        append(&place.log("a.log"), &text(rotated..rotated + 1));
        rotate(&place, rotated);
    }
    until("all files", || sorted(to.lines()) == sorted(numbers(0..20)));
    running.stop();
    place.once("a.log", "", &to);
    assert_eq!(to.lines().len(), 20);
}

#[test]
fn a_file_that_was_empty_when_the_last_run_ended_is_read_under_its_new_name() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let place = Place::new();
        let path = place.log("a.log");
        append(&path, "");
        // Waits longer than a clock tick of the kernel, the precision of birth times.
        thread::sleep(Duration::from_millis(50));
        place.once("a.log", "", &to);
        append(&path, "one\n");
        rotate(&place, 0);
        append(&path, "two\n");
        for _ in 0..2 {
            place.once("a.log", "", &to);
            assert_eq!(to.lines(), ["one", "two"]);
        }
    }
}

#[test]
fn a_copy_made_while_the_source_was_down_is_not_read_again() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let place = Place::new();
        let path = place.log("a.log");
        append(&path, &text(0..10));
        place.once("a.log", "", &to);
        append(&path, &text(10..20));
        thread::sleep(Duration::from_millis(20));
        fs::copy(&path, place.log("a.log.bak")).unwrap();
        append(&path, &text(20..30));
        place.once("a.log", "", &to);
        assert_eq!(to.lines(), numbers(0..30));
        // The file is copied and truncated twice. A part of the first copy was read before, but nothing of the second copy.
        append(&path, &text(30..40));
        fs::copy(&path, place.log("a.log.2")).unwrap();
        fs::write(&path, text(40..50)).unwrap();
        thread::sleep(Duration::from_millis(20));
        fs::copy(&path, place.log("a.log.1")).unwrap();
        fs::write(&path, text(50..60)).unwrap();
        for _ in 0..2 {
            place.once("a.log", "", &to);
            assert_eq!(to.lines(), numbers(0..60));
        }
    }
}

#[test]
fn files_that_were_found_but_not_settled_are_read_by_the_next_run() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let place = Place::new();
        let path = place.log("a.log");
        append(&path, "one\n");
        place.once("a.log", "", &to);
        append(&path, "two\n");
        rotate(&place, 0);
        append(&path, "three\n");
        rotate(&place, 1);
        append(&path, "four\n");
        to.hold();
        let running = place.start("a.log", "", &to);
        until("all is sent", || to.lines().len() == 4);
        to.drop_held();
        running.stop();
        for _ in 0..2 {
            place.once("a.log", "", &to);
            assert_eq!(sorted(to.lines()), ["four", "one", "three", "two"]);
        }
    }
}

#[test]
fn a_removed_file_is_read_to_its_end_and_closed() {
    let (place, to) = (Place::new(), Downstream::memory());
    let path = place.log("a.log");
    let mut file = File::create(&path).unwrap();
    file.write_all(b"one\n").unwrap();
    let running = place.start("*.log", r#", "rotate_wait": "50ms""#, &to);
    until("one line", || to.lines() == ["one"]);
    fs::remove_file(&path).unwrap();
    file.write_all(b"two\n").unwrap();
    until("two lines", || to.lines() == ["one", "two"]);
    until("it is closed", || running.meter("open_files") == 0);
    append(&path, "new\n");
    until("its successor", || to.lines() == ["one", "two", "new"]);
    running.stop();
}

#[test]
fn lines_of_a_removed_file_that_a_consumer_drops_are_sent_again() {
    let (place, to) = (Place::new(), Downstream::memory());
    let path = place.log("a.log");
    append(&path, "one\n");
    let running = place.start("*.log", r#", "rotate_wait": "50ms""#, &to);
    until("one line", || to.lines() == ["one"]);
    to.hold();
    append(&path, "two\n");
    until("two lines", || to.lines() == ["one", "two"]);
    fs::remove_file(&path).unwrap();
    thread::sleep(Duration::from_millis(300));
    to.drop_held();
    until("the dropped line", || to.lines() == ["one", "two"]);
    until("the file is closed", || running.meter("open_files") == 0);
    running.stop();
}

#[test]
fn a_truncated_file_is_read_from_its_beginning_even_if_it_has_grown_past_its_old_end() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let place = Place::new();
        let path = place.log("a.log");
        append(&path, "head\nfirst life\n");
        let running = place.start("*.log", "", &to);
        until("the first life", || to.lines().len() == 2);
        fs::write(&path, "head\nsecond life is longer\n").unwrap();
        until("the second", || to.lines().len() == 4);
        fs::write(&path, "").unwrap();
        append(&path, "head\n3\n");
        until("the third", || to.lines().len() == 6);
        running.stop();
        let lines = [
            "head",
            "first life",
            "head",
            "second life is longer",
            "head",
            "3",
        ];
        assert_eq!(to.lines(), lines);
        fs::write(&path, "head\nthe fourth life, while we did not run\n").unwrap();
        place.once("*.log", "", &to);
        assert_eq!(to.lines().len(), 8);
        assert_eq!(to.repeats(), 0);
    }
}

#[test]
fn a_reused_inode_is_another_file() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let place = Place::new();
        // ext4 and tmpfs reuse the inode number of a removed file. The test also passes on other file systems.
        for life in 0..5 {
            append(
                &place.log("a.log"),
                &format!("the same head\nlife {life}\n"),
            );
            place.once("*.log", "", &to);
            fs::remove_file(place.log("a.log")).unwrap();
        }
        assert_eq!(to.lines().len(), 10);
        assert_eq!(to.repeats(), 0);
    }
}

#[test]
fn a_copy_that_matches_paths_is_not_read_twice() {
    let (place, to) = (Place::new(), Downstream::durable());
    let path = place.log("a.log");
    append(&path, &text(0..1000));
    let running = place.start("a.log*", "", &to);
    until("all lines", || to.lines().len() == 1000);
    fs::copy(&path, place.log("a.log.1")).unwrap();
    append(&path, &text(1000..1001));
    until("one more", || to.lines().len() == 1001);
    fs::write(&path, "").unwrap();
    append(&path, "after\n");
    until("what came after", || to.lines().len() == 1002);
    thread::sleep(Duration::from_millis(200));
    running.stop();
    // Copies and truncates the file again, now while the source is down. Repeats this, because it depends on chance whether the
    // reader of the original ends before the reader of the copy begins.
    let mut expected = numbers(0..1001);
    expected.push("after".to_owned());
    for round in 2..22 {
        append(&path, &format!("unread {round}\n"));
        fs::copy(&path, place.log(&format!("a.log.{round}"))).unwrap();
        fs::write(&path, format!("next {round}\n")).unwrap();
        place.once("a.log*", "", &to);
        expected.extend([format!("unread {round}"), format!("next {round}")]);
        assert_eq!(
            sorted(to.lines()),
            sorted(expected.clone()),
            "round {round}"
        );
    }
}

#[test]
fn a_copy_that_only_the_next_run_finds_is_not_read_twice() {
    for to in [Downstream::durable(), Downstream::memory()] {
        let place = Place::new();
        let path = place.log("a.log");
        append(&path, &text(0..1000));
        let running = place.start("a.log*", "", &to);
        until("all lines", || to.lines().len() == 1000);
        let copied = fs::read(&path).unwrap();
        append(&path, &text(1000..1001));
        until("one more", || to.lines().len() == 1001);
        fs::write(&path, "").unwrap();
        append(&path, "after\n");
        until("what came after", || to.lines().len() == 1002);
        running.stop();
        // Simulates a copy that was made before the truncation, but that no scan has found yet.
        fs::write(place.log("a.log.1"), copied).unwrap();
        place.once("a.log*", "", &to);
        place.once("a.log*", "", &to);
        let mut expected = numbers(0..1001);
        expected.push("after".to_owned());
        assert_eq!(sorted(to.lines()), sorted(expected));
    }
}

#[test]
fn two_contents_that_begin_alike_and_were_copied_while_the_source_was_down_are_both_read() {
    let (place, to) = (Place::new(), Downstream::durable());
    let path = place.log("a.log");
    append(&path, "head\none\ntwo\nthree\n");
    place.once("a.log*", "", &to);
    append(&path, "four\n");
    fs::copy(&path, place.log("a.log.2")).unwrap();
    fs::write(&path, "head\nfive\n").unwrap();
    fs::copy(&path, place.log("a.log.1")).unwrap();
    fs::write(&path, "head\nsix\n").unwrap();
    place.once("a.log*", "", &to);
    let mut expected = vec![
        "head", "one", "two", "three", "four", "head", "five", "head", "six",
    ];
    expected.sort_unstable();
    assert_eq!(sorted(to.lines()), expected);
}

#[test]
fn an_equal_file_that_is_not_a_copy_is_read_after_a_while() {
    let (place, to) = (Place::new(), Downstream::memory());
    append(&place.log("a.log"), "equal\n");
    let running = place.start("*.log", "", &to);
    until("the first", || to.lines().len() == 1);
    append(&place.log("b.log"), "equal\n");
    until("the second", || to.lines().len() == 2);
    running.stop();
}

#[test]
fn a_new_file_that_begins_like_a_truncated_one_is_read() {
    for is_restarted in [false, true] {
        let (place, to) = (Place::new(), Downstream::durable());
        let path = place.log("a.log");
        append(&path, "head\n");
        let running = place.start("*.log", "", &to);
        until("the first line", || to.lines().len() == 1);
        append(&path, "one\ntwo\nthree\n");
        until("all lines", || to.lines().len() == 4);
        fs::write(&path, "").unwrap();
        until("the truncation", || running.meter("files_truncated") == 1);
        // The precision of file times is a clock tick of the kernel.
        thread::sleep(Duration::from_millis(50));
        let is_read = || to.lines().contains(&"new".to_owned());
        let append_new = || append(&place.log("b.log"), "head\nnew\n");
        if is_restarted {
            running.stop();
            append_new();
            place.once("*.log", "", &to);
            assert!(is_read());
        } else {
            append_new();
            until("the new file", is_read);
            running.stop();
        }
    }
}

#[test]
fn a_growing_file_is_read_although_it_begins_like_another_one() {
    for is_longer in [true, false] {
        let (place, to) = (Place::new(), Downstream::memory());
        let paths = [place.log("a.log"), place.log("b.log")];
        append(&paths[0], "head\n");
        let running = place.start("*.log", "", &to);
        until("the first", || to.lines().len() == 1);
        append(&paths[1], "head\n");
        let path = paths[1].to_str();
        let is_read = || {
            to.batches()
                .iter()
                .any(|batch| batch.values.get("path") == path)
        };
        until("the second", || {
            thread::sleep(Duration::from_millis(100));
            for path in &paths[usize::from(is_longer)..] {
                append(path, "more\n");
            }
            is_read()
        });
        running.stop();
    }
}

/// Shared by the writer of a file and the thread that rotates it.
#[derive(Default)]
struct Load {
    rotations: AtomicU32,
    done: AtomicBool,
}

impl Load {
    fn rotated(&self) -> u32 {
        self.rotations.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }
}

/// Writes numbered lines to `path`. With `reopen`, opens the path again from time to time, like a program whose log is renamed.
/// After each quarter of the lines, waits for another rotation, so that a fast writer does not end before the first rotation.
fn write_under_load(
    path: PathBuf,
    lines: u32,
    load: Arc<Load>,
    reopen: bool,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let open = || {
            OpenOptions::new()
                .append(true)
                .create(true)
                .open(&path)
                .unwrap()
        };
        let mut file = open();
        for number in 0..lines {
            if number % (lines / 4) == 0 {
                until("a rotation", || {
                    load.rotations.load(Ordering::Relaxed) >= number / (lines / 4)
                });
            }
            if reopen && number % 500 == 0 {
                file = open();
            }
            file.write_all(format!("line {number}\n").as_bytes())
                .unwrap();
        }
        load.done.store(true, Ordering::Relaxed);
    })
}

#[test]
fn renaming_under_load_with_restarts_loses_duplicates_and_reorders_nothing() {
    const LINES: u32 = 200_000;
    let (place, to) = (Place::new(), Downstream::durable());
    let path = place.log("a.log");
    let load = Arc::new(Load::default());
    let writer = write_under_load(path.clone(), LINES, load.clone(), true);
    let mut generation = 0;
    until("the file", || path.exists());
    while !load.is_done() {
        let running = place.start("a.log*", "", &to);
        thread::sleep(Duration::from_millis(60));
        if generation % 2 == 0 {
            running.stop();
            fs::rename(&path, place.log(&format!("a.log.{generation}"))).unwrap();
        } else {
            fs::rename(&path, place.log(&format!("a.log.{generation}"))).unwrap();
            thread::sleep(Duration::from_millis(30));
            running.stop();
        }
        generation = load.rotated();
        until("a new file", || path.exists() || load.is_done());
    }
    writer.join().unwrap();
    place.once("a.log*", "", &to);
    assert_in_order_within_each_file(&to);
    assert_eq!(sorted(to.lines()), sorted(numbers(0..LINES)));
}

fn assert_in_order_within_each_file(to: &Downstream) {
    let mut last = std::collections::HashMap::new();
    for batch in to.batches() {
        let millstream_record::Origin::File(origin) = &batch.origins[0] else {
            panic!()
        };
        let next = last.entry(origin.file).or_insert(0);
        assert!(
            origin.begin >= *next || origin.next > *next,
            "{origin:?} after {next}"
        );
        *next = origin.next;
    }
}

#[test]
fn copying_and_truncating_under_load_delivers_every_line_once() {
    const LINES: u32 = 200_000;
    let (place, to) = (Place::new(), Downstream::durable());
    let path = place.log("a.log");
    let load = Arc::new(Load::default());
    let writer = write_under_load(path.clone(), LINES, load.clone(), false);
    until("the file", || path.exists());
    let running = place.start("a.log*", "", &to);
    let mut rotations = 0;
    while !load.is_done() {
        thread::sleep(Duration::from_millis(50));
        let copy = place.log(&format!("a.log.{rotations}"));
        fs::copy(&path, &copy).unwrap();
        OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(0)
            .unwrap();
        rotations = load.rotated();
    }
    writer.join().unwrap();
    let mut standing: Vec<String> = Vec::new();
    for entry in fs::read_dir(&place.logs).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        // A copy may end within a line.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        standing.extend(text[..whole].lines().map(str::to_owned));
    }
    until("every line of the files", || {
        let lines: std::collections::HashSet<String> = to.lines().into_iter().collect();
        standing.iter().all(|line| lines.contains(line))
    });
    running.stop();
    let mut counts = std::collections::HashMap::new();
    for line in to.lines() {
        *counts.entry(line).or_insert(0) += 1;
    }
    let twice: Vec<_> = counts.iter().filter(|(_, count)| **count > 1).collect();
    assert!(
        twice.is_empty(),
        "{rotations} rotations, {} lines twice: {:?}",
        twice.len(),
        &twice[..twice.len().min(5)]
    );
}
