//! Why a text could not be parsed.

use std::fmt;

use crate::{json::JsonError, msgpack::ReadError};

/// Why a record could not be parsed. The text names the place, in bytes from the start of the parsed field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The record does not have the field.
    NoField,
    /// The field holds a number, a map or another value that is not text.
    NotText,
    /// The text has another format.
    Syntax {
        /// The offset of the error in bytes.
        offset: usize,
        /// The expected syntax.
        expected: &'static str,
    },
    /// The regular expression does not match.
    NoMatch,
    /// The field of `time` does not hold a time of its format.
    Time,
    /// The bytes are not an entry of the packed encoding, which no valid batch contains.
    Malformed,
}

impl Fault {
    /// A syntax error at `offset`.
    pub(super) fn at(offset: usize, expected: &'static str) -> Self {
        Self::Syntax { offset, expected }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoField => f.write_str("the record does not have the field"),
            Self::NotText => f.write_str("the field is not text"),
            Self::Syntax { offset, expected } => write!(f, "byte {offset}: {expected} expected"),
            Self::NoMatch => f.write_str("the pattern does not match"),
            Self::Time => f.write_str("the time does not have the format of `time`"),
            Self::Malformed => f.write_str("the record is not valid MessagePack"),
        }
    }
}

impl std::error::Error for Fault {}

impl From<JsonError> for Fault {
    fn from(error: JsonError) -> Self {
        Self::at(error.offset, error.expected)
    }
}

impl From<ReadError> for Fault {
    fn from(_: ReadError) -> Self {
        Self::Malformed
    }
}
