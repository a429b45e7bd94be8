//! Single values of a record, for all text formats.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! This module handles texts of at most 65535 bytes, unsigned integers of at most 32 bits, booleans and nil. Its code
//! is inlined into the loop of each format. [`crate::json`] handles all other values.

use super::Reason;
use crate::{
    json::{self, Unfit},
    msgpack::{Reader, skip},
    room::Room,
};

/// Returns the start and the length of the text at `at`; `None` if the value is not a complete str of at most 65535
/// bytes.
#[inline(always)]
pub(super) fn text_at(body: &[u8], at: usize) -> Option<(usize, usize)> {
    let (start, length) = match *body.get(at..)? {
        [marker @ 0xa0..=0xbf, ..] => (at + 1, usize::from(marker & 0x1f)),
        [0xd9, length, ..] => (at + 2, usize::from(length)),
        [0xda, high, low, ..] => (at + 3, usize::from(u16::from_be_bytes([high, low]))),
        _ => return None,
    };
    (start + length <= body.len()).then_some((start, length))
}

/// Returns the number of pairs of the map at `at`, and the offset of the first pair.
#[inline(always)]
pub(super) fn map_at(body: &[u8], at: usize) -> Result<(u32, usize), Unfit> {
    match body.get(at) {
        Some(&marker @ 0x80..=0x8f) => Ok((u32::from(marker & 0x0f), at + 1)),
        _ => long_map(body, at),
    }
}

#[cold]
fn long_map(body: &[u8], at: usize) -> Result<(u32, usize), Unfit> {
    let mut reader = Reader::at(body, at);
    let left = reader.map_len()?;
    Ok((left, reader.position()))
}

/// Writes a value as JSON; returns the offset after the value. The value must not be a short text.
#[inline]
pub(super) fn other(room: &mut Room<'_>, body: &[u8], at: usize) -> Result<usize, Unfit> {
    let (number, size) = match *body.get(at..).unwrap_or_default() {
        [0xc0, ..] => return constant(room, b"null    ", 4, at),
        [0xc2, ..] => return constant(room, b"false   ", 5, at),
        [0xc3, ..] => return constant(room, b"true    ", 4, at),
        [number @ 0..0x80, ..] => (u32::from(number), 1),
        [0xcc, number, ..] => (u32::from(number), 2),
        [0xcd, a, b, ..] => (u32::from(u16::from_be_bytes([a, b])), 3),
        [0xce, a, b, c, d, ..] => (u32::from_be_bytes([a, b, c, d]), 5),
        _ => return any(room, body, at),
    };
    let mut buffer = [0; json::INTEGER_BYTES];
    let start = json::unsigned_digits(u64::from(number), &mut buffer);
    room.bytes(buffer.get(start..).unwrap_or_default());
    Ok(at + size)
}

#[inline(always)]
fn constant(room: &mut Room<'_>, word: &[u8; 8], count: usize, at: usize) -> Result<usize, Unfit> {
    room.word(*word, count);
    Ok(at + 1)
}

#[cold]
#[inline(never)]
fn any(room: &mut Room<'_>, body: &[u8], at: usize) -> Result<usize, Unfit> {
    json::value(room, body, at)
}

/// How a format without types writes text.
pub(super) trait Plain {
    /// Writes text.
    fn text(room: &mut Room<'_>, text: &[u8]);
}

/// Writes any value as text: a text as [`Plain::text`] writes it, nothing for nil, and JSON for any other type. Returns
/// the offset after the value. `scratch` holds the JSON before it is written as text.
#[inline]
pub(super) fn plain<P: Plain>(
    room: &mut Room<'_>,
    body: &[u8],
    at: usize,
    scratch: &mut Vec<u8>,
) -> Result<usize, Unfit> {
    if let Some((start, length)) = text_at(body, at) {
        P::text(room, body.get(start..start + length).unwrap_or_default());
        return Ok(start + length);
    }
    match body.get(at) {
        Some(0xc0) => Ok(at + 1),
        // Integers, booleans and floats never need an escape.
        Some(0x00..=0x7f | 0xc2 | 0xc3 | 0xca..=0xd3 | 0xe0..=0xff) => other(room, body, at),
        _ => rare::<P>(room, body, at, scratch),
    }
}

#[cold]
#[inline(never)]
fn rare<P: Plain>(
    room: &mut Room<'_>,
    body: &[u8],
    at: usize,
    scratch: &mut Vec<u8>,
) -> Result<usize, Unfit> {
    let mut reader = Reader::at(body, at);
    if let Ok(text) = reader.bytes() {
        P::text(room, text);
        return Ok(reader.position());
    }
    scratch.clear();
    let end = json::value(&mut Room::with(scratch, room.invalid_utf8()), body, at)?;
    // JSON puts a time into quotes, which are removed here.
    let text = match &scratch[..] {
        [b'"', text @ .., b'"'] => text,
        text => text,
    };
    P::text(room, text);
    Ok(end)
}

/// The offset after `values` values that begin at `at`.
#[inline]
pub(super) fn behind(body: &[u8], at: usize, values: u64) -> Result<usize, Reason> {
    let mut open = values;
    match skip(body, at, &mut open) {
        Ok(end) if open == 0 => Ok(end),
        _ => Err(Unfit::Malformed.into()),
    }
}
