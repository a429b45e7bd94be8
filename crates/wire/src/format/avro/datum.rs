//! Writes the Avro types long, bytes and string. Any MessagePack value can be written as an Avro string.

use super::super::value::text_at;
use crate::{
    json::{self, Unfit},
    msgpack::Reader,
    room::Room,
};

/// A text of fewer bytes than this has a head of one byte, in MessagePack and in Avro.
pub(super) const SHORT_BYTES: usize = 32;
/// The longest encoding of a long, in bytes.
const LONG_BYTES_MAX: usize = 10;

/// Returns the length of the text that begins with this MessagePack head, if the text has fewer than [`SHORT_BYTES`] bytes.
/// Returns `None` for any other value.
#[inline(always)]
pub(super) fn short(head: u8) -> Option<usize> {
    matches!(head, 0xa0..=0xbf).then_some(usize::from(head & 0x1f))
}

/// Copies the short text at `at`, with Avro's head instead of MessagePack's.
#[inline(always)]
pub(super) fn copy_short(room: &mut Room<'_>, body: &[u8], at: usize, length: usize) -> Option<()> {
    let head = (length as u8) << 1;
    match body.get(at..)?.first_chunk::<SHORT_BYTES>() {
        Some(chunk) => {
            let mut chunk = *chunk;
            chunk[0] = head;
            *room.ahead(SHORT_BYTES).first_chunk_mut()? = chunk;
            room.advance(1 + length);
        }
        None => {
            room.byte(head);
            room.bytes(body.get(at + 1..at + 1 + length)?);
        }
    }
    Some(())
}

/// Replaces the byte at `start` by an encoded length. If the encoded length has more than one byte, moves the bytes after
/// `start`.
#[cold]
pub(super) fn head_at(room: &mut Room<'_>, start: usize, length: usize) {
    let mut head = [0; LONG_BYTES_MAX];
    let size = long(length, &mut head);
    room.insert(start + 1, size - 1);
    room.patch(start, head.get(..size).unwrap_or_default());
}

/// Encodes a length as a long; returns the number of bytes of the long.
#[inline(always)]
fn long(length: usize, head: &mut [u8; LONG_BYTES_MAX]) -> usize {
    let mut bits = (length as u64) << 1;
    let mut size = 0;
    for byte in head {
        size += 1;
        if bits < 0x80 {
            *byte = bits as u8;
            break;
        }
        *byte = bits as u8 | 0x80;
        bits >>= 7;
    }
    size
}

/// Writes bytes, preceded by their length.
#[inline(always)]
pub(super) fn bytes(room: &mut Room<'_>, bytes: &[u8]) {
    match bytes.len() {
        length @ 0..64 => room.byte((length as u8) << 1),
        length @ 64..8192 => {
            let bits = (length as u16) << 1;
            room.bytes(&[bits as u8 | 0x80, (bits >> 7) as u8]);
        }
        length => {
            let mut head = [0; LONG_BYTES_MAX];
            let size = long(length, &mut head);
            room.bytes(head.get(..size).unwrap_or_default());
        }
    }
    room.bytes(bytes);
}

/// Writes `text` as a string. If `text` is not UTF-8, writes its base64 instead.
#[inline]
pub(in crate::format) fn string(room: &mut Room<'_>, text: &[u8]) {
    if text.is_ascii() || str::from_utf8(text).is_ok() {
        bytes(room, text);
    } else {
        not_utf8(room, text);
    }
}

#[cold]
fn not_utf8(room: &mut Room<'_>, text: &[u8]) {
    let start = room.position();
    room.byte(0);
    json::base64(room, text);
    head_at(room, start, room.position() - start - 1);
}

/// Writes the MessagePack value at `at` as a string; returns the offset after the value.
#[inline]
pub(in crate::format) fn value(
    room: &mut Room<'_>,
    body: &[u8],
    at: usize,
) -> Result<usize, Unfit> {
    if let Some((start, length)) = text_at(body, at) {
        string(room, body.get(start..start + length).unwrap_or_default());
        return Ok(start + length);
    }
    let (number, size) = match *body.get(at..).unwrap_or_default() {
        [number @ 0..0x80, ..] => (u32::from(number), 1),
        [0xcc, number, ..] => (u32::from(number), 2),
        [0xcd, a, b, ..] => (u32::from(u16::from_be_bytes([a, b])), 3),
        [0xce, a, b, c, d, ..] => (u32::from_be_bytes([a, b, c, d]), 5),
        _ => return other(room, body, at),
    };
    let mut buffer = [0; json::INTEGER_BYTES];
    let start = json::unsigned_digits(u64::from(number), &mut buffer);
    bytes(room, buffer.get(start..).unwrap_or_default());
    Ok(at + size)
}

/// Writes a value that is neither a short text nor a small number.
#[cold]
#[inline(never)]
fn other(room: &mut Room<'_>, body: &[u8], at: usize) -> Result<usize, Unfit> {
    let mut reader = Reader::at(body, at);
    if let Ok(text) = reader.bytes() {
        string(room, text);
        return Ok(reader.position());
    }
    let start = room.position();
    room.byte(0);
    if reader.nil().is_ok() {
        return Ok(reader.position());
    }
    let end = json::value(room, body, at)?;
    // JSON puts a time into quotes, which are removed here.
    let mut time = [0; 64];
    if let [b'"', text @ .., b'"'] = room.since(start + 1)
        && let Some(copy) = time.get_mut(..text.len())
    {
        copy.copy_from_slice(text);
        let length = text.len();
        room.back_to(start);
        bytes(room, time.get(..length).unwrap_or_default());
        return Ok(end);
    }
    head_at(room, start, room.position() - start - 1);
    Ok(end)
}
