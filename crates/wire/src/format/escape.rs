//! Texts that ltsv and csv write with escapes or in quotes.

use super::value::Plain;
use crate::room::Room;

/// A cell of a row in csv.
pub(super) struct Cell;

impl Plain for Cell {
    #[inline]
    fn text(room: &mut Room<'_>, text: &[u8]) {
        if let Some(how) = room.rewrites(text) {
            room.byte(b'"');
            how.pieces(text, |piece| Self::inner(room, piece));
            return room.byte(b'"');
        }
        let special =
            |byte: u8| (byte == b',') | (byte == b'"') | (byte == b'\n') | (byte == b'\r');
        // No early exit, so that the compiler vectorizes the loop.
        if !text.is_empty()
            && !text
                .iter()
                .fold(false, |found, &byte| found | special(byte))
        {
            return room.bytes(text);
        }
        room.byte(b'"');
        Self::inner(room, text);
        room.byte(b'"');
    }
}

impl Cell {
    /// Writes the text inside the quotes of a cell, and doubles the quotes in the text.
    fn inner(room: &mut Room<'_>, text: &[u8]) {
        for part in text.split_inclusive(|&byte| byte == b'"') {
            room.bytes(part);
            if part.ends_with(b"\"") {
                room.byte(b'"');
            }
        }
    }
}

/// Writes a label of ltsv.
pub(super) fn label(room: &mut Room<'_>, name: &[u8]) {
    let before = room.position();
    room.bytes(name);
    let unfit = |byte: u8| byte < 0x20 || byte == b':' || byte == 0x7f;
    if name.iter().fold(false, |found, &byte| found | unfit(byte)) {
        room.back_to(before);
        name.iter()
            .for_each(|&byte| room.byte(if unfit(byte) { b'_' } else { byte }));
    }
}

/// A value in ltsv.
pub(super) struct Value;

impl Plain for Value {
    #[inline]
    fn text(room: &mut Room<'_>, text: &[u8]) {
        if let Some(how) = room.rewrites(text) {
            return how.pieces(text, |piece| Self::valid(room, piece));
        }
        Self::valid(room, text);
    }
}

impl Value {
    #[inline]
    fn valid(room: &mut Room<'_>, text: &[u8]) {
        let unfit = |byte: u8| (byte == b'\t') | (byte == b'\n') | (byte == b'\r') | (byte == 0);
        // No early exit, so that the compiler vectorizes the loop.
        if !text.iter().fold(false, |found, &byte| found | unfit(byte)) {
            return room.bytes(text);
        }
        for part in text.split_inclusive(|&byte| unfit(byte)) {
            let Some((&last, clean)) = part.split_last() else {
                continue;
            };
            room.bytes(clean);
            room.bytes(match last {
                b'\t' => b"\\t",
                b'\n' => b"\\n",
                b'\r' => b"\\r",
                0 => b"\\0",
                _ => std::slice::from_ref(&last),
            });
        }
    }
}
