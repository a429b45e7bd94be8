//! Converts JSON text to MessagePack, in one pass and without a tree.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! The syntax is strictly that of RFC 8259, with two exceptions, so that no complete record is lost because of one byte: in
//! strings, bytes that are not UTF-8 stay unchanged, and a `\u` escape of half a surrogate pair becomes U+FFFD.
//!
//! ```text
//! null, true, false       nil, true, false
//! integer of 64 bits      the shortest encoding of the exact integer (`-0` is the float -0.0)
//! number with a point or  float 64, the nearest
//! an exponent
//! any other number        str of its characters: an integer of more than 64 bits, and a float that is too large (`1e400`)
//! string                  str
//! array, object           array, map: order and duplicate keys are kept
//! ```
//!
//! While an object or array is read, one byte is reserved for its header. An object or array with more than 15 elements has a
//! header of 3 or 5 bytes, so its content is moved by 2 or 4 bytes when it ends. A byte moves at most once per level of nesting,
//! of which there are at most [`super::DEPTH_MAX`].

use super::DEPTH_MAX;
use crate::msgpack::{write_bool, write_f64, write_int, write_nil, write_str, write_uint};

/// The progress of reading one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The number of bytes of the value and the white space before it.
    Consumed(usize),
    /// The input is valid so far and ends inside the value, or is only white space. Nothing was written.
    NeedMore,
}

/// The text is not a JSON value, or exceeds a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: {expected} expected")]
pub struct JsonError {
    /// The offset in the input.
    pub offset: usize,
    /// The expected syntax.
    pub expected: &'static str,
}

/// Appends the first JSON value of `input` to `out` as MessagePack. After `NeedMore` or an error `out` is unchanged. A number
/// at the top level that reaches the end of the input counts as complete.
///
/// Every call starts at the beginning of `input`: use [`super::Scan`] to find out when a value that arrives in pieces is
/// complete.
pub fn to_msgpack(input: &[u8], out: &mut Vec<u8>) -> Result<Progress, JsonError> {
    let length = out.len();
    let mut parser = Parser {
        input,
        at: 0,
        out,
        open: [OpenContainer::default(); DEPTH_MAX],
        depth: 0,
    };
    match parser.value() {
        Ok(()) => Ok(Progress::Consumed(parser.at)),
        Err(stop) => {
            out.truncate(length);
            match stop {
                Stop::NeedMore => Ok(Progress::NeedMore),
                Stop::Bad(error) => Err(error),
            }
        }
    }
}

/// The largest factor by which a text grows: `-0,` has 3 bytes and becomes a float of 9 bytes.
const GROWTH: usize = 3;
/// A text up to this size is assumed to grow by [`GROWTH`]. In a larger text, the numbers are counted.
const SHORT_BYTES: usize = 4 << 10;

/// Returns an upper bound for the number of bytes that [`to_msgpack`] appends for `text`.
#[must_use]
pub fn packed_bytes_max(text: &[u8]) -> usize {
    // `GROWTH` counts a comma for each number. A single number has no comma: 3 bytes more. In an array, the last number has no
    // comma either (3 bytes more), but the two brackets become a header of at most five bytes instead of six (1 byte less).
    let most = text.len() * GROWTH + 3;
    if text.len() <= SHORT_BYTES {
        return most;
    }
    // Only numbers grow, by up to 6 bytes each. Every number except the first follows a comma, a colon or an opening bracket.
    let numbers = memchr::memchr3_iter(b',', b':', b'[', text).count() + 1;
    most.min(text.len() + 6 * numbers)
}

/// Why reading stopped.
pub(super) enum Stop {
    NeedMore,
    Bad(JsonError),
}

/// An object or array whose end was not reached yet.
#[derive(Clone, Copy, Default)]
struct OpenContainer {
    /// The offset of its one-byte header in the output.
    header: usize,
    /// Elements or pairs so far.
    count: u32,
    /// 1 for an object, 0 for an array. The field is as wide as `count`, so that the struct has no padding and the compiler
    /// clears all levels at once.
    object: u32,
}

/// Numbers with at most this many characters (digits and a point) are converted in one step: a float represents all integers of
/// 15 digits exactly.
const SHORT_NUMBER: usize = 15;
/// Powers of ten.
const TENS: [f64; SHORT_NUMBER] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14,
];

