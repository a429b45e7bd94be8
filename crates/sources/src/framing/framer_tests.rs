//! Tests of the framer with texts that end at arbitrary offsets.

use millstream_record::{Encoding, Time};
use millstream_wire::msgpack::Walker;
use proptest::prelude::*;

use super::{Charset, Ending, Framed, Framer, Framing, Multiline, TooLong};

const NOW: Time = Time(5);

fn framer(framing: &Framing, encoding: &str, line_max: usize, too_long: TooLong) -> Framer {
    Framer::new(
        framing,
        Charset::named(encoding).unwrap(),
        line_max,
        too_long,
    )
    .unwrap()
}

fn stacks(line_max: usize, too_long: TooLong) -> Framer {
    let multiline = Multiline {
        start: r"^\d".to_owned(),
        wait: "1s".parse().unwrap(),
    };
    framer(&Framing::Multiline(multiline), "utf-8", line_max, too_long)
}

fn containers() -> Framer {
    framer(&Framing::Cri, "utf-8", 1000, TooLong::Split)
}

fn cri(stream: &str, tag: &str, text: &str) -> String {
    format!(
        "2026-01-02T03:04:05.{}Z {stream} {tag} {text}\n",
        text.len()
    )
}

/// The messages of the records. Those of packed records include their streams.
fn messages(framer: &Framer, out: &Framed) -> Vec<String> {
    if framer.encoding() == Encoding::Lines {
        let text = String::from_utf8(out.body.clone()).unwrap();
        return text.lines().map(str::to_owned).collect();
    }
    let mut walker = Walker::new();
    walker.walk(&out.body).unwrap();
    assert_eq!(
        (walker.entries(), walker.whole()),
        (out.count, out.body.len())
    );
    let mut rest = &out.body[..];
    let mut messages = Vec::new();
    while !rest.is_empty() {
        let entry = rmpv::decode::read_value(&mut rest).unwrap();
        let values = entry[1].as_map().unwrap().iter();
        let values: Vec<_> = values.map(|(_, value)| value.as_str().unwrap()).collect();
        messages.push(values.join("|"));
    }
    messages
}

/// Passes a text once. Returns the messages, and the number of bytes that were taken.
fn step(framer: &mut Framer, text: &str, ending: Ending) -> (Vec<String>, usize) {
    let mut out = Framed::default();
    let taken = framer.frame(text.as_bytes(), true, ending, NOW, &mut out);
    (messages(framer, &out), taken)
}

/// The records of a text that is passed in pieces of `piece` bytes, as a reader does.
fn in_pieces(framer: &mut Framer, text: &[u8], piece: usize) -> (Vec<String>, Vec<u8>) {
    let mut out = Framed::default();
    let (mut at, mut shown) = (0, 0);
    while at < text.len() {
        shown = (shown + piece).min(text.len()).max(at + 1);
        let ending = if shown == text.len() {
            Ending::End
        } else if shown - at >= framer.window() {
            Ending::Full
        } else {
            Ending::Open
        };
        let taken = framer.frame(&text[at..shown], at == 0, ending, NOW, &mut out);
        assert!(taken > 0 || ending == Ending::Open);
        at += taken;
    }
    let rejected = out.rejected.iter().flat_map(|piece| piece.bytes.clone());
    (messages(framer, &out), rejected.collect())
}

