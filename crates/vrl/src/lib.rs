//! VRL (Vector Remap Language), the language of the processor `remap` and of conditions that are texts. Programs run on the body
//! of a batch: lines, or packed entries (`[time, record]` in MessagePack).
//!
//! A [`Program`] is compiled and type-checked once. A [`Remap`] runs it on one record after the other; a [`Predicate`] evaluates a
//! condition. Both work by *projection*: only the top-level fields that the program names are decoded to values. All others are
//! copied as bytes, which preserves their types, their order, duplicate keys and 64-bit integers.
//!
//! | File | Content |
//! |---|---|
//! | `program.rs` | compiling: programs and conditions, checks beyond those of the language |
//! | `limits.rs` | the limits of a program's text, checked before it is compiled |
//! | `bounds.rs` | rewriting programs, so that values are checked before they could take all memory |
//! | `checks.rs`, `texts.rs` | the checks of values; those of texts before they are parsed |
//! | `weight.rs` | estimating the memory that values take |
//! | `plan.rs`, `fields.rs` | the top-level fields and values of the batch that a program touches; the search for a field by its name |
//! | `remap.rs`, `predicate.rs` | running programs and conditions on a record |
//! | `target.rs` | the record as the language sees it |
//! | `layout.rs` | where the fields of a record are, and writing the changed record |
//! | `decode.rs`, `encode.rs` | MessagePack to values and back |
//! | `metadata.rs` | the values of the batch: `%tag`, `%host`, `%time`, ... |
//! | `functions/` | functions that are made repeatable or bounded, and those that are refused |
//! | `diagnostic.rs`, `convert.rs` | errors and warnings with their location in the text |
//! | `options.rs`, `outcome.rs` | settings of the compiler; the result of a program |
//! | `absent.rs` | replaces all of this in a build without the feature `vrl`: compiling is an error |
//!
//! The crate uses no I/O and no clock: `now()` is the receive time of the batch, and random values are a hash of the record, its
//! tag, its times and its index.
//!
//! # Values that a program sees
//!
//! | MessagePack | VRL | VRL | MessagePack |
//! |---|---|---|---|
//! | str, bin | string (of bytes) | string | str if it is UTF-8, otherwise bin |
//! | integers up to 2^63 - 1 | integer | integer | integer, shortest form |
//! | integers above that | float, rounded | | |
//! | float of 4 or 8 bytes | float; NaN is null | float | float of 8 bytes |
//! | EventTime, timestamp (ext -1) | timestamp | timestamp | EventTime; outside 1970 to 2106 RFC 3339 text |
//! | any other ext | string of its data | regex | str, its pattern |
//! | map | object; keys as text, the first of equal keys | object | map, keys sorted |
//!
//! The left half of the table shows how a program sees the fields that it reads. The right half shows how the fields that it
//! changes are written. A field that a program reads and does not change is copied unchanged.

#[cfg(not(feature = "vrl"))]
mod absent;
#[cfg(feature = "vrl")]
mod bounds;
#[cfg(feature = "vrl")]
mod checks;
#[cfg(feature = "vrl")]
mod convert;
#[cfg(feature = "vrl")]
mod decode;
mod diagnostic;
#[cfg(feature = "vrl")]
mod encode;
#[cfg(feature = "vrl")]
mod fields;
#[cfg(feature = "vrl")]
mod functions;
#[cfg(feature = "vrl")]
mod layout;
#[cfg(feature = "vrl")]
mod limits;
#[cfg(feature = "vrl")]
mod metadata;
mod options;
mod outcome;
#[cfg(feature = "vrl")]
mod plan;
#[cfg(feature = "vrl")]
mod predicate;
#[cfg(feature = "vrl")]
mod program;
#[cfg(feature = "vrl")]
mod remap;
#[cfg(feature = "vrl")]
mod target;
#[cfg(feature = "vrl")]
mod texts;
#[cfg(feature = "vrl")]
mod weight;

#[cfg(test)]
#[cfg(feature = "vrl")]
mod rig;
#[cfg(test)]
#[cfg(feature = "vrl")]
mod tests;

#[cfg(not(feature = "vrl"))]
pub use absent::{Condition, Predicate, Program, Remap, bound_memory};
pub use diagnostic::Diagnostic;
pub use options::Options;
pub use outcome::{Moved, Outcome};
#[cfg(feature = "vrl")]
pub use predicate::Predicate;
#[cfg(feature = "vrl")]
pub use program::{Condition, Program};
#[cfg(feature = "vrl")]
pub use remap::Remap;
#[cfg(feature = "vrl")]
pub use weight::bound_memory;

/// The deepest nesting of a value that a program reads or writes, the same as in `parse_json`. Other fields may nest to any depth.
pub const DEPTH_MAX: usize = 128;
