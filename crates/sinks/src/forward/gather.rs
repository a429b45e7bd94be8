//! Gathers small batches of one tag into one chunk.
//!
//! Batches are gathered only behind a memory channel. Behind a durable channel each batch is a separate chunk, so that ids are
//! the same after a restart. A batch of `ALONE_BYTES` or more is a separate chunk, too, and is not copied.

use std::sync::Arc;

use millstream_record::{Batch, Buffer, Pool, Tag, Values};
use tokio::time::Instant;

use super::chunk::PART_BYTES_MAX;
use crate::sending::Batching;

/// A batch of this size or more is a separate chunk: copying it would cost more than an additional ack.
const ALONE_BYTES: usize = 128 << 10;
/// Maximum number of tags that are gathered at a time. When it is reached, all gathered chunks are sent.
const TAGS_MAX: usize = 64;

/// A chunk that is being gathered.
#[derive(Debug)]
pub(super) struct Gathered {
    /// The number of the chunk.
    pub(super) number: u64,
    /// The tag and values of the chunk, and the number of records in `payload`. The body of this batch is empty.
    pub(super) part: Batch,
    /// The payload so far.
    pub(super) payload: Buffer,
    /// The batches in the chunk; empty without `retry.give_up`.
    pub(super) source: Vec<Batch>,
}

/// The chunks that are being gathered, in order.
#[derive(Debug)]
pub(super) struct Gathering {
    limits: Batching,
    chunks: Vec<Gathered>,
    since: Instant,
    /// Size of the longest chunk of the last flush. The buffers of the next chunks begin with this capacity.
    likely_bytes: usize,
}

impl Gathering {
    pub(super) fn new(limits: Batching) -> Self {
        Self {
            limits,
            chunks: Vec::new(),
            since: Instant::now(),
            likely_bytes: 0,
        }
    }

    /// Whether a batch is small enough to be gathered.
    pub(super) fn takes(&self, batch: &Batch) -> bool {
        batch.len() < ALONE_BYTES.min(self.limits.size.as_usize())
    }

    /// The length at which a chunk is certainly full.
    pub(super) fn bytes_max(&self) -> usize {
        self.limits.size.as_usize().min(PART_BYTES_MAX)
    }

    /// Returns the index of the chunk for a batch with this tag and these values. `values` is None if the peer gets no values.
    pub(super) fn find(&self, tag: &Tag, values: Option<&Arc<Values>>) -> Option<usize> {
        let fits =
            |part: &Batch| part.tag == *tag && values.is_none_or(|values| part.values == *values);
        self.chunks.iter().position(|chunk| fits(&chunk.part))
    }

    /// Begins a chunk with the tag and values of `part`. Returns its index.
    pub(super) fn begin(&mut self, number: u64, part: Batch, pool: &Pool) -> usize {
        if self.chunks.is_empty() {
            self.since = Instant::now();
        }
        self.chunks.push(Gathered {
            number,
            part,
            payload: pool.take(self.likely_bytes),
            source: Vec::new(),
        });
        self.chunks.len() - 1
    }

    /// The chunk at an index.
    pub(super) fn get(&mut self, place: usize) -> &mut Gathered {
        &mut self.chunks[place]
    }

    /// Whether the chunks must leave now, even if more batches are ready.
    pub(super) fn is_full(&self) -> bool {
        let bytes = self.chunks.iter().map(|chunk| chunk.payload.len()).sum();
        let records = self.chunks.iter().map(|chunk| chunk.part.count).max();
        let records = records.map_or(0, |records| records as usize);
        self.chunks.len() >= TAGS_MAX || self.limits.is_full(bytes, records)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns when `batch.linger` is over and the chunks must leave even if they are not full.
    pub(super) async fn due(&self) {
        let linger = self.limits.linger.as_duration();
        if !linger.is_zero() {
            tokio::time::sleep_until(self.since + linger).await;
        }
    }

    /// Removes all chunks, in order.
    pub(super) fn leave(&mut self) -> Vec<Gathered> {
        let longest = self.chunks.iter().map(|chunk| chunk.payload.len()).max();
        self.likely_bytes = longest.unwrap_or(self.likely_bytes);
        std::mem::take(&mut self.chunks)
    }
}
