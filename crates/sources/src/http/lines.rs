//! Turns JSON text into packed records, one by one: lines, the elements of an array, or one object over several lines.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep`
//!
//! Nothing is written beyond the capacity of the output. Every byte of the text belongs to a record, to the white space and
//! commas around records, or to a part that is reported as bad.
//!
//! The elements of an array are separated before they are parsed, so a bad element does not affect others. To find the end of an
//! object, only braces are counted; to find the end of a nested array, only brackets are counted. Strings are skipped. So a missing
//! `]` within an object affects only that object. If an object lacks its closing brace, or a string its closing quote, the rest of
//! the text is one bad part. The start of the next element is then unknown, and a guess could turn a part of a record into a
//! record.

use std::ops::Range;

use millstream_record::Time;
use millstream_wire::{
    json::{Progress, Scan, packed_bytes_max, to_msgpack},
    lines,
    msgpack::{write_array_len, write_time},
};

/// The maximum size of an entry (`[time, record]`) without its record, in bytes.
const ENTRY_BYTES: usize = 32;
/// Some writers put this mark at the start of a text. It is skipped there.
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
    /// The elements of an array. True once the first element was read.
    Array(bool),
    /// One value that fills the text.
    Whole,
    End,
}

/// The result of [`Lines::next`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A record: its entry was appended to the output.
    Record,
    /// A part of the text that is not a record, and its fault.
    Bad(Range<usize>, Fault),
    /// The next record may need this many bytes beyond the current length of the output.
    Room(usize),
    End,
}

/// A syntax error and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Offset in the text.
    pub(super) at: usize,
    pub(super) expected: &'static str,
}

impl Fault {
    fn new(at: usize, expected: &'static str) -> Self {
        Self { at, expected }
    }
}

impl<'t> Lines<'t> {
    pub(super) fn new(text: &'t [u8]) -> Self {
        let mut lines = Self {
            text,
            at: 0,
            mode: Mode::End,
        };
        lines.begin(match text.starts_with(BYTE_ORDER_MARK) {
            true => BYTE_ORDER_MARK.len(),
            false => 0,
        });
        lines
    }

    /// Begins at `at`, which is the start of the text or the end of an array.
    fn begin(&mut self, at: usize) {
        self.at = self.skip(at);
        let rest = self.text.get(self.at..).unwrap_or_default();
        self.mode = match rest.first() {
            Some(b'[') => Mode::Array(false),
            Some(b'{') if is_one_object(rest) => Mode::Whole,
            _ => Mode::Lines,
        };
        self.at += usize::from(self.mode == Mode::Array(false));
    }

    /// The number of bytes that were read.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn next(&mut self, received: Time, out: &mut Vec<u8>) -> Next {
        loop {
            match self.mode {
                Mode::End => return Next::End,
                Mode::Lines => return self.line(received, out),
                Mode::Whole => {
                    let next = self.value(self.text.len(), received, out);
                    if !matches!(next, Next::Room(_)) {
                        self.mode = Mode::End;
                    }
                    return next;
                }
                Mode::Array(begun) => {
                    if let Some(next) = self.element(begun, received, out) {
                        return next;
                    }
                }
            }
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

    /// Reads the value that begins at `self.at`. Between the value and `end`, only white space is allowed.
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
                Fault::new(length + left, "the end of the line")
            }
            Err(fault) => fault,
        };
        Next::Bad(start..end, Fault::new(start + fault.at, fault.expected))
    }

    /// Reads the next element of the array, with the comma before it. `None` at the end of the array.
    fn element(&mut self, begun: bool, received: Time, out: &mut Vec<u8>) -> Option<Next> {
        let mut at = self.skip(self.at);
        let mut is_element = true;
        match self.text.get(at) {
            Some(b']') => {
                self.begin(at + 1);
                return None;
            }
            Some(b',') if begun => at = self.skip(at + 1),
            _ => is_element = !begun,
        }
        let rest = self.text.get(at..).unwrap_or_default();
        let part = rest.get(..part_length(rest)).unwrap_or_default();
        if is_element && let Some(room) = missing(part, out) {
            return Some(room);
        }
        let end = at + part.len();
        let read = match is_element {
            _ if rest.is_empty() => Err(Fault::new(0, "more of the array")),
            false => Err(Fault::new(0, "`,` or `]`")),
            true => entry(part, received, out),
        };
        self.mode = match read.is_err() && end == self.text.len() {
            true => Mode::End,
            false => Mode::Array(true),
        };
        Some(match read {
            Ok(length) => {
                self.at = at + length;
                Next::Record
            }
            Err(fault) => {
                self.at = end;
                Next::Bad(at..end, Fault::new(at + fault.at, fault.expected))
            }
        })
    }

    fn skip(&self, at: usize) -> usize {
        at + blank(self.text.get(at..).unwrap_or_default())
    }
}

