//! Cuts written bytes into records, and holds the unfinished bytes after the last whole record.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! Each open file has its own cutter, so lines of several writers never mix. Whole lines usually stay in the buffer that they
//! were read into. An unfinished line of earlier writes is copied into the same buffer, in front of the new bytes ([`HEADROOM`]).
//! Cutting does not change the cutter. Unfinished bytes that are now in a record are removed only once the record was sent
//! ([`Cutter::advance`]).

mod boundaries;
mod cuttings;
mod joined;
#[cfg(test)]
mod tests;

use std::{ops::Range, sync::Arc};

use millstream_wire::lines;

pub(super) use boundaries::{Boundaries, Framing, RecordEnd};
pub(super) use cuttings::{Cuttings, Mode, Records};

use crate::framing::{self, Scanned, TooLong};
use cuttings::Fate;
use joined::Joined;

/// The free space before the data in a buffer, in bytes, for an unfinished line of earlier writes.
pub(super) const HEADROOM: usize = 4096;

/// The state of a cutter before it advanced, for [`Cutter::rewind`].
#[derive(Debug)]
pub(super) struct CutterBefore {
    tail: Vec<u8>,
    mode: Mode,
}

/// Cuts the bytes that are written through one open file.
#[derive(Debug)]
pub(super) struct Cutter {
    boundaries: Arc<Boundaries>,
    /// The unfinished bytes.
    tail: Vec<u8>,
    mode: Mode,
}

impl Cutter {
    pub(super) fn new(boundaries: Arc<Boundaries>) -> Self {
        Self {
            boundaries,
            tail: Vec::new(),
            mode: Mode::default(),
        }
    }

    /// Continues with the unfinished bytes of an earlier run.
    pub(super) fn with_tail(mut self, tail: Vec<u8>) -> Self {
        self.tail = tail;
        self
    }

    /// Continues in the mode of an earlier run.
    pub(super) fn in_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// Where records end.
    pub(super) fn boundaries(&self) -> &Boundaries {
        &self.boundaries
    }

    /// Changes where records end. The unfinished bytes stay: their record ends by the new boundaries.
    pub(super) fn change(&mut self, to: &Arc<Boundaries>) {
        if Arc::ptr_eq(&self.boundaries, to) {
            return;
        }
        let was_joined = self.boundaries.wait().is_some();
        let is_joined = to.wait().is_some();
        self.boundaries = to.clone();
        match (was_joined, is_joined) {
            // The line is skipped to its end, as before. The lines after it are records.
            (true, false) if self.mode.within_line => self.mode = Mode::of(self.mode.fate),
            (true, false) => self.mode = Mode::default(),
            (false, true) => self.mode.within_line = self.mode.fate != Fate::Record,
            _ => {}
        }
    }

    /// The unfinished bytes.
    pub(super) fn tail(&self) -> &[u8] {
        &self.tail
    }

    /// Cuts the bytes in the range `data` of the buffer. May overwrite the bytes before this range.
    pub(super) fn cut(&self, buffer: &mut [u8], data: Range<usize>) -> Cuttings {
        match &self.boundaries.end {
            RecordEnd::Line => self.cut_lines(buffer, data),
            RecordEnd::Write | RecordEnd::File => self.cut_bytes(&buffer[data]),
            RecordEnd::Start(start, _) => Joined::cut(
                &self.boundaries,
                start,
                (&self.tail, self.mode),
                &buffer[data],
            ),
        }
    }

    /// Makes one record of all whole lines, if lines are joined. Called when nothing was written for the rule's `wait`.
    pub(super) fn cut_quiet(&self) -> Cuttings {
        let whole = match self.boundaries.end {
            RecordEnd::Start(..) => lines::whole(&self.tail),
            RecordEnd::Line | RecordEnd::Write | RecordEnd::File => 0,
        };
        let mut cuttings = Cuttings::none(self.mode);
        cuttings.unfinished = self.tail.len() - whole;
        if let Some(record) = self.tail[..whole].strip_suffix(b"\n") {
            cuttings.records = Records::Separate(vec![record.to_vec()]);
            cuttings.took_tail = true;
            cuttings.mode.within_record = false;
        }
        cuttings
    }

