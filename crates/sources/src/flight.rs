//! The batches of one flow (a file, a generator) that were sent and are not settled: in order, and bounded.
//!
//! `read -> decode -> [send] -> keep -> take -> process -> encode -> write -> settle`

use std::{collections::VecDeque, ops::Range};

use bytes::Bytes;
use millstream_pipeline::delivery::{Receipt, Unsettled};
use millstream_record::Buffer;

/// A body smaller than this is copied out of its buffer: a few lines must not hold the room of many.
const COPY_BYTES_MAX: usize = 4 << 10;

/// The body of a batch that stands in `range` of a buffer.
pub(crate) fn share(buffer: Buffer, range: Range<usize>) -> Bytes {
    if range.len() < COPY_BYTES_MAX {
        Bytes::copy_from_slice(&buffer[range])
    } else {
        buffer.freeze().slice(range)
    }
}

/// So many batches of a flow are under way at most: between two cuts of a sink behind memory (64 MiB or a second) there
/// may be many small ones. Their bytes are bounded by the queues; this bounds the receipts.
const BATCHES_MAX: usize = 1024;

/// The batches under way of one flow, and up to which mark it is settled.
#[derive(Debug, Default)]
pub(crate) struct Flight<M> {
    under_way: VecDeque<(Receipt, M)>,
    /// Everything before it is settled.
    settled: M,
}

impl<M: Copy> Flight<M> {
    /// None under way, all settled up to `settled`.
    pub(crate) fn new(settled: M) -> Self {
        Self {
            under_way: VecDeque::new(),
            settled,
        }
    }

    /// A batch that ends at `mark` was sent.
    pub(crate) fn push(&mut self, receipt: Receipt, mark: M) {
        self.under_way.push_back((receipt, mark));
    }

    /// What stands before `mark` needs no receipt.
    pub(crate) fn skip(&mut self, mark: M) {
        match self.under_way.back_mut() {
            Some((_, last)) => *last = mark,
            None => self.settled = mark,
        }
    }

    /// Up to where everything is settled.
    pub(crate) fn settled(&self) -> M {
        self.settled
    }

    /// Whether the next batch should be answered soon: consumers that leave their answers for later must not stop the flow.
    pub(crate) fn is_half_full(&self) -> bool {
        self.under_way.len() >= BATCHES_MAX / 2
    }

    /// Whether one has to wait before the next batch.
    pub(crate) fn is_full(&self) -> bool {
        self.under_way.len() >= BATCHES_MAX
    }

    /// Takes the answers that are there; whether any came.
    pub(crate) fn collect(&mut self) -> Result<bool, Unsettled> {
        let before = self.under_way.len();
        while let Some((receipt, mark)) = self.under_way.front() {
            match receipt.try_outcome() {
                None => break,
                Some(outcome) => {
                    outcome?;
                    self.settled = *mark;
                    self.under_way.pop_front();
                }
            }
        }
        Ok(self.under_way.len() < before)
    }

    /// Waits for the oldest answer; for ever if there is none to come.
    pub(crate) async fn answered(&mut self) {
        match self.under_way.front_mut() {
            // What it says is for `collect`.
            Some((receipt, _)) => drop(receipt.await),
            None => std::future::pending().await,
        }
    }

    /// Waits for all answers; the first that is bad is told after all are there.
    pub(crate) async fn land(&mut self) -> Result<(), Unsettled> {
        let mut failed = None;
        while let Some((receipt, mark)) = self.under_way.pop_front() {
            match receipt.await {
                Ok(()) if failed.is_none() => self.settled = mark,
                Ok(()) => {}
                Err(unsettled) => failed = Some(unsettled),
            }
        }
        failed.map_or(Ok(()), Err)
    }
}
