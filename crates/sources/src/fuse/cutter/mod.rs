//! From bytes as they are written to records: what is whole, and what is left of an unfinished line.
//!
//! `read -> [decode] -> send -> keep -> take -> process -> encode -> write -> settle`
//!
//! Pure: one cutter for each open file, so lines of several writers never mix. Where whole lines stand in the buffer that
//! was read into, they stay there: an unfinished line from before is put right in front of them.

use std::ops::Range;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::framing::{self, Found, TooLong};

/// Where a record ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Framing {
    /// At every newline; what is unfinished when the file is closed is a line, too.
    #[default]
    Lines,
    /// What one `write` wrote is a record (the system divides writes of more than 1 MiB).
    Write,
    /// What was written from open to close is a record.
    File,
}

/// How records are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct How {
    pub framing: Framing,
    pub line_max: usize,
    pub too_long: TooLong,
}

/// What becomes of the bytes up to the next end of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// They are a record.
    Record,
    /// They belong to one that was truncated.
    Dropped,
    /// They belong to one that is rejected.
    Rejected,
}

/// Records that were found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Records {
    /// None.
    None,
    /// Whole lines that stand in the buffer.
    InPlace(Range<usize>),
    /// Whole lines.
    Lines(Vec<u8>),
    /// Records that may hold newlines.
    Any(Vec<Vec<u8>>),
}

/// What came of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub records: Records,
    /// Pieces of records that are too long and are rejected.
    pub rejected: Vec<Vec<u8>>,
    /// How many were too long.
    pub too_long: u64,
    /// What was unfinished before has become part of the records, or was dropped with what it belonged to.
    pub took_tail: bool,
}

/// The records of one open file.
#[derive(Debug)]
pub(super) struct Cutter {
    how: How,
    /// What is unfinished.
    tail: Vec<u8>,
    rest: Rest,
}

impl Cutter {
    pub(super) fn new(how: How) -> Self {
        Self {
            how,
            tail: Vec::new(),
            rest: Rest::Record,
        }
    }

    /// What is unfinished.
    pub(super) fn tail(&self) -> &[u8] {
        &self.tail
    }

    /// Takes in the bytes that stand in `data` of the buffer; what stands before them there may be written over.
    pub(super) fn feed(&mut self, buffer: &mut [u8], data: Range<usize>) -> Cut {
        match self.how.framing {
            Framing::Lines => self.feed_lines(buffer, data),
            Framing::Write | Framing::File => self.feed_bytes(&buffer[data]),
        }
    }

    fn feed_lines(&mut self, buffer: &mut [u8], data: Range<usize>) -> Cut {
        let line_max = self.how.line_max;
        let had_tail = !self.tail.is_empty();
        let fits = self.tail.len() + data.len() <= line_max;
        if fits
            && self.rest == Rest::Record
            && memchr::memrchr(b'\n', &buffer[data.clone()]).is_none()
        {
            self.tail.extend_from_slice(&buffer[data]);
            return Cut::none();
        }
        if self.tail.len() > data.start {
            let mut text = std::mem::take(&mut self.tail);
            text.extend_from_slice(&buffer[data]);
            return self.cut_copy(&text, had_tail);
        }
        let start = data.start - self.tail.len();
        buffer[start..data.start].copy_from_slice(&self.tail);
        self.tail.clear();
        let text = &buffer[start..data.end];
        if self.rest == Rest::Record
            && let Found::Lines(bytes) = framing::find(text, line_max)
            && framing::find(&text[bytes..], line_max) == Found::Partial
        {
            self.tail.extend_from_slice(&text[bytes..]);
            return Cut {
                records: Records::InPlace(start..start + bytes),
                took_tail: had_tail,
                ..Cut::none()
            };
        }
        let text = text.to_vec();
        self.cut_copy(&text, had_tail)
    }

    /// Lines of which some may be too long.
    fn cut_copy(&mut self, text: &[u8], had_tail: bool) -> Cut {
        let line_max = self.how.line_max;
        let mut cut = Cut::none();
        let mut lines = Vec::new();
        let mut at = 0;
        while at < text.len() {
            if self.rest != Rest::Record {
                at += self.pass(&text[at..], &mut cut);
                continue;
            }
            match framing::find(&text[at..], line_max) {
                Found::Partial => {
                    self.tail.extend_from_slice(&text[at..]);
                    break;
                }
                Found::Lines(bytes) => {
                    lines.extend_from_slice(&text[at..at + bytes]);
                    at += bytes;
                }
                Found::TooLong => {
                    let piece = &text[at..at + framing::piece(&text[at..], line_max)];
                    at += piece.len();
                    if self.too_long(piece, &mut cut) {
                        lines.extend_from_slice(piece);
                        lines.push(b'\n');
                    }
                }
            }
        }
        // Unless all of it is unfinished still.
        cut.took_tail = had_tail && self.tail.len() < text.len();
        if !lines.is_empty() {
            cut.records = Records::Lines(lines);
        }
        cut
    }

