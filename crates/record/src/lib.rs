//! The data model: the batch, its tag, times, origins and positions; and the pool that provides the buffers of batches.
//!
//! This crate depends on none of our other crates. A batch keeps its bytes as they arrived; records are slices of them.

mod batch;
mod buffer;
mod claims;
mod free;
mod ledger;
mod origin;
mod position;
mod tag;
mod time;
mod values;

pub use batch::{Batch, Encoding};
pub use buffer::{Buffer, Charge, Claim, Pool};
pub use origin::{ChunkOrigin, FileId, FileOrigin, Origin};
pub use position::Position;
pub use tag::Tag;
pub use time::Time;
pub use values::{VALUE_NAMES, Values};
