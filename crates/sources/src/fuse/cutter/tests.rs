use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::framing::{Charset, Cr, Ending, Framed, Framer, Multiline};

fn boundaries(framing: Framing, line_max: usize, too_long: TooLong) -> Arc<Boundaries> {
    Arc::new(Boundaries {
        end: framing.check().unwrap(),
        line_max,
        too_long,
        cr: Cr::Keep,
    })
}

/// The framing for joined lines, in which a line with a digit at its start begins a record.
fn stacks() -> Framing {
    Framing::Multiline(Multiline {
        start: r"^\d".to_owned(),
        wait: "1s".parse().unwrap(),
    })
}

/// Cuts pieces, each after `room` bytes of headroom in its buffer. Returns all records, and the rejected pieces.
fn run(boundaries: Arc<Boundaries>, room: usize, pieces: &[&str]) -> (Vec<String>, Vec<String>) {
    let mut cutter = Cutter::new(boundaries);
    let (mut records, mut rejected) = (Vec::new(), Vec::new());
    let mut take = |buffer: &[u8], found: Records| match found {
        Records::None => {}
        Records::InPlace(range) => records.extend(split(&buffer[range])),
        Records::Lines(lines) => records.extend(split(&lines)),
        Records::Separate(all) => records.extend(texts(&all)),
    };
    for piece in pieces {
        let mut buffer = vec![b'#'; room];
        buffer.extend_from_slice(piece.as_bytes());
        let data = room..buffer.len();
        let cuttings = feed(&mut cutter, &mut buffer, data);
        take(&buffer, cuttings.records);
        rejected.extend(texts(&cuttings.rejected));
    }
    let last = cutter.cut_end();
    take(&[], last.records);
    rejected.extend(texts(&last.rejected));
    (records, rejected)
}

fn texts(all: &[Vec<u8>]) -> impl Iterator<Item = String> {
    all.iter()
        .map(|one| String::from_utf8_lossy(one).into_owned())
}

/// Cuts a write, and advances.
fn feed(cutter: &mut Cutter, buffer: &mut [u8], data: Range<usize>) -> Cuttings {
    let cuttings = cutter.cut(buffer, data.clone());
    let new = cuttings.unfinished.min(data.len());
    cutter.advance(cuttings.unfinished - new, cuttings.mode);
    cutter.extend(&buffer[data.end - new..data.end]);
    cuttings
}

fn split(lines: &[u8]) -> Vec<String> {
    assert!(lines.ends_with(b"\n"));
    let text = String::from_utf8(lines.to_vec()).unwrap();
    text.split_inclusive('\n').map(str::to_owned).collect()
}

#[test]
fn lines_are_joined_across_writes_with_and_without_headroom_in_the_buffer() {
    for room in [0, 3, 100] {
        let lines = boundaries(Framing::Lines, 100, TooLong::Split);
        let pieces = ["a", "b\ncd", "", "\r\n\0x\n\n", "end"];
        let (records, _) = run(lines, room, &pieces);
        assert_eq!(
            records,
            ["ab\n", "cd\r\n", "\0x\n", "\n", "end\n"],
            "{room}"
        );
    }
}

#[test]
fn a_line_that_is_too_long_is_split_truncated_or_rejected() {
    let pieces = ["a\nbcdef", "ghij", "k\nl\n"];
    for room in [0, 100] {
        let lines = |too_long| run(boundaries(Framing::Lines, 4, too_long), room, &pieces);
        assert_eq!(
            lines(TooLong::Split).0,
            ["a\n", "bcde\n", "fghi\n", "jk\n", "l\n"]
        );
        assert_eq!(lines(TooLong::Truncate).0, ["a\n", "bcde\n", "l\n"]);
        let (records, rejected) = lines(TooLong::Reject);
        assert_eq!(records, ["a\n", "l\n"]);
        assert_eq!(rejected.concat(), "bcdefghijk");
    }
}

#[test]
fn a_write_or_a_file_is_a_record() {
    let pieces = ["a\nb", "c"];
    let records =
        |framing, line_max, too_long| run(boundaries(framing, line_max, too_long), 0, &pieces);
    assert_eq!(records(Framing::Write, 9, TooLong::Split).0, ["a\nb", "c"]);
    assert_eq!(
        records(Framing::Write, 2, TooLong::Split).0,
        ["a\n", "b", "c"]
    );
    assert_eq!(
        records(Framing::Write, 2, TooLong::Truncate).0,
        ["a\n", "c"]
    );
    assert_eq!(records(Framing::File, 9, TooLong::Split).0, ["a\nbc"]);
    assert_eq!(records(Framing::File, 3, TooLong::Split).0, ["a\nb", "c"]);
    assert_eq!(records(Framing::File, 3, TooLong::Truncate).0, ["a\nb"]);
    assert_eq!(records(Framing::File, 3, TooLong::Reject).1, ["a\nb", "c"]);
}

