//! logfmt: `key=value key="quoted \"value\"" key`, as Go's loggers and Heroku write it.
//!
//! Keys and values without quotes end at a space or a control character; a key also ends at `=`. A key without `=` has the value
//! true. A key with `=` but without a value has an empty text. In quotes, the escapes of JSON and Go (`\n`, `\u00fc`, `\x1b`) are
//! resolved; unknown escapes stay as they are. A text without any `=` is not logfmt.

use memchr::{memchr, memchr2};

use super::{Fault, fields::Fields};
use crate::msgpack::write_bool;

/// Appends the fields of `text`.
pub(super) fn fields(text: &[u8], fields: &mut Fields<'_>) -> Result<(), Fault> {
    if memchr(b'=', text).is_none() {
        return Err(Fault::at(0, "`key=value`"));
    }
    let mut at = 0;
    loop {
        at += count(text, at, |byte| byte <= b' ');
        if at >= text.len() {
            return Ok(());
        }
        let start = at;
        at += count(text, at, |byte| byte > b' ' && byte != b'=' && byte != b'"');
        let key = text.get(start..at).unwrap_or_default();
        match text.get(at) {
            Some(b'"') => return Err(Fault::at(at, "a key without quotes")),
            _ if key.is_empty() => return Err(Fault::at(at, "a key before `=`")),
            Some(b'=') => at = value(text, at + 1, key, fields)?,
            _ => {
                fields.key(key);
                write_bool(fields.out, true);
            }
        }
    }
}

/// Returns the number of consecutive bytes from the offset `at` for which `fits` is true.
#[inline(always)]
fn count(text: &[u8], at: usize, fits: impl Fn(u8) -> bool) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    let end = rest.iter().position(|byte| !fits(*byte));
    end.unwrap_or(rest.len())
}

/// Appends the field `key` with the value at `at`, and returns the offset after the value.
#[inline]
fn value(text: &[u8], at: usize, key: &[u8], fields: &mut Fields<'_>) -> Result<usize, Fault> {
    if text.get(at) != Some(&b'"') {
        let end = at + count(text, at, |byte| byte > b' ');
        fields.named(key, text.get(at..end).unwrap_or_default())?;
        return Ok(end);
    }
    let start = at + 1;
    let (mut end, mut escaped) = (start, false);
    loop {
        let rest = text.get(end..).unwrap_or_default();
        let found = memchr2(b'"', b'\\', rest).ok_or(Fault::at(text.len(), "a closing quote"))?;
        end += found;
        if text.get(end) == Some(&b'"') {
            break;
        }
        escaped = true;
        end += 2;
    }
    let behind = end + 1;
    if text.get(behind).is_some_and(|byte| *byte > b' ') {
        return Err(Fault::at(behind, "a space after the closing quote"));
    }
    let quoted = text.get(start..end).unwrap_or_default();
    if escaped {
        let mut scratch = std::mem::take(fields.scratch);
        scratch.clear();
        unescape(quoted, &mut scratch);
        let named = fields.named(key, &scratch);
        *fields.scratch = scratch;
        named?;
    } else {
        fields.named(key, quoted)?;
    }
    Ok(behind)
}

/// Appends a text with its escapes resolved.
fn unescape(mut text: &[u8], out: &mut Vec<u8>) {
    while let Some(at) = memchr(b'\\', text) {
        let (before, rest) = text.split_at_checked(at).unwrap_or((text, &[]));
        out.extend_from_slice(before);
        let (length, byte) = match rest {
            [_, b'n', ..] => (2, b'\n'),
            [_, b't', ..] => (2, b'\t'),
            [_, b'r', ..] => (2, b'\r'),
            [_, b'b', ..] => (2, 8),
            [_, b'f', ..] => (2, 12),
            [_, b'v', ..] => (2, 11),
            [_, b'a', ..] => (2, 7),
            [_, byte @ (b'"' | b'\\' | b'/'), ..] => (2, *byte),
            [_, b'x', digits @ ..] => match hex(digits, 2) {
                Some(byte) => (4, byte as u8),
                None => (1, b'\\'),
            },
            [_, b'u', ..] => match unicode(rest) {
                Some((character, length)) => {
                    let mut utf8 = [0; 4];
                    out.extend_from_slice(character.encode_utf8(&mut utf8).as_bytes());
                    text = rest.get(length..).unwrap_or_default();
                    continue;
                }
                None => (1, b'\\'),
            },
            _ => (1, b'\\'),
        };
        out.push(byte);
        text = rest.get(length..).unwrap_or_default();
    }
    out.extend_from_slice(text);
}

/// Reads an escape `\uXXXX`, or two such escapes that form a surrogate pair. Returns the character, and the length of the escape
/// or pair. Returns `None` if the digits are not hexadecimal.
fn unicode(text: &[u8]) -> Option<(char, usize)> {
    let unit = hex(text.get(2..)?, 4)?;
    if let Some(character) = char::from_u32(unit) {
        return Some((character, 6));
    }
    let low = match text.get(6..) {
        Some([b'\\', b'u', digits @ ..]) => hex(digits, 4),
        _ => None,
    };
    match low {
        Some(low @ 0xdc00..0xe000) if unit < 0xdc00 => {
            let character = char::from_u32(0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00));
            Some((character?, 12))
        }
        _ => Some((char::REPLACEMENT_CHARACTER, 6)),
    }
}

/// Parses `count` hexadecimal digits at the start of `text`. Returns `None` if there are fewer.
pub(super) fn hex(text: &[u8], count: usize) -> Option<u32> {
    let digits = text.get(..count)?.iter();
    digits
        .map(|byte| char::from(*byte).to_digit(16))
        .try_fold(0, |number, digit| digit.map(|digit| number << 4 | digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_resolved_and_unknown_ones_stay() {
        let read = |text: &str| {
            let mut out = Vec::new();
            unescape(text.as_bytes(), &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(read(r#"a\"b\\c\n\u00fc\x41"#), "a\"b\\c\nüA");
        assert_eq!(
            read(r"\ud83d\ude00 \ud83d! \ude00"),
            "😀 \u{fffd}! \u{fffd}"
        );
        assert_eq!(read(r"\q \u12 \x4 \"), r"\q \u12 \x4 \");
    }
}
