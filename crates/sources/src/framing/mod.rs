//! Where records end in a stream of bytes: the options `framing`, `line_max`, `too_long`, `cr` and `encoding` of sources that
//! read text.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `[read] -> decode -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! Framing includes joining lines, so an offset of the input never points into a record. Plain lines are found without examining
//! each of them (`plain.rs`); the caller decides what to do with a line that is too long. All other records are made line by line
//! (`framer.rs`, `assembler.rs`, `charset.rs`). Nothing here does I/O.

mod assembler;
mod charset;
mod framed;
mod framer;
#[cfg(test)]
mod framer_tests;
mod options;
mod plain;

pub(crate) use charset::{Charset, MARK, without_mark};
pub(crate) use framed::{Framed, NOT_FRAMED, Rejected};
pub(crate) use framer::{Ending, Framer, Remainder};
pub(crate) use options::{Cr, Framing, LINE_MAX, LINE_MAX_LARGEST, Multiline, TooLong};
pub(crate) use plain::{Scanned, piece, scan};
