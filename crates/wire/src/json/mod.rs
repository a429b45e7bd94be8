//! JSON (RFC 8259): text to MessagePack and MessagePack to text, in one pass each, without a tree and without recursion.

mod digits;
mod escape;
mod parse;
mod repeats;
mod scan;
mod string;
mod unescape;
mod write;

#[cfg(test)]
mod tests;

pub use crate::invalid_utf8::InvalidUtf8;
pub(crate) use digits::{INTEGER_BYTES, digits, unsigned_digits};
pub use parse::{JsonError, Progress, packed_bytes_max, to_msgpack};
pub(crate) use repeats::{differ, pairs_without};
pub use scan::Scan;
pub(crate) use string::{append_string, base64, string, string_behind, string_between};
pub use write::{Unfit, write_value};
pub(crate) use write::{key, value};

/// The deepest nesting of objects and arrays that is read and written. The parser's stack has this fixed size. Known documents
/// have less than half of this depth.
pub const DEPTH_MAX: usize = 128;
