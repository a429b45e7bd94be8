//! Encodes VRL values as MessagePack.

use chrono::SecondsFormat;
use millstream_wire::msgpack;
use vrl::value::{ObjectMap, Value};

use crate::DEPTH_MAX;

/// A value nests deeper than [`DEPTH_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooDeep;

/// Appends one value. After an error, the bytes written before it remain in `out`.
pub(crate) fn value(out: &mut Vec<u8>, value: &Value) -> Result<(), TooDeep> {
    any(out, value, DEPTH_MAX)
}

/// Appends a record. Its values may nest [`DEPTH_MAX`] deep.
pub(crate) fn record(out: &mut Vec<u8>, map: &ObjectMap) -> Result<(), TooDeep> {
    object(out, map, DEPTH_MAX)
}

/// `depth` is the number of further levels that may nest.
fn any(out: &mut Vec<u8>, value: &Value, depth: usize) -> Result<(), TooDeep> {
    match value {
        Value::Bytes(bytes) => text(out, bytes),
        Value::String(string) => msgpack::write_str(out, string.as_bytes()),
        Value::Integer(value) => msgpack::write_int(out, *value),
        Value::Boolean(value) => msgpack::write_bool(out, *value),
        Value::Float(value) => msgpack::write_f64(out, value.into_inner()),
        Value::Null => msgpack::write_nil(out),
        Value::Regex(regex) => msgpack::write_str(out, regex.as_str().as_bytes()),
        Value::Timestamp(time) => match u32::try_from(time.timestamp()) {
            // In chrono, a leap second has 10^9 nanoseconds or more. EventTime cannot hold that.
            Ok(seconds) => {
                let nanos = time.timestamp_subsec_nanos().min(999_999_999);
                msgpack::write_event_time(out, seconds, nanos);
            }
            Err(_) => {
                let text = time.to_rfc3339_opts(SecondsFormat::AutoSi, true);
                msgpack::write_str(out, text.as_bytes());
            }
        },
        Value::Object(map) => object(out, map, depth.checked_sub(1).ok_or(TooDeep)?)?,
        Value::Array(array) => {
            let depth = depth.checked_sub(1).ok_or(TooDeep)?;
            msgpack::write_array_len(out, count(array.len()));
            for value in array {
                any(out, value, depth)?;
            }
        }
    }
    Ok(())
}

fn object(out: &mut Vec<u8>, map: &ObjectMap, depth: usize) -> Result<(), TooDeep> {
    msgpack::write_map_len(out, count(map.len()));
    for (key, value) in map {
        msgpack::write_str(out, key.as_bytes());
        any(out, value, depth)?;
    }
    Ok(())
}

/// Writes a text as str, and bytes that are not UTF-8 as bin.
fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(_) => msgpack::write_str(out, bytes),
        Err(_) => msgpack::write_bin(out, bytes),
    }
}

/// Converts a length. Collections in memory never have 2^32 elements.
fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
