//! Tests of joined lines: on a mount, at stops and crashes, and in files below the mount.

use super::*;

/// Options for joined lines: a digit begins a record, and `wait` ends it.
fn stacks(wait: &str) -> String {
    format!(r#", "framing": {{"multiline": {{"start": "^\\d", "wait": "{wait}"}}}}"#)
}

impl Rig {
    /// The messages of all packed records so far.
    fn messages(&self) -> Vec<String> {
        let mut messages = Vec::new();
        for batch in self.downstream.batches() {
            let mut body = &batch.body[..];
            let before = messages.len();
            while !body.is_empty() {
                let entry = rmpv::decode::read_value(&mut body).unwrap();
                messages.push(entry[1]["message"].as_str().unwrap().to_owned());
            }
            assert_eq!(messages.len() - before, batch.count as usize);
        }
        messages
    }

    fn until_messages(&self, expected: &[&str]) {
        until("all records are there", || {
            self.messages().len() >= expected.len()
        });
        assert_eq!(self.messages(), expected);
    }
}

#[test]
fn lines_up_to_the_next_start_are_a_record_of_their_file() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let mut rig = Rig::new(to, &stacks("1h"));
        let (mut one, mut two) = (rig.append("f"), rig.append("f"));
        one.write_all(b"1 one\n  at a\n  at").unwrap();
        two.write_all(b"  odd\n2 two\n").unwrap();
        one.write_all(b" b\r\n\n3").unwrap();
        rig.until_messages(&["  odd"]);
        one.write_all(b" three\n").unwrap();
        two.write_all(b"  at c\n4 four\n5 five\n  at").unwrap();
        let first = [
            "  odd",
            "1 one\n  at a\n  at b\n",
            "2 two\n  at c",
            "4 four",
        ];
        rig.until_messages(&first);
        // When a file is closed, and when the source stops, unfinished bytes become a record.
        drop(two);
        rig.until_messages(&[&first[..], &["5 five\n  at"]].concat());
        one.write_all(b"  at d\n6 six").unwrap();
        rig.stop();
        let last = ["5 five\n  at", "3 three\n  at d", "6 six"];
        assert_eq!(rig.messages(), [&first[..], &last].concat());
    }
}

/// Each end of a file below the mount is sent as soon as the file is closed: into both of two disk channels, then, after a crash
/// before it was removed, again.
#[test]
fn two_disk_channels_keep_each_record_of_a_file_below_the_mount_once_although_one_has_kept_more() {
    let (one, two) = (Downstream::durable(), Downstream::durable());
    let mut rig = Rig::new(one.clone(), &stacks("300ms"));
    rig.stop();
    let mut open = rig.append("a.log");
    let first = ["1 one\n  at a", "2 two"];
    // The file stays open, so it is not removed. After the wait, its last lines are a record.
    for (text, beside, expected) in [
        ("1 one\n  at a\n", Some(&two), &first[..1]),
        ("2 two\n", None, &first[..]),
    ] {
        one.set_beside(beside);
        open.write_all(text.as_bytes()).unwrap();
        rig.start(&stacks("300ms"));
        rig.until_messages(expected);
        rig.stop();
    }
    one.set_beside(Some(&two));
    open.write_all(b"  at b\n3 three\n").unwrap();
    drop(open);
    rig.start(&stacks("300ms"));
    let expected = ["1 one\n  at a", "2 two", "  at b", "3 three"];
    rig.until_messages(&expected);
    rig.stop();
    rig.downstream = two;
    assert_eq!(rig.messages(), expected);
}

#[test]
fn rules_join_filter_and_copy() {
    let copies = tempfile::tempdir().unwrap();
    let place = copies.path().display();
    let options = format!(
        r#", "rules": [{{ "path": "app/*", "framing": {{"multiline": {{"start": "^\\S"}}}}, "line_max": "40B",
            "allow": "Error", "deny": "at b$", "rewrite": [{{ "match": "\n\\s+at", "replace": " <-" }}],
            "tee": "{place}/tee/", "exec": ["sh", "-c", "cat > {place}/out"] }}]"#
    );
    let mut rig = Rig::new(Downstream::durable(), &options);
    fs::create_dir_all(rig.path("app")).unwrap();
    rig.append("app/x")
        .write_all(b"Error 1\n  at a\n  at b\nError 2\n  at b\n  at a\nInfo\nError 3\n\n")
        .unwrap();
    rig.append("plain").write_all(b"Error\n at\n").unwrap();
    rig.stop();
    // A file that no rule matches is shipped line by line.
    let batches = rig.downstream.batches();
    assert!(batches.iter().any(|batch| batch.body == "Error\n at\n"));
    let copy = |name: &str| fs::read_to_string(copies.path().join(name)).unwrap_or_default();
    let expected = "Error 2 <- b <- a\nError 3\n\n";
    until("the file has it", || copy("tee/app/x") == expected);
    until("the command has it", || copy("out") == expected);
}

