//! Joins lines to records, and applies the policy for records that are too long.

use millstream_record::{Encoding, Time};
use millstream_wire::{cri, lines};

use super::{
    framed::Framed,
    options::{Cr, TooLong},
    plain::piece,
};

/// How records are made from lines, and how they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Each line is a record, written as a line.
    Line,
    /// Partial lines of a container are joined, and written with time and stream (stdout or stderr).
    Cri,
    /// Lines are joined by newlines, and written with a time.
    Joined,
    /// Partial lines of a container are joined, then the lines of each stream are joined by newlines.
    CriJoined,
}

impl Form {
    /// How the records of a body are encoded.
    pub(super) fn encoding(self) -> Encoding {
        match self {
            Self::Line => Encoding::Lines,
            Self::Cri | Self::Joined | Self::CriJoined => Encoding::Packed,
        }
    }

    /// The same records in the format of a container runtime.
    pub(super) fn behind_runtime(self) -> Self {
        match self {
            Self::Line | Self::Cri => Self::Cri,
            Self::Joined | Self::CriJoined => Self::CriJoined,
        }
    }

    /// Whether lines are joined by newlines.
    fn joins_lines(self) -> bool {
        matches!(self, Self::Joined | Self::CriJoined)
    }
}

/// Joins lines to records.
#[derive(Debug)]
pub(super) struct Assembler {
    form: Form,
    line_max: usize,
    too_long: TooLong,
    /// The records in progress: one per stream of a container, otherwise at most one.
    pending: Vec<PendingRecord>,
}

/// A record whose end is not known yet.
#[derive(Debug)]
struct PendingRecord {
    stream: Vec<u8>,
    time: Time,
    /// The time of its last line.
    last: Time,
    text: Vec<u8>,
    lines: usize,
    /// Whether the last line is partial, so that the next one continues it.
    within_line: bool,
    /// Whether it is longer than `line_max`.
    too_long: bool,
}

impl Clone for Assembler {
    /// An empty assembler with the same settings.
    fn clone(&self) -> Self {
        Self {
            pending: Vec::new(),
            ..*self
        }
    }
}

impl Assembler {
    pub(super) fn new(form: Form, line_max: usize, too_long: TooLong) -> Self {
        Self {
            form,
            line_max,
            too_long,
            pending: Vec::new(),
        }
    }

    pub(super) fn form(&self) -> Form {
        self.form
    }

    pub(super) fn set_form(&mut self, form: Form) {
        self.form = form;
    }

    pub(super) fn line_max(&self) -> usize {
        self.line_max
    }

    pub(super) fn too_long(&self) -> TooLong {
        self.too_long
    }

    /// Whether no record is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Forgets the pending records.
    pub(super) fn clear(&mut self) {
        self.pending.clear();
    }

    /// The index of the pending record of a stream.
    pub(super) fn of_stream(&self, stream: &[u8]) -> Option<usize> {
        self.pending.iter().position(|open| open.stream == stream)
    }

    /// Whether the next line of a record continues its last one.
    pub(super) fn is_within_line(&self, at: usize) -> bool {
        self.pending
            .get(at)
            .is_some_and(|record| record.within_line)
    }

    /// Notes the time of the last line of a record, and whether that line is partial.
    pub(super) fn note_line(&mut self, at: usize, time: Time, partial: bool) {
        if let Some(record) = self.pending.get_mut(at) {
            (record.last, record.within_line) = (time, partial);
        }
    }

    /// Removes the CR at the end of a record, because the part that ends the line is empty.
    pub(super) fn trim(&mut self, at: usize, cr: Cr) {
        if let Some(record) = self.pending.get_mut(at) {
            let length = cr.trim(&record.text).len();
            record.text.truncate(length);
        }
    }

    /// Ends the records of other streams to which no line was added after the time `until`.
    pub(super) fn finish_others(&mut self, stream: &[u8], until: Time, out: &mut Framed) {
        let is_over = |open: &PendingRecord| open.stream != stream && open.last < until;
        while let Some(at) = self.pending.iter().position(is_over) {
            self.finish(at, out);
        }
    }

    /// Begins a record; returns its index.
    pub(super) fn begin(&mut self, time: Time, stream: &[u8]) -> usize {
        self.pending.push(PendingRecord {
            stream: stream.to_vec(),
            time,
            last: time,
            text: Vec::new(),
            lines: 0,
            within_line: false,
            too_long: false,
        });
        self.pending.len() - 1
    }

