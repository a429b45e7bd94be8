//! Tests of `framing` (joined records, logs of containers), `encoding` and `kubernetes`.

use std::{fs, io::Write, path::Path, thread, time::Duration};

use millstream_record::{Batch, Encoding, Time};
use millstream_wire::record::{Record, records};

use super::{Place, append, sorted};
use crate::rig::{Downstream, until};

/// The field `name` of all records of packed batches.
fn fields(to: &Downstream, name: &str) -> Vec<String> {
    let batches = to.batches();
    let of_batch = |batch: &Batch| {
        assert!(batch.is_empty() || batch.encoding == Encoding::Packed);
        let fields = records(batch).map(|(_, event)| {
            let Record::Packed(mut record) = event.record else {
                panic!()
            };
            let map = rmpv::decode::read_value(&mut record).unwrap();
            let map = map.as_map().unwrap().clone();
            let found = map.iter().find(|field| field.0.as_str() == Some(name));
            found.unwrap().1.as_str().unwrap().to_owned()
        });
        fields.collect::<Vec<_>>()
    };
    batches.iter().flat_map(of_batch).collect()
}

pub(super) fn messages(to: &Downstream) -> Vec<String> {
    fields(to, "message")
}

pub(super) const STACKS: &str =
    r#", "framing": {"multiline": {"start": "^\\d", "wait": "1500ms"}}"#;

#[test]
fn a_stack_trace_is_one_record_even_if_it_is_written_slowly() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let place = Place::new();
        let path = place.log("a.log");
        append(&path, "1 one\n  at a\n");
        let running = place.start("*.log", STACKS, &to);
        thread::sleep(Duration::from_millis(50));
        append(&path, "  at b\n2 two\n  at");
        until("the first record", || {
            messages(&to) == ["1 one\n  at a\n  at b"]
        });
        append(&path, " c\n");
        until("the second, after a while", || {
            messages(&to).last().unwrap() == "2 two\n  at c"
        });
        append(&path, "3 three\n");
        running.stop();
        append(&path, "  at d\n4 four");
        place.once("*.log", STACKS, &to);
        let expected = [
            "1 one\n  at a\n  at b",
            "2 two\n  at c",
            "3 three\n  at d",
            "4 four",
        ];
        assert_eq!(messages(&to), expected);
        place.once("*.log", STACKS, &to);
        assert_eq!(messages(&to).len(), 4);
        assert_eq!(to.repeats(), 0);
    }
}

#[test]
fn no_position_points_into_a_record() {
    let (place, to) = (Place::new(), Downstream::durable());
    let text: String = (0..40_000)
        .map(|number| format!("{number} first\n  second\n  third of {number}\n"))
        .collect();
    append(&place.log("a.log"), &text);
    place.once("*.log", STACKS, &to);
    assert_eq!(messages(&to).len(), 40_000);
    assert!(
        messages(&to)
            .iter()
            .all(|message| message.lines().count() == 3)
    );
    assert!(to.batches().len() > 1);
    for batch in to.batches() {
        let millstream_record::Origin::File(origin) = &batch.origins[0] else {
            panic!()
        };
        assert!(
            origin.next == text.len() as u64 || {
                let next = text.as_bytes()[origin.next as usize];
                next.is_ascii_digit()
            }
        );
    }
}

/// Reads a file three times to its end, each time after more was written: into both of two disk channels, into the first one, and
/// into both again, as after a crash between keeping a batch in the first channel and in the second one.
fn read_into_two_channels(parts: [&str; 3], write: impl Fn(&Path, &[&str]), options: &str) {
    let (place, one, two) = (Place::new(), Downstream::durable(), Downstream::durable());
    for (at, beside) in [Some(&two), None, Some(&two)].into_iter().enumerate() {
        write(&place.logs, &parts[..=at]);
        one.set_beside(beside);
        // After a crash, the stored positions would not include what only one channel has kept.
        let _ = fs::remove_dir_all(&place.state);
        place.once("*", options, &one);
    }
    let expected = ["1 one\n  at a", "2 two\n  at b", "  at c", "3 three"];
    assert_eq!(messages(&one), expected);
    assert_eq!(messages(&two), expected);
}

const PARTS: [&str; 3] = ["1 one\n  at a\n", "2 two\n  at b\n", "  at c\n3 three\n"];

#[test]
fn two_disk_channels_keep_each_joined_record_once_although_one_has_kept_more() {
    let write = |logs: &Path, parts: &[&str]| append(&logs.join("a.log"), parts[parts.len() - 1]);
    read_into_two_channels(PARTS, write, STACKS);
    // The second channel does not know the file.
    read_into_two_channels(["", &PARTS[..2].concat(), PARTS[2]], write, STACKS);
}

pub(super) fn cri(stream: &str, tag: &str, text: &str) -> String {
    format!("2026-01-02T03:04:05.000000006Z {stream} {tag} {text}\n")
}