#[test]
fn records_that_are_too_long_are_counted_and_rejected() {
    let options = stacks("1h") + r#", "line_max": "9B", "too_long": "reject""#;
    let rig = Rig::new(Downstream::durable(), &options);
    let mut file = rig.append("f");
    for piece in [
        "1 a\nbb",
        "bb\ncc",
        "cc\ndd\n2 o",
        "k\n3",
        " dddddddddd\n4 ok\n5\n",
    ] {
        file.write_all(piece.as_bytes()).unwrap();
    }
    rig.until_messages(&["2 ok", "4 ok"]);
    let running = rig.running.as_ref().unwrap();
    assert_eq!(running.meter("lines_too_long"), 2);
    let rejected = running.rejected.batches();
    let text = rejected
        .iter()
        .map(|batch| String::from_utf8_lossy(&batch.body));
    let text: String = text.collect();
    assert!(
        text.contains("1 a") && text.contains("cccc") && text.contains("3 ddd"),
        "{text}"
    );
}

#[test]
fn after_the_wait_whole_lines_are_a_record_and_a_partial_line_stays() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let rig = Rig::new(to, &stacks("1500ms"));
        let mut file = rig.append("f");
        let begun = Instant::now();
        file.write_all(b"1 one\n").unwrap();
        for _ in 0..4 {
            thread::sleep(Duration::from_millis(400));
            file.write_all(b" at\n").unwrap();
        }
        file.write_all(b"2 t").unwrap();
        assert!(rig.messages().is_empty());
        rig.until_messages(&["1 one\n at\n at\n at\n at"]);
        assert!(begun.elapsed() >= Duration::from_millis(3100));
        thread::sleep(Duration::from_millis(2500));
        assert_eq!(rig.messages().len(), 1);
        file.write_all(b"wo\n").unwrap();
        rig.until_messages(&["1 one\n at\n at\n at\n at", "2 two"]);
        file.write_all(b" late\n3 three").unwrap();
        rig.until_messages(&["1 one\n at\n at\n at\n at", "2 two", " late"]);
        drop(file);
        until("the end is there", || rig.messages().len() == 4);
    }
}

#[test]
fn a_kill_at_any_moment_loses_and_repeats_nothing() {
    let rig = Rig::new(Downstream::durable(), &stacks("500ms"));
    let mut file = rig.append("f");
    file.write_all(b"1 one\n at").unwrap();
    file.write_all(b" a\n2 t").unwrap();
    assert_eq!(rig.left(), ["1 one\n at a\n2 t"]);
    // The channel has the record, but has not confirmed that it is kept. The bytes after the record are already in the journal.
    rig.downstream.hold();
    let mut other = file.try_clone().unwrap();
    let writes = thread::spawn(move || other.write_all(b"wo\n"));
    until("it is there", || rig.messages() == ["1 one\n at a"]);
    assert_eq!(rig.left(), ["2 t"]);
    rig.downstream.settle();
    writes.join().unwrap().unwrap();
    assert_eq!(rig.left(), ["2 two\n"]);
    // The same holds for a record that is sent after the wait.
    file.write_all(b" at b\n at").unwrap();
    rig.downstream.hold();
    until("it has left", || rig.messages().len() == 2);
    assert_eq!(rig.left(), [" at"]);
    rig.downstream.settle();
    until("it is known", || rig.downstream.origins().len() == 1);
    file.write_all(b" c\n3 three\n").unwrap();
    assert_eq!(rig.messages(), ["1 one\n at a", "2 two\n at b", " at c"]);
    drop(file);
    until("the end is there", || rig.messages().len() == 4);
    until("all is done", || rig.left().is_empty());
    assert_eq!(rig.downstream.repeats(), 0);
}

#[test]
fn a_write_waits_for_an_earlier_record_and_its_writer_can_be_killed() {
    let rig = Rig::new(Downstream::durable(), &stacks("100ms"));
    let mut file = rig.append("f");
    rig.downstream.set_full(true);
    file.write_all(b"1 one\n at a\n at").unwrap();
    // By now the record waits for free space.
    thread::sleep(Duration::from_millis(400));
    let mut child = Rig::writes(&file, "never\n");
    thread::sleep(Duration::from_millis(300));
    // Other files are served.
    fs::metadata(rig.path("f")).unwrap();
    rig.append("g").write_all(b"3 g").unwrap();
    let killed = Instant::now();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(killed.elapsed() < Duration::from_secs(30));
    let mut other = file.try_clone().unwrap();
    let writes = thread::spawn(move || other.write_all(b" b\n2 two\n"));
    thread::sleep(Duration::from_millis(300));
    assert!(!writes.is_finished());
    rig.downstream.set_full(false);
    writes.join().unwrap().unwrap();
    drop(file);
    until("all is there", || rig.messages().len() == 4);
    let mut all = rig.messages();
    all.retain(|message| message != "3 g");
    assert_eq!(all, ["1 one\n at a", " at b", "2 two"]);
    assert_eq!(rig.downstream.repeats(), 0);
}

