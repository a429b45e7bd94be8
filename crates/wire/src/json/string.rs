//! Text to JSON strings.
//!
//! Hop: read decode send keep take [encode] write settle. Eight bytes at a time are stored as they are; how many of them
//! count, up to the first that must be escaped, is found after. See `bench` for what it costs.

use super::{
    escape::{ESCAPES, HIGHS, lowest, specials},
    write::base64_string,
};
use crate::room::Room;

/// Longer text is written in pieces, so that the room it might need, six times its length, is made step by step.
const PIECE_BYTES: usize = 1 << 10;
/// Longest escape: `\u0000`.
const ESCAPE_BYTES_MAX: usize = 6;

/// Writes `length` bytes at `start` of `bytes`, which lie within it, as a string. What is not UTF-8 becomes the base64 of
/// all its bytes.
#[inline]
pub(crate) fn string(room: &mut Room<'_>, bytes: &[u8], start: usize, length: usize) {
    let before = room.position();
    room.byte(b'"');
    let end = start + length;
    let mut high = 0;
    let mut from = start;
    loop {
        let stop = end.min(from + PIECE_BYTES);
        high |= piece(room, bytes, from, stop);
        from = stop;
        if from >= end {
            break;
        }
    }
    if high != 0 {
        let text = bytes.get(start..end).unwrap_or_default();
        if std::str::from_utf8(text).is_err() {
            room.back_to(before);
            return base64_string(room, text);
        }
    }
    room.byte(b'"');
}

/// Writes the bytes `from..end`, escaped. Not 0 when one of them is no ASCII.
#[inline(always)]
fn piece(room: &mut Room<'_>, bytes: &[u8], mut from: usize, end: usize) -> u64 {
    // Two words more: each store takes eight bytes, however many count.
    let target = room.ahead((end - from) * ESCAPE_BYTES_MAX + 16);
    let mut to = 0;
    let mut high = 0;
    while from < end {
        let word = word_at(bytes, from);
        store(target, to, word.to_le_bytes());
        let left = end - from;
        let mut flags = specials(word);
        let mut own = HIGHS;
        if left < 8 {
            // The bytes behind the end are no part of the text: it stops at the first of them.
            let behind = 0x80 << (8 * left);
            flags |= behind;
            own = HIGHS & (behind - 1);
        }
        high |= word & own;
        let count = lowest(flags);
        from += count;
        to += count;
        if count < 8 && from < end {
            let byte = bytes.get(from).copied().unwrap_or(0);
            let (text, length) = ESCAPES[usize::from(byte)];
            store(target, to, text);
            to += usize::from(length);
            from += 1;
        }
    }
    room.advance(to);
    high
}

#[inline(always)]
fn store(target: &mut [u8], at: usize, word: [u8; 8]) {
    if let Some(room) = target.get_mut(at..at + 8) {
        room.copy_from_slice(&word);
    }
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
