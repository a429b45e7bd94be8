//! The source as its users see it: files on a disk, lines in a channel.

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use super::COMPONENT;
use crate::rig::{Downstream, Running, try_build, until};

/// A folder of logs and a folder for positions.
struct Place {
    _root: tempfile::TempDir,
    logs: PathBuf,
    state: PathBuf,
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let (logs, state) = (root.path().join("logs"), root.path().join("state"));
        fs::create_dir(&logs).unwrap();
        Self {
            _root: root,
            logs,
            state,
        }
    }

    fn log(&self, name: &str) -> PathBuf {
        self.logs.join(name)
    }

    fn options(&self, pattern: &str, more: &str) -> String {
        format!(r#"{{"paths": "{}/{pattern}"{more}}}"#, self.logs.display())
    }

    fn start(&self, pattern: &str, more: &str, to: &Downstream) -> Running {
        Running::start(&COMPONENT, &self.options(pattern, more), to, &self.state)
    }

    fn once(&self, pattern: &str, more: &str, to: &Downstream) -> Running {
        Running::once(&COMPONENT, &self.options(pattern, more), to, &self.state)
    }
}

fn append(path: &Path, text: &str) {
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| format!("line {number}")).collect()
}

fn text(range: std::ops::Range<u32>) -> String {
    range.map(|number| format!("line {number}\n")).collect()
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

#[test]
fn a_growing_file_arrives_line_by_line_with_host_path_and_tag() {
    let (place, to) = (Place::new(), Downstream::memory());
    let path = place.log("a.log");
    append(&path, "one\ntwo\nthr");
    let running = place.start("*.log", r#", "tag": "web.*""#, &to);
    until("two lines", || to.lines() == ["one", "two"]);
    append(&path, "ee");
    thread::sleep(Duration::from_millis(50));
    assert_eq!(
        to.lines(),
        ["one", "two"],
        "a partial line waits for its end"
    );
    append(&path, "\n\nfour\n");
    until("all lines", || {
        to.lines() == ["one", "two", "three", "", "four"]
    });
    let batch = &to.batches()[0];
    let dotted = path.display().to_string()[1..].replace('/', ".");
    assert_eq!(batch.tag.as_str(), format!("web.{dotted}"));
    assert_eq!(batch.values.get("path"), path.to_str());
    assert_eq!(batch.values.get("host"), Some("here"));
    assert_eq!(running.meter("lag_bytes"), 0);
    running.stop();
}

#[test]
fn once_reads_what_is_there_and_a_last_line_without_its_newline() {
    let (place, to) = (Place::new(), Downstream::memory());
    append(&place.log("a.log"), &text(0..100_000));
    append(&place.log("b.log"), "last");
    append(&place.log("empty.log"), "");
    place.once("*.log", "", &to);
    let lines = to.lines();
    assert_eq!(lines.len(), 100_001);
    let (last, others): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line == "last");
    assert_eq!((last.len(), others), (1, numbers(0..100_000)));
}

#[test]
fn a_restart_goes_on_where_the_last_run_ended() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let place = Place::new();
        let path = place.log("a.log");
        append(&path, "one\ntwo\nhal");
        let running = place.start("*.log", "", &to);
        until("two lines", || to.lines().len() == 2);
        running.stop();
        append(&path, "f\nfour\n");
        append(&place.log("new.log"), "new\n");
        place.once("*.log", "", &to);
        assert_eq!(sorted(to.lines()), ["four", "half", "new", "one", "two"]);
        place.once("*.log", "", &to);
        assert_eq!(to.lines().len(), 5);
        assert_eq!(to.repeats(), 0);
    }
}

