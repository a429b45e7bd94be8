//! Structured data of RFC 5424 out of a map of maps: the other way round than `structured`.
//!
//! ```text
//! {"x@1": {"k": "v\"1", "ip": ["a", "b"]}, "y@1": {}}     [x@1 k="v\"1" ip="a" ip="b"][y@1]
//! ```

use super::encode::{text_of, word};
use crate::msgpack::Reader;

/// The longest name there is.
const NAME_BYTES_MAX: usize = 32;

/// Appends structured data, or `-` if `value` is none: no map, or a map with nothing in it. What is no map within it is
/// left out.
pub(super) fn write(value: &[u8], scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
    let start = out.len();
    // A batch holds whole values; what is no map ends it at once.
    let _ = elements(value, scratch, out);
    if out.len() == start {
        out.push(b'-');
    }
}

fn elements(value: &[u8], scratch: &mut Vec<u8>, out: &mut Vec<u8>) -> Option<()> {
    let mut reader = Reader::new(value);
    for _ in 0..reader.map_len().ok()? {
        let id = reader.value().ok()?;
        let element = reader.value().ok()?;
        let mut values = Reader::new(element);
        let Ok(count) = values.map_len() else {
            continue;
        };
        text_of(id, scratch);
        out.push(b'[');
        name(scratch, out);
        for _ in 0..count {
            let key = values.value().ok()?;
            let value = values.value().ok()?;
            values_of(key, value, scratch, out)?;
        }
        out.push(b']');
    }
    Some(())
}

/// One name with its value, or with each of a list.
fn values_of(key: &[u8], value: &[u8], scratch: &mut Vec<u8>, out: &mut Vec<u8>) -> Option<()> {
    let mut one = |value: &[u8]| {
        out.push(b' ');
        text_of(key, scratch);
        name(scratch, out);
        out.extend_from_slice(b"=\"");
        text_of(value, scratch);
        for byte in scratch.iter() {
            if matches!(byte, b'"' | b'\\' | b']') {
                out.push(b'\\');
            }
            out.push(*byte);
        }
        out.push(b'"');
    };
    let mut list = Reader::new(value);
    match list.array_len() {
        Ok(count) => {
            for _ in 0..count {
                one(list.value().ok()?);
            }
        }
        Err(_) => one(value),
    }
    Some(())
}

fn name(text: &[u8], out: &mut Vec<u8>) {
    let takes = |byte| !matches!(byte, b'=' | b'[' | b']' | b'"');
    word(text, NAME_BYTES_MAX, b"_", takes, out);
}