    /// What becomes of the first piece of a record that is too long; whether the piece is a record.
    fn too_long(&mut self, piece: &[u8], cut: &mut Cut) -> bool {
        cut.too_long += 1;
        self.rest = match self.how.too_long {
            TooLong::Split => Rest::Record,
            TooLong::Truncate => Rest::Dropped,
            TooLong::Reject => Rest::Rejected,
        };
        if self.rest == Rest::Rejected {
            cut.rejected.push(piece.to_vec());
        }
        self.rest != Rest::Rejected
    }

    /// Passes over bytes of a line that is too long; how many.
    fn pass(&mut self, text: &[u8], cut: &mut Cut) -> usize {
        let part = &text[..text.len().min(self.how.line_max)];
        let end = memchr::memchr(b'\n', part);
        let part = &part[..end.unwrap_or(part.len())];
        if self.rest == Rest::Rejected && !part.is_empty() {
            cut.rejected.push(part.to_vec());
        }
        if end.is_some() {
            self.rest = Rest::Record;
        }
        part.len() + usize::from(end.is_some())
    }

    /// Records of bytes: what one write or one file holds.
    fn feed_bytes(&mut self, data: &[u8]) -> Cut {
        let had_tail = !self.tail.is_empty();
        let mut cut = Cut::none();
        let mut records = Vec::new();
        let mut left = data;
        while !left.is_empty() {
            let (part, behind) = left.split_at(left.len().min(self.how.line_max - self.tail.len()));
            left = behind;
            match self.rest {
                Rest::Record if left.is_empty() => self.tail.extend_from_slice(part),
                Rest::Record => {
                    let mut piece = std::mem::take(&mut self.tail);
                    piece.extend_from_slice(part);
                    cut.took_tail = had_tail;
                    if self.too_long(&piece, &mut cut) {
                        records.push(piece);
                    }
                }
                Rest::Dropped => {}
                Rest::Rejected => cut.rejected.push(part.to_vec()),
            }
        }
        if self.how.framing == Framing::Write {
            self.rest = Rest::Record;
            if !self.tail.is_empty() {
                records.push(std::mem::take(&mut self.tail));
            }
        }
        if !records.is_empty() {
            cut.records = Records::Any(records);
        }
        cut
    }

    /// The file is closed: what is unfinished is a record.
    pub(super) fn finish(&mut self) -> Records {
        let mut tail = std::mem::take(&mut self.tail);
        self.rest = Rest::Record;
        match self.how.framing {
            _ if tail.is_empty() => Records::None,
            Framing::Lines => {
                tail.push(b'\n');
                Records::Lines(tail)
            }
            Framing::Write | Framing::File => Records::Any(vec![tail]),
        }
    }

    /// Goes on with what an earlier run has left.
    pub(super) fn with_tail(mut self, tail: Vec<u8>) -> Self {
        self.tail = tail;
        self
    }
}

impl Cut {
    fn none() -> Self {
        Self {
            records: Records::None,
            rejected: Vec::new(),
            too_long: 0,
            took_tail: false,
        }
    }
}

#[cfg(test)]
mod tests {
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
            let cut = cutter.feed(&mut buffer, data);
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
        let records =
            |framing, line_max, too_long| run(how(framing, line_max, too_long), 0, &pieces);
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
        let mut feed = |text: &str| {
            let mut buffer = text.as_bytes().to_vec();
            let data = 0..buffer.len();
            let cut = cutter.feed(&mut buffer, data);
            (cut.took_tail, cutter.tail().to_vec())
        };
        assert_eq!(feed("a\n"), (false, b"".to_vec()));
        assert_eq!(feed("b"), (false, b"b".to_vec()));
        assert_eq!(feed("c"), (false, b"bc".to_vec()));
        assert_eq!(feed("\nd"), (true, b"d".to_vec()));
        assert_eq!(feed("0123456789"), (true, b"9".to_vec()));
    }
}
