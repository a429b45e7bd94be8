//! Tests of `cr`, of byte order marks, and of files that other programs than gzip have compressed.

use std::{fs, thread, time::Duration};

use super::{Place, append, framed::messages};
use crate::rig::{Downstream, until};

#[test]
fn the_cr_at_the_end_of_a_line_is_no_part_of_the_record() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let place = Place::new();
        let path = place.log("a.log");
        append(&path, "one\r\n\r\n10%\r20%\r\r\nplain\nha");
        let running = place.start("*.log", "", &to);
        until("whole lines", || to.lines().len() == 4);
        append(&path, "lf\r\nlast\r");
        until("the half line", || to.lines().len() == 5);
        running.stop();
        place.once("*.log", "", &to);
        let expected = ["one", "", "10%\r20%\r", "plain", "half", "last"];
        assert_eq!(to.lines(), expected);
        place.once("*.log", "", &to);
        assert_eq!((to.lines().len(), to.repeats()), (6, 0));
    }
}

#[test]
fn cr_keep_keeps_it() {
    for framing in ["", r#", "framing": {"multiline": {"start": "^one"}}"#] {
        let (place, to) = (Place::new(), Downstream::durable());
        append(&place.log("a.log"), "one\r\ntwo\r\n");
        let more = format!(r#", "cr": "keep"{framing}"#);
        place.once("*.log", &more, &to);
        match framing {
            "" => assert_eq!(to.lines(), ["one\r", "two\r"]),
            _ => assert_eq!(messages(&to), ["one\r\ntwo\r"]),
        }
    }
}

#[test]
fn joined_and_converted_lines_lose_the_cr_too() {
    let (place, to) = (Place::new(), Downstream::memory());
    append(&place.log("a.log"), "1 one.\r\n  at a\r\n2 two.\r\n");
    let more = r#", "framing": {"multiline": {"start": "^\\d \\w+\\.$"}}"#;
    place.once("*.log", more, &to);
    assert_eq!(messages(&to), ["1 one.\n  at a", "2 two."]);
    let (place, to) = (Place::new(), Downstream::memory());
    fs::write(place.log("a.log"), b"\xe4\r\nb\r\n").unwrap();
    place.once("*.log", r#", "encoding": "latin1""#, &to);
    assert_eq!(to.lines(), ["\u{e4}", "b"]);
}

#[test]
fn a_line_of_line_max_bytes_may_end_with_a_cr() {
    for policy in ["split", "truncate", "reject"] {
        for framing in ["lines", "latin"] {
            let (place, to) = (Place::new(), Downstream::durable());
            append(&place.log("a.log"), "abcd\r\nabcdef\r\nabcd\r\n");
            let encoding = if framing == "latin" {
                "latin1"
            } else {
                "utf-8"
            };
            let more =
                format!(r#", "line_max": "4B", "too_long": "{policy}", "encoding": "{encoding}""#);
            let running = place.once("*.log", &more, &to);
            let expected: &[&str] = match policy {
                "split" => &["abcd", "abcd", "ef", "abcd"],
                "truncate" => &["abcd", "abcd", "abcd"],
                _ => &["abcd", "abcd"],
            };
            assert_eq!(to.lines(), expected, "{policy} {framing}");
            assert_eq!(running.meter("lines_too_long"), 1);
        }
    }
}

#[test]
fn two_disk_channels_keep_each_line_with_a_cr_once_although_one_has_kept_more() {
    let (place, one, two) = (Place::new(), Downstream::durable(), Downstream::durable());
    let parts = ["\u{feff}a\r\nb\r\n", "c\r\nd\n", "e\r\nf\r\n"];
    for (part, beside) in parts.into_iter().zip([Some(&two), None, Some(&two)]) {
        append(&place.log("a.log"), part);
        one.set_beside(beside);
        let _ = fs::remove_dir_all(&place.state);
        place.once("*", "", &one);
    }
    let expected = ["a", "b", "c", "d", "e", "f"];
    assert_eq!(one.lines(), expected);
    assert_eq!(two.lines(), expected);
}

#[test]
fn a_byte_order_mark_at_the_start_is_no_part_of_the_first_line() {
    for to in [Downstream::memory(), Downstream::durable()] {
        for more in [r#""#, r#", "line_max": "6B""#] {
            let place = Place::new();
            let before = to.lines().len();
            append(&place.log("a.log"), "\u{feff}one\n\u{feff}\n");
            place.once("*.log", more, &to);
            assert_eq!(to.lines()[before..], ["one", "\u{feff}"]);
            append(&place.log("long.log"), "\u{feff}one is long\n");
            place.once("long.log", r#", "line_max": "6B""#, &to);
            assert_eq!(to.lines()[before + 2..], ["one", " is lo", "ng"]);
        }
    }
}

fn wide(text: &str, big: bool) -> Vec<u8> {
    let units = text.encode_utf16();
    match big {
        true => units.flat_map(u16::to_be_bytes).collect(),
        false => units.flat_map(u16::to_le_bytes).collect(),
    }
}

#[test]
fn the_mark_of_utf_16_decides_the_byte_order_also_after_a_restart() {
    for (encoding, big) in [
        ("utf-16", true),
        ("utf-16", false),
        ("utf-16le", true),
        ("utf-16be", false),
    ] {
        for start in ["beginning", "end"] {
            let (place, to) = (Place::new(), Downstream::durable());
            let path = place.log("a.log");
            fs::write(&path, wide("\u{feff}one\r\n", big)).unwrap();
            let more = format!(r#", "encoding": "{encoding}", "start": "{start}""#);
            place.once("*.log", &more, &to);
            let add = |text| {
                let mut bytes = fs::read(&path).unwrap();
                bytes.extend(wide(text, big));
                fs::write(&path, bytes).unwrap();
            };
            add("two\n");
            place.once("*.log", &more, &to);
            let expected = ["one", "two"];
            let from = usize::from(start == "end");
            assert_eq!(to.lines(), expected[from..], "{encoding} {big} {start}");
        }
    }
    // Without a mark, the first byte is the low one.
    let (place, to) = (Place::new(), Downstream::durable());
    fs::write(place.log("a.log"), wide("one\n", false)).unwrap();
    place.once("*.log", r#", "encoding": "utf-16""#, &to);
    assert_eq!(to.lines(), ["one"]);
}

#[test]
fn a_new_content_of_utf_16_may_have_another_byte_order() {
    let (place, to) = (Place::new(), Downstream::memory());
    let path = place.log("a.log");
    fs::write(&path, wide("\u{feff}one\ntwo\n", true)).unwrap();
    let running = place.start("*.log", r#", "encoding": "utf-16""#, &to);
    until("both lines", || to.lines() == ["one", "two"]);
    fs::write(&path, wide("three\n", false)).unwrap();
    until("the new line", || to.lines()[2..] == ["three"]);
    running.stop();
}

#[test]
fn rotated_files_of_other_compressors_are_not_read_as_text() {
    let (place, to) = (Place::new(), Downstream::durable());
    append(&place.log("app.log"), "one\n");
    let running = place.start("app.log*", r#", "rescan": "20ms""#, &to);
    until("the line", || to.lines() == ["one"]);
    for (name, start) in [
        ("app.log.1.zst", &b"\x28\xb5\x2f\xfd"[..]),
        ("app.log.2.xz", b"\xfd7zXZ\0"),
        ("app.log.3.bz2", b"BZh91AY&SY"),
        ("app.log.4.lz4", b"\x04\x22\x4d\x18"),
    ] {
        // The compressor creates the file and writes it later.
        let path = place.log(name);
        fs::write(&path, "").unwrap();
        thread::sleep(Duration::from_millis(60));
        let content = [start, b"\x01\n\x02\n\x03\nabcdefghijklmnopqrstuvwxyz\n"].concat();
        fs::write(&path, content).unwrap();
    }
    thread::sleep(Duration::from_millis(200));
    append(&place.log("app.log"), "two\n");
    until("the next line", || to.lines() == ["one", "two"]);
    running.stop();
    place.once("app.log*", "", &to);
    assert_eq!(to.lines(), ["one", "two"]);
}
