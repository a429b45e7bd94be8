//! The spare bytes at the end of a vector, into which encoders write by offset.
//!
//! Encoders store eight bytes at a time, even if fewer belong to the text. So they write into spare initialized bytes of the
//! vector, and the vector is truncated at the end. The vector grows in small steps, so that new bytes are still in the cache when
//! they are written.

use crate::invalid_utf8::InvalidUtf8;

/// The smallest and the largest step by which the vector grows. Within these limits, a step is as large as the output written so
/// far, so that one record costs little and a batch needs few steps. Even the largest step stays in the first-level cache until
/// it is written.
const STEP_BYTES: std::ops::RangeInclusive<usize> = 256..=8 << 10;

/// A vector and the offset up to which it is written.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    at: usize,
    invalid_utf8: Option<InvalidUtf8>,
}

impl<'a> Room<'a> {
    /// Begins at the end of `out`.
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Self {
        Self::with(out, None)
    }

    /// Like [`Room::new`], for text formats. Text that is not UTF-8 is replaced as `invalid_utf8` demands.
    pub(crate) fn with(out: &'a mut Vec<u8>, invalid_utf8: Option<InvalidUtf8>) -> Self {
        let start = out.len();
        Self {
            out,
            start,
            at: start,
            invalid_utf8,
        }
    }

    /// The replacement for text that is not UTF-8; `None` for the format's default.
    pub(crate) fn invalid_utf8(&self) -> Option<InvalidUtf8> {
        self.invalid_utf8
    }

    /// The replacement for `text`, if `text` needs one.
    #[inline(always)]
    pub(crate) fn rewrites(&self, text: &[u8]) -> Option<InvalidUtf8> {
        match self.invalid_utf8 {
            None => None,
            Some(how) => how.of_invalid(text),
        }
    }

    /// Stores `text`, or its replacement.
    #[inline(always)]
    pub(crate) fn text(&mut self, text: &[u8]) {
        match self.rewrites(text) {
            None => self.bytes(text),
            Some(how) => how.pieces(text, |piece| self.bytes(piece)),
        }
    }

    /// Ensures that `bytes` more bytes can be stored.
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

    /// Stores a word, but advances by only `count` bytes: the next store overwrites the other bytes.
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

    /// Stores `bytes`, then `end`, which is nearly always one byte.
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

    /// Stores the first `count` bytes of `head`, then `middle` and `end`. All three are copied as blocks of constant size.
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

    /// Returns the next `bytes` bytes, for the caller to write. [`Room::advance`] then advances over those that belong to the
    /// output.
    #[inline(always)]
    pub(crate) fn ahead(&mut self, bytes: usize) -> &mut [u8] {
        self.ensure(bytes);
        self.out
            .get_mut(self.at..self.at + bytes)
            .unwrap_or_default()
    }

    /// Advances over the next `count` bytes, which the caller has written. `count` is at most the number of bytes that the last
    /// [`Room::ahead`] returned.
    #[inline(always)]
    pub(crate) fn advance(&mut self, count: usize) {
        self.at = (self.at + count).min(self.out.len());
    }

    /// The offset of the next byte.
    #[inline(always)]
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Removes everything after `position`.
    pub(crate) fn back_to(&mut self, position: usize) {
        self.at = self.at.min(position.max(self.start));
    }

    /// Moves everything after `position` towards the end by `count` bytes, so that the caller can insert bytes at `position`.
    #[cold]
    pub(crate) fn insert(&mut self, position: usize, count: usize) {
        self.ensure(count);
        let position = position.min(self.at);
        self.out.copy_within(position..self.at, position + count);
        self.at += count;
    }

    /// Overwrites the bytes at `position`.
    #[inline(always)]
    pub(crate) fn patch(&mut self, position: usize, bytes: &[u8]) {
        if let Some(room) = self.out.get_mut(position..position + bytes.len()) {
            room.copy_from_slice(bytes);
        }
    }

    /// The bytes written from `start` to `end`.
    pub(crate) fn between(&self, start: usize, end: usize) -> &[u8] {
        self.out.get(start..end.min(self.at)).unwrap_or_default()
    }

    /// The bytes written since `position`.
    pub(crate) fn since(&self, position: usize) -> &[u8] {
        self.out.get(position..self.at).unwrap_or_default()
    }
}

impl Drop for Room<'_> {
    /// Truncates the vector to the written bytes.
    fn drop(&mut self) {
        self.out.truncate(self.at);
    }
}
