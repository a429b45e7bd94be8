//! Writes MessagePack values as JSON text, in one pass, without a tree and without recursion.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! ```text
//! nil, true, false        null, true, false
//! integer                 all its digits
//! float                   the shortest digits that give the same float (of its width); an integer as it is; NaN and infinities: null
//! str, bin                a string; if it is not UTF-8: the base64 of all its bytes (RFC 4648, with padding), or as
//!                         [`super::InvalidUtf8`] demands
//! array                   an array
//! map                     an object in the same order; of a key that occurs twice, only the last value
//!   its keys              a string; nil, booleans and numbers: their JSON in quotes; others: an error
//! ext 0 of 8 bytes        EventTime: a string, RFC 3339 with nanoseconds
//! ext -1                  MessagePack's timestamp: likewise, from 1677 to 2262; otherwise like other ext
//! other ext               {"type":5,"data":"<base64>"}
//! ```

use millstream_record::Time;

use super::{
    DEPTH_MAX,
    digits::{INTEGER_BYTES, digits},
    repeats::{Keys, without},
    string::{base64, string},
};
use crate::{
    msgpack::{EVENT_TIME, ReadError, Reader},
    rfc3339::Rfc3339,
    room::Room,
};

/// The ext type of MessagePack's own timestamps.
const TIMESTAMP: i8 = -1;

/// Larger floats are written with an exponent.
const PLAIN_MAX: f32 = 1e16;
/// The length of the longest float, `-2.2250738585072014e-308`.
const FLOAT_BYTES: usize = 24;

/// A value that JSON text cannot represent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// More than [`DEPTH_MAX`] nested arrays and maps.
    #[error("more than {DEPTH_MAX} levels of nesting")]
    TooDeep,
    /// A map, array or ext as the key of a map.
    #[error("a map has a key that is neither text nor a number")]
    Key,
    /// Not MessagePack, or truncated.
    #[error("not a complete MessagePack value")]
    Malformed,
}

impl From<ReadError> for Unfit {
    fn from(_: ReadError) -> Self {
        Self::Malformed
    }
}

/// Appends the value at offset `at` of `bytes` as JSON text; returns the offset after the value.
///
/// # Errors
/// If JSON cannot represent the value. In that case, `out` is unchanged.
pub fn write_value(bytes: &[u8], at: usize, out: &mut Vec<u8>) -> Result<usize, Unfit> {
    let mut room = Room::new(out);
    let start = room.position();
    let result = value(&mut room, bytes, at);
    if result.is_err() {
        room.back_to(start);
    }
    result
}

/// An array or map whose end was not reached yet.
#[derive(Clone, Copy, Default)]
struct OpenContainer {
    /// Elements or pairs that remain.
    left: u32,
    map: bool,
    begun: bool,
    keys: Keys,
}

/// Writes one value of any type. Returns the offset after the value. After an error, part of the value remains in the
/// output.
pub(crate) fn value(room: &mut Room<'_>, bytes: &[u8], at: usize) -> Result<usize, Unfit> {
    let mut reader = Reader::at(bytes, at);
    if let Some(outer) = open(&mut reader)? {
        let start = room.position();
        if !nested(room, bytes, &mut reader, outer)? {
            room.back_to(start);
            let mut copy = Vec::new();
            let end = without(bytes, at, &mut copy)?;
            value(room, &copy, 0)?;
            return Ok(end);
        }
    } else {
        scalar(room, bytes, &mut reader)?;
    }
    Ok(reader.position())
}

/// Reads the head of an array or map; `None` for other values.
fn open(reader: &mut Reader<'_>) -> Result<Option<OpenContainer>, Unfit> {
    let (left, map) = match reader.peek()? {
        0x80..=0x8f | 0xde | 0xdf => (reader.map_len()?, true),
        0x90..=0x9f | 0xdc | 0xdd => (reader.array_len()?, false),
        _ => return Ok(None),
    };
    Ok(Some(OpenContainer {
        left,
        map,
        begun: false,
        keys: Keys::default(),
    }))
}

/// Writes an array or map. Returns false, and stops, if a map has a repeated key.
fn nested(
    room: &mut Room<'_>,
    bytes: &[u8],
    reader: &mut Reader<'_>,
    outer: OpenContainer,
) -> Result<bool, Unfit> {
    let mut stack = [OpenContainer::default(); DEPTH_MAX];
    stack[0] = outer;
    let mut depth = 1_usize;
    if outer.map && !stack[0].keys.begin(bytes, reader.position(), outer.left)? {
        return Ok(false);
    }
    room.byte(if outer.map { b'{' } else { b'[' });
    while let Some(top) = depth.checked_sub(1).and_then(|top| stack.get_mut(top)) {
        if top.left == 0 {
            room.byte(if top.map { b'}' } else { b']' });
            depth -= 1;
            continue;
        }
        top.left -= 1;
        if std::mem::replace(&mut top.begun, true) {
            room.byte(b',');
        }
        if top.map {
            let start = reader.position();
            key(room, bytes, reader)?;
            if !top.keys.note(bytes, start, reader.position()) {
                return Ok(false);
            }
            room.byte(b':');
        }
        match open(reader)? {
            None => scalar(room, bytes, reader)?,
            Some(mut inner) => {
                let at = reader.position();
                if inner.map && !inner.keys.begin(bytes, at, inner.left)? {
                    return Ok(false);
                }
                *stack.get_mut(depth).ok_or(Unfit::TooDeep)? = inner;
                depth += 1;
                room.byte(if inner.map { b'{' } else { b'[' });
            }
        }
    }
    Ok(true)
}