/// The state of the parser: the current offset in the text, and the output for the text before that offset.
pub(super) struct Parser<'a> {
    pub(super) input: &'a [u8],
    pub(super) at: usize,
    pub(super) out: &'a mut Vec<u8>,
    open: [OpenContainer; DEPTH_MAX],
    depth: usize,
}

impl Parser<'_> {
    /// Reads one value with everything inside it.
    fn value(&mut self) -> Result<(), Stop> {
        loop {
            // Before a value.
            match self.peek()? {
                byte @ (b'{' | b'[') => {
                    self.at += 1;
                    self.push(byte == b'{')?;
                    let close = if byte == b'{' { b'}' } else { b']' };
                    if self.peek()? != close {
                        self.element()?;
                        continue;
                    }
                }
                b'"' => self.text()?,
                b'-' | b'0'..=b'9' => self.number()?,
                b't' => {
                    self.word(b"true")?;
                    write_bool(self.out, true);
                }
                b'f' => {
                    self.word(b"false")?;
                    write_bool(self.out, false);
                }
                b'n' => {
                    self.word(b"null")?;
                    write_nil(self.out);
                }
                _ => return Err(self.bad("a value")),
            }
            // After a value: closes the objects and arrays that end here, or continues with the next element.
            loop {
                let Some(top) = self.top() else { return Ok(()) };
                match (self.peek()?, top.object == 1) {
                    (b'}', true) | (b']', false) => {
                        self.at += 1;
                        self.pop(top);
                    }
                    (b',', _) => {
                        self.at += 1;
                        self.element()?;
                        break;
                    }
                    (_, true) => return Err(self.bad("`,` or `}`")),
                    (_, false) => return Err(self.bad("`,` or `]`")),
                }
            }
        }
    }

    /// Counts an element of the innermost object or array. In an object, also reads the key of the element.
    fn element(&mut self) -> Result<(), Stop> {
        let at = self.at;
        let Some(top) = self.depth.checked_sub(1).and_then(|d| self.open.get_mut(d)) else {
            return Ok(());
        };
        let object = top.object == 1;
        match top.count.checked_add(1) {
            Some(count) => top.count = count,
            None => return Err(bad(at, "no more than 4294967295 elements")),
        }
        if object {
            if self.peek()? != b'"' {
                return Err(self.bad("a key"));
            }
            self.text()?;
            if self.peek()? != b':' {
                return Err(self.bad("`:`"));
            }
            self.at += 1;
        }
        Ok(())
    }

    fn top(&self) -> Option<OpenContainer> {
        self.depth
            .checked_sub(1)
            .and_then(|d| self.open.get(d))
            .copied()
    }

    fn push(&mut self, object: bool) -> Result<(), Stop> {
        let header = self.out.len();
        match self.open.get_mut(self.depth) {
            Some(open) => {
                *open = OpenContainer {
                    header,
                    count: 0,
                    object: u32::from(object),
                }
            }
            None => return Err(bad(self.at - 1, "no more than 128 levels")),
        }
        self.depth += 1;
        self.out.push(0);
        Ok(())
    }

    /// Writes the header of the innermost object or array, now that the number of its elements is known.
    fn pop(&mut self, open: OpenContainer) {
        self.depth -= 1;
        let [b3, b2, b1, b0] = open.count.to_be_bytes();
        let (short, long16, long32) = if open.object == 1 {
            (0x80, 0xde, 0xdf)
        } else {
            (0x90, 0xdc, 0xdd)
        };
        match open.count {
            0..=15 => {
                if let Some(header) = self.out.get_mut(open.header) {
                    *header = short | b0;
                }
            }
            16..=0xffff => self.widen(open.header, &[long16, b1, b0]),
            _ => self.widen(open.header, &[long32, b3, b2, b1, b0]),
        }
    }

    /// Replaces the byte at `place` by `header`.
    fn widen(&mut self, place: usize, header: &[u8]) {
        let end = self.out.len();
        self.out.resize(end + header.len() - 1, 0);
        self.out.copy_within(place + 1..end, place + header.len());
        if let Some(room) = self.out.get_mut(place..place + header.len()) {
            room.copy_from_slice(header);
        }
    }

    /// Skips white space. Returns the byte after it without consuming that byte.
    fn peek(&mut self) -> Result<u8, Stop> {
        loop {
            match self.input.get(self.at) {
                Some(b' ' | b'\t' | b'\r' | b'\n') => self.at += 1,
                Some(&byte) => return Ok(byte),
                None => return Err(Stop::NeedMore),
            }
        }
    }

    pub(super) fn bad(&self, expected: &'static str) -> Stop {
        bad(self.at, expected)
    }

    fn word(&mut self, word: &[u8]) -> Result<(), Stop> {
        for &expected in word {
            match self.input.get(self.at) {
                Some(&byte) if byte == expected => self.at += 1,
                Some(_) => return Err(self.bad("`true`, `false` or `null`")),
                None => return Err(Stop::NeedMore),
            }
        }
        Ok(())
    }

    /// Reads a number of few digits without an exponent. Nearly all numbers are of this kind. For any other number, returns false
    /// and reads nothing.
    #[inline]
    fn short_number(&mut self) -> bool {
        let rest = self.input.get(self.at..).unwrap_or_default();
        let (negative, digits) = match rest {
            [b'-', digits @ ..] => (true, digits),
            _ => (false, rest),
        };
        if let [b'0', b'0'..=b'9', ..] = digits {
            return false;
        }
        let (mut number, mut point) = (0_u64, None);
        for (at, byte) in digits.iter().take(SHORT_NUMBER + 1).enumerate() {
            match (byte, point) {
                (b'0'..=b'9', _) => number = number * 10 + u64::from(byte - b'0'),
                (b'.', None) if at > 0 => point = Some(at),
                (b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n', _) => {
                    let fraction = point.map(|point| at - point - 1);
                    match (fraction, i64::try_from(number)) {
                        // A number without digits before or after the point, and -0, are left to the general case.
                        (Some(0), _) => return false,
                        (None, _) if at == 0 || (negative && number == 0) => return false,
                        (None, Ok(number)) if negative => write_int(self.out, -number),
                        (None, _) => write_uint(self.out, number),
                        (Some(places), _) => {
                            // Both operands are exact as floats, so the quotient is the nearest float.
                            let one = TENS.get(places).copied().unwrap_or(f64::NAN);
                            let number = number as f64 / one;
                            write_f64(self.out, if negative { -number } else { number });
                        }
                    }
                    self.at += at + usize::from(negative);
                    return true;
                }
                _ => return false,
            }
        }
        false
    }

    fn number(&mut self) -> Result<(), Stop> {
        if self.short_number() {
            return Ok(());
        }
        let start = self.at;
        let negative = self.input.get(self.at) == Some(&b'-');
        self.at += usize::from(negative);
        if self.input.get(self.at) == Some(&b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        let mut integer = true;
        if self.input.get(self.at) == Some(&b'.') {
            integer = false;
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.input.get(self.at) {
            integer = false;
            self.at += 1;
            self.at += usize::from(matches!(self.input.get(self.at), Some(b'+' | b'-')));
            self.digits()?;
        }
        if self.at == self.input.len() && self.depth > 0 {
            return Err(Stop::NeedMore);
        }
        let text = self.input.get(start..self.at).unwrap_or_default();
        // This cannot fail, because all bytes that were accepted are ASCII.
        let text = std::str::from_utf8(text).unwrap_or_default();
        if integer && text != "-0" {
            if let Ok(number) = text.parse::<u64>() {
                write_uint(self.out, number);
                return Ok(());
            }
            if let Ok(number) = text.parse::<i64>() {
                write_int(self.out, number);
                return Ok(());
            }
            // A float would change its digits.
            write_str(self.out, text.as_bytes());
            return Ok(());
        }
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => {
                write_f64(self.out, number);
                Ok(())
            }
            // Infinity is no number of JSON.
            _ => {
                write_str(self.out, text.as_bytes());
                Ok(())
            }
        }
    }

    /// Reads at least one digit.
    fn digits(&mut self) -> Result<(), Stop> {
        match self.input.get(self.at) {
            None => return Err(Stop::NeedMore),
            Some(byte) if !byte.is_ascii_digit() => return Err(self.bad("a digit")),
            Some(_) => {}
        }
        while matches!(self.input.get(self.at), Some(byte) if byte.is_ascii_digit()) {
            self.at += 1;
        }
        Ok(())
    }
}

pub(super) fn bad(offset: usize, expected: &'static str) -> Stop {
    Stop::Bad(JsonError { offset, expected })
}
