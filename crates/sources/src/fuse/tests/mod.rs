//! Tests of the source on a real mount. The source sends its records to a channel that the test controls.

mod by_rule;
mod exerciser;
mod failures;
mod full;
mod given;
mod joined;
mod readable;
mod reload;

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use millstream_testkit::{block_on, contract::SourceCase};

use super::*;
use crate::rig::{Downstream, Running, try_build, until};

/// A mount in a temporary directory.
struct Rig {
    directory: tempfile::TempDir,
    downstream: Downstream,
    running: Option<Running>,
}

impl Rig {
    fn new(downstream: Downstream, options: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut rig = Self {
            directory,
            downstream,
            running: None,
        };
        rig.start(options);
        rig
    }

    fn start(&mut self, options: &str) {
        let mount = self.mount();
        let options = format!("{{\"mount\": {mount:?}{options}}}");
        let state = self.directory.path().join("state");
        self.running = Some(Running::start(
            &COMPONENT,
            &options,
            &self.downstream,
            &state,
        ));
        let mounted = || {
            millstream_sys::fuse::type_of_mount(&mount)
                .unwrap()
                .is_some()
        };
        until("it is mounted", mounted);
    }

    fn mount(&self) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join("mnt")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount().join(name)
    }

    fn append(&self, name: &str) -> fs::File {
        let mut options = fs::File::options();
        options
            .append(true)
            .create(true)
            .open(self.path(name))
            .unwrap()
    }

    fn lines(&self) -> Vec<String> {
        self.downstream.lines()
    }

    fn until_lines(&self, expected: &[&str]) {
        until("all lines are there", || {
            self.lines().len() >= expected.len()
        });
        assert_eq!(self.lines(), expected);
    }

    fn stop(&mut self) {
        self.running.take().unwrap().stop();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            self.downstream.settle();
            running.stop();
        }
    }
}

