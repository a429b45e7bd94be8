//! Finds where records end in the bytes after the position. The position is the offset up to which the reader has sent the file.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! For plain lines only the end of the last whole line is searched, so most lines are never examined. A [`Framer`] processes
//! joined records and text in other encodings line by line. In both cases, the position never points into a record: text without
//! a whole record is decoded again once there is more text. This module does no I/O and never waits.

use std::time::Instant;

use millstream_record::{Encoding, Time};

use super::options::Options;
use crate::framing::{self, Cr, Ending, Framed, Framer, Remainder, Scanned, TooLong};

/// Bytes of one read, and so of a batch. Small enough for the second-level cache, large enough to make the cost per batch
/// negligible.
const READ_BYTES: usize = 512 << 10;
/// The minimum size of a read with a low `rate_max`, in bytes.
const READ_BYTES_MIN: usize = 4 << 10;

/// Finds records in the bytes that are read.
#[derive(Debug)]
pub(super) struct Decoder {
    /// Makes the records. None if plain lines are the records.
    framer: Option<Framer>,
    line_max: usize,
    too_long: TooLong,
    cr: Cr,
    /// The number of bytes to read at a new position.
    first_read: usize,
    /// The number of bytes of the next read. Larger than `first_read` only for a long record.
    read_bytes: usize,
    /// The number of bytes after the position that hold no whole record.
    partial: u64,
    /// The text after the position may hold a record that counts as complete if no more lines follow. This is the time since
    /// which the text holds such a record. None if it holds none.
    pending_since: Option<Instant>,
    /// Whether all remaining bytes become records, because the file is closed.
    closing: bool,
}

/// The bytes that follow the decoded text in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The file holds more bytes.
    More,
    /// The file holds no more bytes.
    Nothing,
    /// The text ends at an offset at which an earlier batch ended, so its last record ends there, too.
    Mark,
}

/// The result of decoding the start of a text.
#[derive(Debug)]
pub(super) enum Decoded {
    /// Whole lines of this many bytes in total.
    Lines(usize),
    /// Records made of this many bytes.
    Framed(Framed, usize),
    /// A line that is longer than `line_max`; its first piece has this many bytes.
    TooLong(usize),
    /// No whole record, but the file holds more. The next read will be larger.
    More,
    /// No whole record, and the file holds nothing more.
    Partial,
}

