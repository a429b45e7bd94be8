//! Formats: they convert batches to the bytes that a sink writes, in one pass over the body.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! ```text
//! json       {"its":"fields","time":"2026-11-21T03:46:12.123456789Z"}\n     one object per record
//! raw        the field `message` and \n; a line unchanged
//! ltsv       its:fields<TAB>time:2026-11-21T03:46:12.123456789Z\n
//! csv        the fields that `columns` names, separated by commas (RFC 4180), and \n
//! msgpack    [time, record], as in the batch
//! template   the text of a template
//! avro_event a map of headers and a body, as Flume's sinks write them; for complete files see [`crate::avro::container`]
//! ```
//!
//! An [`Encoder`] is configured once and used for all batches. It does not allocate per record. A record that cannot be written
//! is rejected with its reason; the records around it are written. [`crate::json`] describes how MessagePack values become
//! JSON.

mod add;
mod avro;
mod csv;
mod encoder;
mod escape;
mod json;
mod ltsv;
mod msgpack;
mod options;
mod raw;
mod template;
mod value;
mod write;

#[cfg(test)]
mod tests;

use std::ops::Range;

pub use add::Add;
pub use encoder::{Encoder, Mark, Part};
pub use options::{Format, Headers, Options};

pub use crate::option_error::OptionError;

use crate::{json::Unfit, record::FieldPath, template::Missing};

/// A record that could not be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reject {
    /// The range of the record in the batch's body: a line with its newline, or an entry.
    pub range: Range<usize>,
    /// The reason.
    pub reason: Reason,
}

/// Why a record could not be written. The cause is the record or the sink's options, so a retry does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// A template needs a value that is missing.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The record does not have the field that `format: raw` writes.
    #[error("no field `{0}`, which is what `format: raw` writes (option `field`)")]
    NoField(FieldPath),
    /// The record contains a value that JSON cannot represent.
    #[error(transparent)]
    Unfit(#[from] Unfit),
}
