//! JSON (RFC 8259): text to MessagePack and MessagePack to text, in one pass each, without a tree and without recursion.

mod escape;
mod parse;
mod scan;
mod string;

#[cfg(test)]
mod tests;

pub use parse::{JsonError, Progress, to_msgpack};
pub use scan::Scan;

/// Levels of objects and arrays within each other that are read and written: what fits on a stack of fixed size, and
/// twice as deep as any document seen in the field.
pub const DEPTH_MAX: usize = 128;
