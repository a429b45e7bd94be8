//! Avro (<https://avro.apache.org/docs/1.11.1/specification/>) as the line needs it: its binary encoding is read value by
//! value, and no schema is interpreted while records move.
//!
//! - [`Reader`]: reads single values out of a slice.
//! - [`rpc`]: Avro RPC as Flume's agents speak it.
//! - [`container`]: files of Flume's events.

pub mod container;
mod read;
pub mod rpc;

pub use read::{ReadError, Reader};
