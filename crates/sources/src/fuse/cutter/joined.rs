//! Joins lines (framing `multiline`): a record begins with a line that matches the pattern `start`, and includes all lines up to
//! the next such line.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! The unfinished bytes are the bytes that are held until the next write. They are the complete lines of a record that has not
//! ended yet, with their newlines, and at most one partial line. A record may arrive in many small writes, so a call of `cut` scans
//! only the newly written bytes and the line that they continue. The `Framer` of the other sources is not used, because it would
//! scan the whole record in each call.
//!
//! A line is tested against the pattern once it is complete, or once it is too long to be held in memory. If such a line were
//! held until its newline arrives, a writer that never sends a newline could use unbounded memory.

use std::{borrow::Cow, ops::Range};

use regex::bytes::Regex;

use super::{
    boundaries::Boundaries,
    cuttings::{Cuttings, Fate, Mode, Records},
};
use crate::framing::{self, TooLong};

/// A cut in progress. Offsets are those in the concatenation of the unfinished bytes (`tail`) and the newly written bytes (`data`).
pub(super) struct Joined<'a> {
    boundaries: &'a Boundaries,
    start: &'a Regex,
    tail: &'a [u8],
    data: &'a [u8],
    /// Where the current record begins.
    record: usize,
    /// Where the current line begins.
    line: usize,
    records: Vec<Vec<u8>>,
    cuttings: Cuttings,
}

impl<'a> Joined<'a> {
    /// Cuts the bytes that were written, together with the unfinished bytes before them.
    pub(super) fn cut(
        boundaries: &Boundaries,
        start: &Regex,
        (tail, mode): (&[u8], Mode),
        data: &[u8],
    ) -> Cuttings {
        // The longest record, plus the longest line that may begin the next record.
        let unfinished_max = boundaries.line_max.saturating_mul(2).saturating_add(1);
        let bytes = tail.len() + data.len();
        let is_skipped = mode.within_line && mode.fate != Fate::Record;
        if bytes <= unfinished_max && !is_skipped && memchr::memrchr(b'\n', data).is_none() {
            return Cuttings {
                unfinished: bytes,
                ..Cuttings::none(mode)
            };
        }
        let mut joined = Joined::new(boundaries, start, (tail, mode), data);
        joined.whole_lines();
        if bytes - joined.record > unfinished_max || joined.is_skipped() {
            joined.line(bytes, false);
        }
        let mut cuttings = joined.finish();
        cuttings.unfinished = bytes - joined.record;
        cuttings.took_tail = !tail.is_empty() && joined.record > 0;
        cuttings
    }

    /// Cuts the unfinished bytes at the end of the file. Scans all of them again, because an earlier run may have left them under
    /// another configuration.
    pub(super) fn end(
        boundaries: &Boundaries,
        start: &Regex,
        (tail, mode): (&[u8], Mode),
    ) -> Cuttings {
        let bytes = tail.len();
        let mut joined = Joined::new(boundaries, start, (&[], mode), tail);
        joined.whole_lines();
        if joined.line < bytes {
            // The end of the file ends the line.
            joined.line(bytes, true);
        }
        joined.end_record();
        let cuttings = joined.finish();
        Cuttings {
            mode: Mode::default(),
            ..cuttings
        }
    }

    fn new(
        boundaries: &'a Boundaries,
        start: &'a Regex,
        (tail, mut mode): (&'a [u8], Mode),
        data: &'a [u8],
    ) -> Self {
        let line = millstream_wire::lines::whole(tail);
        // If the tail holds a whole line, the line whose beginning was already handled has ended.
        mode.within_line &= line == 0;
        Self {
            boundaries,
            start,
            tail,
            data,
            record: 0,
            line,
            records: Vec::new(),
            cuttings: Cuttings::none(mode),
        }
    }

    fn whole_lines(&mut self) {
        let data = self.data;
        for end in memchr::memchr_iter(b'\n', data) {
            self.line(self.tail.len() + end, true);
        }
    }

    fn is_skipped(&self) -> bool {
        self.cuttings.mode.within_line && self.cuttings.mode.fate != Fate::Record
    }

    /// Handles a line that ends at `end`. `whole` is false for a line that may still continue. Such a line is handled early,
    /// because it is too long to be held in memory, or because it is skipped.
    fn line(&mut self, end: usize, whole: bool) {
        let mode = self.cuttings.mode;
        if !mode.within_line && self.begins_record(end) {
            self.end_record();
            (self.record, self.cuttings.mode) = (self.line, Mode::default());
        }
        match self.cuttings.mode.fate {
            Fate::Record if end - self.record > self.boundaries.line_max => self.too_long(end),
            Fate::Rejected => self.reject(self.line..end),
            Fate::Record | Fate::Dropped => {}
        }
        if whole && self.record == end && self.cuttings.mode.within_record {
            // Skip the newline: it ends the piece that was just cut, and the next piece must not begin with an empty line.
            self.record = end + 1;
        }
        self.line = end + usize::from(whole);
        self.cuttings.mode.within_line = !whole;
        if self.cuttings.mode.fate != Fate::Record {
            self.record = self.line;
        }
    }

    /// Whether the current line, which ends at `end`, is the first line of a record.
    fn begins_record(&self, end: usize) -> bool {
        let line = self.text(self.line..end);
        self.start.is_match(self.boundaries.cr.trim(&line))
    }

    /// Ends the current record before the current line.
    fn end_record(&mut self) {
        if self.cuttings.mode.fate == Fate::Record && self.record < self.line {
            // The record does not include its last newline.
            let record = self.text(self.record..self.line - 1).into_owned();
            self.records.push(record);
        }
    }

    /// Handles a record that is too long once it includes the line that ends at `end`.
    fn too_long(&mut self, end: usize) {
        let line_max = self.boundaries.line_max;
        self.cuttings.too_long += 1;
        match self.boundaries.too_long {
            // Where possible, the piece ends at a line boundary.
            TooLong::Split if self.record < self.line && end - self.line <= line_max => {
                self.end_record();
                self.record = self.line;
                self.cuttings.mode.within_record = true;
            }
            TooLong::Split => {
                self.cuttings.mode.within_record = true;
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
                self.cuttings.mode.fate = Fate::Dropped;
            }
            TooLong::Reject => {
                self.reject(self.record..end);
                self.cuttings.mode.fate = Fate::Rejected;
            }
        }
    }

    fn reject(&mut self, range: Range<usize>) {
        let text = self.text(range);
        let pieces = text.chunks(self.boundaries.line_max);
        self.cuttings.rejected.extend(pieces.map(<[u8]>::to_vec));
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

    fn finish(&mut self) -> Cuttings {
        let mut cuttings = std::mem::replace(&mut self.cuttings, Cuttings::none(Mode::default()));
        if !self.records.is_empty() {
            cuttings.records = Records::Separate(std::mem::take(&mut self.records));
        }
        cuttings
    }
}
