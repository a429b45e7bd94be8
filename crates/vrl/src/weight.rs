//! Estimates the memory that values take.
//!
//! The estimate counts the parts of a value, not the bytes of its text. A map in memory is a tree whose smallest node has room for 11
//! fields: a list of small maps takes far more memory than their text.

use bytes::Bytes;
use vrl::value::Value;

use crate::DEPTH_MAX;

/// The limit for a value that a program could let grow: what closures read, and results that can be much larger than the record.
pub(crate) const MEMORY_MAX: usize = 256 << 20;
/// The deepest nesting of a value that a closure reads. A record may have [`DEPTH_MAX`] levels, and the program may add some.
pub(crate) const READ_DEPTH_MAX: usize = 2 * DEPTH_MAX;

/// The bytes of an element of an array, or of a value without parts.
pub(crate) const ELEMENT: usize = size_of::<Value>();
/// The bytes of a node of a map, and the number of fields in it. Nodes are partly filled.
const NODE: usize = 720;
const NODE_FIELDS: usize = 8;
/// The bytes of a field in a map with many fields.
pub(crate) const FIELD: usize = NODE / NODE_FIELDS;

/// The bytes of a map with this number of fields, without what the keys and values have outside of the nodes.
pub(crate) fn map(fields: usize) -> usize {
    NODE.saturating_mul(fields.div_ceil(NODE_FIELDS))
}

/// Returns the estimated bytes of a value.
///
/// # Errors
/// If they exceed [`MEMORY_MAX`], or if the value nests deeper than [`READ_DEPTH_MAX`]. The text says which.
pub(crate) fn of(value: &Value) -> Result<usize, String> {
    add(value, ELEMENT, READ_DEPTH_MAX)
}

/// Adds what `value` has outside of its place to `sum`. It may nest `depth` levels deep.
fn add(value: &Value, sum: usize, depth: usize) -> Result<usize, String> {
    let deeper = || {
        let deep = || format!("a value nests deeper than {READ_DEPTH_MAX} levels");
        depth.checked_sub(1).ok_or_else(deep)
    };
    match value {
        Value::Object(fields) => {
            let depth = deeper()?;
            let mut sum = within(sum.saturating_add(map(fields.len())))?;
            for (key, value) in fields {
                sum = add(value, sum + key.len(), depth)?;
            }
            Ok(sum)
        }
        Value::Array(items) => {
            let depth = deeper()?;
            let mut sum = within(sum.saturating_add(ELEMENT.saturating_mul(items.len())))?;
            for item in items {
                sum = add(item, sum, depth)?;
            }
            Ok(sum)
        }
        other => within(sum.saturating_add(other.as_bytes().map_or(0, Bytes::len))),
    }
}

/// Returns `bytes`, or an error if they exceed [`MEMORY_MAX`].
pub(crate) fn within(bytes: usize) -> Result<usize, String> {
    match bytes > MEMORY_MAX {
        true => Err(format!("a value takes more than {MEMORY_MAX} bytes")),
        false => Ok(bytes),
    }
}
