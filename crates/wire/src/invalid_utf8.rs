//! Replacements for text that is not UTF-8.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! Text that is not UTF-8 stays unchanged until this hop. Only a sink that must write UTF-8 replaces it.

use base64::{Engine, engine::general_purpose::STANDARD};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Replacement for text that is not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum InvalidUtf8 {
    /// The base64 of all bytes of the text.
    Base64,
    /// The text with U+FFFD for invalid bytes.
    Replace,
    /// The text with `\xff` for each invalid byte.
    Escape,
}

/// Input bytes per piece of base64: a multiple of three, so that only the last piece is padded.
const BASE64_BYTES: usize = 96;

impl InvalidUtf8 {
    /// Returns the replacement for `text`; `None` if `text` is UTF-8.
    #[cold]
    #[inline(never)]
    pub(crate) fn of_invalid(self, text: &[u8]) -> Option<Self> {
        std::str::from_utf8(text).is_err().then_some(self)
    }

    /// Passes the replacement of `text` to `write`, in pieces of valid UTF-8.
    #[cold]
    #[inline(never)]
    pub(crate) fn pieces(self, text: &[u8], mut write: impl FnMut(&[u8])) {
        if self == Self::Base64 {
            let mut piece = [0; BASE64_BYTES / 3 * 4];
            for bytes in text.chunks(BASE64_BYTES) {
                let length = STANDARD.encode_slice(bytes, &mut piece).unwrap_or(0);
                write(piece.get(..length).unwrap_or_default());
            }
            return;
        }
        for chunk in text.utf8_chunks() {
            write(chunk.valid().as_bytes());
            match self {
                _ if chunk.invalid().is_empty() => {}
                Self::Escape => chunk.invalid().iter().for_each(|byte| write(&hex(*byte))),
                _ => write("\u{fffd}".as_bytes()),
            }
        }
    }
}

/// The escape of a byte, such as `\xff`.
fn hex(byte: u8) -> [u8; 4] {
    let digit = |value: u8| match value {
        0..10 => b'0' + value,
        _ => b'a' + value - 10,
    };
    [b'\\', b'x', digit(byte >> 4), digit(byte & 15)]
}
