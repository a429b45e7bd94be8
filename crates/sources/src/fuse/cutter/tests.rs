use super::*;

fn how(framing: Framing, line_max: usize, too_long: TooLong) -> How {
    How {
        framing,
        line_max,
        too_long,
    }
}

/// Feeds pieces behind `room` bytes of room; all records, and what was rejected.
fn run(how: How, room: usize, pieces: &[&str]) -> (Vec<String>, Vec<String>) {
    let mut cutter = Cutter::new(how);
    let (mut records, mut rejected) = (Vec::new(), Vec::new());
    let mut take = |buffer: &[u8], found: Records| match found {
        Records::None => {}
        Records::InPlace(range) => records.extend(split(&buffer[range])),
        Records::Lines(lines) => records.extend(split(&lines)),
        Records::Any(all) => {
            records.extend(
                all.iter()
                    .map(|one| String::from_utf8_lossy(one).into_owned()),
            );
        }
    };
    for piece in pieces {
        let mut buffer = vec![b'#'; room];
        buffer.extend_from_slice(piece.as_bytes());
        let data = room..buffer.len();
        let cut = feed(&mut cutter, &mut buffer, data);
        take(&buffer, cut.records);
        rejected.extend(
            cut.rejected
                .iter()
                .map(|one| String::from_utf8_lossy(one).into_owned()),
        );
    }
    let last = cutter.finish();
    take(&[], last);
    (records, rejected)
}

/// Cuts, and takes what comes of it.
fn feed(cutter: &mut Cutter, buffer: &mut [u8], data: Range<usize>) -> Cut {
    let cut = cutter.cut(buffer, data.clone());
    let new = cut.unfinished.min(data.len());
    cutter.pass(cut.unfinished - new, cut.rest);
    cutter.extend(&buffer[data.end - new..data.end]);
    cut
}

fn split(lines: &[u8]) -> Vec<String> {
    assert!(lines.ends_with(b"\n"));
    let text = String::from_utf8(lines.to_vec()).unwrap();
    text.split_inclusive('\n').map(str::to_owned).collect()
}

#[test]
fn lines_are_joined_over_writes_with_room_in_the_buffer_and_without() {
    for room in [0, 3, 100] {
        let lines = how(Framing::Lines, 100, TooLong::Split);
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
        let lines = |too_long| run(how(Framing::Lines, 4, too_long), room, &pieces);
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
    let records = |framing, line_max, too_long| run(how(framing, line_max, too_long), 0, &pieces);
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
fn it_is_known_whether_the_unfinished_part_was_taken() {
    let mut cutter = Cutter::new(how(Framing::Lines, 10, TooLong::Split));
    let mut fed = |text: &[u8]| {
        let mut buffer = text.to_vec();
        let data = 0..buffer.len();
        let cut = feed(&mut cutter, &mut buffer, data);
        (cut.took_tail, cutter.tail().to_vec())
    };
    assert_eq!(fed(b"a\n"), (false, b"".to_vec()));
    assert_eq!(fed(b"b"), (false, b"b".to_vec()));
    assert_eq!(fed(b"c"), (false, b"bc".to_vec()));
    assert_eq!(fed(b"\nd"), (true, b"d".to_vec()));
    assert_eq!(fed(b"0123456789"), (true, b"9".to_vec()));
    // A character is not cut, so part of what was unfinished may stay.
    assert_eq!(fed(b"12345678\xc3"), (false, b"912345678\xc3".to_vec()));
    assert_eq!(fed(b"\xa9"), (true, b"\xc3\xa9".to_vec()));
}

#[test]
fn what_has_passed_comes_back_if_it_was_not_taken() {
    let mut cutter = Cutter::new(how(Framing::Lines, 10, TooLong::Truncate));
    let mut buffer = *b"....goes on";
    feed(&mut cutter, &mut buffer, 4..11);
    let cut = cutter.cut(&mut buffer.clone(), 4..11);
    assert_eq!((cut.unfinished, cut.rest), (0, Rest::Dropped));
    assert_eq!(cutter.tail(), b"goes on");
    let before = cutter.pass(0, cut.rest);
    assert_eq!((cutter.tail(), cutter.rest), (&b""[..], Rest::Dropped));
    cutter.back(before);
    assert_eq!(
        (cutter.tail(), cutter.rest),
        (&b"goes on"[..], Rest::Record)
    );
}
