//! The batch: many records in one contiguous buffer, under one tag, with their count. The only unit that moves.

use std::sync::Arc;

use bytes::Bytes;

use crate::{Origin, Tag, Time, Values};

/// How the records of a batch stand in its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Encoding {
    /// Newline-delimited text: every record is one line and every line ends with `\n`.
    Lines = 1,
    /// A MessagePack stream of `[time, record]` entries, as the forward protocol's PackedForward carries them. `time` is
    /// an integer of seconds or an EventTime (ext type 0, 8 bytes), `record` is a map. Fluent Bit may have written
    /// `[[time, metadata], record]`, which stays as it is.
    Packed = 2,
}

/// Many records in one contiguous buffer, under one tag, with their count. Cloning shares the bytes.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The tag that all its records share.
    pub tag: Tag,
    /// How the records stand in `body`.
    pub encoding: Encoding,
    /// Packed: every entry is known to be `[time, record]`, without metadata beside its time. False: not known.
    pub plain: bool,
    /// The records, in the encoding they came in. Every record in it has been validated by whoever made the batch.
    pub body: Bytes,
    /// How many records stand in `body`.
    pub count: u32,
    /// When the source received them, by the wall clock. A durable channel keeps it, so that a replay sees the same.
    pub received: Time,
    /// What all its records share: host, peer, path, ...
    pub values: Arc<Values>,
    /// Where its records came from, as far as their sender can come to send them again; in the order of the body.
    pub origins: Vec<Origin>,
}

impl Batch {
    /// Bytes of the body: what the bounds of queues count.
    pub fn len(&self) -> usize {
        self.body.len()
    }

    /// Whether it holds no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.body.is_empty()
    }
}
