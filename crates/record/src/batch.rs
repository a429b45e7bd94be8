//! The batch: many records in one contiguous buffer, with one tag and a record count. It is the only unit that moves through the pipeline.

use std::sync::Arc;

use bytes::Bytes;

use crate::{Origin, Tag, Time, Values};

/// The encoding of the records in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Encoding {
    /// Newline-delimited text: every record is one line and every line ends with `\n`.
    Lines = 1,
    /// A MessagePack stream of `[time, record]` entries, as the forward protocol's PackedForward carries them. `time` is an integer of
    /// seconds or an EventTime (ext type 0, 8 bytes), `record` is a map. Entries that Fluent Bit wrote as `[[time, metadata], record]` are
    /// stored unchanged.
    Packed = 2,
}

/// Many records in one contiguous buffer, with one tag and a record count. Cloning shares the bytes.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The tag that all its records share.
    pub tag: Tag,
    /// The encoding of `body`.
    pub encoding: Encoding,
    /// For [`Encoding::Packed`]: true if all entries are known to be `[time, record]` without metadata; false if that is unknown.
    pub plain: bool,
    /// The records, in the encoding in which they arrived. The creator of the batch has validated every record.
    pub body: Bytes,
    /// The number of records in `body`.
    pub count: u32,
    /// When the source received the records, by the wall clock. A durable channel stores this time, so that a replay sees the same time.
    pub received: Time,
    /// The values that all its records share: host, peer, path, ...
    pub values: Arc<Values>,
    /// The origins of all records that their sender may send again, in the order of the body.
    pub origins: Vec<Origin>,
}

/// The records of a batch may grow by this factor together.
const GROWTH_MAX: usize = 16;
/// The records of a batch may grow to this number of bytes together.
const GROWN_BYTES: usize = 64 << 20;

impl Batch {
    /// The maximum number of bytes of all records that are made from this batch. A peer chooses the tag and the values, which templates
    /// may add to each record: tiny records with a long tag would otherwise grow by a factor of thousands.
    pub fn grown_bytes_max(&self) -> usize {
        self.len().saturating_mul(GROWTH_MAX).max(GROWN_BYTES)
    }

    /// The length of the body, which counts towards the bounds of queues.
    pub fn len(&self) -> usize {
        self.body.len()
    }

    /// Whether the body is empty.
    pub fn is_empty(&self) -> bool {
        self.body.is_empty()
    }
}
