//! Reads the strings of JSON text and resolves their escapes.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep -> read back -> process -> encode -> write -> settle`

use super::{
    escape,
    parse::{Parser, Stop, bad},
};
use crate::msgpack::{write_str, write_str_head};

/// In MessagePack, strings of fewer bytes than this have a head of one byte.
const SHORT_BYTES: usize = 32;

impl Parser<'_> {
    /// Reads a string from its opening quote on.
    pub(super) fn text(&mut self) -> Result<(), Stop> {
        self.at += 1;
        let start = self.at;
        let rest = self.input.get(start..).unwrap_or_default();
        let clean = escape::clean_prefix(rest);
        self.at += clean;
        if rest.get(clean) == Some(&b'"') {
            if self.short(rest, clean) {
                return Ok(());
            }
            let text = self.input.get(start..self.at).unwrap_or_default();
            if u32::try_from(clean).is_err() {
                return Err(bad(start, "a shorter string"));
            }
            write_str(self.out, text);
            self.at += 1;
            return Ok(());
        }
        // If the string has escapes, its length is known only at its end. So the text is written first and the header after it,
        // and then the two are swapped.
        let place = self.out.len();
        let text = self.input.get(start..self.at).unwrap_or_default();
        self.out.extend_from_slice(text);
        self.escaped_text()?;
        let end = self.out.len();
        let length = u32::try_from(end - place).map_err(|_| bad(start, "a shorter string"))?;
        write_str_head(self.out, length);
        let header = self.out.len() - end;
        if let Some(string) = self.out.get_mut(place..) {
            string.rotate_right(header);
        }
        Ok(())
    }

    /// Writes the first `length` bytes of `rest` as a MessagePack string: copies a block of [`SHORT_BYTES`] bytes, and then
    /// removes the surplus bytes. Returns `false` and writes nothing if the string is not shorter than the block, or if `rest`
    /// is shorter than the block. Most strings are this short.
    #[inline(always)]
    fn short(&mut self, rest: &[u8], length: usize) -> bool {
        let Some(block) = rest.first_chunk::<SHORT_BYTES>() else {
            return false;
        };
        if length >= SHORT_BYTES {
            return false;
        }
        self.out.push(0xa0 | length as u8);
        let end = self.out.len() + length;
        self.out.extend_from_slice(block);
        self.out.truncate(end);
        self.at += 1;
        true
    }

    /// The number of bytes from the current offset to the next quote, backslash or control character.
    fn clean(&self) -> usize {
        escape::clean_prefix(self.input.get(self.at..).unwrap_or_default())
    }

    /// Reads a string to its closing quote and resolves escapes.
    fn escaped_text(&mut self) -> Result<(), Stop> {
        loop {
            let clean = self.clean();
            let text = self.input.get(self.at..self.at + clean).unwrap_or_default();
            self.out.extend_from_slice(text);
            self.at += clean;
            match self.input.get(self.at) {
                None => return Err(Stop::NeedMore),
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.escape()?,
                Some(_) => return Err(self.bad("an escaped control character")),
            }
        }
    }

    fn escape(&mut self) -> Result<(), Stop> {
        let byte = match self.input.get(self.at + 1) {
            None => return Err(Stop::NeedMore),
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(&byte @ (b'"' | b'\\' | b'/')) => byte,
            Some(b'u') => return self.unicode(),
            Some(_) => return Err(bad(self.at + 1, "one of `\"\\/bfnrtu`")),
        };
        self.out.push(byte);
        self.at += 2;
        Ok(())
    }

    /// Reads an escape `\uXXXX`, or two such escapes (a surrogate pair) that make one character.
    fn unicode(&mut self) -> Result<(), Stop> {
        let unit = self.hex(self.at + 2)?;
        self.at += 6;
        let mut character = char::from_u32(unit);
        if (0xd800..0xdc00).contains(&unit) {
            // Whether the second half of the pair follows is known only once its bytes have arrived.
            match (self.input.get(self.at), self.input.get(self.at + 1)) {
                (None, _) | (Some(b'\\'), None) => return Err(Stop::NeedMore),
                (Some(b'\\'), Some(b'u')) => {
                    let low = self.hex(self.at + 2)?;
                    if (0xdc00..0xe000).contains(&low) {
                        self.at += 6;
                        character =
                            char::from_u32(0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00));
                    }
                }
                _ => {}
            }
        }
        let character = character.unwrap_or(char::REPLACEMENT_CHARACTER);
        let mut utf8 = [0; 4];
        self.out
            .extend_from_slice(character.encode_utf8(&mut utf8).as_bytes());
        Ok(())
    }

    fn hex(&self, from: usize) -> Result<u32, Stop> {
        let mut unit = 0;
        for at in from..from + 4 {
            let digit = match self.input.get(at) {
                None => return Err(Stop::NeedMore),
                Some(&byte) => char::from(byte).to_digit(16),
            };
            unit = unit << 4 | digit.ok_or(bad(at, "a hexadecimal digit"))?;
        }
        Ok(unit)
    }
}
