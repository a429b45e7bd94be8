//! Tests of the source with the real `journalctl`, while the real `systemd-journal-remote` writes the journal.

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    thread,
    time::Duration,
};

use millstream_record::{Batch, Encoding};
use millstream_testkit::{block_on, contract::SourceCase};
use millstream_wire::record::{Record, records as records_of};

use super::COMPONENT;
use crate::rig::{Downstream, Running, try_build, until};

/// The path of the program that writes the journal, on Debian.
const WRITER: &str = "/lib/systemd/systemd-journal-remote";

/// A journal that grows, and a directory for cursors.
struct Journal {
    root: tempfile::TempDir,
    writer: Child,
    input: Option<ChildStdin>,
    written: u64,
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.writer.wait();
    }
}

impl Journal {
    fn new() -> Self {
        assert!(
            Path::new(WRITER).exists(),
            "systemd-journal-remote is missing: run `make deps`"
        );
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("journal")).unwrap();
        let mut writer = Command::new(WRITER)
            .arg("-o")
            .arg(root.path().join("journal/test.journal"))
            .arg("-")
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let input = writer.stdin.take();
        Self {
            root,
            writer,
            input,
            written: 0,
        }
    }

    fn state(&self) -> PathBuf {
        self.root.path().join("state")
    }

    /// Writes an entry of a unit.
    fn entry(&mut self, unit: &str, message: &[u8]) {
        self.written += 1;
        let mut text = format!(
            "__REALTIME_TIMESTAMP={}\n__MONOTONIC_TIMESTAMP={}\n_BOOT_ID=1531fd22ec84429e85ae888b12fadb91\n\
             _TRANSPORT=journal\n_UID=0\n_SYSTEMD_UNIT={unit}\nMESSAGE\n",
            1_700_000_000_000_000 + self.written,
            1000 + self.written
        )
        .into_bytes();
        text.extend((message.len() as u64).to_le_bytes());
        text.extend(message);
        text.extend(b"\n\n");
        let input = self.input.as_mut().unwrap();
        input.write_all(&text).unwrap();
        input.flush().unwrap();
    }

    fn numbered(&mut self, numbers: std::ops::Range<u32>) {
        for number in numbers {
            self.entry("web.service", format!("entry {number}").as_bytes());
        }
    }

    /// The number of entries that `journalctl` finds in the journal.
    fn standing(&self) -> usize {
        let output = Command::new("journalctl")
            .arg("--directory")
            .arg(self.root.path().join("journal"))
            .args(["--quiet", "--output=cat"])
            .output()
            .expect("journalctl is missing: run `make deps`");
        String::from_utf8_lossy(&output.stdout).lines().count()
    }

    fn until_standing(&self, count: usize) {
        until("the journal has them", || self.standing() == count);
    }

    fn options(&self, more: &str) -> String {
        let directory = self.root.path().join("journal");
        format!(
            r#"{{"command": ["journalctl", "--directory={}"]{more}}}"#,
            directory.display()
        )
    }

    fn start(&self, more: &str, to: &Downstream) -> Running {
        Running::start(&COMPONENT, &self.options(more), to, &self.state())
    }

    fn once(&self, more: &str, to: &Downstream) -> Running {
        Running::once(&COMPONENT, &self.options(more), to, &self.state())
    }
}

fn records(to: &Downstream) -> Vec<rmpv::Value> {
    let of_batch = |batch: &Batch| {
        assert_eq!(batch.encoding, Encoding::Packed);
        let records = records_of(batch).map(|(_, timed)| {
            let Record::Packed(mut record) = timed.record else {
                panic!()
            };
            rmpv::decode::read_value(&mut record).unwrap()
        });
        let records: Vec<_> = records.collect();
        assert_eq!(records.len(), batch.count as usize);
        records
    };
    to.batches().iter().flat_map(of_batch).collect()
}

fn field(record: &rmpv::Value, name: &str) -> Vec<u8> {
    let fields = record.as_map().unwrap().iter();
    let mut found = fields.filter(|field| field.0.as_str() == Some(name));
    let rmpv::Value::String(text) = &found.next().unwrap().1 else {
        panic!()
    };
    text.as_bytes().to_vec()
}

