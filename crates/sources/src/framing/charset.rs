//! Text in other encodings than UTF-8: finds the ends of lines, and converts the text to UTF-8.

use std::borrow::Cow;

use encoding_rs::{Encoding, REPLACEMENT, UTF_8, UTF_16BE, UTF_16LE, X_USER_DEFINED};
use memchr::{memchr, memrchr};

use super::plain::piece;

/// Maximum number of bytes in which [`Charset::cut`] searches backwards for a byte that is a whole character.
const CUT_BYTES: usize = 64;
/// In all multi-byte encodings except UTF-16, a byte below this is always a whole character.
const FIRST_TRAIL: u8 = 0x30;

/// The encoding of a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charset(&'static Encoding);

impl Default for Charset {
    fn default() -> Self {
        Self(UTF_8)
    }
}

impl Charset {
    /// Finds an encoding by its name in web standards (`shift_jis`, `euc-jp`, `latin1`, `utf-16le`). `_` and `-` are interchangeable.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let label = |name: &str| Encoding::for_label_no_replacement(name.as_bytes());
        let found = label(name)
            .or_else(|| label(&name.replace('_', "-")))
            .or_else(|| label(&name.replace('-', "_")))?;
        (found != REPLACEMENT && found != X_USER_DEFINED).then_some(Self(found))
    }

    /// Whether text is used without conversion.
    pub(crate) fn is_utf8(self) -> bool {
        self.0 == UTF_8
    }

    /// The encoding of a text that begins with `start`: the byte order mark of UTF-16 decides its byte order.
    pub(super) fn of_text(self, start: &[u8]) -> Self {
        match start {
            [0xff, 0xfe, ..] if self.is_utf16() => Self(UTF_16LE),
            [0xfe, 0xff, ..] if self.is_utf16() => Self(UTF_16BE),
            _ => self,
        }
    }

    pub(super) fn is_utf16(self) -> bool {
        self.0 == UTF_16LE || self.0 == UTF_16BE
    }

    /// The size of a code unit in bytes. Every offset between two characters is a multiple of this size.
    pub(super) fn unit(self) -> usize {
        if self.is_utf16() { 2 } else { 1 }
    }

    fn newline_of_utf16(self) -> [u8; 2] {
        if self.0 == UTF_16LE {
            [b'\n', 0]
        } else {
            [0, b'\n']
        }
    }

    /// The end of the first line of `text`, and the start of the next line, as offsets. None if there is no newline.
    pub(super) fn newline(self, text: &[u8]) -> Option<(usize, usize)> {
        if !self.is_utf16() {
            return memchr(b'\n', text).map(|end| (end, end + 1));
        }
        let newline = self.newline_of_utf16();
        let (units, _) = text.as_chunks::<2>();
        let at = units.iter().position(|unit| *unit == newline)?;
        Some((at * 2, at * 2 + 2))
    }

    /// The offset after the last newline of `text`. None if there is no newline. `text` must begin between two characters.
    pub(super) fn last_line(self, text: &[u8]) -> Option<usize> {
        if !self.is_utf16() {
            return memrchr(b'\n', text).map(|end| end + 1);
        }
        let newline = self.newline_of_utf16();
        let (units, _) = text.as_chunks::<2>();
        let at = units.iter().rposition(|unit| *unit == newline)?;
        Some(at * 2 + 2)
    }

    /// Returns a length up to `bytes` at which to cut `text`. Cuts UTF-8 between two characters, and UTF-16 between two code units.
    /// Cuts any other encoding after the last byte below [`FIRST_TRAIL`] among the last [`CUT_BYTES`] bytes, or at `bytes` if there
    /// is no such byte.
    pub(super) fn cut(self, text: &[u8], bytes: usize) -> usize {
        let bytes = bytes.min(text.len());
        let head = &text[..bytes];
        if self.is_utf16() {
            return bytes / 2 * 2;
        }
        if self.is_utf8() {
            return match bytes < text.len() {
                true => piece(text, bytes.max(1)).min(text.len()),
                false => bytes,
            };
        }
        let near = head.iter().rev().take(CUT_BYTES);
        let back = near.enumerate().find(|(_, byte)| **byte < FIRST_TRAIL);
        match back {
            Some((back, _)) => bytes - back,
            None => bytes,
        }
    }

    /// The text in UTF-8, and whether invalid bytes were replaced. `start`: the text is at the start of the input, where a byte
    /// order mark may be.
    pub(super) fn decode(self, text: &[u8], start: bool) -> (Cow<'_, [u8]>, bool) {
        if self.is_utf8() {
            let text = if start { without_mark(text) } else { text };
            return (Cow::Borrowed(text), false);
        }
        let (text, garbled) = match start {
            true => self.0.decode_with_bom_removal(text),
            false => self.0.decode_without_bom_handling(text),
        };
        let text = match text {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        };
        (text, garbled)
    }
}

