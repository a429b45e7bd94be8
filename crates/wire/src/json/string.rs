//! Writes text as JSON strings.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! Text is copied in blocks of 64 bytes, then of 16 bytes, until a block needs an escape. The rest is copied in words of 8 bytes.
//! `cargo bench --bench formats` prints the cost.

use std::ops::Range;

use base64::{Engine, engine::general_purpose::STANDARD};

use super::escape::{ESCAPES, lowest, plain, specials};
use crate::{invalid_utf8::InvalidUtf8, room::Room};

/// Text that is longer than this is written in pieces of this size. Escaped text can be six times as long, so before each piece, six times
/// its size is reserved.
const PIECE_BYTES: usize = 1 << 10;
/// The longest escape: `\u0000`.
const ESCAPE_BYTES_MAX: usize = 6;
/// Spare space, because a store may write more bytes than belong to the text.
const STORE_BYTES: usize = 16;
/// A word of spaces.
const SPACES: u64 = 0x2020_2020_2020_2020;
/// The highest bit of each byte, set in non-ASCII bytes.
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Writes `bytes[start..start + length]`, which must exist, as a string. Text that is not UTF-8 is replaced as
/// [`Room::invalid_utf8`] demands, by default with the base64 of the whole text.
pub(crate) fn string(room: &mut Room<'_>, bytes: &[u8], start: usize, length: usize) {
    string_between(room, b"\"", bytes, start, length, b"\"");
}

/// Like [`string`], but also writes bytes before the opening quote and after the closing one. `before` must end with a quote,
/// and `after` must begin with one. A single call for all three parts keeps the write offset in a register.
#[inline(always)]
pub(crate) fn string_between<const B: usize, const A: usize>(
    room: &mut Room<'_>,
    before: &[u8; B],
    bytes: &[u8],
    start: usize,
    length: usize,
    after: &[u8; A],
) {
    string_behind(room, before, B, bytes, start, length, after);
}

/// Like [`string_between`], but only the first `count` bytes of `before` are written.
#[inline(always)]
pub(crate) fn string_behind<const B: usize, const A: usize>(
    room: &mut Room<'_>,
    before: &[u8; B],
    count: usize,
    bytes: &[u8],
    start: usize,
    length: usize,
    after: &[u8; A],
) {
    let end = start + length;
    let count = count.min(B);
    if length > PIECE_BYTES {
        let before = before.get(..count).unwrap_or_default();
        return pieces(room, before, bytes, start..end, after);
    }
    let target = room.ahead(length * ESCAPE_BYTES_MAX + STORE_BYTES + B + A);
    store(target, 0, *before);
    // The most frequent case: most keys and many values are short.
    if length <= 8 {
        let word = first_bytes(bytes, start, length);
        if specials(word) | word & HIGHS == 0 {
            store(target, count, word.to_le_bytes());
            store(target, count + length, *after);
            return room.advance(count + length + A);
        }
    }
    let (to, high) = piece(target, count, bytes, start, end);
    if high & HIGHS != 0 {
        let text = bytes.get(start..end).unwrap_or_default();
        if std::str::from_utf8(text).is_err() {
            let before = before.get(..count).unwrap_or_default();
            return invalid(room, before, text, after);
        }
    }
    store(target, to, *after);
    room.advance(to + A);
}

/// Writes text of any length.
#[cold]
#[inline(never)]
fn pieces(room: &mut Room<'_>, before: &[u8], bytes: &[u8], range: Range<usize>, after: &[u8]) {
    let text = bytes.get(range.clone()).unwrap_or_default();
    if std::str::from_utf8(text).is_err() {
        return invalid(room, before, text, after);
    }
    room.bytes(before);
    all_pieces(room, bytes, range);
    room.bytes(after);
}

fn all_pieces(room: &mut Room<'_>, bytes: &[u8], range: Range<usize>) {
    for from in range.clone().step_by(PIECE_BYTES) {
        let target = room.ahead(PIECE_BYTES * ESCAPE_BYTES_MAX + STORE_BYTES);
        let (to, _) = piece(target, 0, bytes, from, range.end.min(from + PIECE_BYTES));
        room.advance(to);
    }
}

#[cold]
#[inline(never)]
fn invalid(room: &mut Room<'_>, before: &[u8], text: &[u8], after: &[u8]) {
    room.bytes(before);
    match room.invalid_utf8() {
        None | Some(InvalidUtf8::Base64) => base64(room, text),
        Some(how) => how.pieces(text, |piece| all_pieces(room, piece, 0..piece.len())),
    }
    room.bytes(after);
}

