//! One chunk: a frame of the forward protocol that is acked as a whole. In the diagram, 93 and db are MessagePack heads, in
//! hexadecimal.
//!
//! ```text
//! head | payload | options       93 | tag | db l l l l | entries ... | {"size": n, "compressed": c, "chunk": id}
//! ```
//! The bytes are the same in every attempt. The payload is the batch's own body where nothing had to be converted.

use std::{rc::Rc, time::Duration};

use bytes::Bytes;
use millstream_record::Batch;
use tokio::time::Instant;

use super::{flow::Flow, leases::Place};

/// A batch larger than this becomes several chunks. Receivers refuse frames above some limit (Millstream: 64 MiB), and an error
/// makes the sink resend a whole chunk.
pub(super) const PART_BYTES_MAX: usize = 8 << 20;
/// Approximate memory of a chunk in addition to its bytes. Including it in the cost also bounds the number of small chunks.
const OVERHEAD_BYTES: usize = 1 << 10;

/// Orders waiting chunks: (number, index of the copy).
pub(super) type Key = (u64, usize);

/// The identity of a chunk.
#[derive(Debug)]
pub(super) struct Name {
    /// Sequence number, in the order in which the lane begins chunks.
    pub(super) number: u64,
    /// The id as a MessagePack value.
    pub(super) id: Vec<u8>,
    /// The flow of its records (with `balance: hash`, all records of a flow go to one server, in order).
    pub(super) flow: Option<Flow>,
    /// Behind a durable channel: the position of the batch in the channel, and the number of the part of it that this chunk holds.
    pub(super) place: Option<Place>,
}

/// A frame, ready to be written.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    /// Sequence number, in the order in which the lane begins chunks.
    pub(super) number: u64,
    /// Number of records in the chunk.
    pub(super) records: u32,
    /// The flow of its records (with `balance: hash`, all records of a flow go to one server, in order).
    pub(super) flow: Option<Flow>,
    /// Behind a durable channel: the position of the batch in the channel, and the number of the part of it that this chunk holds.
    pub(super) place: Option<Place>,
    /// With `balance: all`: the index of this copy, and the only server that gets it.
    pub(super) copy: Option<(usize, Rc<str>)>,
    /// A lease is a durable note that a server may have received this chunk. This is the number of the sync that makes the lease
    /// durable; 0 if there is no lease.
    pub(super) lease: u64,
    /// The id as a MessagePack value; empty where no ack is asked for.
    pub(super) id: Vec<u8>,
    /// The bytes before the payload.
    pub(super) head: Vec<u8>,
    /// The payload.
    pub(super) payload: Bytes,
    /// The bytes after the payload.
    pub(super) options: Vec<u8>,
    /// When the chunk was made.
    pub(super) made: Instant,
    /// At least one byte was written to a connection, so the server may have it.
    pub(super) begun: bool,
    /// Bytes of it were written to a connection that is now closed, so the next write is a resend.
    pub(super) again: bool,
    /// The batches in this chunk, which are rejected after `retry.give_up`; empty if that option is not set.
    pub(super) source: Vec<Batch>,
}

impl Chunk {
    /// Returns the key that orders waiting chunks.
    pub(super) fn key(&self) -> Key {
        let copy = self.copy.as_ref().map_or(0, |(copy, _)| *copy);
        (self.number, copy)
    }

    /// Whether it is older than `limit` (`retry.give_up`).
    pub(super) fn is_overdue(&self, limit: Option<Duration>) -> bool {
        limit.is_some_and(|limit| self.made.elapsed() > limit)
    }

    /// Bytes on the wire.
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.payload.len() + self.options.len()
    }

    /// Approximate memory of the chunk, which limits such as `in_flight` count.
    pub(super) fn cost(&self) -> usize {
        self.len() + OVERHEAD_BYTES
    }

    /// The id that its ack carries.
    pub(super) fn id(&self) -> &[u8] {
        &self.id
    }

    /// Its bytes, in order.
    pub(super) fn parts(&self) -> [&[u8]; 3] {
        [&self.head, &self.payload, &self.options]
    }
}

#[cfg(test)]
impl Chunk {
    pub(super) fn for_test(number: u64, id: &str, payload: &'static [u8]) -> Self {
        Self {
            number,
            records: 1,
            flow: None,
            place: None,
            copy: None,
            lease: 0,
            id: Self::id_for_test(id),
            head: format!("head of {id};").into_bytes(),
            payload: Bytes::from_static(payload),
            options: format!("options of {id};").into_bytes(),
            made: Instant::now(),
            begun: false,
            again: false,
            source: Vec::new(),
        }
    }

    pub(super) fn id_for_test(id: &str) -> Vec<u8> {
        let mut value = Vec::new();
        millstream_wire::msgpack::write_str(&mut value, id.as_bytes());
        value
    }
}