#[test]
fn a_record_of_one_stream_does_not_hold_back_another_stream_for_long() {
    let multiline = Multiline {
        start: r"^\d".to_owned(),
        wait: "1s".parse().unwrap(),
    };
    let framing = Framing::Multiline(multiline);
    let mut framer = framer(&framing, "utf-8", 1000, TooLong::Split).behind_runtime();
    let line = |second: u8, stream: &str, text: &str| {
        format!("2026-01-02T03:04:{second:02}Z {stream} F {text}\n")
    };
    let text = [
        line(1, "stderr", "1 wrong"),
        line(1, "stdout", "1 one"),
        line(1, "stderr", "  at a"),
        line(2, "stdout", "2 two"),
        line(3, "stdout", "3 three"),
        line(3, "stdout", "  at b"),
        line(4, "stdout", "4 four"),
    ];
    let (messages, taken) = step(&mut framer, &text.concat(), Ending::Open);
    let expected = ["1 one|stdout", "1 wrong\n  at a|stderr", "2 two|stdout"];
    assert_eq!(messages[..3], expected);
    assert_eq!(taken, text[..6].concat().len());
    assert_eq!(messages[3..], ["3 three\n  at b|stdout"]);
}

#[test]
fn lines_are_joined_up_to_the_next_first_line() {
    let mut framer = stacks(1000, TooLong::Split);
    let text = "  odd\n1 one\n  at a\n\n2 two\n3 three\n  at b\n";
    let (messages, taken) = step(&mut framer, text, Ending::Open);
    assert_eq!(messages, ["  odd", "1 one\n  at a\n", "2 two"]);
    assert_eq!(&text[taken..], "3 three\n  at b\n");
    let (messages, taken) = step(&mut framer, &text[taken..], Ending::Quiet);
    assert_eq!((messages, taken), (vec!["3 three\n  at b".to_owned()], 15));
    let (messages, _) = step(&mut framer, "4 four\n at c", Ending::End);
    assert_eq!(messages, ["4 four\n at c"]);
    assert_eq!(step(&mut framer, "5 hal", Ending::Quiet), (vec![], 0));
}

#[test]
fn parts_of_a_container_line_are_joined_for_each_stream() {
    let mut framer = containers();
    let text = [
        cri("stdout", "F", "one"),
        cri("stdout", "P", "two "),
        cri("stderr", "F", "between"),
        cri("stdout", "P", "contin"),
        cri("stdout", "F", "ues"),
        cri("stdout", "P", "three"),
    ]
    .concat();
    let (messages, taken) = step(&mut framer, &text, Ending::Open);
    assert_eq!(
        messages,
        ["one|stdout", "between|stderr", "two continues|stdout"]
    );
    assert_eq!(&text[taken..], cri("stdout", "P", "three"));
    let (messages, _) = step(&mut framer, &text[taken..], Ending::Quiet);
    assert_eq!(messages, ["three|stdout"]);
}

#[test]
fn a_complete_record_after_a_pending_one_is_not_consumed() {
    let mut framer = containers();
    let text = [cri("stdout", "P", "begun"), cri("stderr", "F", "whole")].concat();
    assert_eq!(step(&mut framer, &text, Ending::Open), (vec![], 0));
    let mut out = Framed::default();
    framer.frame(text.as_bytes(), true, Ending::Open, NOW, &mut out);
    assert!(out.body.is_empty() && out.count == 0);
}

#[test]
fn a_line_in_another_format_is_rejected_alone() {
    let mut framer = containers();
    let text = [
        &cri("stdout", "F", "a")[..],
        "no container\n",
        &cri("stdout", "F", "b"),
    ]
    .concat();
    let mut out = Framed::default();
    framer.frame(text.as_bytes(), true, Ending::Open, NOW, &mut out);
    assert_eq!(messages(&framer, &out), ["a|stdout", "b|stdout"]);
    assert_eq!(out.rejected[0].bytes, b"no container");
}