fn messages(to: &Downstream) -> Vec<String> {
    let text = |record| String::from_utf8_lossy(&field(record, "MESSAGE")).into_owned();
    records(to).iter().map(text).collect()
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| format!("entry {number}")).collect()
}

#[test]
fn entries_arrive_as_they_are_written_with_all_fields_and_their_time() {
    let (mut journal, to) = (Journal::new(), Downstream::memory());
    journal.numbered(0..3);
    journal.until_standing(3);
    let running = journal.start("", &to);
    until("what was there", || messages(&to) == numbers(0..3));
    let binary = b"two\nlines \0\xff";
    journal.entry("db.service", binary);
    until("what came", || records(&to).len() == 4);
    running.stop();
    let record = &records(&to)[3];
    assert_eq!(field(record, "MESSAGE"), binary);
    assert_eq!(field(record, "_SYSTEMD_UNIT"), b"db.service");
    assert!(field(record, "__CURSOR").starts_with(b"s="));
    let batch = to.batches().pop().unwrap();
    let time = records_of(&batch).last().unwrap().1.time;
    assert_eq!(time.0, (1_700_000_000_000_004) * 1000);
    assert_eq!(
        (batch.tag.as_str(), batch.values.get("host")),
        ("source", Some("here"))
    );
}

#[test]
fn a_restart_continues_after_the_last_entry() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let mut journal = Journal::new();
        journal.numbered(0..100);
        journal.until_standing(100);
        journal.once("", &to);
        journal.numbered(100..150);
        journal.until_standing(150);
        let running = journal.start("", &to);
        until("all", || messages(&to).len() >= 150);
        running.stop();
        journal.once("", &to);
        assert_eq!(messages(&to), numbers(0..150));
        assert_eq!(to.repeats(), 0);
    }
}

#[test]
fn with_a_durable_channel_a_kill_at_any_moment_loses_and_repeats_no_entry() {
    let (mut journal, to) = (Journal::new(), Downstream::durable());
    for round in 0..8 {
        let begin = round * 50;
        let running = journal.start("", &to);
        journal.numbered(begin..begin + 25);
        until("a part", || messages(&to).len() as u32 >= begin + 25);
        // The channel may or may not keep the batches in flight at the end.
        to.hold();
        journal.numbered(begin + 25..begin + 50);
        until("the rest", || messages(&to).len() as u32 >= begin + 50);
        if round % 2 == 0 {
            to.settle();
            running.stop();
        } else {
            to.drop_held();
            running.stop();
        }
    }
    journal.until_standing(400);
    journal.once("", &to);
    assert_eq!(messages(&to), numbers(0..400));
}

#[test]
fn records_that_a_consumer_dropped_are_sent_again_in_order() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let mut journal = Journal::new();
        journal.numbered(0..10);
        journal.until_standing(10);
        let running = journal.start("", &to);
        until("the first", || messages(&to) == numbers(0..10));
        to.hold();
        journal.numbered(10..20);
        until("the next", || messages(&to).len() == 20);
        to.drop_held();
        until("all of them again", || messages(&to) == numbers(0..20));
        running.stop();
    }
}

#[test]
fn units_and_matches_select_entries_and_start_end_skips_the_old_ones() {
    let (mut journal, to) = (Journal::new(), Downstream::durable());
    journal.entry("web.service", b"old");
    journal.until_standing(1);
    let more = r#", "units": "web.service", "matches": ["_UID=0"], "start": "end""#;
    let running = journal.start(more, &to);
    until("it has begun", || journal.state().join("cursors").exists());
    journal.entry("db.service", b"of another unit");
    journal.entry("web.service", b"new");
    until("the new one", || messages(&to) == ["new"]);
    running.stop();
}