    /// Cuts the unfinished bytes when the file is closed.
    pub(super) fn cut_end(&self) -> Cuttings {
        let mut cuttings = match &self.boundaries.end {
            RecordEnd::Start(start, _) => {
                Joined::end(&self.boundaries, start, (&self.tail, self.mode))
            }
            _ if self.tail.is_empty() => Cuttings::none(Mode::default()),
            RecordEnd::Line => Cuttings {
                records: Records::Lines([&self.tail[..], b"\n"].concat()),
                ..Cuttings::none(Mode::default())
            },
            RecordEnd::Write | RecordEnd::File => Cuttings {
                records: Records::Separate(vec![self.tail.clone()]),
                ..Cuttings::none(Mode::default())
            },
        };
        cuttings.took_tail = !self.tail.is_empty();
        cuttings
    }

    /// Removes all unfinished bytes but the last `stay`, because the records that contain them were sent. Returns the state
    /// before the removal.
    pub(super) fn advance(&mut self, stay: usize, mode: Mode) -> CutterBefore {
        let stay = match self.tail.len() - stay {
            // All bytes stay, and none is copied. This is the usual case when a small write continues a long record.
            0 => std::mem::take(&mut self.tail),
            leaves => self.tail.split_off(leaves),
        };
        CutterBefore {
            tail: std::mem::replace(&mut self.tail, stay),
            mode: std::mem::replace(&mut self.mode, mode),
        }
    }

    /// Restores the state before [`Cutter::advance`], because the records were not kept. Bytes that were added since
    /// then follow the restored ones.
    pub(super) fn rewind(&mut self, mut before: CutterBefore) {
        before.tail.append(&mut self.tail);
        (self.tail, self.mode) = (before.tail, before.mode);
    }