#[test]
fn logs_of_pods_are_joined_and_tagged_and_the_log_of_the_own_pod_is_skipped() {
    let (place, to) = (Place::new(), Downstream::durable());
    let directory = place.log("shop_web-1_0a1b/nginx");
    let own = place.log("ops_millstream-x_77/millstream");
    for directory in [&directory, &own] {
        fs::create_dir_all(directory).unwrap();
    }
    append(&own.join("0.log"), &cri("stdout", "F", "ourselves"));
    let path = directory.join("0.log");
    append(
        &path,
        &[cri("stdout", "F", "one"), cri("stdout", "P", "two ")].concat(),
    );
    let options = format!(
        r#"{{"kubernetes": {{"root": "{}", "own_pod": "millstream-x"}}, "rotate_wait": "100ms"}}"#,
        place.logs.display()
    );
    let running = crate::rig::Running::start(&super::COMPONENT, &options, &to, &place.state);
    until("the first", || messages(&to) == ["one"]);
    append(
        &path,
        &[cri("stderr", "F", "between"), cri("stdout", "F", "parts")].concat(),
    );
    until("all", || messages(&to) == ["one", "between", "two parts"]);
    assert_eq!(fields(&to, "stream"), ["stdout", "stderr", "stdout"]);
    // Rotates like the kubelet.
    fs::rename(&path, directory.join("0.log.20260102-030406")).unwrap();
    append(
        &directory.join("0.log.20260102-030406"),
        &cri("stdout", "F", "late"),
    );
    append(&path, &cri("stdout", "F", "new"));
    until("both files", || messages(&to).len() == 5);
    append(&path, "not of a container\n");
    until("it is rejected", || running.rejected.batches().len() == 1);
    running.stop();
    assert_eq!(
        sorted(messages(&to))[2..],
        ["new", "one", "two parts"].map(str::to_owned)
    );
    let batch = &to.batches()[0];
    assert_eq!(batch.tag.as_str(), "kube.shop.web-1.nginx");
    for (name, value) in [
        ("kubernetes.namespace", "shop"),
        ("kubernetes.pod", "web-1"),
        ("kubernetes.container", "nginx"),
        ("kubernetes.uid", "0a1b"),
        ("path", path.to_str().unwrap()),
    ] {
        assert_eq!(batch.values.get(name), Some(value));
    }
    let (_, event) = records(batch).next().unwrap();
    assert_eq!(event.time, Time::from_parts(1_767_323_045, 6));
}

#[test]
fn other_encodings_become_utf_8() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let place = Place::new();
        let path = place.log("a.log");
        fs::write(&path, b"\x93\xfa\x96\x7b\nab\n\x8c").unwrap();
        let more = r#", "encoding": "shift_jis""#;
        let running = place.start("a.log", more, &to);
        until("two lines", || to.lines() == ["\u{65e5}\u{672c}", "ab"]);
        let mut file = fs::File::options().append(true).open(&path).unwrap();
        file.write_all(b"\xea\n\xff!\n").unwrap();
        until("all lines", || to.lines()[2..] == ["\u{8a9e}", "\u{fffd}!"]);
        assert_eq!(running.meter("lines_garbled"), 1);
        running.stop();
        let wide: Vec<u8> = "\u{feff}\u{60a}x\nlast"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        fs::write(place.log("wide.log"), wide).unwrap();
        place.once("wide.log", r#", "encoding": "utf-16le""#, &to);
        assert_eq!(to.lines()[4..], ["\u{60a}x", "last"]);
        place.once("a.log", more, &to);
        assert_eq!(to.lines().len(), 6);
    }
}

#[test]
fn start_end_begins_at_a_line_of_utf_16() {
    for encoding in ["utf-16le", "utf-16be"] {
        let (place, to) = (Place::new(), Downstream::durable());
        let wide = |text: &str| -> Vec<u8> {
            let units = text.encode_utf16();
            match encoding {
                "utf-16le" => units.flat_map(u16::to_le_bytes).collect(),
                _ => units.flat_map(u16::to_be_bytes).collect(),
            }
        };
        // The code of the first letter of the last line has the byte of a newline, too.
        fs::write(place.log("a.log"), wide("before\n\u{60a}\u{a05}ha")).unwrap();
        let more = format!(r#", "start": "end", "encoding": "{encoding}""#);
        let running = place.start("a.log", &more, &to);
        until("it has begun", || place.state.join("positions").exists());
        let mut file = fs::File::options()
            .append(true)
            .open(place.log("a.log"))
            .unwrap();
        file.write_all(&wide("lf\nnext\n")).unwrap();
        until("both lines", || {
            to.lines() == ["\u{60a}\u{a05}half", "next"]
        });
        running.stop();
    }
}

#[test]
fn a_record_that_waits_for_more_lines_does_not_delay_a_stop() {
    let (place, to) = (Place::new(), Downstream::memory());
    append(&place.log("a.log"), "1 one\n  open");
    let more = r#", "framing": {"multiline": {"start": "^\\d", "wait": "1h"}}"#;
    let running = place.start("*.log", more, &to);
    thread::sleep(Duration::from_millis(100));
    running.stop();
    assert!(to.batches().is_empty());
    place.once("*.log", more, &to);
    assert_eq!(messages(&to), ["1 one\n  open"]);
}
