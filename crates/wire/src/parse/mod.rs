//! Parses the text in a field of a record (JSON, logfmt, access logs, ...) into fields.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> [process] -> encode -> write -> settle`
//!
//! ```text
//! {"message": "level=info ms=12", "host": "web-1"}      as: logfmt
//! {"host": "web-1", "level": "info", "ms": "12"}
//! ```
//!
//! - The field with the text is removed (unless `keep`), the other fields are copied as bytes in their order, and the parsed
//!   fields follow. A parsed field replaces other fields with its name. A name that occurs twice in the text occurs twice in
//!   the record.
//! - If the parsed field that the option `time` names holds a time, this time becomes the event time, and the field is removed
//!   (unless `time.keep`). Metadata next to the event time is kept.
//! - Text that is not UTF-8 stays as it is, as in [`crate::json`].
//! - If a text does not have the format, the result is a [`Fault`] with the offset of the error, and the output is unchanged.
//!
//! A text is parsed in one pass, without a tree, and without allocations once the buffers of a [`Parser`] have grown. Time and
//! memory are linear in the size of the record, even for regular expressions. There is no I/O and no clock.

mod access;
mod fault;
mod fields;
mod join;
mod kind;
mod logfmt;
mod options;
mod others;
mod packed;
mod parser;
mod pattern;
mod separated;
mod strptime;
mod time;

#[cfg(test)]
mod tests;

pub use fault::Fault;
pub use kind::Kind;
pub use options::{OnError, ParseOptions, TextFormat, TimeOptions};

pub use crate::option_error::OptionError;
pub use parser::{Input, Parser};