#[test]
fn cuttings_show_whether_they_took_unfinished_bytes() {
    let mut cutter = Cutter::new(boundaries(Framing::Lines, 10, TooLong::Split));
    let mut fed = |text: &[u8]| {
        let mut buffer = text.to_vec();
        let data = 0..buffer.len();
        let cuttings = feed(&mut cutter, &mut buffer, data);
        (cuttings.took_tail, cutter.tail().to_vec())
    };
    assert_eq!(fed(b"a\n"), (false, b"".to_vec()));
    assert_eq!(fed(b"b"), (false, b"b".to_vec()));
    assert_eq!(fed(b"c"), (false, b"bc".to_vec()));
    assert_eq!(fed(b"\nd"), (true, b"d".to_vec()));
    assert_eq!(fed(b"0123456789"), (true, b"9".to_vec()));
    // A character is never divided, so some unfinished bytes may stay.
    assert_eq!(fed(b"12345678\xc3"), (false, b"912345678\xc3".to_vec()));
    assert_eq!(fed(b"\xa9"), (true, b"\xc3\xa9".to_vec()));
}

#[test]
fn records_that_were_not_kept_are_unfinished_again() {
    let mut cutter = Cutter::new(boundaries(Framing::Lines, 10, TooLong::Truncate));
    let mut buffer = *b"....keep on";
    feed(&mut cutter, &mut buffer, 4..11);
    let cuttings = cutter.cut(&mut buffer.clone(), 4..11);
    assert_eq!(
        (cuttings.unfinished, cuttings.mode.fate),
        (0, Fate::Dropped)
    );
    assert_eq!(cutter.tail(), b"keep on");
    let before = cutter.advance(0, cuttings.mode);
    assert_eq!((cutter.tail(), cutter.mode.fate), (&b""[..], Fate::Dropped));
    cutter.rewind(before);
    assert_eq!(
        (cutter.tail(), cutter.mode.fate),
        (&b"keep on"[..], Fate::Record)
    );
}

/// Writes a text in pieces of `bytes` bytes; returns the records, and the rejected pieces.
fn joined(boundaries: &Arc<Boundaries>, text: &str, bytes: usize) -> (Vec<String>, String) {
    let mut cutter = Cutter::new(boundaries.clone());
    let (mut records, mut rejected) = (Vec::new(), Vec::new());
    let mut take = |cuttings: Cuttings| {
        if let Records::Separate(all) = cuttings.records {
            records.extend(texts(&all));
        }
        rejected.extend(cuttings.rejected.concat());
    };
    for piece in text.as_bytes().chunks(bytes) {
        let mut buffer = piece.to_vec();
        let before = cutter.tail().len();
        let cuttings = feed(&mut cutter, &mut buffer, 0..piece.len());
        assert_eq!(
            cuttings.took_tail,
            before > 0 && cuttings.unfinished < before + piece.len()
        );
        // The limit on the memory that one writer can take.
        assert!(cutter.tail().len() <= 2 * boundaries.line_max + 1);
        take(cuttings);
    }
    take(cutter.cut_end());
    let rejected = String::from_utf8_lossy(&rejected).into_owned();
    (records, rejected)
}

#[test]
fn lines_are_joined_up_to_the_next_start_wherever_the_writes_end() {
    let text = "  odd\n1 one\r\n  at a\n\n2 two\n3 three\n  at b\n4 four";
    let expected = [
        "  odd",
        "1 one\r\n  at a\n",
        "2 two",
        "3 three\n  at b",
        "4 four",
    ];
    let boundaries = boundaries(stacks(), 100, TooLong::Split);
    for middle in 0..text.len() {
        let (one, two) = text.split_at(middle);
        assert_eq!(
            run(boundaries.clone(), 7, &[one, "", two]).0,
            expected,
            "{middle}"
        );
    }
    for bytes in 1..text.len() {
        assert_eq!(joined(&boundaries, text, bytes).0, expected, "{bytes}");
    }
}

#[test]
fn a_joined_record_that_is_too_long_is_split_at_lines_truncated_or_rejected() {
    let text = "1 a\nbbbb\ncccc\n2 ok\n3 dddddddddddd\ne\n4 ok\n";
    for bytes in 1..text.len() {
        let run = |too_long| joined(&boundaries(stacks(), 9, too_long), text, bytes);
        let split = ["1 a\nbbbb", "cccc", "2 ok", "3 ddddddd", "ddddd\ne", "4 ok"];
        assert_eq!(run(TooLong::Split).0, split, "{bytes}");
        let truncated = ["1 a\nbbbb\n", "2 ok", "3 ddddddd", "4 ok"];
        assert_eq!(run(TooLong::Truncate).0, truncated, "{bytes}");
        let (kept, rejected) = run(TooLong::Reject);
        assert_eq!(kept, ["2 ok", "4 ok"], "{bytes}");
        assert_eq!(rejected, "1 a\nbbbb\ncccc3 dddddddddddde", "{bytes}");
    }
}

