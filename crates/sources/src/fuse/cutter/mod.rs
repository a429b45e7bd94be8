//! From bytes as they are written to records: what is whole, and what is left of an unfinished line.
//!
//! `read -> [decode] -> send -> keep -> take -> process -> encode -> write -> settle`
//!
//! Pure: one cutter for each open file, so lines of several writers never mix. Where whole lines stand in the buffer that
//! was read into, they stay there: an unfinished line from before is put right in front of them. Cutting changes nothing in
//! the cutter; what was unfinished leaves it when the records that it became part of have been taken ([`Cutter::pass`]).

mod joined;
#[cfg(test)]
mod tests;

use std::{ops::Range, sync::Arc, time::Duration};

use millstream_wire::lines;
use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::framing::{self, Multiline, Scanned, TooLong};
use joined::Joined;

/// Where a record ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Framing {
    /// At every newline; what is unfinished when the file is closed is a line, too.
    #[default]
    Lines,
    /// What one `write` wrote is a record (the system divides writes of more than 1 MiB).
    Write,
    /// What was written from open to close is a record.
    File,
    /// Lines from one that matches to the next.
    Multiline(Multiline),
}

/// Where a record ends, as it is checked.
#[derive(Debug)]
pub(super) enum End {
    Line,
    Write,
    File,
    /// In front of a line that matches, or when nothing follows for so long.
    Start(Regex, Duration),
}

impl Framing {
    /// The error says what is wrong with the regular expression.
    pub(super) fn check(&self) -> Result<End, String> {
        Ok(match self {
            Self::Lines => End::Line,
            Self::Write => End::Write,
            Self::File => End::File,
            Self::Multiline(lines) => End::Start(lines.start()?, lines.wait.as_duration()),
        })
    }
}

/// How records are cut.
#[derive(Debug)]
pub(super) struct How {
    pub end: End,
    pub line_max: usize,
    pub too_long: TooLong,
}

impl How {
    /// How long one waits for more lines of a record.
    pub(super) fn wait(&self) -> Option<Duration> {
        match &self.end {
            End::Start(_, wait) => Some(*wait),
            End::Line | End::Write | End::File => None,
        }
    }
}

/// What becomes of the bytes up to the next end of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Rest {
    /// They are a record.
    #[default]
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
    /// How it goes on behind what is cut.
    pub next: Next,
}

/// How it goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Next {
    pub rest: Rest,
    /// Where lines are joined: what is unfinished goes on with a line whose beginning has left.
    pub within_line: bool,
}

/// How it was before something passed.
#[derive(Debug)]
pub(super) struct Before {
    tail: Vec<u8>,
    next: Next,
}

/// The records of one open file.
#[derive(Debug)]
pub(super) struct Cutter {
    how: Arc<How>,
    /// What is unfinished.
    tail: Vec<u8>,
    next: Next,
}

impl Cutter {
    pub(super) fn new(how: Arc<How>) -> Self {
        Self {
            how,
            tail: Vec::new(),
            next: Next::default(),
        }
    }

    /// What is unfinished.
    pub(super) fn tail(&self) -> &[u8] {
        &self.tail
    }

    /// Cuts the bytes that stand in `data` of the buffer; what stands before them there may be written over.
    pub(super) fn cut(&self, buffer: &mut [u8], data: Range<usize>) -> Cut {
        match &self.how.end {
            End::Line => self.cut_lines(buffer, data),
            End::Write | End::File => self.cut_bytes(&buffer[data]),
            End::Start(start, _) => Joined::cut(self, start, &buffer[data]),
        }
    }

    /// Nothing followed for as long as one waits: whole lines are a record, without the next start.
    pub(super) fn cut_quiet(&self) -> Cut {
        let whole = match self.how.end {
            End::Start(..) => lines::whole(&self.tail),
            End::Line | End::Write | End::File => 0,
        };
        let mut cut = Cut::none(self.next);
        cut.unfinished = self.tail.len() - whole;
        if let Some(record) = self.tail[..whole].strip_suffix(b"\n") {
            cut.records = Records::Any(vec![record.to_vec()]);
            cut.took_tail = true;
        }
        cut
    }

    /// The file is closed: what is unfinished is a record.
    pub(super) fn cut_end(&self) -> Cut {
        let mut cut = match &self.how.end {
            End::Start(start, _) => Joined::end(self, start),
            _ if self.tail.is_empty() => Cut::none(Next::default()),
            End::Line => Cut {
                records: Records::Lines([&self.tail[..], b"\n"].concat()),
                ..Cut::none(Next::default())
            },
            End::Write | End::File => Cut {
                records: Records::Any(vec![self.tail.clone()]),
                ..Cut::none(Next::default())
            },
        };
        cut.took_tail = !self.tail.is_empty();
        cut
    }