/// The byte order mark of UTF-8, which some editors write at the start of a file.
pub(crate) const MARK: &[u8] = b"\xef\xbb\xbf";

/// `text`, which is at the start of the input, without the byte order mark of UTF-8.
pub(crate) fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(MARK).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Charset {
        Charset::named(name).unwrap()
    }

    #[test]
    fn encodings_are_found_by_the_names_people_use() {
        for name in [
            "utf-8",
            "UTF8",
            "shift_jis",
            "shift-jis",
            "sjis",
            "euc-jp",
            "euc_jp",
            "latin1",
        ] {
            assert!(Charset::named(name).is_some(), "{name}");
        }
        for name in [
            "utf-16le",
            "utf_16le",
            "utf-16be",
            "windows-1252",
            "gb18030",
            "big5",
            "koi8-r",
        ] {
            assert!(
                Charset::named(name).is_some_and(|charset| !charset.is_utf8()),
                "{name}"
            );
        }
        assert!(Charset::named("utf-64").is_none() && Charset::named("replacement").is_none());
    }

    #[test]
    fn a_newline_of_utf_16_is_two_bytes_at_an_even_offset() {
        let text = b"\x0a\x0a\x00\x0a\x0a\x00a\x00";
        assert_eq!(named("utf-16le").newline(text), Some((4, 6)));
        assert_eq!(named("utf-16be").newline(text), Some((2, 4)));
        assert_eq!(named("utf-16le").newline(b"\x0a"), None);
        assert_eq!(named("utf-16le").last_line(text), Some(6));
        assert_eq!(named("utf-16be").last_line(text), Some(4));
        assert_eq!(named("latin1").last_line(text), Some(5));
    }

    #[test]
    fn the_mark_decides_the_byte_order_of_utf_16() {
        for name in ["utf-16", "utf_16", "utf-16le", "utf-16be"] {
            let of_text = |start: &[u8]| named(name).of_text(start).0;
            assert_eq!(of_text(b"\xfe\xff\0a"), UTF_16BE, "{name}");
            assert_eq!(of_text(b"\xff\xfea\0"), UTF_16LE, "{name}");
            assert_eq!(of_text(b"a\0b\0"), named(name).0, "{name}");
        }
        assert!(named("latin1").of_text(b"\xfe\xff").unit() == 1);
    }

    #[test]
    fn invalid_bytes_are_replaced_and_reported() {
        let (text, garbled) = named("shift_jis").decode(b"\x93\xfa\x96\x7b", false);
        assert_eq!((&*text, garbled), ("\u{65e5}\u{672c}".as_bytes(), false));
        let (text, garbled) = named("shift_jis").decode(b"a\xff", false);
        assert_eq!((&*text, garbled), ("a\u{fffd}".as_bytes(), true));
        assert_eq!(&*named("utf-16le").decode(b"\xff\xfea\0", true).0, b"a");
    }
}
