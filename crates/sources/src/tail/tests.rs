//! Tests of the whole source: they write files and check the lines that arrive in a channel.

mod blank;
mod copies;
mod framed;
mod gone;
mod gzip;
mod join;
mod line_ends;
mod options;
mod overwritten;
mod pods;
mod records;
mod rotation;

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use millstream_testkit::{block_on, contract::SourceCase};

use super::COMPONENT;
use crate::rig::{Downstream, Running, try_build, until};

/// A directory of logs and a directory for positions.
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
fn once_reads_all_existing_lines_and_a_last_line_without_newline() {
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
fn a_restart_continues_where_the_last_run_ended() {
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
fn unsettled_lines_are_read_again_after_a_restart() {
    let (place, to) = (Place::new(), Downstream::memory());
    let path = place.log("a.log");
    append(&path, "one\n");
    let running = place.start("*.log", "", &to);
    until("one line", || to.lines().len() == 1);
    until("a position", || {
        fs::read(place.state.join("positions"))
            .is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains("a.log"))
    });
    to.hold();
    append(&path, "two\n");
    until("two lines", || to.lines().len() == 2);
    // Simulates `kill -9`: the batch in flight is dropped, and the positions of this moment are restored after the stop.
    let frozen = fs::read(place.state.join("positions")).unwrap();
    to.drop_held();
    running.stop();
    fs::write(place.state.join("positions"), frozen).unwrap();
    let to = Downstream::memory();
    place.once("*.log", "", &to);
    assert_eq!(to.lines(), ["two"]);
}

#[test]
fn dropped_batches_are_sent_again_in_order() {
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
fn a_stop_waits_until_batches_are_settled_and_stores_the_positions() {
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
fn files_that_appear_later_even_in_new_directories_are_read_from_their_beginning() {
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
fn start_end_also_applies_if_another_source_feeds_the_same_disk_channel() {
    let (place, other, to) = (Place::new(), Place::new(), Downstream::durable());
    append(&other.log("other.log"), "other\n");
    other.once("*.log", "", &to);
    append(&place.log("a.log"), "before\n");
    let running = place.start("*.log", r#", "start": "end""#, &to);
    until("it has begun", || place.state.join("positions").exists());
    append(&place.log("a.log"), "after\n");
    until("what came after", || to.lines() == ["other", "after"]);
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
fn a_line_of_the_largest_length_arrives_whole_and_a_longer_one_in_two_pieces() {
    let (place, to) = (Place::new(), Downstream::memory());
    let long = "x".repeat(1 << 20);
    append(&place.log("a.log"), &format!("{long}\nshort\n{long}y\n"));
    place.once("*.log", "", &to);
    assert_eq!(to.lines(), [&long[..], "short", &long[..], "y"]);
}

#[test]
fn reading_an_unreadable_file_is_retried() {
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

#[test]
fn wrong_options_are_refused_with_a_helpful_message() {
    for (options, word) in [
        (r#"{"paths": []}"#, "`paths` is empty"),
        (r#"{"paths": "/a/{b"}"#, "/a/{b"),
        (r#"{"paths": "/a", "framing": "octets"}"#, "octets"),
        (
            r#"{"paths": "/a", "framing": {"multiline": {"start": "("}}}"#,
            "regular expression",
        ),
        (r#"{"paths": "/a", "encoding": "utf-64"}"#, "utf-64"),
        (r#"{"kubernetes": {"rot": "/x"}}"#, "rot"),
        (r#"{"paths": "/a", "tag": "{kubernetes.pod}"}"#, "no value"),
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

#[test]
fn it_keeps_the_contract_of_sources() {
    let places = std::cell::RefCell::new(Vec::new());
    let state = tempfile::tempdir().unwrap();
    let case = SourceCase {
        build: &|| {
            let place = Place::new();
            append(&place.log("a.log"), "one\nmuch too long\ntwo\n");
            let options = place.options("*.log", r#", "line_max": "8B", "too_long": "reject""#);
            places.borrow_mut().push(place);
            try_build(&COMPONENT, &options).unwrap()
        },
        peer: None,
        // The long line is rejected in two pieces.
        records: 4,
        rejected: 2,
        directory: state.path(),
    };
    block_on(case.check());
}