#[test]
fn what_was_not_settled_is_read_again_after_a_restart() {
    let (place, to) = (Place::new(), Downstream::memory());
    let path = place.log("a.log");
    append(&path, "one\n");
    let running = place.start("*.log", "", &to);
    until("one line", || to.lines().len() == 1);
    until("a position", || {
        fs::read_to_string(place.state.join("positions")).is_ok_and(|text| text.contains("a.log"))
    });
    to.hold();
    append(&path, "two\n");
    until("two lines", || to.lines().len() == 2);
    // As a kill does it: nothing more is written, and the answers are lost.
    let frozen = fs::read(place.state.join("positions")).unwrap();
    to.drop_held();
    running.stop();
    fs::write(place.state.join("positions"), frozen).unwrap();
    let to = Downstream::memory();
    place.once("*.log", "", &to);
    assert_eq!(to.lines(), ["two"]);
}

#[test]
fn what_a_consumer_dropped_is_sent_again_in_order() {
    let (place, to) = (Place::new(), Downstream::memory());
    let path = place.log("a.log");
    append(&path, "one\n");
    let running = place.start("*.log", "", &to);
    until("one line", || to.lines().len() == 1);
    to.hold();
    for line in ["two\n", "three\n", "four\n"] {
        append(&path, line);
        until("it is sent", || to.lines().last().unwrap() == line.trim());
    }
    to.drop_held();
    until("all lines", || {
        to.lines() == ["one", "two", "three", "four"]
    });
    running.stop();
}

#[test]
fn a_stop_waits_for_the_answers_and_keeps_the_positions() {
    let (place, to) = (Place::new(), Downstream::memory());
    to.hold();
    append(&place.log("a.log"), "one\ntwo\n");
    let running = place.start("*.log", "", &to);
    until("two lines", || to.lines().len() == 2);
    let answers = to.clone();
    let stopping = thread::spawn(move || running.stop());
    thread::sleep(Duration::from_millis(50));
    assert!(!stopping.is_finished());
    answers.settle();
    stopping.join().unwrap();
    place.once("*.log", "", &to);
    assert_eq!(to.lines().len(), 2);
}

#[test]
fn a_file_and_a_folder_that_appear_are_read_from_their_beginning() {
    let (place, to) = (Place::new(), Downstream::memory());
    append(&place.log("old.log"), "old\n");
    let running = place.start("**/*.log", r#", "start": "end", "rescan": "1h""#, &to);
    until("it has begun", || place.state.join("positions").exists());
    fs::create_dir_all(place.log("x/y")).unwrap();
    append(&place.log("x/y/new.log"), "new\n");
    until("the new file", || to.lines() == ["new"]);
    append(&place.log("x/other.log"), "other\n");
    until("the other file", || to.lines() == ["new", "other"]);
    append(&place.log("old.log"), "more\n");
    until("the old file", || to.lines() == ["new", "other", "more"]);
    running.stop();
}

#[test]
fn start_end_survives_a_restart_and_begins_at_the_line_being_written() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let place = Place::new();
        append(&place.log("idle.log"), "before\n");
        append(&place.log("busy.log"), "before\nhal");
        let running = place.start("*.log", r#", "start": "end""#, &to);
        until("it has begun", || place.state.join("positions").exists());
        running.stop();
        assert!(to.lines().is_empty());
        append(&place.log("idle.log"), "while we were away\n");
        append(&place.log("busy.log"), "f\n");
        append(&place.log("new.log"), "new\n");
        place.once("*.log", r#", "start": "end""#, &to);
        assert_eq!(sorted(to.lines()), ["half", "new", "while we were away"]);
    }
}

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
    until("it is let go", || running.meter("open_files") == 1);
    running.stop();
    assert_eq!(to.lines().len(), 3);
}

#[test]
fn a_file_renamed_while_we_did_not_run_is_found_and_its_rest_is_read() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let place = Place::new();
        append(&place.log("a.log"), "one\n");
        place.once("*.log", "", &to);
        append(&place.log("a.log"), "two\n");
        fs::rename(place.log("a.log"), place.log("a.log.1")).unwrap();
        append(&place.log("a.log"), "three\n");
        append(&place.log("foreign.log.1"), "foreign\n");
        let running = place.start("*.log", r#", "rotate_wait": "50ms""#, &to);
        until("all lines", || {
            sorted(to.lines()) == ["one", "three", "two"]
        });
        until("it is let go", || running.meter("open_files") == 1);
        running.stop();
        place.once("*.log", "", &to);
        assert_eq!(to.lines().len(), 3);
    }
}

