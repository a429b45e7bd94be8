//! What flows: the batch, its tag, its times, its origins and its positions.
//!
//! This crate depends on nothing else of ours. A batch keeps the bytes as they came in; records are slices of them.

mod batch;
mod buffer;
mod claims;
mod free;
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
