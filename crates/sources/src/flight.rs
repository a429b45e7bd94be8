//! The batches of one flow (a file, a generator) in flight: sent and not settled, in order, and bounded.
//!
//! `read -> decode -> [send] -> keep -> take -> process -> encode -> write -> settle`

use std::{collections::VecDeque, ops::Range};

use bytes::Bytes;
use millstream_pipeline::delivery::{Receipt, Unsettled};
use millstream_record::Buffer;

/// A body smaller than this is copied out of its buffer: a few lines must not hold the memory of many.
const COPY_BYTES_MAX: usize = 4 << 10;

/// The body of a batch that is in `range` of a buffer.
pub(crate) fn share(buffer: Buffer, range: Range<usize>) -> Bytes {
    if range.len() < COPY_BYTES_MAX {
        Bytes::copy_from_slice(&buffer[range])
    } else {
        buffer.freeze().slice(range)
    }
}

/// Maximum number of batches of a flow in flight: between two checkpoints of a sink behind memory (64 MiB or a second) there
/// may be many small ones. The queues bound their bytes; this bounds the receipts.
const BATCHES_MAX: usize = 1024;

/// The batches of one flow in flight, and the mark up to which it is settled.
#[derive(Debug, Default)]
pub(crate) struct Flight<M> {
    in_flight: VecDeque<(Receipt, M)>,
    /// Everything before it is settled.
    settled: M,
}

impl<M: Copy> Flight<M> {
    /// No batch in flight, and everything settled up to `settled`.
    pub(crate) fn new(settled: M) -> Self {
        Self {
            in_flight: VecDeque::new(),
            settled,
        }
    }

    /// A batch that ends at `mark` was sent.
    pub(crate) fn push(&mut self, receipt: Receipt, mark: M) {
        self.in_flight.push_back((receipt, mark));
    }

    /// Everything before `mark` needs no receipt.
    pub(crate) fn skip(&mut self, mark: M) {
        match self.in_flight.back_mut() {
            Some((_, last)) => *last = mark,
            None => self.settled = mark,
        }
    }

    /// The mark up to which everything is settled.
    pub(crate) fn settled(&self) -> M {
        self.settled
    }

    /// Whether the next batch should be answered soon: consumers that delay their answers must not stop the flow.
    pub(crate) fn is_half_full(&self) -> bool {
        self.in_flight.len() >= BATCHES_MAX / 2
    }

    /// Whether the next batch has to wait.
    pub(crate) fn is_full(&self) -> bool {
        self.in_flight.len() >= BATCHES_MAX
    }

    /// Takes the answers that are there; returns whether there were any.
    pub(crate) fn collect(&mut self) -> Result<bool, Unsettled> {
        let before = self.in_flight.len();
        while let Some((receipt, mark)) = self.in_flight.front() {
            match receipt.try_outcome() {
                None => break,
                Some(outcome) => {
                    outcome?;
                    self.settled = *mark;
                    self.in_flight.pop_front();
                }
            }
        }
        Ok(self.in_flight.len() < before)
    }

    /// Waits for the oldest answer; forever if none is due.
    pub(crate) async fn answered(&mut self) {
        match self.in_flight.front_mut() {
            // `collect` looks at the outcome.
            Some((receipt, _)) => drop(receipt.await),
            None => std::future::pending().await,
        }
    }

    /// Waits for all answers, then returns the first failure.
    pub(crate) async fn land(&mut self) -> Result<(), Unsettled> {
        let mut failed = None;
        while let Some((receipt, mark)) = self.in_flight.pop_front() {
            match receipt.await {
                Ok(()) if failed.is_none() => self.settled = mark,
                Ok(()) => {}
                Err(unsettled) => failed = Some(unsettled),
            }
        }
        failed.map_or(Ok(()), Err)
    }
}