/// Writes `bytes[from..end]`, escaped, at offset `to` of `target`. Copies whole blocks up to the first block that needs an escape or is
/// not ASCII. Writes the rest in words, because more such bytes are likely to follow. Returns the offset in `target` after the text, and
/// a word in which at least one high bit ([`HIGHS`]) is set if the text is not ASCII.
#[inline(never)]
fn piece(
    target: &mut [u8],
    mut to: usize,
    bytes: &[u8],
    mut from: usize,
    end: usize,
) -> (usize, u64) {
    let (mut high, first) = (0, to);
    // Testing a large block costs little more than testing a small one.
    while let Some(block) = bytes.get(from..end).and_then(<[u8]>::first_chunk) {
        let block: &[u8; 64] = block;
        if !plain(block) {
            break;
        }
        store(target, to, *block);
        from += 64;
        to += 64;
    }
    while let Some(block) = bytes.get(from..end).and_then(<[u8]>::first_chunk) {
        let block: &[u8; 16] = block;
        store(target, to, *block);
        if !plain(block) {
            break;
        }
        from += 16;
        to += 16;
    }
    // If fewer than 16 bytes are left, store the last 16 bytes of the text. Some of them were already stored by the loops above.
    if from < end
        && end < from + 16
        && to >= first + 16
        && let Some(block) = bytes.get(..end).and_then(<[u8]>::last_chunk::<16>)
        && plain(block)
    {
        to += end - from;
        store(target, to - 16, *block);
        return (to, 0);
    }
    while let Some(block) = bytes.get(from..end).and_then(<[u8]>::first_chunk) {
        from += 8;
        if plain(block) {
            store(target, to, *block);
            to += 8;
        } else {
            let word = u64::from_le_bytes(*block);
            high |= word;
            to = escaped(target, to, word);
        }
    }
    if from < end {
        let word = first_bytes(bytes, from, end - from);
        high |= word;
        to = escaped(target, to, word) - (from + 8 - end);
    }
    (to, high)
}

/// Writes the eight bytes of a word, escaped; returns the offset after them.
#[inline(always)]
fn escaped(target: &mut [u8], to: usize, word: u64) -> usize {
    store(target, to, word.to_le_bytes());
    let flags = specials(word);
    if flags == 0 {
        return to + 8;
    }
    // The bytes before the first byte that needs an escape are already stored. Store the escape, and after it the remaining bytes of
    // the word. That is all, unless one of the remaining bytes needs an escape, too.
    let before = lowest(flags);
    let from_there = word >> (8 * before);
    let escape = ESCAPES[usize::from(from_there as u8)];
    let rest = from_there >> 8 | SPACES << (8 * (7 - before));
    let length = (escape >> 56) as usize;
    store(target, to + before, escape.to_le_bytes());
    store(target, to + before + length, rest.to_le_bytes());
    if specials(rest) == 0 {
        return to + 7 + length;
    }
    every_byte(target, to, word)
}

/// Writes a word with several escapes: stores eight bytes for each byte of the text, and advances by the length of its escaped form.
#[inline(never)]
fn every_byte(target: &mut [u8], mut to: usize, word: u64) -> usize {
    for byte in word.to_le_bytes() {
        let escape = ESCAPES[usize::from(byte)];
        store(target, to, escape.to_le_bytes());
        to += (escape >> 56) as usize;
    }
    to
}

#[inline(always)]
fn store<const N: usize>(target: &mut [u8], at: usize, bytes: [u8; N]) {
    debug_assert!(at + N <= target.len(), "the caller has reserved the space");
    if let Some(room) = target.get_mut(at..at + N) {
        room.copy_from_slice(&bytes);
    }
}

/// Returns the `count` bytes (at most 8) from `at` on as a word. The rest of the word is spaces, which need no escape.
#[inline(always)]
fn first_bytes(bytes: &[u8], at: usize, count: usize) -> u64 {
    // Two shifts, because a shift by 64 bits would overflow.
    let behind = (u64::MAX << (4 * count)) << (4 * count);
    word_at(bytes, at) & !behind | SPACES & behind
}

/// Returns the eight bytes from `at` on; bytes beyond the end of `bytes` are 0.
#[inline(always)]
fn word_at(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..).and_then(<[u8]>::first_chunk) {
        Some(word) => u64::from_le_bytes(*word),
        None => last_word(bytes, at),
    }
}

#[cold]
#[inline(never)]
fn last_word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    for (to, from) in word.iter_mut().zip(bytes.get(at..).unwrap_or_default()) {
        *to = *from;
    }
    u64::from_le_bytes(word)
}

/// Writes the base64 of `data`.
pub(crate) fn base64(room: &mut Room<'_>, data: &[u8]) {
    let ahead = room.ahead(data.len().div_ceil(3) * 4);
    let length = STANDARD.encode_slice(data, ahead);
    debug_assert!(length.is_ok(), "base64 fits into the reserved space");
    room.advance(length.unwrap_or(0));
}

/// Appends `text` as a string.
pub(crate) fn append_string(text: &[u8], out: &mut Vec<u8>) {
    string(&mut Room::new(out), text, 0, text.len());
}
