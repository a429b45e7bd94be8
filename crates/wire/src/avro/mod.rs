//! Avro (<https://avro.apache.org/docs/1.11.1/specification/>) for fixed schemas: values are read one by one from the
//! binary encoding, and no schema is interpreted while records move.
//!
//! - [`Reader`]: reads single values from a slice.
//! - [`rpc`]: Avro RPC as Flume's agents use it.
//! - [`container`]: files with Flume's events.

pub mod container;
mod read;
pub mod rpc;

pub use read::{ReadError, Reader};
