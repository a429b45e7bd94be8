//! Reads a text field of a record (JSON, logfmt, access logs, ...) and makes fields of it.
//!
//! `read -> decode -> send -> keep -> read back -> [process] -> encode -> write -> settle`
//!
//! ```text
//! {"message": "level=info ms=12", "host": "web-1"}      as: logfmt
//! {"host": "web-1", "level": "info", "ms": "12"}
//! ```
//!
//! - The parsed field is removed (unless `keep`), the other fields are copied as bytes in their order, and the new fields
//!   follow. A new field replaces an existing one with its name. Names that occur twice in the text stay twice.
//! - The event time changes if the record has the field of `time` and it holds a time. The field is then removed (unless
//!   `time.keep`). Metadata beside the time stay.
//! - Text that is not UTF-8 stays as it is, as in [`crate::json`].
//! - A text that does not have the format is a [`Fault`] with its place, and the output is unchanged.
//!
//! One pass over the text, without a tree, and without allocations once the buffers of a [`Parser`] have grown. Time and memory
//! are linear in the size of the record, also for regular expressions. No I/O, no clock.

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
