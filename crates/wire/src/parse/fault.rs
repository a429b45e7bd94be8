//! Why a text could not be parsed.

use crate::{json::JsonError, msgpack::ReadError};

/// Why a record could not be parsed. Offsets are in bytes from the start of the parsed text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The record does not have the field.
    #[error("the record does not have the field")]
    NoField,
    /// The field holds a number, a map or another value that is not text.
    #[error("the field is not text")]
    NotText,
    /// The text has another format.
    #[error("byte {offset}: {expected} expected")]
    Syntax {
        /// The offset of the error in bytes.
        offset: usize,
        /// The expected syntax.
        expected: &'static str,
    },
    /// The regular expression does not match.
    #[error("the pattern does not match")]
    NoMatch,
    /// The field that the option `time` names does not hold a time in the format of this option.
    #[error("the time does not have the format of `time`")]
    Time,
    /// The time contains an unknown name of a time zone.
    #[error(
        "the time has a time zone with an unknown name: names such as EST, CET and JST are known, and those of `timezone`"
    )]
    Zone,
    /// The bytes are not an entry of the packed encoding (MessagePack `[time, map]`). No valid batch contains such bytes.
    #[error("the record is not valid MessagePack")]
    Malformed,
}

impl Fault {
    /// A syntax error at `offset`.
    pub(super) fn at(offset: usize, expected: &'static str) -> Self {
        Self::Syntax { offset, expected }
    }
}

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