impl Decoder {
    /// `by_line`: uses a framer even for plain lines. It is set for compressed files, because their text is not in a pooled
    /// buffer that the batch could own.
    pub(super) fn new(options: &Options, by_line: bool) -> Self {
        let first_read = match usize::try_from(options.rate_max) {
            Ok(rate @ 1..) => READ_BYTES.min(rate.max(READ_BYTES_MIN)),
            _ => READ_BYTES,
        };
        let framer = options.framer.clone();
        let cr = framer.cr();
        Self {
            framer: Some(framer).filter(|framer| by_line || !framer.is_plain()),
            line_max: options.line_max,
            too_long: options.too_long,
            cr,
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

    /// The policy for lines longer than `line_max`.
    pub(super) fn too_long(&self) -> TooLong {
        self.too_long
    }

    /// Whether records are made line by line.
    pub(super) fn is_by_line(&self) -> bool {
        self.framer.is_some()
    }

    /// Whether the bytes at the end of a renamed file may belong to a record that ends in the next file: `text` holds whole lines.
    pub(super) fn may_join(&self, text: &[u8]) -> bool {
        let framer = self.framer.as_ref();
        framer.is_some_and(|framer| text.is_empty() || framer.last_line(text) == Some(text.len()))
    }

    /// How to treat the rest of a record that was cut.
    pub(super) fn remainder(&self) -> Option<Remainder> {
        self.framer.as_ref()?.remainder()
    }

    /// Continues a record that was cut at the end of the file before this one.
    pub(super) fn resume(&mut self, remainder: Option<Remainder>) {
        if let Some(framer) = &mut self.framer {
            framer.resume(remainder);
        }
    }

    /// Whether text after the first byte can be decoded only once the start of the file is known.
    pub(super) fn wants_start(&self) -> bool {
        self.framer.as_ref().is_some_and(Framer::wants_start)
    }

    /// Notes the first bytes of the file.
    pub(super) fn begins_with(&mut self, start: &[u8]) {
        if let Some(framer) = &mut self.framer {
            framer.begins_with(start);
        }
    }

    /// How many bytes to read next.
    pub(super) fn read_bytes(&self) -> usize {
        self.read_bytes
    }

    /// The number of bytes after the position that hold no whole record.
    pub(super) fn partial(&self) -> u64 {
        self.partial
    }

    /// Notes that the next `bytes` bytes hold no whole record. If `bytes` is 0, the text is decoded again even if the file has
    /// not grown.
    pub(super) fn set_partial(&mut self, bytes: u64) {
        self.partial = bytes;
    }

    /// Sets whether all remaining bytes become records.
    pub(super) fn set_closing(&mut self, closing: bool) {
        self.closing = closing;
    }

    /// When the last record counts as complete if nothing more is written. None if there is no such record.
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

    /// Notes that the position moved to the end of the decoded records.
    pub(super) fn advanced(&mut self) {
        self.read_bytes = self.first_read;
        self.partial = 0;
        self.pending_since = None;
    }

    /// Notes that the position moved elsewhere. Forgets everything about the bytes after the old position.
    pub(super) fn reset(&mut self) {
        self.advanced();
        if let Some(framer) = &mut self.framer {
            framer.reset();
        }
    }

    /// The records of whole plain lines, each with its newline; `at_start`: they begin at the first byte of the file. `None` if the
    /// records are the bytes of the file.
    pub(super) fn altered(&self, lines: &[u8], at_start: bool) -> Option<Vec<u8>> {
        let marked = match at_start {
            true => framing::without_mark(lines),
            false => lines,
        };
        let trimmed = self.cr.trim_all(marked);
        trimmed.or_else(|| (marked.len() < lines.len()).then(|| marked.to_vec()))
    }

    /// Decodes the start of `text`, which begins at the position. `at_start`: the text begins at the first byte of the file.
    pub(super) fn decode(&mut self, text: &[u8], after: After, at_start: bool) -> Decoded {
        if self.framer.is_some() {
            return self.frame(text, after, at_start);
        }
        match framing::scan(text, self.line_max, self.cr) {
            Scanned::Lines(bytes) => Decoded::Lines(bytes),
            Scanned::TooLong => Decoded::TooLong(framing::piece(text, self.line_max)),
            Scanned::Partial if after != After::Nothing => {
                self.read_bytes = (text.len() * 2).min(self.line_max.saturating_add(2));
                Decoded::More
            }
            Scanned::Partial => {
                self.partial = text.len() as u64;
                Decoded::Partial
            }
        }
    }

    fn frame(&mut self, text: &[u8], after: After, at_start: bool) -> Decoded {
        let is_quiet = self.is_quiet();
        let Some(framer) = &mut self.framer else {
            return Decoded::Partial;
        };
        let window = framer.window();
        let ending = match after {
            After::Mark => Ending::End,
            After::More if text.len() >= window => Ending::Full,
            After::More => Ending::Open,
            After::Nothing if self.closing => Ending::End,
            After::Nothing if is_quiet => Ending::Quiet,
            After::Nothing => Ending::Open,
        };
        let mut framed = Framed::default();
        match framer.frame(text, at_start, ending, Time::now(), &mut framed) {
            0 if after != After::Nothing => {
                let larger = (text.len() * 2).clamp(self.read_bytes, window.max(self.read_bytes));
                self.read_bytes = larger;
                Decoded::More
            }
            0 => {
                // A file that is written in place is decoded again although no text was added.
                let is_same = self.partial == text.len() as u64;
                let since = self.pending_since.filter(|_| is_same);
                self.partial = text.len() as u64;
                self.pending_since = framer
                    .has_line(text)
                    .then(|| since.unwrap_or_else(Instant::now));
                Decoded::Partial
            }
            bytes => Decoded::Framed(framed, bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::options::{self, Options},
        *,
    };
    use crate::rig;

    fn options(json: &str) -> std::sync::Arc<Options> {
        let node = rig::node(serde_json::from_str(json).unwrap());
        options::check(&node).ok().unwrap()
    }

    #[test]
    fn text_without_a_whole_line_is_decoded_again_when_there_is_more() {
        let options = options(r#"{"paths": "/a", "line_max": "8B", "rate_max": "4KiB"}"#);
        let mut decoder = Decoder::new(&options, false);
        assert_eq!(decoder.read_bytes(), 4096);
        let decoded = decoder.decode(b"one\ntw", After::Nothing, true);
        assert!(matches!(decoded, Decoded::Lines(4)));
        decoder.advanced();
        let decoded = decoder.decode(b"tw", After::Nothing, false);
        assert!(matches!(decoded, Decoded::Partial));
        assert!(!decoder.is_worthwhile(2) && decoder.is_worthwhile(3));
        let decoded = decoder.decode(b"tw", After::More, false);
        assert!(matches!(decoded, Decoded::More));
        let decoded = decoder.decode(b"two is too long", After::Nothing, false);
        assert!(matches!(decoded, Decoded::TooLong(8)));
        decoder.reset();
        assert_eq!((decoder.partial(), decoder.read_bytes()), (0, 4096));
    }

    #[test]
    fn the_last_joined_record_is_complete_when_the_file_is_closed() {
        let options = options(r#"{"paths": "/a", "framing": {"multiline": {"start": "^1"}}}"#);
        let mut decoder = Decoder::new(&options, false);
        assert!(decoder.is_by_line() && decoder.encoding() == Encoding::Packed);
        let decoded = decoder.decode(b"1 a\n b\n", After::Nothing, true);
        assert!(matches!(decoded, Decoded::Partial));
        assert!(decoder.quiet_at().is_some() && !decoder.is_worthwhile(7));
        decoder.set_closing(true);
        assert!(decoder.is_worthwhile(7));
        let Decoded::Framed(framed, bytes) = decoder.decode(b"1 a\n b\n", After::Nothing, true)
        else {
            panic!("no record")
        };
        assert_eq!((framed.count, bytes), (1, 7));
    }

    #[test]
    fn the_last_joined_record_is_complete_at_a_mark() {
        let options = options(r#"{"paths": "/a", "framing": {"multiline": {"start": "^1"}}}"#);
        let mut decoder = Decoder::new(&options, false);
        let decoded = decoder.decode(b"1 a\n b\n", After::More, true);
        assert!(matches!(decoded, Decoded::More));
        let Decoded::Framed(framed, bytes) = decoder.decode(b"1 a\n b\n", After::Mark, true) else {
            panic!("no record")
        };
        assert_eq!((framed.count, bytes), (1, 7));
    }
}