    /// Adds unfinished bytes.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
    }

    /// Removes `bytes` bytes from the end of the unfinished bytes.
    pub(super) fn shorten(&mut self, bytes: usize) {
        self.tail.truncate(self.tail.len() - bytes);
    }

    fn cut_lines(&self, buffer: &mut [u8], data: Range<usize>) -> Cuttings {
        let line_max = self.boundaries.line_max;
        let bytes = self.tail.len() + data.len();
        if bytes <= line_max
            && self.mode.fate == Fate::Record
            && memchr::memrchr(b'\n', &buffer[data.clone()]).is_none()
        {
            return Cuttings {
                unfinished: bytes,
                ..Cuttings::none(Mode::default())
            };
        }
        if self.tail.len() > data.start {
            return self.cut_copy(&[&self.tail, &buffer[data]].concat());
        }
        let start = data.start - self.tail.len();
        buffer[start..data.start].copy_from_slice(&self.tail);
        let text = &buffer[start..data.end];
        if self.mode.fate == Fate::Record
            && let Scanned::Lines(bytes) = framing::scan(text, line_max, self.boundaries.cr)
            && framing::scan(&text[bytes..], line_max, self.boundaries.cr) == Scanned::Partial
        {
            return Cuttings {
                records: Records::InPlace(start..start + bytes),
                took_tail: !self.tail.is_empty(),
                unfinished: text.len() - bytes,
                ..Cuttings::none(Mode::default())
            };
        }
        self.cut_copy(text)
    }

    /// Cuts `text` into lines, some of which may be too long. Copies the lines.
    fn cut_copy(&self, text: &[u8]) -> Cuttings {
        let line_max = self.boundaries.line_max;
        let mut cuttings = Cuttings::none(self.mode);
        let mut lines = Vec::new();
        let mut at = 0;
        while at < text.len() {
            if cuttings.mode.fate != Fate::Record {
                at += self.skip(&text[at..], &mut cuttings);
                continue;
            }
            match framing::scan(&text[at..], line_max, self.boundaries.cr) {
                Scanned::Partial => {
                    cuttings.unfinished = text.len() - at;
                    break;
                }
                Scanned::Lines(bytes) => {
                    lines.extend_from_slice(&text[at..at + bytes]);
                    at += bytes;
                }
                Scanned::TooLong => {
                    let piece = &text[at..at + framing::piece(&text[at..], line_max)];
                    at += piece.len();
                    if self.too_long(piece, &mut cuttings) {
                        lines.extend_from_slice(piece);
                        lines.push(b'\n');
                    }
                }
            }
        }
        // If all of the text is unfinished, nothing was taken from the tail.
        cuttings.took_tail = !self.tail.is_empty() && cuttings.unfinished < text.len();
        if !lines.is_empty() {
            cuttings.records = Records::Lines(lines);
        }
        cuttings
    }

    /// Handles the first piece of a record that is too long. Returns whether the piece becomes a record.
    fn too_long(&self, piece: &[u8], cuttings: &mut Cuttings) -> bool {
        cuttings.too_long += 1;
        cuttings.mode.fate = match self.boundaries.too_long {
            TooLong::Split => Fate::Record,
            TooLong::Truncate => Fate::Dropped,
            TooLong::Reject => Fate::Rejected,
        };
        if cuttings.mode.fate == Fate::Rejected {
            cuttings.rejected.push(piece.to_vec());
        }
        cuttings.mode.fate != Fate::Rejected
    }

    /// Skips a part of a line that is too long. Returns the number of bytes that were skipped.
    fn skip(&self, text: &[u8], cuttings: &mut Cuttings) -> usize {
        let part = &text[..text.len().min(self.boundaries.line_max)];
        let end = memchr::memchr(b'\n', part);
        let part = &part[..end.unwrap_or(part.len())];
        if cuttings.mode.fate == Fate::Rejected && !part.is_empty() {
            cuttings.rejected.push(part.to_vec());
        }
        if end.is_some() {
            cuttings.mode.fate = Fate::Record;
        }
        part.len() + usize::from(end.is_some())
    }

    /// Cuts bytes whose record ends with the write or with the file.
    fn cut_bytes(&self, data: &[u8]) -> Cuttings {
        let line_max = self.boundaries.line_max;
        let mut cuttings = Cuttings::none(self.mode);
        let mut records = Vec::new();
        let mut tail = &self.tail[..];
        let mut left = data;
        cuttings.unfinished = tail.len();
        while !left.is_empty() {
            let (part, behind) = left.split_at(left.len().min(line_max.saturating_sub(tail.len())));
            left = behind;
            match cuttings.mode.fate {
                Fate::Record if left.is_empty() => cuttings.unfinished = tail.len() + part.len(),
                Fate::Record => {
                    let piece = [std::mem::take(&mut tail), part].concat();
                    cuttings.unfinished = 0;
                    if self.too_long(&piece, &mut cuttings) {
                        records.push(piece);
                    }
                }
                Fate::Dropped => {}
                Fate::Rejected => cuttings.rejected.push(part.to_vec()),
            }
        }
        cuttings.took_tail = !self.tail.is_empty() && tail.is_empty();
        if matches!(self.boundaries.end, RecordEnd::Write) {
            cuttings.mode.fate = Fate::Record;
            if cuttings.unfinished > 0 {
                // There is a tail only if records had other ends when it was written.
                let ours = cuttings.unfinished.min(data.len());
                records.push([tail, &data[data.len() - ours..]].concat());
                cuttings.took_tail = !self.tail.is_empty();
                cuttings.unfinished = 0;
            }
        }
        if !records.is_empty() {
            cuttings.records = Records::Separate(records);
        }
        cuttings
    }
}
