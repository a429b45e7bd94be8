//! From bytes as they are written to records: what is whole, and what is left of an unfinished line.
//!
//! `read -> [decode] -> send -> keep -> take -> process -> encode -> write -> settle`
//!
//! Pure: one cutter for each open file, so lines of several writers never mix. Where whole lines stand in the buffer that
//! was read into, they stay there: an unfinished line from before is put right in front of them. Cutting changes nothing in
//! the cutter; what was unfinished leaves it when the records that it became part of have been taken ([`Cutter::pass`]).

#[cfg(test)]
mod tests;

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
pub(super) enum Rest {
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

/// What becomes of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub records: Records,
    /// Pieces of records that are too long and are rejected.
    pub rejected: Vec<Vec<u8>>,
    /// How many were too long.
    pub too_long: u64,
    /// What was unfinished before becomes part of the records, or is dropped with what it belongs to.
    pub took_tail: bool,
    /// So many of the last bytes are unfinished.
    pub unfinished: usize,
    /// How it goes on behind them.
    pub rest: Rest,
}

/// How it was before something passed.
#[derive(Debug)]
pub(super) struct Before {
    tail: Vec<u8>,
    rest: Rest,
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

    /// Cuts the bytes that stand in `data` of the buffer; what stands before them there may be written over.
    pub(super) fn cut(&self, buffer: &mut [u8], data: Range<usize>) -> Cut {
        match self.how.framing {
            Framing::Lines => self.cut_lines(buffer, data),
            Framing::Write | Framing::File => self.cut_bytes(&buffer[data]),
        }
    }

    /// What was unfinished goes with what was cut, all but its last `kept` bytes.
    pub(super) fn pass(&mut self, kept: usize, rest: Rest) -> Before {
        let kept = self.tail.split_off(self.tail.len() - kept);
        Before {
            tail: std::mem::replace(&mut self.tail, kept),
            rest: std::mem::replace(&mut self.rest, rest),
        }
    }

    /// What has passed was not taken after all.
    pub(super) fn back(&mut self, mut before: Before) {
        before.tail.append(&mut self.tail);
        (self.tail, self.rest) = (before.tail, before.rest);
    }

    /// More is unfinished.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
    }

    /// The last bytes never came.
    pub(super) fn shorten(&mut self, bytes: usize) {
        self.tail.truncate(self.tail.len() - bytes);
    }

    fn cut_lines(&self, buffer: &mut [u8], data: Range<usize>) -> Cut {
        let line_max = self.how.line_max;
        let bytes = self.tail.len() + data.len();
        if bytes <= line_max
            && self.rest == Rest::Record
            && memchr::memrchr(b'\n', &buffer[data.clone()]).is_none()
        {
            return Cut {
                unfinished: bytes,
                ..Cut::none(Rest::Record)
            };
        }
        if self.tail.len() > data.start {
            return self.cut_copy(&[&self.tail, &buffer[data]].concat());
        }
        let start = data.start - self.tail.len();
        buffer[start..data.start].copy_from_slice(&self.tail);
        let text = &buffer[start..data.end];
        if self.rest == Rest::Record
            && let Found::Lines(bytes) = framing::find(text, line_max)
            && framing::find(&text[bytes..], line_max) == Found::Partial
        {
            return Cut {
                records: Records::InPlace(start..start + bytes),
                took_tail: !self.tail.is_empty(),
                unfinished: text.len() - bytes,
                ..Cut::none(Rest::Record)
            };
        }
        self.cut_copy(text)
    }

    /// Lines of which some may be too long.
    fn cut_copy(&self, text: &[u8]) -> Cut {
        let line_max = self.how.line_max;
        let mut cut = Cut::none(self.rest);
        let mut lines = Vec::new();
        let mut at = 0;
        while at < text.len() {
            if cut.rest != Rest::Record {
                at += self.pass_over(&text[at..], &mut cut);
                continue;
            }
            match framing::find(&text[at..], line_max) {
                Found::Partial => {
                    cut.unfinished = text.len() - at;
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
        cut.took_tail = !self.tail.is_empty() && cut.unfinished < text.len();
        if !lines.is_empty() {
            cut.records = Records::Lines(lines);
        }
        cut
    }

    /// What becomes of the first piece of a record that is too long; whether the piece is a record.
    fn too_long(&self, piece: &[u8], cut: &mut Cut) -> bool {
        cut.too_long += 1;
        cut.rest = match self.how.too_long {
            TooLong::Split => Rest::Record,
            TooLong::Truncate => Rest::Dropped,
            TooLong::Reject => Rest::Rejected,
        };
        if cut.rest == Rest::Rejected {
            cut.rejected.push(piece.to_vec());
        }
        cut.rest != Rest::Rejected
    }

    /// Passes over bytes of a line that is too long; how many.
    fn pass_over(&self, text: &[u8], cut: &mut Cut) -> usize {
        let part = &text[..text.len().min(self.how.line_max)];
        let end = memchr::memchr(b'\n', part);
        let part = &part[..end.unwrap_or(part.len())];
        if cut.rest == Rest::Rejected && !part.is_empty() {
            cut.rejected.push(part.to_vec());
        }
        if end.is_some() {
            cut.rest = Rest::Record;
        }
        part.len() + usize::from(end.is_some())
    }

    /// Records of bytes: what one write or one file holds.
    fn cut_bytes(&self, data: &[u8]) -> Cut {
        let mut cut = Cut::none(self.rest);
        let mut records = Vec::new();
        let mut tail = &self.tail[..];
        let mut left = data;
        cut.unfinished = tail.len();
        while !left.is_empty() {
            let (part, behind) = left.split_at(left.len().min(self.how.line_max - tail.len()));
            left = behind;
            match cut.rest {
                Rest::Record if left.is_empty() => cut.unfinished = tail.len() + part.len(),
                Rest::Record => {
                    let piece = [std::mem::take(&mut tail), part].concat();
                    cut.unfinished = 0;
                    if self.too_long(&piece, &mut cut) {
                        records.push(piece);
                    }
                }
                Rest::Dropped => {}
                Rest::Rejected => cut.rejected.push(part.to_vec()),
            }
        }
        cut.took_tail = !self.tail.is_empty() && tail.is_empty();
        if self.how.framing == Framing::Write {
            cut.rest = Rest::Record;
            if cut.unfinished > 0 {
                records.push(data[data.len() - cut.unfinished..].to_vec());
                cut.unfinished = 0;
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
    fn none(rest: Rest) -> Self {
        Self {
            records: Records::None,
            rejected: Vec::new(),
            too_long: 0,
            took_tail: false,
            unfinished: 0,
            rest,
        }
    }
}
