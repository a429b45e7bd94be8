//! JSON text to packed records, one by one: a line each, or the elements of one array, or one object over several lines.
//!
//! Hop: read [decode] send keep take encode write settle. Nothing is written beyond the capacity of the output.

use std::ops::Range;

use millstream_record::Time;
use millstream_wire::{
    json::{Progress, Scan, to_msgpack},
    lines,
    msgpack::{write_array_len, write_time},
};

/// The shortest number that becomes a float of 9 bytes is `-0,`.
const GROWTH: usize = 3;
/// For a text of no more bytes its room is not counted out.
const SHORT_BYTES: usize = 4 << 10;
/// An entry beside its record.
const ENTRY_BYTES: usize = 32;
/// A mark of UTF-8 that some writers put at the start of a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads the records of one text.
#[derive(Debug)]
pub(super) struct Lines<'t> {
    text: &'t [u8],
    at: usize,
    mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Lines,
    /// Elements of an array; whether one was read already.
    Array(bool),
    /// One value.
    Whole,
    End,
}

/// What [`Lines::next`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A record: its entry stands at the end of the output.
    Record,
    /// A part of the text that is no record, and why.
    Bad(Range<usize>, Fault),
    /// The next record may need so many bytes more than the output has.
    Room(usize),
    End,
}

/// What is wrong, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Offset in the text.
    pub(super) at: usize,
    pub(super) expected: &'static str,
}

impl<'t> Lines<'t> {
    pub(super) fn new(text: &'t [u8]) -> Self {
        let start = match text.starts_with(BYTE_ORDER_MARK) {
            true => BYTE_ORDER_MARK.len(),
            false => 0,
        };
        let first = start + blank(text.get(start..).unwrap_or_default());
        let rest = text.get(first..).unwrap_or_default();
        let mode = match rest.first() {
            Some(b'[') => Mode::Array(false),
            Some(b'{') if is_one_object(rest) => Mode::Whole,
            _ => Mode::Lines,
        };
        let at = first + usize::from(mode == Mode::Array(false));
        Self { text, at, mode }
    }

    /// Bytes that were read.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn next(&mut self, received: Time, out: &mut Vec<u8>) -> Next {
        match self.mode {
            Mode::End => Next::End,
            Mode::Lines => self.line(received, out),
            Mode::Whole => {
                let end = self.text.len();
                let next = self.value(end, received, out);
                if !matches!(next, Next::Room(_)) {
                    self.mode = Mode::End;
                }
                next
            }
            Mode::Array(begun) => self.element(begun, received, out),
        }
    }

    fn line(&mut self, received: Time, out: &mut Vec<u8>) -> Next {
        let rest = self.text.get(self.at..).unwrap_or_default();
        self.at += blank(rest);
        let rest = self.text.get(self.at..).unwrap_or_default();
        if rest.is_empty() {
            return Next::End;
        }
        let length = lines::lines(rest).next().map_or(0, <[u8]>::len);
        self.value(self.at + length, received, out)
    }

    /// One value between here and `end`, with nothing behind it.
    fn value(&mut self, end: usize, received: Time, out: &mut Vec<u8>) -> Next {
        let (start, text) = (self.at, self.text.get(self.at..end).unwrap_or_default());
        if let Some(room) = missing(text, out) {
            return room;
        }
        self.at = end;
        let before = out.len();
        let fault = match entry(text, received, out) {
            Ok(length) => {
                let behind = text.get(length..).unwrap_or_default();
                let left = blank(behind);
                if left == behind.len() {
                    return Next::Record;
                }
                out.truncate(before);
                let at = length + left;
                let expected = "the end of the line";
                Fault { at, expected }
            }
            Err(fault) => fault,
        };
        let at = start + fault.at;
        Next::Bad(start..end, Fault { at, ..fault })
    }

    /// The next element of the array, with the comma before it.
    fn element(&mut self, begun: bool, received: Time, out: &mut Vec<u8>) -> Next {
        let mut at = self.skip(self.at);
        match (self.text.get(at), begun) {
            (Some(b']'), _) => {
                self.at = self.skip(at + 1);
                if self.at == self.text.len() {
                    self.mode = Mode::End;
                    return Next::End;
                }
                return self.broken(self.at, "the end");
            }
            (Some(b','), true) => at = self.skip(at + 1),
            (_, true) => return self.broken(at, "`,` or `]`"),
            (_, false) => {}
        }
        let rest = self.text.get(at..).unwrap_or_default();
        let length = Scan::new().end(rest).unwrap_or(rest.len());
        if let Some(room) = missing(rest.get(..length).unwrap_or(rest), out) {
            return room;
        }
        self.mode = Mode::Array(true);
        match entry(rest, received, out) {
            Ok(length) => {
                self.at = at + length;
                Next::Record
            }
            Err(fault) => self.broken(at + fault.at, fault.expected),
        }
    }

    /// From here to the end nothing can be read: an array has no lines to begin again at.
    fn broken(&mut self, at: usize, expected: &'static str) -> Next {
        let start = self.at.min(at);
        self.mode = Mode::End;
        self.at = self.text.len();
        Next::Bad(start..self.at, Fault { at, expected })
    }

    fn skip(&self, at: usize) -> usize {
        at + blank(self.text.get(at..).unwrap_or_default())
    }
}

/// What the value that `text` is may take when it is packed.
pub(super) fn room(text: &[u8]) -> usize {
    let most = text.len() * GROWTH;
    if text.len() <= SHORT_BYTES {
        return most;
    }
    // Only numbers grow, by up to 6 bytes each, and each but the first stands behind one of these.
    let numbers = memchr::memchr3_iter(b',', b':', b'[', text).count() + 1;
    most.min(text.len() + 6 * numbers)
}

/// What the output lacks for the record that `text` is.
fn missing(text: &[u8], out: &Vec<u8>) -> Option<Next> {
    let room = room(text) + ENTRY_BYTES;
    (out.capacity() - out.len() < room).then_some(Next::Room(room))
}

/// Appends the object at the front of `text` as an entry; gives its length.
fn entry(text: &[u8], received: Time, out: &mut Vec<u8>) -> Result<usize, Fault> {
    let before = out.len();
    write_array_len(out, 2);
    write_time(out, received);
    let record = out.len();
    let fault = match to_msgpack(text, out) {
        Ok(Progress::Consumed(length)) => match out.get(record) {
            Some(0x80..=0x8f | 0xde | 0xdf) => return Ok(length),
            _ => Fault {
                at: blank(text),
                expected: "an object",
            },
        },
        Ok(Progress::NeedMore) => Fault {
            at: text.len(),
            expected: "more of the value",
        },
        Err(error) => Fault {
            at: error.offset,
            expected: error.expected,
        },
    };
    out.truncate(before);
    Err(fault)
}

/// White space at the front.
fn blank(text: &[u8]) -> usize {
    let other = |byte: &u8| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    text.iter().position(other).unwrap_or(text.len())
}

/// Whether the text is one object over several lines: its first line is cut, and nothing follows it.
fn is_one_object(text: &[u8]) -> bool {
    let line = lines::lines(text).next().unwrap_or_default();
    if Scan::new().end(line).is_some() {
        return false;
    }
    let end = Scan::new().end(text);
    end.is_some_and(|end| {
        let behind = text.get(end..).unwrap_or_default();
        blank(behind) == behind.len()
    })
}

/// Line and byte within it, both from 1, of an offset.
pub(super) fn place(text: &[u8], at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = memchr::memchr_iter(b'\n', before).count() + 1;
    let start = memchr::memrchr(b'\n', before).map_or(0, |end| end + 1);
    (line, before.len() - start + 1)
}