/// Writes a key as a string. Fails if the key is an array, a map or an ext value.
pub(crate) fn key(room: &mut Room<'_>, bytes: &[u8], reader: &mut Reader<'_>) -> Result<(), Unfit> {
    match reader.peek()? {
        0xa0..=0xbf | 0xd9..=0xdb | 0xc4..=0xc6 => scalar(room, bytes, reader),
        0x80..=0x9f | 0xdc..=0xdf | 0xc7..=0xc9 | 0xd4..=0xd8 => Err(Unfit::Key),
        _ => {
            room.byte(b'"');
            scalar(room, bytes, reader)?;
            room.byte(b'"');
            Ok(())
        }
    }
}

/// Writes a value that is neither an array nor a map.
fn scalar(room: &mut Room<'_>, bytes: &[u8], reader: &mut Reader<'_>) -> Result<(), Unfit> {
    match reader.peek()? {
        0xa0..=0xbf | 0xd9..=0xdb | 0xc4..=0xc6 => {
            let length = reader.bytes()?.len();
            string(room, bytes, reader.position() - length, length);
        }
        0xc0 => {
            reader.nil()?;
            room.bytes(b"null");
        }
        0xc2 | 0xc3 => room.bytes(if reader.bool()? { b"true" } else { b"false" }),
        0xca => float(room, FloatText::Single(reader.float()? as f32)),
        0xcb => float(room, FloatText::Double(reader.float()?)),
        0xc7..=0xc9 | 0xd4..=0xd8 => {
            let (code, data) = reader.ext()?;
            ext(room, code, data);
        }
        _ => {
            let mut buffer = [0; INTEGER_BYTES];
            room.bytes(digits(reader.int()?, &mut buffer));
        }
    }
    Ok(())
}

enum FloatText {
    Single(f32),
    Double(f64),
}

fn float(room: &mut Room<'_>, number: FloatText) {
    use std::io::Write;
    let mut text = [0; FLOAT_BYTES];
    let mut rest = &mut text[..];
    // `{:?}` gives the shortest digits that parse to the same float, with an exponent for very large and very small
    // numbers.
    let written = match number {
        // The shortest digits of a large float of 32 bits are those of another integer: 4294967296 would become 4294967300.
        FloatText::Single(number) if number.fract() == 0.0 && number.abs() < PLAIN_MAX => {
            write!(rest, "{:?}", f64::from(number))
        }
        FloatText::Single(number) if number.is_finite() => write!(rest, "{number:?}"),
        FloatText::Double(number) if number.is_finite() => write!(rest, "{number:?}"),
        _ => write!(rest, "null"),
    };
    debug_assert!(written.is_ok(), "24 bytes hold every float");
    let length = FLOAT_BYTES - rest.len();
    room.bytes(text.get(..length).unwrap_or_default());
}

fn ext(room: &mut Room<'_>, code: i8, data: &[u8]) {
    if let Some(time) = ext_time(code, data) {
        room.byte(b'"');
        room.bytes(&Rfc3339::new().text(time));
        room.byte(b'"');
        return;
    }
    let mut buffer = [0; INTEGER_BYTES];
    room.bytes(b"{\"type\":");
    room.bytes(digits(i128::from(code), &mut buffer));
    room.bytes(b",\"data\":\"");
    base64(room, data);
    room.bytes(b"\"}");
}

/// Returns the time of an ext value; `None` if it is not a time, or a time that [`Time`] cannot represent.
fn ext_time(code: i8, data: &[u8]) -> Option<Time> {
    let (seconds, nanos) = match (code, data) {
        (EVENT_TIME, &[a, b, c, d, e, f, g, h]) => (
            i64::from(u32::from_be_bytes([a, b, c, d])),
            u32::from_be_bytes([e, f, g, h]),
        ),
        (TIMESTAMP, &[a, b, c, d]) => (i64::from(u32::from_be_bytes([a, b, c, d])), 0),
        (TIMESTAMP, &[a, b, c, d, e, f, g, h]) => {
            let word = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
            let seconds = word & ((1 << 34) - 1);
            (
                i64::try_from(seconds).ok()?,
                u32::try_from(word >> 34).ok()?,
            )
        }
        (TIMESTAMP, &[n0, n1, n2, n3, a, b, c, d, e, f, g, h]) => (
            i64::from_be_bytes([a, b, c, d, e, f, g, h]),
            u32::from_be_bytes([n0, n1, n2, n3]),
        ),
        _ => return None,
    };
    if nanos > 999_999_999 {
        return None;
    }
    let nanos = i64::from(nanos);
    let time = seconds.checked_mul(1_000_000_000)?.checked_add(nanos)?;
    Some(Time(time))
}