/// Requests more space if the output has too little for the record in `text`; `None` if it has enough.
fn missing(text: &[u8], out: &Vec<u8>) -> Option<Next> {
    let room = packed_bytes_max(text) + ENTRY_BYTES;
    (out.capacity() - out.len() < room).then_some(Next::Room(room))
}

/// Appends the object at the front of `text` as an entry; returns its length.
fn entry(text: &[u8], received: Time, out: &mut Vec<u8>) -> Result<usize, Fault> {
    let before = out.len();
    write_array_len(out, 2);
    write_time(out, received);
    let record = out.len();
    let fault = match to_msgpack(text, out) {
        Ok(Progress::Consumed(length)) => match out.get(record) {
            Some(0x80..=0x8f | 0xde | 0xdf) => return Ok(length),
            _ => Fault::new(blank(text), "an object"),
        },
        Ok(Progress::NeedMore) if blank(text) == text.len() => Fault::new(0, "a value"),
        Ok(Progress::NeedMore) => Fault::new(text.len(), "more of the value"),
        Err(error) => Fault::new(error.offset, error.expected),
    };
    out.truncate(before);
    Err(fault)
}

/// The length up to the `,` or `]` that ends this element of an array, or to the end of the text.
fn part_length(text: &[u8]) -> usize {
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let rest = text.get(at..).unwrap_or_default();
        at += match byte {
            b',' | b']' => return at,
            b'"' => string_length(rest),
            b'{' => nested_length(rest, b'{', b'}'),
            b'[' => nested_length(rest, b'[', b']'),
            _ => 1,
        };
    }
    text.len()
}

/// The length of the object or array at the front, with its closing bracket.
fn nested_length(text: &[u8], open: u8, close: u8) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(rest) = text.get(at..)
        && let Some(found) = memchr::memchr3(b'"', open, close, rest)
    {
        let rest = rest.get(found..).unwrap_or_default();
        at += found;
        if rest.first() == Some(&b'"') {
            at += string_length(rest);
            continue;
        }
        at += 1;
        match rest.first() == Some(&open) {
            true => depth += 1,
            false if depth <= 1 => return at,
            false => depth -= 1,
        }
    }
    text.len()
}

/// The length of the string at the front, with its quotes.
fn string_length(text: &[u8]) -> usize {
    let mut at = 1;
    while let Some(rest) = text.get(at..)
        && let Some(found) = memchr::memchr2(b'"', b'\\', rest)
    {
        at += found + 1;
        if rest.get(found) == Some(&b'"') {
            return at;
        }
        at += 1;
    }
    text.len()
}

/// The length of the white space at the front.
pub(super) fn blank(text: &[u8]) -> usize {
    let other = |byte: &u8| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    text.iter().position(other).unwrap_or(text.len())
}

/// Whether the text is one object over several lines: its first line is incomplete, and nothing follows the object.
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

/// Converts offsets to lines and columns. Offsets must not decrease. Each byte of the text is visited once.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// The last offset that was converted.
    at: usize,
    /// The start of the line that contains `at`.
    start: usize,
    /// The number of lines before that line.
    lines: usize,
}

impl Places {
    /// The line and byte of an offset, as text for a message.
    pub(super) fn of(&mut self, text: &[u8], at: usize) -> String {
        let passed = text.get(self.at..at).unwrap_or_default();
        self.lines += memchr::memchr_iter(b'\n', passed).count();
        if let Some(end) = memchr::memrchr(b'\n', passed) {
            self.start = self.at + end + 1;
        }
        self.at = at;
        format!(
            "line {}, byte {}",
            self.lines + 1,
            at.saturating_sub(self.start) + 1
        )
    }
}
