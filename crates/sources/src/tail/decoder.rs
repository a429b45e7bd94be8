//! Where records end in the bytes behind the position.
//!
//! `read -> [decode] -> send -> keep -> take -> process -> encode -> write -> settle`
//!
//! Plain lines are found without looking at each of them. Joined records and text in other encodings are made line by line
//! by a [`Framer`]. Either way, text without a whole record is shown again with more behind it, so the position never points
//! into a record. Pure: no I/O and no waiting.

use std::time::Instant;

use millstream_record::{Encoding, Time};

use super::options::Options;
use crate::framing::{self, Ending, Framed, Framer, Scanned, TooLong};

/// Bytes of one read, and so of a batch: it stays in the second-level cache, and the cost of a batch does not show.
const READ_BYTES: usize = 512 << 10;
/// The minimum where `rate_max` is lower.
const READ_BYTES_MIN: usize = 4 << 10;

/// Finds records in what is read.
#[derive(Debug)]
pub(super) struct Decoder {
    /// Makes the records, where they are more than plain lines.
    framer: Option<Framer>,
    line_max: usize,
    too_long: TooLong,
    /// Bytes of a read at a new position.
    first_read: usize,
    /// Bytes of the next read: larger only for a long record.
    read_bytes: usize,
    /// Bytes behind the position that hold no whole record.
    partial: u64,
    /// Since when there has been a record that may be complete.
    pending_since: Option<Instant>,
    /// Everything that is left becomes records.
    closing: bool,
}

/// What is at the start of a text.
#[derive(Debug)]
pub(super) enum Decoded {
    /// Whole lines of this many bytes in total.
    Lines(usize),
    /// Records made of this many bytes.
    Framed(Framed, usize),
    /// A line that is longer than `line_max`; its first piece has this many bytes.
    TooLong(usize),
    /// No whole record, but the file holds more: the next read will be larger.
    More,
    /// No whole record.
    Partial,
}

impl Decoder {
    /// `by_line`: even plain lines are made one by one, as the text does not stand in a buffer of the pool.
    pub(super) fn new(options: &Options, by_line: bool) -> Self {
        let first_read = match usize::try_from(options.rate_max) {
            Ok(rate @ 1..) => READ_BYTES.min(rate.max(READ_BYTES_MIN)),
            _ => READ_BYTES,
        };
        let framer = options.framer.clone();
        Self {
            framer: Some(framer).filter(|framer| by_line || !framer.is_plain()),
            line_max: options.line_max,
            too_long: options.too_long,
            first_read,
            read_bytes: first_read,
            partial: 0,
            pending_since: None,
            closing: false,
        }
    }

    /// How the records of a batch are encoded.
    pub(super) fn encoding(&self) -> Encoding {
        self.framer
            .as_ref()
            .map_or(Encoding::Lines, Framer::encoding)
    }

    /// What happens to lines longer than `line_max`.
    pub(super) fn too_long(&self) -> TooLong {
        self.too_long
    }

    /// Whether records are made line by line.
    pub(super) fn is_by_line(&self) -> bool {
        self.framer.is_some()
    }

    /// How many bytes to read next.
    pub(super) fn read_bytes(&self) -> usize {
        self.read_bytes
    }

    /// Bytes behind the position that hold no whole record.
    pub(super) fn partial(&self) -> u64 {
        self.partial
    }

    /// Notes that the next `bytes` bytes hold no whole record; 0: they are to be read again in any case.
    pub(super) fn set_partial(&mut self, bytes: u64) {
        self.partial = bytes;
    }

    /// With `true`, everything that is left becomes records.
    pub(super) fn set_closing(&mut self, closing: bool) {
        self.closing = closing;
    }

    /// When a record that may be complete counts as complete.
    pub(super) fn quiet_at(&self) -> Option<Instant> {
        let wait = self.framer.as_ref()?.wait()?;
        Some(self.pending_since? + wait)
    }

    fn is_quiet(&self) -> bool {
        self.quiet_at().is_some_and(|at| at <= Instant::now())
    }

    /// Whether decoding `available` bytes may find more than last time.
    pub(super) fn is_worthwhile(&self, available: u64) -> bool {
        available != self.partial || self.closing || self.is_quiet()
    }

    /// The position moved behind what was decoded.
    pub(super) fn advanced(&mut self) {
        self.read_bytes = self.first_read;
        self.partial = 0;
        self.pending_since = None;
    }

    /// The position moved elsewhere: what was seen behind it means nothing any more.
    pub(super) fn reset(&mut self) {
        self.advanced();
        if let Some(framer) = &mut self.framer {
            framer.reset();
        }
    }

    /// Finds what is at the start of `text`, which begins at the position. `more`: the file holds more than `text`.
    /// `at_start`: the text begins at the first byte of the file.
    pub(super) fn decode(&mut self, text: &[u8], more: bool, at_start: bool) -> Decoded {
        if self.framer.is_some() {
            return self.frame(text, more, at_start);
        }
        match framing::scan(text, self.line_max) {
            Scanned::Lines(bytes) => Decoded::Lines(bytes),
            Scanned::TooLong => Decoded::TooLong(framing::piece(text, self.line_max)),
            Scanned::Partial if more => {
                self.read_bytes = (text.len() * 2).min(self.line_max.saturating_add(1));
                Decoded::More
            }
            Scanned::Partial => {
                self.partial = text.len() as u64;
                Decoded::Partial
            }
        }
    }

    fn frame(&mut self, text: &[u8], more: bool, at_start: bool) -> Decoded {
        let is_quiet = self.is_quiet();
        let Some(framer) = &mut self.framer else {
            return Decoded::Partial;
        };
        let window = framer.window();
        let ending = match more {
            true if text.len() >= window => Ending::Full,
            true => Ending::Open,
            false if self.closing => Ending::End,
            false if is_quiet => Ending::Quiet,
            false => Ending::Open,
        };
        let mut framed = Framed::default();
        match framer.frame(text, at_start, ending, Time::now(), &mut framed) {
            0 if more => {
                let larger = (text.len() * 2).clamp(self.read_bytes, window.max(self.read_bytes));
                self.read_bytes = larger;
                Decoded::More
            }
            0 => {
                self.partial = text.len() as u64;
                self.pending_since = framer.has_line(text).then(Instant::now);
                Decoded::Partial
            }
            bytes => Decoded::Framed(framed, bytes),
        }
    }
}