#[test]
fn a_removed_file_is_read_to_its_end_and_let_go() {
    let (place, to) = (Place::new(), Downstream::memory());
    let path = place.log("a.log");
    let mut file = File::create(&path).unwrap();
    file.write_all(b"one\n").unwrap();
    let running = place.start("*.log", r#", "rotate_wait": "50ms""#, &to);
    until("one line", || to.lines() == ["one"]);
    fs::remove_file(&path).unwrap();
    file.write_all(b"two\n").unwrap();
    until("two lines", || to.lines() == ["one", "two"]);
    until("it is let go", || running.meter("open_files") == 0);
    append(&path, "new\n");
    until("its successor", || to.lines() == ["one", "two", "new"]);
    running.stop();
}

#[test]
fn a_truncated_file_begins_anew_even_when_it_has_grown_past_the_old_end() {
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
        // ext4 and tmpfs give the number of a removed file to the next one; where they do not, the test still holds.
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
fn a_copy_that_matches_is_not_read_twice() {
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
    // And while we do not run.
    fs::rename(place.log("a.log.1"), place.log("a.log.2")).unwrap();
    append(&path, "unread\n");
    fs::copy(&path, place.log("a.log.1")).unwrap();
    fs::write(&path, "next\n").unwrap();
    place.once("a.log*", "", &to);
    let mut expected = numbers(0..1001);
    expected.extend(["after".to_owned(), "next".to_owned(), "unread".to_owned()]);
    assert_eq!(sorted(to.lines()), sorted(expected));
}

#[test]
fn an_equal_file_that_is_no_copy_is_read_after_a_while() {
    let (place, to) = (Place::new(), Downstream::memory());
    append(&place.log("a.log"), "equal\n");
    let running = place.start("*.log", "", &to);
    until("the first", || to.lines().len() == 1);
    append(&place.log("b.log"), "equal\n");
    until("the second", || to.lines().len() == 2);
    running.stop();
}

#[test]
fn a_line_that_is_too_long_is_split_truncated_or_rejected() {
    let lines = "ok\n0123456789abcdefghij\nend\n01234567\n";
    for (policy, expected) in [
        (
            "split",
            vec!["ok", "01234567", "89abcdef", "ghij", "end", "01234567"],
        ),
        ("truncate", vec!["ok", "01234567", "end", "01234567"]),
        ("reject", vec!["ok", "end", "01234567"]),
    ] {
        for to in [Downstream::memory(), Downstream::durable()] {
            let place = Place::new();
            let path = place.log("a.log");
            append(&path, &lines[..15]);
            let more = format!(r#", "line_max": "8B", "too_long": "{policy}""#);
            let running = place.start("*.log", &more, &to);
            until("the first line", || !to.lines().is_empty());
            thread::sleep(Duration::from_millis(20));
            append(&path, &lines[15..]);
            until("all lines", || to.lines() == expected);
            let rejected = running.rejected.clone();
            running.stop();
            place.once("*.log", &more, &to);
            assert_eq!(to.lines(), expected, "{policy}: a restart adds nothing");
            let pieces: Vec<_> = rejected
                .batches()
                .into_iter()
                .map(|batch| message(&batch.body))
                .collect();
            match policy {
                "reject" => assert_eq!(pieces, ["01234567", "89abcdef", "ghij"]),
                _ => assert!(pieces.is_empty()),
            }
        }
    }
}

fn message(mut body: &[u8]) -> String {
    let entry = rmpv::decode::read_value(&mut body).unwrap();
    let fields = entry[1].as_map().unwrap().iter();
    let message = fields
        .clone()
        .find(|(name, _)| name.as_str() == Some("message"))
        .unwrap();
    String::from_utf8(message.1.as_slice().unwrap().to_vec()).unwrap()
}

#[test]
fn a_long_line_and_one_of_the_largest_length_arrive_whole() {
    let (place, to) = (Place::new(), Downstream::memory());
    let long = "x".repeat(1 << 20);
    append(&place.log("a.log"), &format!("{long}\nshort\n{long}y\n"));
    place.once("*.log", "", &to);
    assert_eq!(to.lines(), [&long[..], "short", &long[..], "y"]);
}

#[test]
fn a_file_that_cannot_be_read_is_tried_again() {
    use std::os::unix::fs::PermissionsExt;
    let (place, to) = (Place::new(), Downstream::memory());
    let path = place.log("a.log");
    append(&path, "one\n");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    let forbidden = File::open(&path).is_err();
    let running = place.start("*.log", r#", "rescan": "50ms""#, &to);
    if forbidden {
        thread::sleep(Duration::from_millis(100));
        assert!(to.lines().is_empty());
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    until("one line", || to.lines() == ["one"]);
    running.stop();
}

/// Writes numbered lines to `path` as a program does that opens its log anew when it is gone.
fn write_under_load(
    path: PathBuf,
    lines: u32,
    done: Arc<AtomicBool>,
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
            if reopen && number % 500 == 0 {
                file = open();
            }
            file.write_all(format!("line {number}\n").as_bytes())
                .unwrap();
        }
        done.store(true, Ordering::Relaxed);
    })
}

#[test]
fn renaming_under_load_with_restarts_loses_doubles_and_reorders_nothing() {
    const LINES: u32 = 200_000;
    let (place, to) = (Place::new(), Downstream::durable());
    let path = place.log("a.log");
    let done = Arc::new(AtomicBool::new(false));
    let writer = write_under_load(path.clone(), LINES, done.clone(), true);
    let mut generation = 0;
    while !done.load(Ordering::Relaxed) {
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
        generation += 1;
        until("a new file", || {
            path.exists() || done.load(Ordering::Relaxed)
        });
    }
    writer.join().unwrap();
    place.once("a.log*", "", &to);
    assert!(generation > 1);
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
fn copying_and_truncating_under_load_delivers_all_that_stands_anywhere_once() {
    const LINES: u32 = 200_000;
    let (place, to) = (Place::new(), Downstream::durable());
    let path = place.log("a.log");
    let done = Arc::new(AtomicBool::new(false));
    let writer = write_under_load(path.clone(), LINES, done.clone(), false);
    until("the file", || path.exists());
    let running = place.start("a.log*", "", &to);
    let mut rotations = 0;
    while !done.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(50));
        let copy = place.log(&format!("a.log.{rotations}"));
        fs::copy(&path, &copy).unwrap();
        OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(0)
            .unwrap();
        rotations += 1;
    }
    writer.join().unwrap();
    let mut standing: Vec<String> = Vec::new();
    for entry in fs::read_dir(&place.logs).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        // A copy may end within a line.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        standing.extend(text[..whole].lines().map(str::to_owned));
    }
    until("all that stands there", || {
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

#[test]
fn wrong_options_are_refused_with_a_word_that_helps() {
    for (options, word) in [
        (r#"{"paths": []}"#, "names no file"),
        (r#"{"paths": "/a/{b"}"#, "/a/{b"),
        (r#"{"paths": "/a", "framing": "cri"}"#, "not there yet"),
        (
            r#"{"paths": "/a", "framing": {"multiline": {"start": "x"}}}"#,
            "not there yet",
        ),
        (
            r#"{"paths": "/a", "tag": "{.level}"}"#,
            "cannot name a field",
        ),
        (r#"{"paths": "/a", "tag": "{peer}"}"#, "no value `peer`"),
        (r#"{"paths": "/a", "path": "/b"}"#, "path"),
        (r#"{"paths": "/a", "line_max": "0"}"#, "line_max"),
    ] {
        let problems = try_build(&COMPONENT, options).err().unwrap();
        assert!(
            problems.iter().any(|problem| problem.contains(word)),
            "{options}: {problems:?}"
        );
    }
    assert!(try_build(&COMPONENT, r#"{"paths": "/a", "tag": "{host}.{path}"}"#).is_ok());
}
