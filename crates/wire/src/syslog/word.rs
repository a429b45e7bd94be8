//! Writes words of a syslog header, and converts values to the texts of words.

use crate::{json, msgpack::Reader};

/// Writes a value as text to `scratch`: text unchanged, nil and a missing value (an empty slice) as an empty text, and all other
/// values as JSON.
pub(super) fn text_of(value: &[u8], scratch: &mut Vec<u8>) {
    scratch.clear();
    match Reader::new(value).bytes() {
        Ok(text) => scratch.extend_from_slice(text),
        Err(_) if matches!(value, [] | [0xc0]) => {}
        // A value that JSON cannot represent is left out.
        Err(_) => drop(json::write_value(value, 0, scratch)),
    }
}

/// Writes a word of the header: at most `bytes_max` bytes of printable ASCII without spaces. Bytes that are not allowed, or that
/// `takes` refuses, become `_`. An empty text becomes `nil`.
pub(super) fn word(
    text: &[u8],
    bytes_max: usize,
    nil: &[u8],
    takes: impl Fn(u8) -> bool,
    out: &mut Vec<u8>,
) {
    if text.is_empty() {
        out.extend_from_slice(nil);
        return;
    }
    let fits = |byte: u8| matches!(byte, 33..=126) && takes(byte);
    let text = text.get(..bytes_max).unwrap_or(text);
    out.extend(
        text.iter()
            .map(|byte| if fits(*byte) { *byte } else { b'_' }),
    );
}
