//! One chunk: a frame of the forward protocol that is acked as a whole.
//!
//! ```text
//! head | payload | options       93 | tag | db l l l l | entries ... | {"size": n, "compressed": c, "chunk": id}
//! ```
//! It promises that its bytes never change between tries. The payload is the batch's own body where nothing had to be
//! converted.

use std::{rc::Rc, time::Duration};

use bytes::Bytes;
use millstream_record::Batch;
use tokio::time::Instant;

use super::{flow::Flow, leases::Place};

/// What a chunk holds beside its bytes, roughly: so that many small ones are bounded too.
const OVERHEAD_BYTES: usize = 1 << 10;

/// Where a chunk stands in the order of what waits: its number, and which copy it is.
pub(super) type Key = (u64, usize);

/// What a chunk is called.
#[derive(Debug)]
pub(super) struct Name {
    /// Its place in the order in which batches were taken.
    pub(super) number: u64,
    /// The id as a MessagePack value.
    pub(super) id: Vec<u8>,
    /// Its flow, where flows keep to a server.
    pub(super) flow: Option<Flow>,
    /// Its frame in the durable channel, and which part of it.
    pub(super) place: Option<Place>,
}

/// A frame, ready to be written.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    /// Its place in the order in which batches were taken.
    pub(super) number: u64,
    /// Records in it.
    pub(super) records: u32,
    /// Its flow, where flows keep to a server.
    pub(super) flow: Option<Flow>,
    /// Its frame in the durable channel, and which part of it.
    pub(super) place: Option<Place>,
    /// It is the copy of this number, for this server alone.
    pub(super) copy: Option<(usize, Rc<str>)>,
    /// The number of the sync with which its lease is durable; 0 where nothing is leased.
    pub(super) lease: u64,
    /// The id as a MessagePack value; empty where no ack is asked for.
    pub(super) id: Vec<u8>,
    /// All before the payload.
    pub(super) head: Vec<u8>,
    /// The payload.
    pub(super) payload: Bytes,
    /// All behind the payload.
    pub(super) options: Vec<u8>,
    /// When it was made.
    pub(super) made: Instant,
    /// Some of it was written on some connection: the server may have it.
    pub(super) begun: bool,
    /// It was begun on a connection that is gone.
    pub(super) again: bool,
    /// What it was made of, for `give_up`.
    pub(super) source: Vec<Batch>,
}

impl Chunk {
    /// Where it stands among those that wait.
    pub(super) fn key(&self) -> Key {
        let copy = self.copy.as_ref().map_or(0, |(copy, _)| *copy);
        (self.number, copy)
    }

    /// Whether it is older than the operator has it wait (`retry.give_up`).
    pub(super) fn is_overdue(&self, limit: Option<Duration>) -> bool {
        limit.is_some_and(|limit| self.made.elapsed() > limit)
    }

    /// Bytes on the wire.
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.payload.len() + self.options.len()
    }

    /// What it counts in bounds of memory.
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
