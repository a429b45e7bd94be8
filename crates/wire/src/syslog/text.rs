//! Writes the texts of a message. A text is a MessagePack str, or a bin if it is not UTF-8.

use crate::room::Room;

/// The longest header of a str or bin, in bytes.
const HEAD_BYTES_MAX: usize = 5;

/// Writes `value` as a str, or as a bin if it is not UTF-8.
#[inline(always)]
pub(super) fn str_or_bin(value: &[u8], room: &mut Room<'_>) {
    let length = value.len();
    let ahead = room.ahead(HEAD_BYTES_MAX + length);
    let (head, ascii) = match length {
        0..32 => put(ahead, &[0xa0 | length as u8], value),
        32..256 => put(ahead, &[0xd9, length as u8], value),
        256..65_536 => {
            let [high, low] = (length as u16).to_be_bytes();
            put(ahead, &[0xda, high, low], value)
        }
        _ => {
            let [a, b, c, d] = (length as u32).to_be_bytes();
            put(ahead, &[0xdb, a, b, c, d], value)
        }
    };
    if !ascii && str::from_utf8(value).is_err() {
        return bin(value, room);
    }
    room.advance(head + length);
}

#[cold]
fn bin(value: &[u8], room: &mut Room<'_>) {
    bin_head(value.len(), room);
    room.bytes(value);
}

fn bin_head(length: usize, room: &mut Room<'_>) {
    let [a, b, c, d] = (length as u32).to_be_bytes();
    match length {
        0..256 => room.bytes(&[0xc4, d]),
        256..65_536 => room.bytes(&[0xc5, c, d]),
        _ => room.bytes(&[0xc6, a, b, c, d]),
    }
}

/// Writes the header of a str of `length` bytes, or of a bin if `like` is not UTF-8.
pub(super) fn head(like: &[u8], length: usize, room: &mut Room<'_>) {
    if str::from_utf8(like).is_ok() {
        crate::lines::str_head(room, length);
    } else {
        bin_head(length, room);
    }
}

/// Stores a header and a value. Returns the length of the header, and whether the whole value is ASCII.
#[inline(always)]
fn put<const N: usize>(room: &mut [u8], head: &[u8; N], value: &[u8]) -> (usize, bool) {
    let mut seen = 0x80;
    if let Some((first, rest)) = room.split_first_chunk_mut() {
        *first = *head;
        if let Some(rest) = rest.get_mut(..value.len()) {
            seen = copy(rest, value);
        }
    }
    (N, seen < 0x80)
}

/// The number of bytes that are copied at a time.
const BLOCK: usize = 32;

/// Copies `from` to `to`, which has the same length. Returns the OR of all bytes. If the OR is below 0x80, all bytes are ASCII.
#[inline(always)]
fn copy(to: &mut [u8], from: &[u8]) -> u8 {
    let (Some(last), Some(last_to)) = (from.last_chunk::<BLOCK>(), to.last_chunk_mut::<BLOCK>())
    else {
        return copy_few(to, from);
    };
    // The length may not be a multiple of `BLOCK`. So the last `BLOCK` bytes are copied separately; they may overlap the last full
    // block.
    let mut seen = *last;
    *last_to = *last;
    let (blocks, _) = from.as_chunks::<BLOCK>();
    let (places, _) = to.as_chunks_mut::<BLOCK>();
    for (place, block) in places.iter_mut().zip(blocks) {
        *place = *block;
        for (seen, byte) in seen.iter_mut().zip(block) {
            *seen |= byte;
        }
    }
    seen.iter().fold(0, |all, byte| all | byte)
}

/// Like [`copy`], for less than a block: copies two halves that may overlap.
#[inline(always)]
fn copy_few(to: &mut [u8], from: &[u8]) -> u8 {
    if let Some(seen) = halves::<16>(to, from) {
        return seen;
    }
    if let Some(seen) = halves::<8>(to, from).or_else(|| halves::<4>(to, from)) {
        return seen;
    }
    let mut seen = 0;
    for (place, byte) in to.iter_mut().zip(from) {
        *place = *byte;
        seen |= byte;
    }
    seen
}

/// Copies the first and the last `N` bytes, which cover up to `2 * N` bytes. Returns `None` if there are fewer than `N`.
#[inline(always)]
fn halves<const N: usize>(to: &mut [u8], from: &[u8]) -> Option<u8> {
    let (first, last) = (from.first_chunk::<N>()?, from.last_chunk::<N>()?);
    *to.first_chunk_mut()? = *first;
    *to.last_chunk_mut()? = *last;
    let both = first.iter().zip(last);
    Some(both.fold(0, |seen, (a, b)| seen | a | b))
}
