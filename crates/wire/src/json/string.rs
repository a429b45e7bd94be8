//! Text to JSON strings.
//!
//! Hop: read decode send keep take [encode] write settle. Blocks of 64 and 16 bytes are stored as they are up to the first that
//! needs an escape; from there on words of 8. `cargo bench --bench formats` prints what it costs.

use std::ops::Range;

use super::{
    escape::{ESCAPES, lowest, plain, specials},
    invalid::InvalidUtf8,
    write::base64,
};
use crate::room::Room;

/// Longer text is written in pieces, so that the room it might need, six times its length, is made step by step.
const PIECE_BYTES: usize = 1 << 10;
/// Longest escape: `\u0000`.
const ESCAPE_BYTES_MAX: usize = 6;
/// More room than the text can take: stores are of more bytes than count.
const STORE_BYTES: usize = 16;
/// A word of spaces.
const SPACES: u64 = 0x2020_2020_2020_2020;
/// The highest bit of each byte: set in what is no ASCII.
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Writes `length` bytes at `start` of `bytes`, which lie within it, as a string. What is not UTF-8 becomes what the room
/// says, else the base64 of all its bytes.
pub(crate) fn string(room: &mut Room<'_>, bytes: &[u8], start: usize, length: usize) {
    string_between(room, b"\"", bytes, start, length, b"\"");
}

/// As [`string`], with more before the opening quote and behind the closing one: `before` ends with a quote and `after`
/// starts with one. In one go the position stays in a register.
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

/// The same where only the first `count` bytes of `before` count.
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
    // Most keys and many values: a word that is plain.
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

/// Text of any length.
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

/// Writes the bytes `from..end`, escaped, at `to`: in blocks up to the first that needs an escape, from there on in words,
/// for where one is there are more. Gives the offset behind them, and a word some highest bit of which is
/// set when one of them is no ASCII.
#[inline(never)]
fn piece(
    target: &mut [u8],
    mut to: usize,
    bytes: &[u8],
    mut from: usize,
    end: usize,
) -> (usize, u64) {
    let (mut high, first) = (0, to);
    // Whether a block is plain costs little more for a large one.
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
    // What is less than a block at the end of plain text: the last block, part of which stands already.
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

/// Writes the eight bytes of a word, escaped; gives the offset behind them.
#[inline(always)]
fn escaped(target: &mut [u8], to: usize, word: u64) -> usize {
    store(target, to, word.to_le_bytes());
    let flags = specials(word);
    if flags == 0 {
        return to + 8;
    }
    // One escape: what is before it stands already, what is behind it is stored behind what stands for it.
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

/// More than one escape: each byte is stored as eight, of which its own or its escape's count.
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
    debug_assert!(at + N <= target.len(), "the room was made for it");
    if let Some(room) = target.get_mut(at..at + N) {
        room.copy_from_slice(&bytes);
    }
}

/// The first `count` bytes from `at` on, at most 8; behind them spaces, which need no escape.
#[inline(always)]
fn first_bytes(bytes: &[u8], at: usize, count: usize) -> u64 {
    // Not one shift: of 8 bytes none may be left over.
    let behind = (u64::MAX << (4 * count)) << (4 * count);
    word_at(bytes, at) & !behind | SPACES & behind
}

/// Eight bytes from `at` on; those behind the end of `bytes` are 0.
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

/// Appends `text` as a string.
pub(crate) fn append_string(text: &[u8], out: &mut Vec<u8>) {
    string(&mut Room::new(out), text, 0, text.len());
}
