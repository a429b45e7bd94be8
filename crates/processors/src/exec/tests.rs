//! Runs real programs: correct ones, and ones that fail in every way.

use std::{fs, path::Path, time::Instant};

use millstream_pipeline::reject::Rejected;
use millstream_record::{Batch, Encoding, Time};
use millstream_wire::msgpack::{entry_head, write_array_len, write_map_len, write_str, write_time};

use crate::rig::{Made, Rig, built, entries, lines, problems};

use super::*;

/// Returns a processor that runs a Python program. `work` is the body of a function that returns the answer to `record`, which has
/// the number `n`.
fn python(work: &str, options: &str) -> Rig {
    let script = format!(
        "import sys, json, os, time\n\
         def answer(n, record):\n    {}\n\
         for n, line in enumerate(sys.stdin):\n\
         \x20   found = answer(n, json.loads(line))\n\
         \x20   print(json.dumps(found), flush=True)\n",
        work.replace('\n', "\n    ")
    );
    let script = serde_json::to_string(&script).unwrap();
    rig(&format!(r#"["python3", "-c", {script}]"#), options)
}

/// Returns a processor that runs a shell script.
fn shell(script: &str, options: &str) -> Rig {
    let script = serde_json::to_string(script).unwrap();
    rig(&format!(r#"["sh", "-c", {script}]"#), options)
}

fn rig(command: &str, options: &str) -> Rig {
    Rig::new(&COMPONENT, &format!(r#"{{"command": {command}{options}}}"#))
}

const SHORT: &str = r#", "timeout": "2s""#;
const MSGPACK: &str = r#", "format": "msgpack""#;

fn reasons(made: &Made) -> Vec<String> {
    let Some(batch) = &made.rejected else {
        return Vec::new();
    };
    let records = millstream_wire::record::records(batch);
    let reason = |range: std::ops::Range<usize>| {
        Rejected::read(&batch.body[range])
            .unwrap()
            .reason
            .to_owned()
    };
    records.map(|(range, _)| reason(range)).collect()
}

/// Entries with one field each, and different times.
fn fields(texts: &[&[u8]]) -> Batch {
    let mut body = Vec::new();
    for (n, text) in texts.iter().enumerate() {
        write_array_len(&mut body, 2);
        write_time(&mut body, Time::from_parts(100 + n as i64, 5));
        write_map_len(&mut body, 1);
        write_str(&mut body, b"a");
        write_str(&mut body, text);
    }
    Batch {
        plain: true,
        ..entries(body, texts.len() as u32)
    }
}

/// Whether a process with this id exists, even as a zombie.
fn runs(pid: &str) -> bool {
    Path::new("/proc").join(pid.trim()).exists()
}

#[test]
fn records_pass_through_a_program_that_echoes_and_keep_their_times() {
    for options in ["", MSGPACK] {
        let mut cat = rig(r#"["cat"]"#, options);
        let batch = fields(&[b"x", b"y", b"z"]);
        let made = cat.run(&batch);
        assert_eq!(made.ports[""][0].body, batch.body);
        assert_eq!((made.counts.sent, made.counts.filtered), (3, 0));
        let made = cat.run(&lines("t", "one\ntwo"));
        assert_eq!(
            made.lines(""),
            [r#"{"message":"one"}"#, r#"{"message":"two"}"#]
        );
        assert_eq!(made.ports[""][0].encoding, Encoding::Packed);
    }
}

#[test]
fn answers_change_drop_and_split_records() {
    let work = "text = record['message']\n\
                if text == 'drop': return None\n\
                if text == 'none': return []\n\
                if text == 'split': return [{'part': 1}, {'part': 2}]\n\
                record['seen'] = n\n\
                return record";
    let mut rig = python(work, "");
    let made = rig.run(&lines("t", "a\ndrop\nsplit\nnone\nb\n"));
    let expected = [
        r#"{"message":"a","seen":0}"#,
        r#"{"part":1}"#,
        r#"{"part":2}"#,
        r#"{"message":"b","seen":4}"#,
    ];
    assert_eq!(made.lines(""), expected);
    assert_eq!((made.counts.sent, made.counts.filtered), (4, 2));
    let made = rig.run(&lines("t", "drop\ndrop\n"));
    assert_eq!((made.counts.filtered, made.ports[""].len()), (2, 0));
    // The process is still the same: it has counted all records.
    assert_eq!(
        rig.run(&lines("t", "c\n")).lines(""),
        [r#"{"message":"c","seen":7}"#]
    );
}

#[test]
fn a_batch_larger_than_all_pipes_passes() {
    let text: String = (0..60_000)
        .map(|n| format!("{n} {}\n", "x".repeat(100)))
        .collect();
    let made = rig(r#"["cat"]"#, "").run(&lines("t", &text));
    let found = made.lines("");
    assert_eq!(found.len(), 60_000);
    assert!(found[59_999].starts_with(r#"{"message":"59999 x"#));
}

#[test]
fn a_record_that_kills_the_program_is_rejected_and_its_neighbours_are_not() {
    let work = "if record['message'] == 'poison': raise ValueError('no poison')\nreturn record";
    let mut rig = python(work, "");
    let made = rig.run(&lines("t", "a\nb\npoison\nc\n"));
    assert_eq!(
        made.lines(""),
        ["a", "b", "c"].map(|text| format!(r#"{{"message":"{text}"}}"#))
    );
    let reasons = reasons(&made);
    assert_eq!(reasons.len(), 1);
    assert!(reasons[0].contains("ended (exit status: 1)"), "{reasons:?}");
    assert!(
        reasons[0].contains("`ValueError: no poison`"),
        "{reasons:?}"
    );
    // The program has answered records before, so it counts as working. Now a record is rejected even if it is the only one of its
    // batch.
    let made = rig.run(&lines("t", "poison\n"));
    assert_eq!((made.counts.rejected, made.counts.sent), (1, 0));
    assert_eq!(rig.run(&lines("t", "d\n")).counts.sent, 1);
}

#[test]
fn a_program_that_dies_without_a_reason_is_started_again_and_no_record_is_lost() {
    let mut rig = python("if n == 3: os._exit(7)\nreturn record", "");
    let text: String = (0..50).map(|n| format!("{n}\n")).collect();
    let made = rig.run(&lines("t", &text));
    let expected: Vec<_> = (0..50).map(|n| format!(r#"{{"message":"{n}"}}"#)).collect();
    assert_eq!(made.lines(""), expected);
    assert_eq!(made.counts.rejected, 0);
}

#[test]
fn a_record_that_hangs_the_program_is_rejected_after_the_time_limit() {
    let work = "if record['message'] == 'hang': time.sleep(1000)\nreturn record";
    let mut rig = python(work, SHORT);
    let started = Instant::now();
    let made = rig.run(&lines("t", "a\nhang\nb\n"));
    assert_eq!(made.counts.sent, 2);
    let reasons = reasons(&made);
    assert!(
        reasons[0].contains("gave no answer within 2s"),
        "{reasons:?}"
    );
    assert!(started.elapsed().as_secs() < 30, "{:?}", started.elapsed());
}

#[test]
fn a_program_that_hangs_and_that_a_reload_replaced_is_not_tried_on_each_record() {
    let work = "if record['message'] == 'hang': time.sleep(1000)\nreturn record";
    let mut rig = python(work, SHORT);
    assert_eq!(rig.run(&lines("t", "a\n")).counts.sent, 1);
    rig.retire();
    // A program that works finishes its batch.
    assert_eq!(rig.run(&lines("t", "b\nc\n")).counts.sent, 2);
    let failure = rig.try_run(&lines("t", &"hang\n".repeat(500))).err();
    let text = failure.map(|failure| failure.to_string());
    let text = text.unwrap_or_default();
    assert!(text.contains("a reload has replaced it"), "{text}");
}

#[test]
fn a_missing_answer_does_not_shift_later_answers() {
    // Like grep, the script writes nothing for records that it drops.
    let script =
        r#"while read -r line; do case "$line" in *drop*) ;; *) echo "$line";; esac; done"#;
    let made = shell(script, SHORT).run(&fields(&[b"a", b"drop", b"b"]));
    assert_eq!(made.lines(""), [r#"{"a":"a"}"#, r#"{"a":"b"}"#]);
    let body = &made.ports[""][0].body;
    assert_eq!(
        entry_head(body, 0).unwrap().time,
        Some(Time::from_parts(100, 5))
    );
    let second = entry_head(body, body.len() / 2).unwrap();
    assert_eq!(second.time, Some(Time::from_parts(102, 5)));
    assert!(reasons(&made)[0].contains("`null` if it is to be dropped"));
}

#[test]
fn more_answers_than_records_are_refused() {
    let script = r#"while read -r line; do case "$line" in *two*) printf '%s\n%s\n' "$line" "$line";; *) echo "$line";; esac; done"#;
    let made = shell(script, SHORT).run(&lines("t", "a\ntwo\nb\n"));
    assert_eq!(made.lines(""), [r#"{"message":"a"}"#, r#"{"message":"b"}"#]);
    assert!(reasons(&made)[0].contains("more than one answer"));
}

#[test]
fn unusable_answers_are_refused_with_the_text_that_was_read() {
    let script = r#"while read -r line; do case "$line" in *bad*) echo "debug: 1";; *) echo "$line";; esac; done"#;
    let made = shell(script, SHORT).run(&lines("t", "a\nbad\nb\n"));
    assert_eq!(made.lines(""), [r#"{"message":"a"}"#, r#"{"message":"b"}"#]);
    let reasons = reasons(&made);
    assert!(reasons[0].contains("`debug: 1` is not JSON"), "{reasons:?}");
}

#[test]
fn a_flood_of_answers_takes_no_more_memory_than_the_limit() {
    let work = "if record['message'] == 'flood':\n\
                \x20   while True: sys.stdout.write('x' * 65536)\n\
                return record";
    let mut rig = python(work, r#", "answers_max": "1MiB""#);
    let made = rig.run(&lines("t", "a\nflood\nb\n"));
    assert_eq!(made.counts.sent, 2);
    let why = reasons(&made);
    assert!(
        why[0].contains("more than 1MiB together (`answers_max`)"),
        "{why:?}"
    );
    // Small answers can become large records: each gets the head (time and metadata) of the record that it answers.
    let mut rig = python(
        "return [{}] * (200000 if record['message'] == 'many' else 1)",
        r#", "answers_max": "1MiB""#,
    );
    let made = rig.run(&lines("t", "a\nmany\n"));
    assert_eq!((made.counts.sent, made.counts.rejected), (1, 1));
}

#[test]
fn megabytes_on_standard_error_do_not_block_and_the_last_line_is_reported() {
    let work = "for _ in range(100): sys.stderr.write('x' * 65536 + '\\n')\n\
                sys.stderr.write('the end\\n')\n\
                if record['message'] == 'die': os._exit(3)\n\
                return record";
    let mut rig = python(work, "");
    let made = rig.run(&lines("t", "a\ndie\nb\n"));
    assert_eq!(made.counts.sent, 2);
    assert!(
        reasons(&made)[0].contains("`the end`"),
        "{:?}",
        reasons(&made)
    );
    // The timeout holds even if the output on standard error never ends.
    let started = Instant::now();
    let failed = shell("read x; yes >&2", SHORT).try_run(&lines("t", "a\n"));
    assert!(failed.is_err_and(|failure| failure.message.contains("no answer within")));
    assert!(started.elapsed().as_secs() < 30);
}

#[test]
fn a_program_that_does_not_read_fails_the_run_and_rejects_no_record() {
    let mut rig = shell("exec sleep 1000", r#", "timeout": "100ms""#);
    let Err(failure) = rig.try_run(&lines("t", "a\nb\n")) else {
        panic!("it must fail");
    };
    assert!(
        failure.message.contains("read nothing within 100ms"),
        "{failure}"
    );
    // A record that is larger than the pipe.
    let large = "x".repeat(1 << 20);
    let mut rig = shell("exec sleep 1000", r#", "timeout": "100ms""#);
    assert!(rig.try_run(&lines("t", &large)).is_err());
}

#[test]
fn a_program_that_stops_reading_is_replaced() {
    // The program answers one record and then sleeps.
    let script = r#"read -r line; echo "$line"; exec sleep 1000"#;
    let made = shell(script, r#", "timeout": "200ms""#).run(&lines("t", "a\nb\nc\n"));
    assert_eq!(made.counts.sent, 3);
    // The program answers one record and ends.
    let script = r#"read -r line; echo "$line""#;
    let mut rig = shell(script, "");
    let made = rig.run(&lines("t", "a\nb\nc\n"));
    assert_eq!((made.counts.sent, made.counts.rejected), (3, 0));
    assert_eq!(rig.run(&lines("t", "d\n")).counts.sent, 1);
}

#[test]
fn a_missing_program_is_detected_before_the_first_record() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display();
    std::fs::write(directory.path().join("plain"), "no program").unwrap();
    let found = |command: &str, more: &str| {
        let processor = built(&COMPONENT, &format!("{{ command: {command}{more} }}")).unwrap();
        processor
            .task()
            .map(drop)
            .map_err(|failure| failure.message)
    };
    assert_eq!(found("[cat]", ""), Ok(()));
    assert_eq!(found("[./cat]", ", directory: /bin"), Ok(()));
    for (command, more) in [
        ("[/nowhere/program]", ""),
        ("[no-program-of-this-name]", ""),
        (&*format!("[{place}/plain]"), ""),
        ("[cat]", ", environment: { PATH: /nowhere }"),
    ] {
        let message = found(command, more).unwrap_err();
        assert!(message.starts_with("cannot start `"), "{message}");
    }
}

#[test]
fn a_program_that_never_works_rejects_nothing() {
    for (mut rig, word) in [
        (
            shell("echo no license >&2; exit 3", ""),
            "(exit status: 3) before it read a record; its last line on standard error is `no license`",
        ),
        (
            python("raise ValueError('broken')", ""),
            "has not answered any record yet",
        ),
        (python("return 5", ""), "repair the program"),
        (
            shell("while read -r line; do :; done", r#", "timeout": "200ms""#),
            "none is rejected",
        ),
    ] {
        let Err(failure) = rig.try_run(&lines("t", "a\nb\nc\nd\n")) else {
            panic!("{word}: it must fail");
        };
        assert!(failure.message.contains(word), "{failure}");
        assert_eq!(failure.again, millstream_pipeline::failure::Again::Later);
    }
}

#[test]
fn a_slow_start_is_awaited() {
    let mut rig = shell("sleep 1; exec cat", "");
    assert_eq!(rig.run(&lines("t", "a\nb\n")).counts.sent, 2);
}

#[test]
fn a_record_of_64_mib_passes() {
    let mut batch = lines("t", "a\n");
    let text = "x".repeat(64 << 20);
    batch.body = format!("{text}\nb\n").into();
    batch.count = 2;
    for options in ["", MSGPACK] {
        let made = rig(r#"["cat"]"#, options).run(&batch);
        assert_eq!((made.counts.sent, made.counts.rejected), (2, 0));
        assert!(made.ports[""][0].len() > 64 << 20);
    }
    let made = rig(r#"["cat"]"#, r#", "answers_max": "1MiB""#).run(&batch);
    assert_eq!((made.counts.sent, made.counts.rejected), (1, 1));
}

#[test]
fn bytes_that_are_not_utf8_stay_in_msgpack_and_are_base64_in_json() {
    let batch = fields(&[b"\xff\n\x00"]);
    let made = rig(r#"["cat"]"#, MSGPACK).run(&batch);
    assert_eq!(made.ports[""][0].body, batch.body);
    let made = rig(r#"["cat"]"#, "").run(&batch);
    assert_eq!(made.lines(""), [r#"{"a":"/woA"}"#]);
}

#[test]
fn a_record_that_cannot_be_json_is_rejected_and_its_neighbours_are_not() {
    let mut body = fields(&[b"before"]).body.to_vec();
    body.extend_from_slice(b"\x92\x01\x81\xa1a");
    body.extend_from_slice(&[0x91; 100_000]);
    body.push(0xc0);
    body.extend_from_slice(&fields(&[b"after"]).body);
    let batch = Batch {
        body: body.into(),
        count: 3,
        ..fields(&[])
    };
    let made = rig(r#"["cat"]"#, "").run(&batch);
    assert_eq!(made.lines(""), [r#"{"a":"before"}"#, r#"{"a":"after"}"#]);
    assert!(reasons(&made)[0].contains("no JSON form: more than 128 levels"));
    assert_eq!(
        rig(r#"["cat"]"#, MSGPACK).run(&batch).ports[""][0].body,
        batch.body
    );
}

#[test]
fn the_program_and_its_children_are_gone_when_the_task_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let options = format!(
        r#", "directory": "{}", "environment": {{"WHERE": "here"}}"#,
        path.display()
    );
    let script = r#"sleep 1000 & echo $! > child; echo $$ > self; echo "$WHERE" > variable; while read -r line; do echo "$line"; done; sleep 1000"#;
    let mut rig = shell(script, &options);
    assert_eq!(rig.run(&lines("t", "a\n")).counts.sent, 1);
    let number = |name: &str| fs::read_to_string(path.join(name)).unwrap();
    assert_eq!(number("variable").trim(), "here");
    let (own, child) = (number("self"), number("child"));
    assert!(runs(&own) && runs(&child));
    drop(rig);
    assert!(!runs(&own), "a zombie is left");
    // The parent of the child is dead, so the system reaps the child.
    let is_dead = || {
        let state = fs::read_to_string(format!("/proc/{}/stat", child.trim()));
        state.map_or(true, |state| state.contains(") Z"))
    };
    let until = Instant::now() + std::time::Duration::from_secs(5);
    while !is_dead() && Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(is_dead());
}

#[test]
fn a_program_inherits_no_pipe_of_another_one() {
    let directory = tempfile::tempdir().unwrap();
    let list = directory.path().join("list");
    let script = format!("ls /proc/self/fd > {}; exec cat", list.display());
    // The test may have been started with open descriptors, which all its child processes inherit. So the expected list is that of
    // a child process that the test starts directly.
    let mut plain = std::process::Command::new("sh");
    plain
        .args(["-c", &script])
        .stdin(std::process::Stdio::null());
    assert!(plain.status().unwrap().success());
    let expected = fs::read_to_string(&list).unwrap();
    let mut others: Vec<_> = (0..3).map(|_| rig(r#"["cat"]"#, "")).collect();
    for other in &mut others {
        assert_eq!(other.run(&lines("t", "a\n")).counts.sent, 1);
    }
    let mut rig = shell(&script, "");
    assert_eq!(rig.run(&lines("t", "a\n")).counts.sent, 1);
    assert_eq!(fs::read_to_string(list).unwrap(), expected);
}

#[test]
fn only_the_option_makes_a_program_repeatable() {
    let Build::Processor(build) = COMPONENT.build else {
        unreachable!()
    };
    for (options, expected) in [("", false), (r#", "repeatable": true"#, true)] {
        let options = crate::rig::options(&format!(r#"{{"command": ["cat"]{options}}}"#));
        let processor = build("p", &options).unwrap();
        assert_eq!(processor.repeatable().is_ok(), expected);
        assert!(processor.blocking());
    }
}

#[test]
fn unusable_options_are_refused() {
    for (options, word) in [
        ("{}", "command"),
        (r#"{"command": []}"#, "names no program"),
        (r#"{"command": [""]}"#, "names no program"),
        (r#"{"command": "cat -n"}"#, "list"),
        (r#"{"command": ["cat"], "format": "csv"}"#, "csv"),
        (r#"{"command": ["cat"], "timeout": 0}"#, "longer than 0"),
        (r#"{"command": ["cat"], "timeout": 10}"#, "no unit"),
        (r#"{"command": ["cat"], "answers_max": 0}"#, "larger than 0"),
        (
            r#"{"command": ["cat"], "environment": {"A=B": "c"}}"#,
            "no name of a variable",
        ),
    ] {
        let found = problems(&COMPONENT, options).join("; ");
        assert!(found.contains(word), "{options}: {found}");
    }
}