#[test]
fn a_joined_record_that_is_too_long_is_split_between_lines_truncated_or_rejected() {
    let text = "1 a\nbbbb\ncccc\n2 ok\n3 dddddddddddd\ne\n4 ok\n";
    let run = |too_long| {
        let mut framer = stacks(9, too_long);
        let mut out = Framed::default();
        framer.frame(text.as_bytes(), true, Ending::End, NOW, &mut out);
        let rejected: Vec<String> = out
            .rejected
            .iter()
            .map(|piece| String::from_utf8(piece.bytes.clone()).unwrap())
            .collect();
        (messages(&framer, &out), rejected.concat(), out.too_long)
    };
    let split = ["1 a\nbbbb", "cccc", "2 ok", "3 ddddddd", "ddddd\ne", "4 ok"];
    assert_eq!(
        run(TooLong::Split),
        (split.map(str::to_owned).to_vec(), String::new(), 2)
    );
    let truncated = ["1 a\nbbbb\n", "2 ok", "3 ddddddd", "4 ok"];
    assert_eq!(
        run(TooLong::Truncate),
        (truncated.map(str::to_owned).to_vec(), String::new(), 2)
    );
    let (kept, rejected, count) = run(TooLong::Reject);
    assert_eq!(
        (kept, count),
        (vec!["2 ok".to_owned(), "4 ok".to_owned()], 2)
    );
    assert_eq!(rejected, "1 a\nbbbb\ncccc3 dddddddddddd\ne");
}

#[test]
fn other_encodings_become_utf_8_line_by_line() {
    let mut framer = framer(&Framing::Lines, "utf-16le", 100, TooLong::Split);
    let text: Vec<u8> = "\u{feff}a\u{60a}\nb\u{1f600}\nc"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    let (messages, _) = in_pieces(&mut framer, &text, 3);
    assert_eq!(messages, ["a\u{60a}", "b\u{1f600}", "c"]);
}

#[test]
fn the_policy_also_applies_to_the_rest_of_a_line_longer_than_the_window() {
    let long = "x".repeat(300_000);
    let text = format!("a\n{long}\nb\n");
    for (too_long, kept, rejected) in [
        (TooLong::Split, 300_002, 0),
        (TooLong::Truncate, 12, 0),
        (TooLong::Reject, 2, 300_000),
    ] {
        let mut framer = framer(&Framing::Lines, "latin1", 10, too_long);
        let (messages, left) = in_pieces(&mut framer, text.as_bytes(), 5000);
        assert_eq!(messages.concat().len(), kept, "{too_long:?}");
        assert_eq!(left.len(), rejected, "{too_long:?}");
        assert_eq!(
            (&messages[0][..], &messages[messages.len() - 1][..]),
            ("a", "b")
        );
    }
}

#[test]
fn a_wrong_regular_expression_is_named() {
    let multiline = Multiline {
        start: "(".to_owned(),
        wait: "1s".parse().unwrap(),
    };
    let framing = Framing::Multiline(multiline);
    let error = Framer::new(&framing, Charset::default(), 10, TooLong::Split).unwrap_err();
    assert!(error.contains("`start`"), "{error}");
}

proptest! {
    #[test]
    fn the_records_do_not_depend_on_how_the_text_is_divided(
        lines in prop::collection::vec("[0-9 ]?[a-z\u{20ac}]{0,9}", 0..30),
        parts in prop::collection::vec((0..2_usize, prop::bool::ANY, "[a-z]{0,9}"), 0..30),
        piece in 1..40_usize,
        policy in 0..3_usize,
    ) {
        let too_long = [TooLong::Split, TooLong::Truncate, TooLong::Reject][policy];
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let containers_text: String = parts
            .iter()
            .map(|(stream, partial, text)| {
                cri(["stdout", "stderr"][*stream], if *partial { "P" } else { "F" }, text)
            })
            .collect();
        let mut framers = [
            (stacks(12, too_long), &text),
            (framer(&Framing::Cri, "utf-8", 12, too_long), &containers_text),
            (framer(&Framing::Lines, "utf-8", 5, too_long), &text),
        ];
        for (framer, text) in &mut framers {
            let at_once = in_pieces(&mut framer.clone(), text.as_bytes(), usize::MAX / 2);
            let shown = in_pieces(framer, text.as_bytes(), piece);
            prop_assert_eq!(at_once, shown);
        }
    }
}
