//! Counts and divides the lines of newline-delimited text, and turns lines into entries of the packed encoding (MessagePack
//! `[time, map]`).
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> [decode] -> send -> keep -> read back -> process -> [encode] -> write -> settle`

use memchr::{memchr_iter, memrchr};
use millstream_record::Time;
use wide::u8x16;

use crate::{
    msgpack::{write_array_len, write_map_len, write_str, write_time},
    record::MESSAGE,
    room::Room,
};

/// The number of newlines in `text`.
pub fn count(text: &[u8]) -> u32 {
    u32::try_from(memchr_iter(b'\n', text).count()).unwrap_or(u32::MAX)
}

/// Calls `each` with the offset of every newline, in order.
///
/// For lines of a hundred bytes this takes a third of the time of `memchr_iter`, which starts a new search after each newline.
#[inline(always)]
pub fn each_newline(text: &[u8], mut each: impl FnMut(usize)) {
    let (blocks, rest) = text.as_chunks::<BLOCK_BYTES>();
    for (number, block) in blocks.iter().enumerate() {
        let mut found = newlines(block);
        while found != 0 {
            each(number * BLOCK_BYTES + found.trailing_zeros() as usize);
            found &= found - 1;
        }
    }
    let start = text.len() - rest.len();
    let ends = memchr_iter(b'\n', rest);
    ends.for_each(|end| each(start + end));
}

/// The number of bytes that [`each_newline`] tests together: each byte has one bit of a `u64`.
const BLOCK_BYTES: usize = 64;

/// Returns the newlines of the block as a bit set: bit n is set if byte n is a newline.
#[inline(always)]
fn newlines(block: &[u8; BLOCK_BYTES]) -> u64 {
    let newline = u8x16::splat(b'\n');
    let (parts, _) = block.as_chunks::<16>();
    let bits = parts.iter().enumerate().map(|(at, part)| {
        let found = u8x16::new(*part).simd_eq(newline).to_bitmask();
        u64::from(found as u16) << (16 * at)
    });
    bits.fold(0, |all, bits| all | bits)
}

/// The offset after the last newline of `text`, where its complete lines end; 0 if there is no newline.
pub fn whole(text: &[u8]) -> usize {
    memrchr(b'\n', text).map_or(0, |last| last + 1)
}

/// The offset after the last newline within the first `bytes_max` bytes of `text`; 0 if these bytes have no newline.
pub fn cut(text: &[u8], bytes_max: usize) -> usize {
    whole(text.get(..bytes_max).unwrap_or(text))
}

/// The lines of `text` without their newlines. Text after the last newline is a line, too.
pub fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let end = text.len();
    let ends = memchr_iter(b'\n', text).chain((whole(text) < end).then_some(end));
    ends.scan(0, |start, end| {
        let line = text.get(*start..end);
        *start = end + 1;
        line
    })
}

/// Returns `text` without the CR before each newline. `None` if there is no such CR, so that the bytes can be used as they are.
///
/// Most text has no CR at all. One search for a CR then costs less than a look at the byte before each newline.
pub fn without_returns(text: &[u8]) -> Option<Vec<u8>> {
    let ends_line = |at: &usize| text.get(at + 1) == Some(&b'\n');
    let mut returns = memchr_iter(b'\r', text).filter(ends_line);
    let first = returns.next()?;
    let mut out = Vec::with_capacity(text.len() - 1);
    let mut from = 0;
    for at in std::iter::once(first).chain(returns) {
        out.extend_from_slice(text.get(from..at).unwrap_or_default());
        from = at + 1;
    }
    out.extend_from_slice(text.get(from..).unwrap_or_default());
    Some(out)
}

/// Appends one entry `[time, {"message": text}]`.
pub fn write_entry(out: &mut Vec<u8>, time: Time, text: &[u8]) {
    write_array_len(out, 2);
    write_time(out, time);
    write_map_len(out, 1);
    write_str(out, MESSAGE.as_bytes());
    write_str(out, text);
}

/// Writes the MessagePack head (type and length) of a str of `length` bytes.
#[inline(always)]
pub(crate) fn str_head(room: &mut Room<'_>, length: usize) {
    match length {
        0..32 => room.byte(0xa0 | length as u8),
        32..256 => {
            room.byte(0xd9);
            room.byte(length as u8);
        }
        _ => long_str_head(room, length),
    }
}

/// Writes the head of a str of at least 256 bytes. Its length fits into 32 bits, because no body reaches 4 GiB.
fn long_str_head(room: &mut Room<'_>, length: usize) {
    if let Ok(length) = u16::try_from(length) {
        room.byte(0xda);
        room.bytes(&length.to_be_bytes());
    } else {
        room.byte(0xdb);
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        room.bytes(&length.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_newline_is_found_once_and_in_order(
            text in proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..300),
        ) {
            let mut found = Vec::new();
            each_newline(&text, |end| found.push(end));
            let expected: Vec<_> = memchr_iter(b'\n', &text).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn only_a_cr_before_a_newline_is_removed() {
        let without = |text: &str| {
            let found = without_returns(text.as_bytes());
            found.map(|text| String::from_utf8(text).unwrap())
        };
        for text in ["", "a\nb\n", "10%\r20%\n", "a\r", "\n\r"] {
            assert_eq!(without(text), None, "{text:?}");
        }
        assert_eq!(without("a\r\nb\nc\r\n").unwrap(), "a\nb\nc\n");
        assert_eq!(without("\r\n1\r2\r\r\nc\r").unwrap(), "\n1\r2\r\nc\r");
    }

    #[test]
    fn text_is_counted_and_divided_at_newlines() {
        assert_eq!(count(b"a\n\nb\nc"), 3);
        assert_eq!(whole(b"a\nb"), 2);
        assert_eq!(whole(b"ab"), 0);
        assert_eq!(cut(b"ab\ncd\n", 5), 3);
        assert_eq!(cut(b"ab\ncd\n", 100), 6);
        assert_eq!(cut(b"abcd\n", 3), 0);
        assert_eq!(lines(b"").count(), 0);
        assert!(lines(b"\n").eq([b""]));
        assert!(lines(b"a\n\nb").eq([&b"a"[..], b"", b"b"]));
    }
}