#[test]
fn a_line_whose_beginning_was_already_sent_starts_no_record() {
    let long = "x".repeat(30);
    for too_long in [TooLong::Split, TooLong::Truncate, TooLong::Reject] {
        let boundaries = boundaries(stacks(), 10, too_long);
        let pieces = ["1 a\n", &long, "2 keep on\nb\n", "3 c\n"];
        let (records, rejected) = run(boundaries, 0, &pieces);
        let all = records.concat() + &rejected.concat();
        assert_eq!(records.last().unwrap(), "3 c");
        assert!(
            !records.iter().any(|record| record.starts_with('2')),
            "{all}"
        );
        match too_long {
            TooLong::Truncate => assert_eq!(records, ["1 a\nxxxxxx", "3 c"]),
            _ => assert!(all.contains("2 keep on"), "{all}"),
        }
    }
}

#[test]
fn whole_lines_are_a_record_when_nothing_follows_and_a_partial_line_stays() {
    let mut cutter = Cutter::new(boundaries(stacks(), 100, TooLong::Split));
    let mut quiet = |text: &[u8]| {
        let mut buffer = text.to_vec();
        feed(&mut cutter, &mut buffer, 0..text.len());
        let cuttings = cutter.cut_quiet();
        assert_eq!(cuttings.took_tail, cuttings.records != Records::None);
        cutter.advance(cuttings.unfinished, cuttings.mode);
        let found = match cuttings.records {
            Records::Separate(all) => texts(&all).collect(),
            _ => Vec::new(),
        };
        (found, String::from_utf8_lossy(cutter.tail()).into_owned())
    };
    let one = |text: &str| vec![text.to_owned()];
    assert_eq!(quiet(b"1 a"), (vec![], "1 a".to_owned()));
    assert_eq!(
        quiet(b"\n at b\n at"),
        (one("1 a\n at b"), " at".to_owned())
    );
    assert_eq!(quiet(b""), (vec![], " at".to_owned()));
    assert_eq!(quiet(b" c\n\n"), (one(" at c\n"), String::new()));
    assert_eq!(quiet(b"2 d\n"), (one("2 d"), String::new()));
    // Other framings do not wait.
    let mut lines = Cutter::new(boundaries(Framing::File, 100, TooLong::Split));
    feed(&mut lines, &mut b"a\n".to_vec(), 0..2);
    assert_eq!(lines.cut_quiet().records, Records::None);
}

#[test]
fn a_record_that_grows_by_small_writes_is_not_read_again_for_each_write() {
    let line_max = 4 << 20;
    let mut cutter = Cutter::new(boundaries(stacks(), line_max, TooLong::Split));
    let started = Instant::now();
    // First many lines, then one long line. If each write read all unfinished bytes again, the test would read 500 GB in total.
    for text in ["at one.place.of.many\n", "no newline"] {
        for _ in 0..150_000 {
            let mut buffer = text.as_bytes().to_vec();
            let data = 0..buffer.len();
            assert!(feed(&mut cutter, &mut buffer, data).records == Records::None);
            assert!(started.elapsed() < Duration::from_secs(40));
        }
    }
}

#[test]
fn empty_lines_after_a_record_that_was_split_are_no_record() {
    for (text, expected) in [
        ("123456789012\n\n\n\n", vec!["123456789012"]),
        ("123456789012\n\n\nb\n\n", vec!["123456789012", "b\n"]),
        ("123456789012\n\n\n2 b\n", vec!["123456789012", "2 b"]),
        ("\n\n2 b", vec!["\n", "2 b"]),
    ] {
        for bytes in 1..=text.len() {
            let found = joined(&boundaries(stacks(), 12, TooLong::Split), text, bytes);
            assert_eq!(found.0, expected, "{text:?} in pieces of {bytes} bytes");
        }
    }
}

proptest! {
    #[test]
    fn a_text_in_pieces_of_any_size_gives_the_same_records_as_the_framer(
        lines in prop::collection::vec("[0-9 ]?[0-9a-z\u{20ac}]{0,40}", 0..30),
        end in "[0-9a-z]{0,30}",
        bytes in 1..60_usize,
        policy in 0..3_usize,
    ) {
        let too_long = [TooLong::Split, TooLong::Truncate, TooLong::Reject][policy];
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let text = text + &end;
        let Framing::Multiline(multiline) = stacks() else { unreachable!() };
        let framing = crate::framing::Framing::Multiline(multiline);
        let mut framer = Framer::new(&framing, Charset::default(), 12, too_long).unwrap();
        let mut out = Framed::default();
        let now = millstream_record::Time(0);
        framer.frame(text.as_bytes(), true, Ending::End, now, &mut out);
        let mut body = &out.body[..];
        let mut expected = Vec::new();
        while !body.is_empty() {
            let entry = rmpv::decode::read_value(&mut body).unwrap();
            expected.push(entry[1]["message"].as_str().unwrap().to_owned());
        }
        let pieces = out.rejected.iter().flat_map(|piece| piece.bytes.clone());
        let rejected = String::from_utf8(pieces.collect()).unwrap();
        let found = joined(&boundaries(stacks(), 12, too_long), &text, bytes);
        // The cutter and the framer may report different newlines of rejected records.
        prop_assert_eq!(found.0, expected);
        prop_assert_eq!(found.1.replace('\n', ""), rejected.replace('\n', ""));
    }
}
