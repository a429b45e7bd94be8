//! Writes a map of maps as structured data of RFC 5424: the inverse of `structured`.
//!
//! ```text
//! {"x@1": {"k": "v\"1", "ip": ["a", "b"]}, "y@1": {}}     [x@1 k="v\"1" ip="a" ip="b"][y@1]
//! ```

use super::word::{text_of, word};
use crate::msgpack::Reader;

/// The maximum length of a name in bytes.
const NAME_BYTES_MAX: usize = 32;

/// Writes the map `value` as structured data. Elements that are not maps are left out. Writes `-` if no element
/// remains, or if `value` is not a map.
pub(super) fn write(value: &[u8], scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
    let start = out.len();
    // Errors are ignored: the values in a batch are complete, and a value that is not a map has no elements.
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

/// Writes a name with its value, or with each value of a list. The key is read once: it may be long, and the list may have many
/// values.
fn values_of(key: &[u8], value: &[u8], scratch: &mut Vec<u8>, out: &mut Vec<u8>) -> Option<()> {
    // The name in the output, once it is written.
    let mut named = 0..0;
    let mut one = |value: &[u8]| {
        out.push(b' ');
        if named.is_empty() {
            text_of(key, scratch);
            let start = out.len();
            name(scratch, out);
            named = start..out.len();
        } else {
            out.extend_from_within(named.clone());
        }
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
