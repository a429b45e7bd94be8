//! Decodes MessagePack to VRL values. Texts are slices of the body, without a copy.
//!
//! Recursion is bounded by [`DEPTH_MAX`], because dropping and encoding a value recurses as well. The memory of maps and arrays is
//! bounded by [`memory_max`], because many small maps take far more memory than their bytes.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use millstream_wire::msgpack::{EVENT_TIME, ReadError, Reader};
use vrl::{
    prelude::NotNan,
    value::{KeyString, ObjectMap, Value},
};

use crate::{
    DEPTH_MAX,
    weight::{self, ELEMENT, memory_max},
};

/// Ext type of the timestamp that the MessagePack specification defines (4, 8 or 12 bytes).
const TIMESTAMP: i8 = -1;

/// Why a field cannot become a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undecodable {
    /// It nests deeper than [`DEPTH_MAX`].
    Deep,
    /// Its maps and arrays would take more than [`memory_max`].
    Large,
    /// It is not valid MessagePack. This does not happen, because the fields of a batch are always valid.
    Malformed,
}

impl From<ReadError> for Undecodable {
    fn from(_: ReadError) -> Self {
        Self::Malformed
    }
}

/// Decodes the value at offset `at` of `body`.
#[inline]
pub(crate) fn value(body: &Bytes, at: usize) -> Result<Value, Undecodable> {
    // Most fields that a program reads are texts of less than 256 bytes.
    let text = match *body.get(at..).unwrap_or_default() {
        [marker @ 0xa0..=0xbf, ..] => at + 1..at + 1 + usize::from(marker & 0x1f),
        [0xd9, length, ..] => at + 2..at + 2 + usize::from(length),
        _ => 0..usize::MAX,
    };
    if text.end <= body.len() {
        return Ok(Value::Bytes(body.slice(text)));
    }
    let mut left = memory_max();
    any(body, &mut Reader::at(body, at), DEPTH_MAX, &mut left)
}

/// Decodes the map at offset `at` of `body`. Its values may nest [`DEPTH_MAX`] deep.
pub(crate) fn record(body: &Bytes, at: usize) -> Result<ObjectMap, Undecodable> {
    let mut left = memory_max();
    map(body, &mut Reader::at(body, at), DEPTH_MAX, &mut left)
}

/// `depth` is the number of further levels that may nest, and `left` the number of bytes that maps and arrays may still take.
fn any(
    body: &Bytes,
    reader: &mut Reader<'_>,
    depth: usize,
    left: &mut usize,
) -> Result<Value, Undecodable> {
    Ok(match reader.peek()? {
        0xa0..=0xbf | 0xd9..=0xdb | 0xc4..=0xc6 => Value::Bytes(body.slice_ref(reader.bytes()?)),
        0x00..=0x7f | 0xe0..=0xff | 0xcc..=0xd3 => integer(reader.int()?),
        0xc0 => {
            reader.nil()?;
            Value::Null
        }
        0xc2 | 0xc3 => Value::Boolean(reader.bool()?),
        0xca | 0xcb => float(reader.float()?),
        0x80..=0x8f | 0xde | 0xdf => {
            let depth = depth.checked_sub(1).ok_or(Undecodable::Deep)?;
            Value::Object(map(body, reader, depth, left)?)
        }
        0x90..=0x9f | 0xdc | 0xdd => {
            let depth = depth.checked_sub(1).ok_or(Undecodable::Deep)?;
            let length = reader.array_len()?;
            // Every element has at least one byte. So the capacity is at most the number of remaining bytes, even if
            // a larger length is announced.
            let rest = body.len().saturating_sub(reader.position());
            let capacity = rest.min(length as usize);
            take(left, capacity.saturating_mul(ELEMENT))?;
            let mut array = Vec::with_capacity(capacity);
            for _ in 0..length {
                array.push(any(body, reader, depth, left)?);
            }
            Value::Array(array)
        }
        0xd4..=0xd8 | 0xc7..=0xc9 => {
            let (code, data) = reader.ext()?;
            time(code, data).map_or_else(|| Value::Bytes(body.slice_ref(data)), Value::Timestamp)
        }
        0xc1 => return Err(Undecodable::Malformed),
    })
}

fn map(
    body: &Bytes,
    reader: &mut Reader<'_>,
    depth: usize,
    left: &mut usize,
) -> Result<ObjectMap, Undecodable> {
    let mut map = ObjectMap::new();
    let count = reader.map_len()?;
    take(left, weight::map(count as usize))?;
    for _ in 0..count {
        let key = key(reader)?;
        let value = any(body, reader, depth, left)?;
        map.entry(key).or_insert(value);
    }
    Ok(map)
}

fn take(left: &mut usize, bytes: usize) -> Result<(), Undecodable> {
    *left = left.checked_sub(bytes).ok_or(Undecodable::Large)?;
    weight::note(memory_max().saturating_sub(*left));
    Ok(())
}

/// Reads a key as text: the name by which a program refers to the field.
pub(crate) fn key(reader: &mut Reader<'_>) -> Result<KeyString, Undecodable> {
    Ok(match reader.peek()? {
        0xa0..=0xbf | 0xd9..=0xdb | 0xc4..=0xc6 => {
            KeyString::from(String::from_utf8_lossy(reader.bytes()?))
        }
        0x00..=0x7f | 0xe0..=0xff | 0xcc..=0xd3 => reader.int()?.to_string().into(),
        0xc0 => {
            reader.nil()?;
            "null".into()
        }
        0xc2 | 0xc3 => reader.bool()?.to_string().into(),
        0xca | 0xcb => reader.float()?.to_string().into(),
        // A key that is an array, a map or an ext value has no name. A program sees all such keys as "".
        _ => {
            reader.skip()?;
            "".into()
        }
    })
}

fn integer(value: i128) -> Value {
    match i64::try_from(value) {
        Ok(value) => Value::Integer(value),
        Err(_) => float(value as f64),
    }
}

/// Returns the time in an ext value, or `None` if the value is not a valid time.
fn time(code: i8, data: &[u8]) -> Option<DateTime<Utc>> {
    let (seconds, nanos) = match *data {
        [a, b, c, d, e, f, g, h] if code == EVENT_TIME => (
            i64::from(u32::from_be_bytes([a, b, c, d])),
            u32::from_be_bytes([e, f, g, h]),
        ),
        _ if code != TIMESTAMP => return None,
        [a, b, c, d] => (i64::from(u32::from_be_bytes([a, b, c, d])), 0),
        [a, b, c, d, e, f, g, h] => {
            // 30 bits of nanoseconds, 34 bits of seconds.
            let both = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
            (
                i64::try_from(both & 0x3_ffff_ffff).ok()?,
                u32::try_from(both >> 34).ok()?,
            )
        }
        [a, b, c, d, e, f, g, h, i, j, k, l] => (
            i64::from_be_bytes([e, f, g, h, i, j, k, l]),
            u32::from_be_bytes([a, b, c, d]),
        ),
        _ => return None,
    };
    DateTime::from_timestamp(seconds, nanos)
}

/// VRL has no NaN, so NaN becomes null.
fn float(value: f64) -> Value {
    NotNan::new(value).map_or(Value::Null, Value::Float)
}
