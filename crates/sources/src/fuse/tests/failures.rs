//! Tests that writes that fail lose no bytes of earlier writes.

use std::process::Child;

use super::*;

/// Kills a child that waits in a write. Returns when it has exited.
fn kill(mut child: Child) {
    // The child may not have reached its write yet.
    thread::sleep(Duration::from_millis(300));
    child.kill().unwrap();
    child.wait().unwrap();
}

impl Rig {
    /// Starts a program that writes `text` through a duplicate of an open file.
    pub(super) fn writes(file: &fs::File, text: &str) -> Child {
        let mut command = Command::new("printf");
        let command = command.arg(text).stdout(file.try_clone().unwrap());
        command.spawn().unwrap()
    }

    /// The unfinished lines that a start would find if the source crashed now.
    pub(super) fn left(&self) -> Vec<String> {
        let copy = tempfile::tempdir().unwrap();
        let name = "unfinished";
        fs::copy(
            self.directory.path().join("state").join(name),
            copy.path().join(name),
        )
        .unwrap();
        let origins = self.downstream.origins();
        let kept = |asked: &millstream_record::FileId| {
            let found = origins.iter().find(|(file, _)| file == asked);
            found.map(|(_, next)| *next)
        };
        let disk = Arc::new(millstream_sys::disk::HostDisk);
        let left = super::super::journal::Journal::open(disk, copy.path(), kept)
            .unwrap()
            .left;
        let tails = left.into_iter();
        tails
            .map(|left| String::from_utf8(left.tail).unwrap())
            .collect()
    }
}

