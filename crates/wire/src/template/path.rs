//! Values in paths: no value can leave the directory that the template's own text names.
//!
//! ```text
//! `/`, NUL, other control characters, bytes that are not UTF-8    each becomes _
//! a value of only dots, an empty value                            become _
//! a value of more than 200 bytes                                  is truncated
//! ```
//!
//! So a value consists of only dots only if it was truncated, and then it has about 200 of them. Neither a value nor several
//! adjacent values can form the component `.` or `..`.

/// The longest value, in bytes. File names have up to 255, and the template adds its own text.
pub(super) const VALUE_BYTES_MAX: usize = 200;

/// Appends `value` as a component of a path.
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

/// The longest path that [`write_dirs`] makes of a value, in bytes. Linux allows 4,096 with the directories before it.
const DIRS_BYTES_MAX: usize = 2048;

/// Appends a value as a relative path. `write` writes each of its parts, so none leads upwards. Empty parts are left out. A value
/// without parts becomes `_`. Everything after [`DIRS_BYTES_MAX`] is left out.
pub(super) fn write_dirs(value: &[u8], write: fn(&[u8], &mut Vec<u8>), out: &mut Vec<u8>) {
    let start = out.len();
    let parts = value.split(|byte| *byte == b'/');
    for part in parts.filter(|part| !part.is_empty()) {
        let end = out.len();
        if end > start {
            out.push(b'/');
        }
        write(part, out);
        if end > start && out.len() - start > DIRS_BYTES_MAX {
            out.truncate(end);
            break;
        }
    }
    if out.len() == start {
        out.push(b'_');
    }
}

/// The last part of a path.
pub(super) fn base(value: &[u8]) -> &[u8] {
    let mut parts = value.rsplit(|byte| *byte == b'/');
    parts.find(|part| !part.is_empty()).unwrap_or_default()
}

/// Appends a value to the path or the query of a URL (RFC 3986). All characters except the unreserved ones are escaped. A value
/// of only dots becomes `_`, because `..` would leave the directory.
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