#[test]
fn a_child_that_ends_is_restarted_and_the_error_gives_the_reason() {
    let (journal, to) = (Journal::new(), Downstream::memory());
    let program = journal.root.path().join("fails");
    fs::write(
        &program,
        "#!/bin/sh\necho 'no such journal here' >&2\nexit 3\n",
    )
    .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let options = format!(r#"{{"command": "{}"}}"#, program.display());
    let running = Running::start(&COMPONENT, &options, &to, &journal.state());
    until("it was begun again", || running.meter("restarts") >= 2);
    running.stop();
    for (script, why) in [
        (
            "echo 'no such journal here' >&2; exit 3",
            "no such journal here",
        ),
        ("echo =garbage; sleep 100", "byte 0"),
    ] {
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        let source = try_build(&COMPONENT, &options).unwrap_or_else(|why| panic!("{why:?}"));
        let running = Running::of(source, &to, &journal.state(), true);
        let failure = running.ended().unwrap_err();
        assert!(failure.message.contains(why), "{failure}");
    }
}

#[test]
fn a_child_that_writes_much_to_stderr_is_read_and_the_end_of_that_text_is_reported() {
    let (mut journal, to) = (Journal::new(), Downstream::memory());
    journal.numbered(0..3);
    journal.until_standing(3);
    let program = journal.root.path().join("noisy");
    let script = "#!/bin/sh\nhead -c 300000 /dev/zero | tr '\\0' x >&2\njournalctl \"$@\"\necho 'it ends' >&2\nexit 3\n";
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let directory = journal.root.path().join("journal");
    let options = format!(
        r#"{{"command": ["{}", "--directory={}"]}}"#,
        program.display(),
        directory.display()
    );
    let source = try_build(&COMPONENT, &options).unwrap_or_else(|why| panic!("{why:?}"));
    let running = Running::of(source, &to, &journal.state(), true);
    let failure = running.ended().unwrap_err();
    assert!(failure.message.ends_with("it ends"), "{failure}");
    assert_eq!(messages(&to), numbers(0..3));
}

#[test]
fn an_entry_that_is_too_large_is_rejected_and_the_next_ones_arrive() {
    let (mut journal, to) = (Journal::new(), Downstream::durable());
    journal.numbered(0..1);
    journal.entry("web.service", &[b'x'; 900_000]);
    journal.numbered(1..2);
    journal.until_standing(3);
    let running = journal.start(r#", "entry_max": "300KiB""#, &to);
    until("its neighbours", || messages(&to) == numbers(0..2));
    let rejected = running.rejected.batches();
    assert_eq!((rejected.len(), rejected[0].count), (1, 1));
    running.stop();
    thread::sleep(Duration::from_millis(10));
    journal.once("", &to);
    assert_eq!(messages(&to), numbers(0..2));
}

#[test]
fn an_entry_with_too_many_fields_is_rejected_and_the_next_ones_arrive() {
    let (root, to) = (tempfile::tempdir().unwrap(), Downstream::durable());
    let path = |name: &str| root.path().join(name);
    let entry = |number: u32| format!("__CURSOR=c{number}\nMESSAGE=entry {number}\n");
    let fields = "FIELD=x\n".repeat(3000);
    let all = format!("{}\n{}{fields}\n{}\n", entry(0), entry(1), entry(2));
    fs::write(path("all"), all).unwrap();
    fs::write(path("after"), entry(2) + "\n").unwrap();
    let at = root.path().display();
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *cursor=c1*) cat {at}/after;; *cursor=*) ;; *) cat {at}/all;; esac\n"
    );
    let program = path("program");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let options = format!(r#"{{"command": "{}"}}"#, program.display());
    let running = Running::once(&COMPONENT, &options, &to, &path("state"));
    assert_eq!(messages(&to), ["entry 0", "entry 2"]);
    let rejected = running.rejected.batches();
    assert_eq!((rejected.len(), rejected[0].count), (1, 1));
    let text = String::from_utf8_lossy(&rejected[0].body).into_owned();
    assert!(text.contains("more than 2048 fields"), "{text}");
}

#[test]
fn wrong_options_are_refused() {
    for (options, word) in [
        (r#"{"command": []}"#, "command"),
        (r#"{"matches": "no match"}"#, "FIELD=VALUE"),
        (r#"{"entry_max": "0"}"#, "entry_max"),
        (r#"{"unit": "x"}"#, "unit"),
    ] {
        let problems = try_build(&COMPONENT, options).err().unwrap();
        assert!(
            problems.iter().any(|problem| problem.contains(word)),
            "{options}: {problems:?}"
        );
    }
}

#[test]
fn it_keeps_the_contract_of_sources() {
    let mut journal = Journal::new();
    journal.numbered(0..3);
    journal.until_standing(3);
    let case = SourceCase {
        build: &|| try_build(&COMPONENT, &journal.options("")).unwrap(),
        peer: None,
        records: 3,
        rejected: 0,
        directory: &journal.state(),
    };
    block_on(case.check());
}
