//! Lines that belong together: all from one that matches to the next (framing `multiline`).
//!
//! `read -> [decode] -> send -> keep -> take -> process -> encode -> write -> settle`
//!
//! What is unfinished are the whole lines of a record, each with its newline, and a line whose end is not there yet. A record
//! may come in many small writes, so each looks at what it brings and at the line that goes on, not at the lines before. That
//! is why the `Framer` of other sources is not used here: it is shown a record from its start on each time.
//!
//! A line is looked at when it is whole. One that is longer than a record may be is cut before that, else a writer without
//! newlines would take any memory.

use std::{borrow::Cow, ops::Range};

use regex::bytes::Regex;

use super::{Cut, Cutter, Next, Records, Rest};
use crate::framing::{self, TooLong};

/// A cut that is being made. Positions are those of what was unfinished and what was written, as one text.
pub(super) struct Joined<'a> {
    cutter: &'a Cutter,
    start: &'a Regex,
    tail: &'a [u8],
    data: &'a [u8],
    /// Where the record begins, and the line.
    record: usize,
    line: usize,
    records: Vec<Vec<u8>>,
    cut: Cut,
}

impl<'a> Joined<'a> {
    /// Cuts what was written behind what is unfinished.
    pub(super) fn cut(cutter: &Cutter, start: &Regex, data: &[u8]) -> Cut {
        // A record that is as long as it may be, and a line that may begin the next one.
        let unfinished_max = cutter.how.line_max.saturating_mul(2).saturating_add(1);
        let bytes = cutter.tail.len() + data.len();
        let is_passed_over = cutter.next.within_line && cutter.next.rest != Rest::Record;
        if bytes <= unfinished_max && !is_passed_over && memchr::memrchr(b'\n', data).is_none() {
            return Cut {
                unfinished: bytes,
                ..Cut::none(cutter.next)
            };
        }
        let mut joined = Joined::new(cutter, start, &cutter.tail, data);
        joined.whole_lines();
        if bytes - joined.record > unfinished_max || joined.is_passed_over() {
            joined.line(bytes, false);
        }
        let mut cut = joined.finish();
        cut.unfinished = bytes - joined.record;
        cut.took_tail = !cutter.tail.is_empty() && joined.record > 0;
        cut
    }

    /// Cuts what is unfinished when nothing follows. An earlier run may have left it under other rules, so all is looked at.
    pub(super) fn end(cutter: &Cutter, start: &Regex) -> Cut {
        let bytes = cutter.tail.len();
        let mut joined = Joined::new(cutter, start, &[], &cutter.tail);
        joined.whole_lines();
        if joined.line < bytes {
            // It ends here: a line, as if its newline were there.
            joined.line(bytes, true);
        }
        joined.end_record();
        let cut = joined.finish();
        Cut {
            next: Next::default(),
            ..cut
        }
    }

    fn new(cutter: &'a Cutter, start: &'a Regex, tail: &'a [u8], data: &'a [u8]) -> Self {
        let line = millstream_wire::lines::whole(tail);
        let mut next = cutter.next;
        // Its end has come.
        next.within_line &= line == 0;
        Self {
            cutter,
            start,
            tail,
            data,
            record: 0,
            line,
            records: Vec::new(),
            cut: Cut::none(next),
        }
    }

    fn whole_lines(&mut self) {
        let data = self.data;
        for end in memchr::memchr_iter(b'\n', data) {
            self.line(self.tail.len() + end, true);
        }
    }

    fn is_passed_over(&self) -> bool {
        self.cut.next.within_line && self.cut.next.rest != Rest::Record
    }

    /// A line that ends here; not `whole`: no more of it is waited for.
    fn line(&mut self, end: usize, whole: bool) {
        let next = self.cut.next;
        if !next.within_line && self.start.is_match(&self.text(self.line..end)) {
            self.end_record();
            (self.record, self.cut.next.rest) = (self.line, Rest::Record);
        }
        match self.cut.next.rest {
            Rest::Record if end - self.record > self.cutter.how.line_max => self.too_long(end),
            Rest::Rejected => self.reject(self.line..end),
            Rest::Record | Rest::Dropped => {}
        }
        self.line = end + usize::from(whole);
        self.cut.next.within_line = !whole;
        if self.cut.next.rest != Rest::Record {
            self.record = self.line;
        }
    }

    /// The record in front of the line is whole.
    fn end_record(&mut self) {
        if self.cut.next.rest == Rest::Record && self.record < self.line {
            // Without its last newline.
            let record = self.text(self.record..self.line - 1).into_owned();
            self.records.push(record);
        }
    }

    /// The record is too long with the line that ends here.
    fn too_long(&mut self, end: usize) {
        let line_max = self.cutter.how.line_max;
        self.cut.too_long += 1;
        match self.cutter.how.too_long {
            // A piece ends between lines where it can.
            TooLong::Split if self.record < self.line && end - self.line <= line_max => {
                self.end_record();
                // An empty line is no piece.
                let is_empty = end == self.line;
                self.record = self.line + usize::from(is_empty);
            }
            TooLong::Split => {
                while end - self.record > line_max {
                    let text = self.text(self.record..end.min(self.record + line_max + 1));
                    let piece = text[..framing::piece(&text, line_max)].to_vec();
                    self.record += piece.len();
                    self.records.push(piece);
                }
            }
            TooLong::Truncate => {
                let text = self.text(self.record..end.min(self.record + line_max + 1));
                let piece = text[..framing::piece(&text, line_max)].to_vec();
                self.records.push(piece);
                self.cut.next.rest = Rest::Dropped;
            }
            TooLong::Reject => {
                self.reject(self.record..end);
                self.cut.next.rest = Rest::Rejected;
            }
        }
    }

    fn reject(&mut self, range: Range<usize>) {
        let text = self.text(range);
        let pieces = text.chunks(self.cutter.how.line_max);
        self.cut.rejected.extend(pieces.map(<[u8]>::to_vec));
    }

    fn text(&self, range: Range<usize>) -> Cow<'a, [u8]> {
        let middle = self.tail.len();
        let tail = &self.tail[range.start.min(middle)..range.end.min(middle)];
        let data = &self.data[range.start.max(middle) - middle..range.end.max(middle) - middle];
        match (tail, data) {
            (tail, []) => Cow::Borrowed(tail),
            ([], data) => Cow::Borrowed(data),
            (tail, data) => Cow::Owned([tail, data].concat()),
        }
    }

    fn finish(&mut self) -> Cut {
        let mut cut = std::mem::replace(&mut self.cut, Cut::none(Next::default()));
        if !self.records.is_empty() {
            cut.records = Records::Any(std::mem::take(&mut self.records));
        }
        cut
    }
}
