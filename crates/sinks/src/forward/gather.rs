//! Small batches become one chunk: those with one tag that come while nothing leaves.
//!
//! Only behind memory: behind a durable channel each frame is a chunk of its own, so that ids are stable. Batches from
//! some size on travel alone, uncopied.

use std::{sync::Arc, time::Duration};

use millstream_record::{Batch, Buffer, Pool, Tag, Values};
use tokio::time::Instant;

/// A batch of this size or more is worth a chunk of its own: copying it would cost more than another ack.
const ALONE_BYTES: usize = 128 << 10;
/// So many tags are gathered at once; with one more all leave.
const TAGS_MAX: usize = 64;

/// When gathered batches leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bytes of all that is gathered; 0: nothing is gathered.
    pub(super) bytes: usize,
    /// Records of one chunk; 0: no limit.
    pub(super) records: u32,
    /// How long after the first of them, though nothing more is ready.
    pub(super) linger: Duration,
}

/// A chunk that is being gathered.
#[derive(Debug)]
pub(super) struct Gathered {
    /// Its number.
    pub(super) number: u64,
    /// What describes it: the first batch without its body; the count is that of the payload.
    pub(super) part: Batch,
    /// The payload so far.
    pub(super) payload: Buffer,
    /// What it is made of, if somebody wants to know.
    pub(super) source: Vec<Batch>,
}

/// All chunks that are being gathered, in order.
#[derive(Debug)]
pub(super) struct Gathering {
    limits: Limits,
    open: Vec<Gathered>,
    since: Instant,
    /// Bytes of the last full one: what the next is likely to need.
    likely_bytes: usize,
}

impl Gathering {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            open: Vec::new(),
            since: Instant::now(),
            likely_bytes: 0,
        }
    }

    /// Whether a batch is to be gathered at all.
    pub(super) fn takes(&self, batch: &Batch) -> bool {
        batch.len() < ALONE_BYTES.min(self.limits.bytes)
    }

    /// The place of the chunk that a batch with this tag goes into, if one is open. `values`: what all its records must
    /// share, where that travels along.
    pub(super) fn find(&self, tag: &Tag, values: Option<&Arc<Values>>) -> Option<usize> {
        let fits =
            |part: &Batch| part.tag == *tag && values.is_none_or(|values| part.values == *values);
        self.open.iter().position(|open| fits(&open.part))
    }

    /// Begins another chunk; `part` describes it. Gives its place.
    pub(super) fn begin(&mut self, number: u64, part: Batch, pool: &Pool) -> usize {
        if self.open.is_empty() {
            self.since = Instant::now();
        }
        self.open.push(Gathered {
            number,
            part,
            payload: pool.take(self.likely_bytes),
            source: Vec::new(),
        });
        self.open.len() - 1
    }

    /// The chunk at a place.
    pub(super) fn get(&mut self, place: usize) -> &mut Gathered {
        &mut self.open[place]
    }

    /// Whether it is time to let them leave though more may be ready.
    pub(super) fn is_full(&self) -> bool {
        let records = self.limits.records;
        self.open.len() >= TAGS_MAX
            || self
                .open
                .iter()
                .map(|open| open.payload.len())
                .sum::<usize>()
                >= self.limits.bytes
            || self
                .open
                .iter()
                .any(|open| records > 0 && open.part.count >= records)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns when they leave though they are not full.
    pub(super) async fn due(&self) {
        if !self.limits.linger.is_zero() {
            tokio::time::sleep_until(self.since + self.limits.linger).await;
        }
    }

    /// All of them leave, in order.
    pub(super) fn leave(&mut self) -> Vec<Gathered> {
        let longest = self.open.iter().map(|open| open.payload.len()).max();
        self.likely_bytes = longest.unwrap_or(self.likely_bytes);
        std::mem::take(&mut self.open)
    }
}