    /// What was unfinished goes with what was cut, all but its last `kept` bytes.
    pub(super) fn pass(&mut self, kept: usize, next: Next) -> Before {
        let kept = match self.tail.len() - kept {
            // Often a small write behind a long record: nothing is moved.
            0 => std::mem::take(&mut self.tail),
            left => self.tail.split_off(left),
        };
        Before {
            tail: std::mem::replace(&mut self.tail, kept),
            next: std::mem::replace(&mut self.next, next),
        }
    }

    /// What has passed was not taken after all.
    pub(super) fn back(&mut self, mut before: Before) {
        before.tail.append(&mut self.tail);
        (self.tail, self.next) = (before.tail, before.next);
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
            && self.next.rest == Rest::Record
            && memchr::memrchr(b'\n', &buffer[data.clone()]).is_none()
        {
            return Cut {
                unfinished: bytes,
                ..Cut::none(Next::default())
            };
        }
        if self.tail.len() > data.start {
            return self.cut_copy(&[&self.tail, &buffer[data]].concat());
        }
        let start = data.start - self.tail.len();
        buffer[start..data.start].copy_from_slice(&self.tail);
        let text = &buffer[start..data.end];
        if self.next.rest == Rest::Record
            && let Scanned::Lines(bytes) = framing::scan(text, line_max)
            && framing::scan(&text[bytes..], line_max) == Scanned::Partial
        {
            return Cut {
                records: Records::InPlace(start..start + bytes),
                took_tail: !self.tail.is_empty(),
                unfinished: text.len() - bytes,
                ..Cut::none(Next::default())
            };
        }
        self.cut_copy(text)
    }

    /// Lines of which some may be too long.
    fn cut_copy(&self, text: &[u8]) -> Cut {
        let line_max = self.how.line_max;
        let mut cut = Cut::none(self.next);
        let mut lines = Vec::new();
        let mut at = 0;
        while at < text.len() {
            if cut.next.rest != Rest::Record {
                at += self.pass_over(&text[at..], &mut cut);
                continue;
            }
            match framing::scan(&text[at..], line_max) {
                Scanned::Partial => {
                    cut.unfinished = text.len() - at;
                    break;
                }
                Scanned::Lines(bytes) => {
                    lines.extend_from_slice(&text[at..at + bytes]);
                    at += bytes;
                }
                Scanned::TooLong => {
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
        cut.next.rest = match self.how.too_long {
            TooLong::Split => Rest::Record,
            TooLong::Truncate => Rest::Dropped,
            TooLong::Reject => Rest::Rejected,
        };
        if cut.next.rest == Rest::Rejected {
            cut.rejected.push(piece.to_vec());
        }
        cut.next.rest != Rest::Rejected
    }

    /// Passes over bytes of a line that is too long; how many.
    fn pass_over(&self, text: &[u8], cut: &mut Cut) -> usize {
        let part = &text[..text.len().min(self.how.line_max)];
        let end = memchr::memchr(b'\n', part);
        let part = &part[..end.unwrap_or(part.len())];
        if cut.next.rest == Rest::Rejected && !part.is_empty() {
            cut.rejected.push(part.to_vec());
        }
        if end.is_some() {
            cut.next.rest = Rest::Record;
        }
        part.len() + usize::from(end.is_some())
    }

    /// Records of bytes: what one write or one file holds.
    fn cut_bytes(&self, data: &[u8]) -> Cut {
        let mut cut = Cut::none(self.next);
        let mut records = Vec::new();
        let mut tail = &self.tail[..];
        let mut left = data;
        cut.unfinished = tail.len();
        while !left.is_empty() {
            let (part, behind) = left.split_at(left.len().min(self.how.line_max - tail.len()));
            left = behind;
            match cut.next.rest {
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
        if matches!(self.how.end, End::Write) {
            cut.next.rest = Rest::Record;
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

    /// Goes on with what an earlier run has left.
    pub(super) fn with_tail(mut self, tail: Vec<u8>) -> Self {
        self.tail = tail;
        self
    }
}

impl Cut {
    fn none(next: Next) -> Self {
        Self {
            records: Records::None,
            rejected: Vec::new(),
            too_long: 0,
            took_tail: false,
            unfinished: 0,
            next,
        }
    }
}
