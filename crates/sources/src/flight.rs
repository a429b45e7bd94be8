//! The batches of one flow (a file, a generator) that are in flight: sent and not settled. They are in order, and their number
//! is bounded.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> [send] -> keep -> read back -> process -> encode -> write -> settle`

use std::{collections::VecDeque, ops::Range};

use bytes::Bytes;
use millstream_pipeline::delivery::{Receipt, Unsettled};
use millstream_record::Buffer;

/// A body smaller than this is copied out of its buffer, so that a few lines do not hold a large buffer.
const COPY_BYTES_MAX: usize = 4 << 10;

/// The body of a batch: the bytes in `range` of a buffer.
pub(crate) fn share(buffer: Buffer, range: Range<usize>) -> Bytes {
    if range.len() < COPY_BYTES_MAX {
        Bytes::copy_from_slice(&buffer[range])
    } else {
        buffer.freeze().slice(range)
    }
}

/// The maximum number of batches of a flow in flight. The queues already bound the bytes in flight. This constant bounds the
/// receipts: a sink behind a memory channel settles only at its checkpoints (every 64 MiB or every second), and many small batches
/// may be in flight until then.
const BATCHES_MAX: usize = 1024;

/// The batches of one flow in flight. `M` is a point in the flow, such as an offset or the number of a record.
#[derive(Debug, Default)]
pub(crate) struct Flight<M> {
    in_flight: VecDeque<(Receipt, M)>,
    /// Everything before this point is settled.
    settled: M,
    /// Whether a batch was dropped since the last call of [`Flight::land`]. Then `settled` stays before that batch.
    failed: bool,
}

impl<M: Copy> Flight<M> {
    /// No batch is in flight, and everything before `settled` is settled.
    pub(crate) fn new(settled: M) -> Self {
        Self {
            in_flight: VecDeque::new(),
            settled,
            failed: false,
        }
    }

    /// Adds a batch that was sent and ends at `mark`.
    pub(crate) fn push(&mut self, receipt: Receipt, mark: M) {
        self.in_flight.push_back((receipt, mark));
    }

    /// Moves on to `mark` without a receipt, because the input between the last batch and `mark` needs none.
    pub(crate) fn skip(&mut self, mark: M) {
        match self.in_flight.back_mut() {
            Some((_, last)) => *last = mark,
            None if self.failed => {}
            None => self.settled = mark,
        }
    }

    /// The point up to which everything is settled.
    pub(crate) fn settled(&self) -> M {
        self.settled
    }

    /// Whether the next batch should request an early answer. Without such requests, consumers that delay their answers could stop
    /// the flow.
    pub(crate) fn is_half_full(&self) -> bool {
        self.in_flight.len() >= BATCHES_MAX / 2
    }

    /// Whether an answer must arrive before the next batch is sent.
    pub(crate) fn is_full(&self) -> bool {
        self.in_flight.len() >= BATCHES_MAX
    }

    /// Takes the answers that have arrived. Returns whether there were any. Fails if one of the answered batches was dropped. A
    /// flow that cannot resend the dropped batch may continue after this error.
    pub(crate) fn collect(&mut self) -> Result<bool, Unsettled> {
        let (before, mut failed) = (self.in_flight.len(), false);
        while let Some((receipt, mark)) = self.in_flight.front() {
            let Some(outcome) = receipt.try_outcome() else {
                break;
            };
            failed |= outcome.is_err();
            self.failed |= failed;
            if !self.failed {
                self.settled = *mark;
            }
            self.in_flight.pop_front();
        }
        match failed {
            true => Err(Unsettled),
            false => Ok(self.in_flight.len() < before),
        }
    }

    /// Waits for the oldest answer. Never returns if no batch is in flight.
    pub(crate) async fn answered(&mut self) {
        match self.in_flight.front_mut() {
            // The next `collect` checks the outcome.
            Some((receipt, _)) => drop(receipt.await),
            None => std::future::pending().await,
        }
    }

    /// Waits for all answers. Fails if a batch was dropped since the last call.
    pub(crate) async fn land(&mut self) -> Result<(), Unsettled> {
        while !self.in_flight.is_empty() {
            self.answered().await;
            // `failed` keeps a failure.
            let _ = self.collect();
        }
        match std::mem::take(&mut self.failed) {
            true => Err(Unsettled),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use millstream_pipeline::{
        delivery::{self, Token},
        meters::Meter,
    };
    use millstream_testkit::block_on;

    use super::*;

    fn send(flight: &mut Flight<u64>, mark: u64) -> Token {
        let (token, receipt) = delivery::receipt(false, 1, Meter::default());
        flight.push(receipt, mark);
        token
    }

    #[test]
    fn after_a_dropped_batch_further_answers_leave_and_no_further_point_is_settled() {
        let mut flight = Flight::new(0);
        let marks = 1..=BATCHES_MAX as u64;
        let tokens: Vec<_> = marks.map(|mark| send(&mut flight, mark)).collect();
        assert!(flight.is_full());
        for (index, token) in tokens.into_iter().enumerate() {
            match index {
                1 => drop(token),
                _ => token.settle(),
            }
        }
        assert_eq!(flight.collect(), Err(Unsettled));
        assert!(!flight.is_half_full());
        send(&mut flight, 5000).settle();
        assert_eq!(flight.collect(), Ok(true));
        flight.skip(6000);
        assert_eq!(flight.settled(), 1);
        assert_eq!(block_on(flight.land()), Err(Unsettled));
        // The flow has sent everything after the settled point again.
        send(&mut flight, 7000).settle();
        assert_eq!(block_on(flight.land()), Ok(()));
        assert_eq!(flight.settled(), 7000);
    }
}