    /// Adds a line to a record, or the part of the line that `line_max` and `too_long` allow.
    pub(super) fn add(&mut self, at: usize, line: &[u8], out: &mut Framed) {
        let joins_lines = self.form.joins_lines();
        let Some(record) = self.pending.get_mut(at) else {
            return;
        };
        let begins_anew =
            self.too_long == TooLong::Split && record.too_long && record.text.is_empty();
        let newline = joins_lines && record.lines > 0 && !begins_anew && !record.within_line;
        if newline {
            record.text.push(b'\n');
        }
        record.lines += 1;
        record.text.extend_from_slice(line);
        let is_over = record.too_long && self.too_long != TooLong::Split;
        if record.text.len() <= self.line_max && !is_over {
            return;
        }
        let was_too_long = std::mem::replace(&mut record.too_long, true);
        match self.too_long {
            TooLong::Truncate if was_too_long => {
                let kept = record.text.len() - line.len() - usize::from(newline);
                record.text.truncate(kept);
            }
            TooLong::Truncate => {
                let kept = piece(&record.text, self.line_max);
                record.text.truncate(kept);
            }
            TooLong::Reject => {
                out.reject(&record.text, self.line_max, true);
                record.text.clear();
            }
            TooLong::Split => self.split(at, newline.then_some(line.len()), out),
        }
    }

    /// Writes pieces of a record until the rest is not too long. `last_line` is the length of its last line, if a newline is before
    /// that line.
    fn split(&mut self, at: usize, last_line: Option<usize>, out: &mut Framed) {
        let Some(record) = self.pending.get_mut(at) else {
            return;
        };
        let (mut text, stream, time) = (
            std::mem::take(&mut record.text),
            record.stream.clone(),
            record.time,
        );
        let mut begin = 0;
        // The lines before the last one become a record, so that the split is between lines.
        if let Some(line_bytes) = last_line
            && line_bytes <= self.line_max
            && text.len() > line_bytes
        {
            let before = text.len() - line_bytes - 1;
            self.write(time, &stream, &text[..before], out);
            begin = before + 1;
        }
        while text.len() - begin > self.line_max {
            let end = begin + piece(&text[begin..], self.line_max);
            self.write(time, &stream, &text[begin..end], out);
            begin = end;
        }
        text.drain(..begin);
        if let Some(record) = self.pending.get_mut(at) {
            record.text = text;
        }
    }

    /// Ends the record at an index. Writes it, unless `too_long` leaves nothing of it.
    pub(super) fn finish(&mut self, at: usize, out: &mut Framed) {
        let record = self.pending.remove(at);
        out.too_long += u32::from(record.too_long);
        let is_gone =
            record.too_long && (self.too_long == TooLong::Reject || record.text.is_empty());
        if !is_gone {
            self.write(record.time, &record.stream, &record.text, out);
        }
    }

    /// Writes all pending records.
    pub(super) fn finish_all(&mut self, out: &mut Framed) {
        while !self.is_empty() {
            self.finish(0, out);
        }
    }

    /// Writes all pending records, although more text of these records may follow. Returns the stream of the last record that is too
    /// long, if any.
    pub(super) fn cut_all(&mut self, out: &mut Framed) -> Option<Vec<u8>> {
        let mut cut = None;
        while let Some(record) = self.pending.first() {
            if record.too_long {
                cut = Some(record.stream.clone());
            }
            self.finish(0, out);
        }
        cut
    }

    fn write(&self, time: Time, stream: &[u8], text: &[u8], out: &mut Framed) {
        out.count = out.count.saturating_add(1);
        match self.form {
            Form::Line => {
                out.body.extend_from_slice(text);
                out.body.push(b'\n');
            }
            Form::Cri | Form::CriJoined => cri::write_entry(&mut out.body, time, stream, text),
            Form::Joined => lines::write_entry(&mut out.body, time, text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_cut_and_a_long_joined_record_is_split_between_lines() {
        let mut assembler = Assembler::new(Form::Line, 4, TooLong::Split);
        let mut out = Framed::default();
        let at = assembler.begin(Time(0), b"");
        assembler.add(at, b"abcdefghij", &mut out);
        assembler.finish(at, &mut out);
        assert_eq!((&out.body[..], out.count), (&b"abcd\nefgh\nij\n"[..], 3));
        assert_eq!(out.too_long, 1);
        let mut joined = Assembler::new(Form::Joined, 4, TooLong::Split);
        let mut out = Framed::default();
        let at = joined.begin(Time(0), b"");
        joined.add(at, b"ab", &mut out);
        joined.add(at, b"cd", &mut out);
        assert_eq!(out.count, 1, "`ab` is a record, `cd` is pending");
        assert!(joined.cut_all(&mut out).is_some() && joined.is_empty());
        assert_eq!(out.count, 2);
    }
}
