//! Room at the end of a vector that is written by position.
//!
//! Encoders store eight bytes at a time where fewer may count, so they write into bytes that exist already and cut off at
//! the end what was not needed. The room is made in steps of a few pages: they are in the cache when they are written.

use crate::json::InvalidUtf8;

/// How much room is made when there is too little: as much as was written already, so that one record costs little and a
/// batch few steps; at most what stays in the first-level cache until it is written.
const STEP_BYTES: std::ops::RangeInclusive<usize> = 256..=8 << 10;

/// A vector and the position up to which it is written.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    at: usize,
    invalid_utf8: Option<InvalidUtf8>,
}

impl<'a> Room<'a> {
    /// Behind what `out` holds.
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Self {
        Self::with(out, None)
    }

    /// The same where the formats that write text write what is not UTF-8 in this way.
    pub(crate) fn with(out: &'a mut Vec<u8>, invalid_utf8: Option<InvalidUtf8>) -> Self {
        let start = out.len();
        Self {
            out,
            start,
            at: start,
            invalid_utf8,
        }
    }

    /// How text that is not UTF-8 is written; None: as the format has it by default.
    pub(crate) fn invalid_utf8(&self) -> Option<InvalidUtf8> {
        self.invalid_utf8
    }

    /// How `text` must be rewritten, if it must.
    #[inline(always)]
    pub(crate) fn rewrites(&self, text: &[u8]) -> Option<InvalidUtf8> {
        match self.invalid_utf8 {
            None => None,
            Some(how) => how.of_invalid(text),
        }
    }

    /// Stores `text`, rewritten if it must be.
    #[inline(always)]
    pub(crate) fn text(&mut self, text: &[u8]) {
        match self.rewrites(text) {
            None => self.bytes(text),
            Some(how) => how.pieces(text, |piece| self.bytes(piece)),
        }
    }

    /// Sees to it that the next `bytes` can be stored.
    #[inline(always)]
    pub(crate) fn ensure(&mut self, bytes: usize) {
        if self.out.len() - self.at < bytes {
            self.grow(bytes);
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, bytes: usize) {
        let step = (self.at - self.start).clamp(*STEP_BYTES.start(), *STEP_BYTES.end());
        self.out.resize(self.at + bytes.max(step), 0);
    }

    /// Stores a word of which `count` bytes stand; the others are overwritten by what follows.
    #[inline(always)]
    pub(crate) fn word(&mut self, word: [u8; 8], count: usize) {
        self.ensure(8);
        if let Some(room) = self.out.get_mut(self.at..self.at + 8) {
            room.copy_from_slice(&word);
        }
        self.at += count;
    }

    /// Stores one byte.
    #[inline(always)]
    pub(crate) fn byte(&mut self, byte: u8) {
        self.ensure(1);
        if let Some(room) = self.out.get_mut(self.at) {
            *room = byte;
        }
        self.at += 1;
    }

    /// Stores `bytes`.
    #[inline(always)]
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.ensure(bytes.len());
        if let Some(room) = self.out.get_mut(self.at..self.at + bytes.len()) {
            room.copy_from_slice(bytes);
        }
        self.at += bytes.len();
    }

    /// Stores `bytes` and `end` behind them, which is nearly always one byte.
    #[inline(always)]
    pub(crate) fn both(&mut self, bytes: &[u8], end: &[u8]) {
        let length = bytes.len();
        let ahead = self.ahead(length + end.len());
        if let Some((first, last)) = ahead.split_at_mut_checked(length) {
            first.copy_from_slice(bytes);
            match (last, end) {
                ([last], [end]) => *last = *end,
                (last, end) => last.copy_from_slice(end),
            }
        }
        self.advance(length + end.len());
    }

    /// Stores the first `count` bytes of `head`, then `middle` and `end`: all of known sizes.
    #[inline(always)]
    pub(crate) fn three<const H: usize, const M: usize, const E: usize>(
        &mut self,
        head: &[u8; H],
        count: usize,
        middle: &[u8; M],
        end: [u8; E],
    ) {
        let count = count.min(H);
        let ahead = self.ahead(H + M + E);
        if let Some(room) = ahead.first_chunk_mut() {
            *room = *head;
        }
        if let Some(room) = ahead.get_mut(count..).and_then(<[u8]>::first_chunk_mut) {
            *room = *middle;
        }
        let behind = ahead.get_mut(count + M..);
        if let Some(room) = behind.and_then(<[u8]>::first_chunk_mut) {
            *room = end;
        }
        self.advance(count + M + E);
    }

    /// The next `bytes` bytes, to be written by the caller, who says with [`Room::advance`] how many stand.
    #[inline(always)]
    pub(crate) fn ahead(&mut self, bytes: usize) -> &mut [u8] {
        self.ensure(bytes);
        self.out
            .get_mut(self.at..self.at + bytes)
            .unwrap_or_default()
    }

    /// Takes the next `count` bytes as written; at most as many as the last [`Room::ahead`] gave.
    #[inline(always)]
    pub(crate) fn advance(&mut self, count: usize) {
        self.at = (self.at + count).min(self.out.len());
    }

    /// Where the next byte goes.
    #[inline(always)]
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Takes back what was written after `position`.
    pub(crate) fn back_to(&mut self, position: usize) {
        self.at = self.at.min(position.max(self.start));
    }

    /// Moves what was written since `position` on by `count` bytes, to be patched in.
    #[cold]
    pub(crate) fn insert(&mut self, position: usize, count: usize) {
        self.ensure(count);
        let position = position.min(self.at);
        self.out.copy_within(position..self.at, position + count);
        self.at += count;
    }

    /// Writes over what stands at `position`.
    #[inline(always)]
    pub(crate) fn patch(&mut self, position: usize, bytes: &[u8]) {
        if let Some(room) = self.out.get_mut(position..position + bytes.len()) {
            room.copy_from_slice(bytes);
        }
    }

    /// What was written from `start` to `end`.
    pub(crate) fn between(&self, start: usize, end: usize) -> &[u8] {
        self.out.get(start..end.min(self.at)).unwrap_or_default()
    }

    /// What was written since `position`.
    pub(crate) fn since(&self, position: usize) -> &[u8] {
        self.out.get(position..self.at).unwrap_or_default()
    }
}

impl Drop for Room<'_> {
    /// Cuts off what was not needed.
    fn drop(&mut self) {
        self.out.truncate(self.at);
    }
}