#[test]
fn a_close_waits_for_an_earlier_record() {
    let rig = Rig::new(Downstream::durable(), &stacks("100ms"));
    let mut file = rig.append("f");
    rig.downstream.set_full(true);
    file.write_all(b"1 one\n at").unwrap();
    thread::sleep(Duration::from_millis(400));
    drop(file);
    thread::sleep(Duration::from_millis(200));
    rig.downstream.set_full(false);
    rig.until_messages(&["1 one", " at"]);
    until("all is done", || rig.left().is_empty());
    assert_eq!(rig.messages().len(), 2);
}

#[test]
fn a_record_that_was_sent_after_the_wait_but_not_kept_is_unfinished_again() {
    let rig = Rig::new(Downstream::durable(), &stacks("2s"));
    let mut file = rig.append("f");
    file.write_all(b"1 one\n at a\n at").unwrap();
    rig.downstream.hold();
    until("it has left", || rig.messages() == ["1 one\n at a"]);
    rig.downstream.drop_held();
    thread::sleep(Duration::from_millis(200));
    assert_eq!(rig.left(), ["1 one\n at a\n", " at"]);
    file.write_all(b" b\n2 two\n").unwrap();
    assert_eq!(rig.messages(), ["1 one\n at a\n at b"]);
    assert_eq!(rig.left(), ["2 two\n"]);
}

#[test]
fn a_write_fails_in_time_while_an_earlier_record_waits_for_space() {
    let options = stacks("100ms") + r#", "when_full": "fail""#;
    let rig = Rig::new(Downstream::durable(), &options);
    let mut file = rig.append("f");
    rig.downstream.set_full(true);
    file.write_all(b"1 one\n").unwrap();
    thread::sleep(Duration::from_millis(500));
    let started = Instant::now();
    let refused = file.write_all(b"2 two\n").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    assert!(started.elapsed() < Duration::from_secs(10));
    // The record that found no space is not counted as a refused write.
    assert_eq!(rig.running.as_ref().unwrap().meter("writes_refused"), 1);
    rig.downstream.set_full(false);
    rig.until_messages(&["1 one"]);
    file.write_all(b"3 three\n").unwrap();
    rig.until_messages(&["1 one", "3 three"]);
}

#[test]
fn with_a_memory_channel_fsync_stores_the_unfinished_line() {
    let rig = Rig::new(Downstream::memory(), &stacks("1h"));
    let mut file = rig.append("f");
    file.write_all(b"1 one\n at a\n2 t").unwrap();
    file.sync_all().unwrap();
    assert_eq!(rig.left(), ["1 one\n at a\n2 t"]);
    // The bytes after the record are in the journal even before the `fsync`.
    file.write_all(b"wo\n").unwrap();
    assert_eq!(rig.left(), ["1 one\n at a\n", "2 t"]);
    file.sync_all().unwrap();
    assert_eq!(rig.left(), ["2 two\n"]);
    drop(file);
    rig.until_messages(&["1 one\n at a", "2 two"]);
    until("all is done", || rig.left().is_empty());
}

#[test]
fn lines_of_files_below_the_mount_are_joined_even_while_they_are_written() {
    let mut rig = Rig::new(Downstream::durable(), &stacks("500ms"));
    rig.stop();
    fs::write(rig.path("a.log"), "1 one\n at a\n2 two\n at b").unwrap();
    let mut open = rig.append("b.log");
    open.write_all(b"3 three\n at").unwrap();
    rig.start(&stacks("500ms"));
    until("it is read", || rig.messages().len() >= 3);
    assert_eq!(rig.messages(), ["1 one\n at a", "2 two\n at b", "3 three"]);
    // The shipped part of a file that is still being written is not shipped again.
    rig.stop();
    rig.start(&stacks("500ms"));
    open.write_all(b" c\n at d\n").unwrap();
    until("it is followed", || rig.messages().len() >= 4);
    drop(open);
    // Waits until the file is removed.
    thread::sleep(Duration::from_millis(1000));
    rig.stop();
    assert_eq!(rig.messages()[3], " at c\n at d");
    assert_eq!(rig.downstream.repeats(), 0);
    assert_eq!(fs::read_dir(rig.mount()).unwrap().count(), 0);
}