#[test]
fn lines_are_sent_with_tag_host_path_and_pid() {
    let rig = Rig::new(Downstream::durable(), r#", "tag": "t.*""#);
    fs::create_dir(rig.path("app")).unwrap();
    rig.append("app/x.log").write_all(b"a\nb\n").unwrap();
    assert_eq!(rig.lines(), ["a", "b"]);
    let batch = rig.downstream.batches().remove(0);
    assert_eq!(batch.tag.as_str(), "t.app.x.log");
    let value = |name| batch.values.get(name).unwrap().to_owned();
    assert_eq!(value("path"), "app/x.log");
    assert_eq!(value("host"), "here");
    assert_eq!(value("pid"), std::process::id().to_string());
}

#[test]
fn the_last_line_is_sent_at_close_and_lines_of_several_writers_stay_whole() {
    let rig = Rig::new(Downstream::durable(), "");
    let (mut one, mut two) = (rig.append("f"), rig.append("f"));
    one.write_all(b"one ").unwrap();
    two.write_all(b"two ").unwrap();
    one.write_all(b"keep on\nand").unwrap();
    two.write_all(b"too\r\n\0").unwrap();
    assert_eq!(rig.lines(), ["one keep on", "two too"]);
    drop(two);
    until("the last line is sent", || rig.lines().len() == 3);
    drop(one);
    rig.until_lines(&["one keep on", "two too", "\0", "and"]);
    assert_eq!(fs::metadata(rig.path("f")).unwrap().len(), 25);
}

#[test]
fn a_duplicated_descriptor_continues_the_unfinished_line() {
    let rig = Rig::new(Downstream::durable(), "");
    let script = "(printf a; printf 'b\\nc'; printf d) > f; printf 'e' >> f";
    let status = Command::new("sh")
        .args(["-c", script])
        .current_dir(rig.mount())
        .status();
    assert!(status.unwrap().success());
    rig.until_lines(&["ab", "cd", "e"]);
}

#[test]
fn a_write_returns_when_its_lines_are_kept() {
    for options in ["", r#", "when_full": "fail""#] {
        let rig = Rig::new(Downstream::durable(), options);
        let mut file = rig.append("f");
        rig.downstream.hold();
        let writes = thread::spawn(move || file.write_all(b"x\n"));
        thread::sleep(Duration::from_millis(300));
        assert!(!writes.is_finished());
        // Other requests are served meanwhile.
        fs::metadata(rig.path("f")).unwrap();
        fs::create_dir(rig.path("directory")).unwrap();
        rig.downstream.settle();
        writes.join().unwrap().unwrap();
    }
}

#[test]
fn only_a_fatal_signal_interrupts_a_waiting_writer() {
    let rig = Rig::new(Downstream::durable(), "");
    rig.downstream.hold();
    let script = "trap : USR1; echo one > f; echo two > g";
    let mut child = Command::new("bash")
        .args(["-c", script])
        .current_dir(rig.mount())
        .spawn()
        .unwrap();
    until("it waits", || rig.lines() == ["one"]);
    let signal = |name: &str| {
        let sent = Command::new("kill")
            .args([name, &child.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
    };
    signal("-USR1");
    thread::sleep(Duration::from_millis(300));
    assert_eq!(rig.lines(), ["one"]);
    signal("-KILL");
    let killed = Instant::now();
    child.wait().unwrap();
    assert!(killed.elapsed() < Duration::from_secs(30));
    assert_eq!(rig.lines(), ["one"]);
    // A fatal signal also ends the wait if it is the first signal.
    let mut child = Command::new("sh")
        .args(["-c", "echo three > h"])
        .current_dir(rig.mount())
        .spawn()
        .unwrap();
    until("it waits", || rig.lines().len() == 2);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn rules_filter_rewrite_and_frame() {
    let options = r#", "rules": [
        { "path": "audit/*.log", "tag": "audit", "allow": "^A", "deny": "secret", "rewrite": [{ "match": "(\\w+)=(\\w+)", "replace": "$2:$1" }] },
        { "path": "whole/**", "framing": "file" }, { "path": ["w/*", "x"], "framing": "write", "line_max": "4B" } ]"#;
    let rig = Rig::new(Downstream::durable(), options);
    rig.append("audit/a.log")
        .write_all(b"A k=v\nB\nA secret\n")
        .unwrap();
    assert_eq!(rig.lines(), ["A v:k"]);
    assert_eq!(rig.downstream.batches()[0].tag.as_str(), "audit");
    assert_eq!(rig.running.as_ref().unwrap().meter("records_filtered"), 2);
    rig.append("w/x").write_all(b"1\n23").unwrap();
    let mut whole = rig.append("whole/f");
    whole.write_all(b"a\n").unwrap();
    whole.write_all(b"b").unwrap();
    drop(whole);
    until("the file is a record", || {
        rig.downstream.batches().len() == 3
    });
    let records: Vec<_> = rig.downstream.batches()[1..]
        .iter()
        .map(|batch| rmpv::decode::read_value(&mut &batch.body[..]).unwrap()[1].clone())
        .collect();
    let message = |text: &str| rmpv::Value::Map(vec![("message".into(), text.into())]);
    assert_eq!(records, [message("1\n23"), message("a\nb")]);
}

#[test]
fn a_line_that_is_too_long_is_rejected_with_the_reason() {
    let rig = Rig::new(
        Downstream::durable(),
        r#", "line_max": "4B", "too_long": "reject""#,
    );
    rig.append("f").write_all(b"12345\nok\n").unwrap();
    assert_eq!(rig.lines(), ["ok"]);
    let rejected = rig.running.as_ref().unwrap().rejected.batches().remove(0);
    let text = String::from_utf8_lossy(&rejected.body).into_owned();
    assert!(text.contains("1234") && text.contains("line_max"), "{text}");
}

#[test]
fn copies_go_to_a_file_and_a_command() {
    let copies = tempfile::tempdir().unwrap();
    let place = copies.path().display();
    let options = format!(
        r#", "rules": [{{ "path": "**", "tee": "{place}/tee/", "exec": ["sh", "-c", "cat > {place}/out"] }}]"#
    );
    let mut rig = Rig::new(Downstream::durable(), &options);
    rig.append("f").write_all(b"a\nb\nc").unwrap();
    rig.until_lines(&["a", "b", "c"]);
    rig.stop();
    let copy = |name: &str| fs::read_to_string(copies.path().join(name)).unwrap_or_default();
    assert_eq!(copy("tee/f"), "a\nb\nc\n");
    until("the command has it", || copy("out") == "a\nb\nc\n");
}

#[test]
fn with_a_memory_channel_fsync_waits_until_everything_is_settled() {
    let rig = Rig::new(Downstream::memory(), "");
    let mut file = rig.append("f");
    rig.downstream.hold();
    file.write_all(b"a\nunfinished").unwrap();
    assert_eq!(rig.lines(), ["a"]);
    let syncs = thread::spawn(move || (file.sync_all(), file));
    thread::sleep(Duration::from_millis(200));
    assert!(!syncs.is_finished());
    rig.downstream.settle();
    let (synced, mut file) = syncs.join().unwrap();
    synced.unwrap();
    let journal = fs::read(rig.directory.path().join("state/unfinished")).unwrap();
    assert!(journal.windows(10).any(|part| part == b"unfinished"));
    rig.downstream.hold();
    file.write_all(b"\nb\n").unwrap();
    rig.downstream.drop_held();
    assert!(file.sync_all().is_err());
}

#[test]
fn files_below_the_mount_are_shipped_and_removed_even_if_they_are_still_being_written() {
    let mut rig = Rig::new(Downstream::durable(), "");
    fs::create_dir(rig.path("app")).unwrap();
    rig.stop();
    // A directory that is made in the mount is also made in the plain directory below.
    fs::write(rig.path("app/a.log"), "below\nits end").unwrap();
    let mut open = rig.append("b.log");
    open.write_all(b"open 1\nop").unwrap();
    rig.start("");
    until("both are read", || rig.lines().len() >= 3);
    open.write_all(b"en 2\nlast").unwrap();
    until("it is followed", || rig.lines().len() >= 4);
    drop(open);
    until("all is sent", || rig.lines().len() >= 5);
    let mut lines = rig.lines();
    lines.sort();
    assert_eq!(lines, ["below", "its end", "last", "open 1", "open 2"]);
    let names = |path: &Path| {
        let found = fs::read_dir(path).unwrap();
        found
            .map(|entry| entry.unwrap().file_name())
            .collect::<Vec<_>>()
    };
    thread::sleep(Duration::from_millis(500));
    rig.stop();
    assert_eq!(names(&rig.mount()), ["app"]);
    assert!(names(&rig.path("app")).is_empty());
}

#[test]
fn an_unmount_by_another_program_fails_the_source_so_that_it_mounts_again() {
    let mut rig = Rig::new(Downstream::durable(), "");
    rig.append("f").write_all(b"a\nb").unwrap();
    let status = Command::new("umount")
        .arg(rig.mount())
        .stderr(Stdio::null())
        .status();
    assert!(status.unwrap().success());
    let failure = rig.running.take().unwrap().ended().unwrap_err();
    assert!(failure.message.contains("unmounted"), "{failure}");
    assert_eq!(rig.lines(), ["a", "b"]);
}

#[test]
fn two_sources_cannot_mount_the_same_directory() {
    let rig = Rig::new(Downstream::durable(), "");
    let options = format!("{{\"mount\": {:?}}}", rig.mount());
    let other = tempfile::tempdir().unwrap();
    let second = Running::start(&COMPONENT, &options, &Downstream::memory(), other.path());
    let failure = second.ended().unwrap_err();
    assert!(failure.message.contains("another Millstream"), "{failure}");
    rig.append("f").write_all(b"a\n").unwrap();
}

#[test]
fn a_synchronous_write_is_synced() {
    let rig = Rig::new(Downstream::durable(), "");
    let mut options = fs::File::options();
    let options = options.write(true).create(true).custom_flags(0o4_010_000);
    let mut file = options.open(rig.path("f")).unwrap();
    file.write_all(b"a\nrest").unwrap();
    assert_eq!(rig.downstream.syncs(), 1);
    assert_eq!(rig.lines(), ["a"]);
}

#[test]
fn wrong_options_are_refused_with_the_reason() {
    let problem = |options: &str| try_build(&COMPONENT, options).err().unwrap().join("\n");
    assert!(problem("{}").contains("mount"));
    assert!(problem(r#"{"mount": "m", "umask": "99"}"#).contains("octal"));
    assert!(problem(r#"{"mount": "m", "line_max": 0}"#).contains("line_max"));
    let rule = |rule: &str| problem(&format!(r#"{{"mount": "m", "rules": [{rule}]}}"#));
    assert!(rule(r#"{"path": "a[", "tag": "x"}"#).contains("not a path pattern"));
    assert!(rule(r#"{"path": "a", "allow": "("}"#).contains("not a regular expression"));
    assert!(rule(r#"{"path": []}"#).contains("names no file"));
    assert!(rule(r#"{"path": "a", "tag": "{.field}"}"#).contains("field"));
    let start = r#""framing": {"multiline": {"start": "("}}"#;
    let why = problem(&format!(
        r#"{{"mount": "m", {start}, "rules": [{{"path": "a"}}]}}"#
    ));
    assert_eq!(
        why.matches("`start` is not a regular expression").count(),
        1,
        "{why}"
    );
    assert!(rule(&format!(r#"{{"path": "a", {start}}}"#)).contains("`start` is not a regular"));
}

/// With a memory channel, the acknowledgement is that `fsync` returns: everything is then settled.
#[test]
fn a_mount_keeps_the_contract_of_sources() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    let mount = root.join("mnt");
    let options = format!("{{\"mount\": {mount:?}}}");
    let write = move || {
        // Without the mount, the file would be created in the plain directory below it.
        if millstream_sys::fuse::type_of_mount(&mount)?.is_none() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut file = fs::File::options()
            .append(true)
            .create(true)
            .open(mount.join("f"))?;
        file.write_all(b"one\ntwo\n")?;
        file.sync_all()
    };
    let case = SourceCase {
        build: &|| try_build(&COMPONENT, &options).unwrap(),
        peer: Some(Arc::new(move || write().is_ok())),
        records: 2,
        rejected: 0,
        directory: &root.join("state"),
    };
    block_on(case.check());
}

#[test]
fn with_once_it_keeps_the_contract_of_sources() {
    let directory = tempfile::tempdir().unwrap();
    let mount = directory.path().join("mnt");
    fs::create_dir(&mount).unwrap();
    let options = format!("{{\"mount\": {mount:?}, \"adopt\": true}}");
    let build = || {
        fs::write(mount.join("f"), "one\ntwo\n").unwrap();
        try_build(&COMPONENT, &options).unwrap()
    };
    let case = SourceCase {
        build: &build,
        peer: None,
        records: 2,
        rejected: 0,
        directory: &directory.path().join("state"),
    };
    block_on(case.check());
}
