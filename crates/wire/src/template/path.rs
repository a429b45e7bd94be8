//! Values as parts of a path: none can leave the directory that the template's own text names.
//!
//! ```text
//! `/`, NUL, other control characters, bytes that are no UTF-8     each becomes _
//! a value of dots only, an empty value                            become _
//! a value of more than 200 bytes                                  is cut there
//! ```
//! So every part of the path in which a value stands holds a character that is no dot: no value, and no two values side
//! by side, can make `.` or `..`.

/// Longest value: names of files take 255 bytes, and the template adds text of its own.
pub(super) const VALUE_BYTES_MAX: usize = 200;

/// Appends `value` as a part of a path.
pub(super) fn write_part(value: &[u8], out: &mut Vec<u8>) {
    if value.iter().all(|&byte| byte == b'.') {
        out.push(b'_');
        return;
    }
    let end = out.len() + VALUE_BYTES_MAX;
    for chunk in value.utf8_chunks() {
        for character in chunk.valid().chars() {
            if out.len() + character.len_utf8() > end {
                return;
            }
            if character == '/' || character.is_control() {
                out.push(b'_');
            } else {
                let mut utf8 = [0; 4];
                out.extend_from_slice(character.encode_utf8(&mut utf8).as_bytes());
            }
        }
        for _ in chunk.invalid() {
            if out.len() == end {
                return;
            }
            out.push(b'_');
        }
    }
}

/// Appends a value as a part of the path or the query of a URL (RFC 3986): what is not unreserved is escaped. A value of
/// dots only would be read as a way out: it becomes `_`.
pub(super) fn write_escaped(value: &[u8], out: &mut Vec<u8>) {
    if value.iter().all(|byte| *byte == b'.') {
        out.push(b'_');
        return;
    }
    for byte in value {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(*byte),
            byte => {
                let digit = |value: u8| b"0123456789ABCDEF".get(usize::from(value)).copied();
                out.push(b'%');
                out.extend(digit(byte >> 4));
                out.extend(digit(byte & 15));
            }
        }
    }
}