#[test]
fn with_when_full_fail_a_write_that_finds_no_space_fails() {
    let rig = Rig::new(Downstream::durable(), r#", "when_full": "fail""#);
    let mut file = rig.append("f");
    file.write_all(b"AAA").unwrap();
    // First the channel accepts no batch. Then it accepts a batch, but has no space to keep it.
    rig.downstream.set_full(true);
    let refused = file.write_all(b"x\n").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    rig.downstream.set_full(false);
    rig.downstream.choke();
    let refused = file.write_all(b"y\n").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    assert_eq!(rig.running.as_ref().unwrap().meter("writes_refused"), 2);
    rig.downstream.settle();
    assert_eq!(rig.left(), ["AAA"]);
    file.write_all(b"BBB\nCC").unwrap();
    assert_eq!(rig.left(), ["CC"]);
    drop(file);
    rig.until_lines(&["AAABBB", "CC"]);
}

#[test]
fn a_slow_sync_and_a_slow_command_fail_no_write() {
    let copies = tempfile::tempdir().unwrap();
    let place = copies.path().display();
    let options = format!(
        r#", "when_full": "fail", "rules": [{{ "path": "exec", "exec": ["sh", "-c", "sleep 3; cat > {place}/out"] }}]"#
    );
    let rig = Rig::new(Downstream::durable(), &options);
    // First a slow sync, then a command that does not read from its full pipe.
    let mut file = rig.append("f");
    rig.downstream.hold();
    let writes = thread::spawn(move || file.write_all(b"x\n"));
    thread::sleep(Duration::from_millis(1300));
    assert!(!writes.is_finished());
    rig.downstream.settle();
    writes.join().unwrap().unwrap();
    let mut file = rig.append("exec");
    let line = [&[b'y'; 100_000][..], b"\n"].concat();
    for _ in 0..8 {
        file.write_all(&line).unwrap();
    }
    assert_eq!(rig.lines().len(), 9);
    assert_eq!(rig.running.as_ref().unwrap().meter("writes_refused"), 0);
}

#[test]
fn killing_a_writer_loses_no_bytes_of_other_writers() {
    let rig = Rig::new(Downstream::durable(), "");
    let mut file = rig.append("f");
    file.write_all(b"AAA").unwrap();
    // The child waits for free space.
    rig.downstream.set_full(true);
    kill(Rig::writes(&file, "never\n"));
    rig.downstream.set_full(false);
    file.write_all(b"BBB\nCC").unwrap();
    // The channel has the child's batch, and the child waits until the batch is kept.
    rig.downstream.hold();
    kill(Rig::writes(&file, "DDD\nnever"));
    file.write_all(b"EE").unwrap();
    rig.downstream.settle();
    drop(file);
    rig.until_lines(&["AAABBB", "CCDDD", "EE"]);
}

#[test]
fn bytes_that_were_not_kept_are_unfinished_again() {
    let rig = Rig::new(Downstream::durable(), "");
    let mut file = rig.append("f");
    file.write_all(b"AAA").unwrap();
    rig.downstream.hold();
    let mut other = file.try_clone().unwrap();
    let writes = thread::spawn(move || other.write_all(b"BBB\nCC"));
    until("it is there", || !rig.lines().is_empty());
    rig.downstream.drop_held();
    assert_eq!(writes.join().unwrap().unwrap_err().raw_os_error(), Some(5));
    file.write_all(b"DDD").unwrap();
    // After a crash, the next start would find the line in two parts, because the channel may have kept the first part.
    assert_eq!(rig.left(), ["AAA", "DDD"]);
    file.write_all(b"E\n").unwrap();
    assert_eq!(rig.lines(), ["AAADDDE"]);
    assert!(rig.left().is_empty());
}

#[test]
fn bytes_for_which_the_journal_has_no_space_are_not_accepted() {
    let mut rig = Rig::new(Downstream::durable(), "");
    rig.stop();
    let state = rig.directory.path().join("state");
    let small = ["-t", "tmpfs", "-o", "size=256k", "tmpfs"];
    let mounted = Command::new("mount").args(small).arg(&state).status();
    assert!(
        mounted.unwrap().success(),
        "this test needs root, to mount a small disk"
    );
    rig.start("");
    let mut file = rig.append("f");
    file.write_all(b"AAA").unwrap();
    let filler = state.join("filler");
    assert!(fs::write(&filler, vec![0; 1 << 20]).is_err());
    // The line that the channel has kept is accepted, the unfinished one is not.
    let long = [b'C'; 8192];
    let text = [b"BBB\n", &long[..]].concat();
    assert_eq!(file.write(&text).unwrap(), 4);
    let refused = file.write(&long).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    assert!(rig.left().is_empty());
    fs::remove_file(filler).unwrap();
    file.write_all(b"DD").unwrap();
    assert_eq!(rig.left(), ["DD"]);
    drop(file);
    rig.until_lines(&["AAABBB", "DD"]);
    rig.stop();
    let unmounted = Command::new("umount").arg(&state).status();
    assert!(unmounted.unwrap().success());
}

#[test]
fn a_file_below_the_mount_continues_after_a_failure_where_the_channel_has_kept_it() {
    let mut rig = Rig::new(Downstream::durable(), "");
    rig.stop();
    let mut open = rig.append("a.log");
    rig.start("");
    open.write_all(b"one\n").unwrap();
    rig.until_lines(&["one"]);
    rig.downstream.hold();
    open.write_all(b"two\n").unwrap();
    until("it is sent", || rig.lines().len() == 2);
    rig.downstream.drop_held();
    until("it is sent again", || rig.lines().len() == 2);
    drop(open);
    until("it is removed", || {
        fs::read_dir(rig.mount()).unwrap().count() == 0
    });
    assert_eq!(rig.lines(), ["one", "two"]);
    // A repeat would be stored twice if the batch were packed: the channel can cut only batches of plain lines.
    assert_eq!(rig.downstream.repeats(), 0);
}

#[test]
fn a_file_below_the_mount_that_was_truncated_is_read_from_its_start() {
    let mut rig = Rig::new(Downstream::durable(), "");
    rig.stop();
    let mut open = rig.append("a.log");
    rig.start("");
    open.write_all(b"one\nend").unwrap();
    rig.until_lines(&["one"]);
    open.set_len(0).unwrap();
    open.write_all(b"two\n").unwrap();
    rig.until_lines(&["one", "end", "two"]);
    rig.stop();
    open.set_len(0).unwrap();
    open.write_all(b"3\n").unwrap();
    rig.start("");
    rig.until_lines(&["one", "end", "two", "3"]);
    assert_eq!(rig.downstream.repeats(), 0);
}
