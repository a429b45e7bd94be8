//! Parses structured data of RFC 5424, `[id name="value" ...][id ...]`, and writes a map of maps.
//!
//! In a value `\"`, `\\` and `\]` mean `"`, `\` and `]`; any other backslash is literal. A name that occurs several
//! times in a row (the RFC allows it: `ip="192.0.2.1" ip="192.0.2.129"`) gets an array of the values.

use memchr::{memchr, memchr2};

use super::text::{head, str_or_bin};
use crate::room::Room;

/// The byte order mark before a message in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Writes the key and the map for the elements at the start of `text`. Returns the message after the elements (without a byte order
/// mark), and the offset after the space between the elements and the message. Returns `None`, and writes nothing, if `text` does
/// not begin with structured data.
#[inline(never)]
pub(super) fn write<'a>(text: &'a [u8], room: &mut Room<'_>) -> Option<(&'a [u8], usize)> {
    let start = room.position();
    room.bytes(b"\xafstructured_data");
    let behind = elements(text, room);
    if behind.is_none() {
        room.back_to(start);
    }
    let behind = behind?;
    Some((without_mark(behind), text.len() - behind.len()))
}

fn elements<'a>(mut text: &'a [u8], room: &mut Room<'_>) -> Option<&'a [u8]> {
    let map = Map::open(room);
    let mut count = 0_u16;
    while let [b'[', rest @ ..] = text {
        text = element(rest, room)?;
        count = count.checked_add(1)?;
    }
    map.close(count, room);
    match text {
        [] => Some(&[]),
        [b' ', message @ ..] => Some(message),
        _ => None,
    }
}

/// Writes one element. `text` begins after its opening bracket. Returns the bytes after the closing bracket, or `None` if the
/// element is not valid.
fn element<'a>(text: &'a [u8], room: &mut Room<'_>) -> Option<&'a [u8]> {
    let (id, mut text) = name(text, room)?;
    let map = Map::open(room);
    let (mut count, mut last, mut values) = (0_u16, id, Values::at(room));
    loop {
        text = match text {
            [b']', rest @ ..] => {
                map.close(count, room);
                return Some(rest);
            }
            // A space before the closing bracket is ignored.
            [b' ', rest @ ..] if rest.first() == Some(&b']') => rest,
            [b' ', rest @ ..] => {
                let (length, seen) = name_length(rest);
                let (name, behind) = rest.split_at_checked(length)?;
                if count > 0 && name == last {
                    values.grow(room)?;
                } else {
                    count = count.checked_add(1)?;
                    key(name, seen, room)?;
                    (last, values) = (name, Values::at(room));
                }
                value(behind.strip_prefix(b"=\"")?, room)?
            }
            _ => return None,
        }
    }
}

/// Writes the id of an element as a key. Returns the id, and the bytes after it.
fn name<'a>(text: &'a [u8], room: &mut Room<'_>) -> Option<(&'a [u8], &'a [u8])> {
    let (length, seen) = name_length(text);
    let (id, rest) = text.split_at_checked(length)?;
    key(id, seen, room)?;
    Some((id, rest))
}

/// Returns the length of the name at the start of `text`, and the OR of its bytes.
#[inline(always)]
fn name_length(text: &[u8]) -> (usize, u8) {
    let mut seen = 0;
    for (at, byte) in text.iter().enumerate() {
        if matches!(byte, b' ' | b'=' | b']' | b'"' | b'[') {
            return (at, seen);
        }
        seen |= byte;
    }
    (text.len(), seen)
}

/// Writes a name. `seen` is the OR of its bytes. Returns `None` if the name is not valid.
#[inline(always)]
fn key(name: &[u8], seen: u8, room: &mut Room<'_>) -> Option<()> {
    if name.is_empty() || (seen >= 0x80 && str::from_utf8(name).is_err()) {
        return None;
    }
    str_or_bin(name, room);
    Some(())
}

/// Writes a value, and returns the bytes after its closing quote.
#[inline(always)]
fn value<'a>(text: &'a [u8], room: &mut Room<'_>) -> Option<&'a [u8]> {
    let first = memchr2(b'"', b'\\', text)?;
    let (value, rest) = text.split_at_checked(first)?;
    match rest {
        [b'"', behind @ ..] => {
            str_or_bin(value, room);
            Some(behind)
        }
        _ => escaped(text, room),
    }
}

/// Writes a value with backslashes.
#[cold]
fn escaped<'a>(text: &'a [u8], room: &mut Room<'_>) -> Option<&'a [u8]> {
    let (mut raw, mut escapes) = (0, 0);
    loop {
        raw += memchr2(b'"', b'\\', text.get(raw..)?)?;
        match text.get(raw..)? {
            [b'"', ..] => break,
            [_, b'"' | b'\\' | b']', ..] => {
                escapes += 1;
                raw += 2;
            }
            _ => raw += 1,
        }
    }
    let (mut value, behind) = text.split_at_checked(raw)?;
    // The value with its backslashes is UTF-8 if and only if the value without them is, because a backslash is a complete
    // character.
    head(value, value.len() - escapes, room);
    while let Some(at) = memchr(b'\\', value) {
        let escapes = matches!(value.get(at + 1), Some(b'"' | b'\\' | b']'));
        room.bytes(value.get(..at)?);
        // The escaped character, or the backslash itself.
        room.byte(*value.get(at + usize::from(escapes))?);
        value = value.get(at + 1 + usize::from(escapes)..)?;
    }
    room.bytes(value);
    behind.get(1..)
}

/// Removes the byte order mark of a message that is valid UTF-8.
#[inline(always)]
pub(super) fn without_mark(message: &[u8]) -> &[u8] {
    match message.strip_prefix(BYTE_ORDER_MARK) {
        Some(rest) if str::from_utf8(rest).is_ok() => rest,
        _ => message,
    }
}

/// A map with the header `de nn nn`, whose number of fields is filled in at the end.
struct Map {
    at: usize,
}

impl Map {
    fn open(room: &mut Room<'_>) -> Self {
        let at = room.position();
        room.bytes(&[0xde, 0, 0]);
        Self { at }
    }

    fn close(self, count: u16, room: &mut Room<'_>) {
        room.patch(self.at + 1, &count.to_be_bytes());
    }
}

/// The values of a name: a single value, or an array (`dc nn nn`) of several.
struct Values {
    at: usize,
    count: u16,
}

impl Values {
    /// Begins at the current position, before the first value is written.
    fn at(room: &Room<'_>) -> Self {
        Self {
            at: room.position(),
            count: 1,
        }
    }

    /// Prepares for a further value: turns a single value into an array, and counts the new value.
    fn grow(&mut self, room: &mut Room<'_>) -> Option<()> {
        if self.count == 1 {
            room.insert(self.at, 3);
        }
        self.count = self.count.checked_add(1)?;
        let [high, low] = self.count.to_be_bytes();
        room.patch(self.at, &[0xdc, high, low]);
        Some(())
    }
}
