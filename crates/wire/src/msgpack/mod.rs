//! MessagePack without a value tree: values are skipped, or read one by one from a slice.
//!
//! - [`skip`]: skips values. It has one `match` on the first byte of a value, and counts the remaining values instead
//!   of using recursion.
//! - [`Walker`]: validates a stream of `[time, record]` entries while it arrives.
//! - [`Reader`]: reads single values from a slice.
//! - `write_*`: append single values to a vector.
//!
//! The format is that of the MessagePack specification (<https://github.com/msgpack/msgpack/blob/master/spec.md>).
//! Strings are not checked to be UTF-8, because senders of the forward protocol put any bytes into them. Lengths are
//! checked before they are used, and no length causes an allocation.

mod entry;
mod plain;
mod read;
mod skip;
mod walk;
mod write;

#[cfg(test)]
mod tests;

pub use entry::{
    Head, Shape, entry_head, entry_shape, is_nested, metadata_len, pair_head, pair_shape,
    replacing_time,
};
pub(crate) use entry::{is_array, is_map};
pub(crate) use plain::Plain;
pub use read::{ReadError, Reader};
pub use skip::{Malformed, skip};
pub use walk::Walker;
pub use write::{
    write_array_len, write_bin, write_bool, write_event_time, write_ext_head, write_f64, write_int,
    write_map_len, write_nil, write_str, write_str_head, write_time, write_uint,
};

/// Ext type of EventTime: seconds since 1970 (u32, big endian), nanoseconds (u32, big endian).
pub const EVENT_TIME: i8 = 0;
