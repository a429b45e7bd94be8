//! The newest kept batches, in memory for readers that follow closely.

use std::collections::VecDeque;

use millstream_record::{Batch, Position};

/// Maximum number of batches in memory. Even a small batch may hold a pooled buffer that is far larger.
const BATCHES_MAX: usize = 256;

/// A kept batch in memory.
pub(super) struct HotBatch {
    pub(super) position: Position,
    pub(super) batch: Batch,
    /// Segment and offset of the next frame.
    pub(super) next: (u64, u64),
}

/// A queue of the newest batches.
#[derive(Default)]
pub(super) struct HotBatches {
    batches: VecDeque<HotBatch>,
    bytes: usize,
    /// All kept batches after this position are in the queue.
    pub(super) after: Position,
}

impl HotBatches {
    /// Adds a batch that has just been kept.
    pub(super) fn push(&mut self, hot: HotBatch) {
        self.bytes += hot.batch.len();
        self.batches.push_back(hot);
    }

    /// Drops the batches at or below `done`. Also drops the oldest batches while the queue holds more than `bytes_max` bytes or more than
    /// [`BATCHES_MAX`] batches.
    pub(super) fn cool(&mut self, done: Position, bytes_max: usize) {
        while let Some(first) = self.batches.front() {
            let is_small = self.bytes <= bytes_max && self.batches.len() <= BATCHES_MAX;
            if first.position > done && is_small {
                break;
            }
            self.bytes -= first.batch.len();
            self.after = first.position;
            self.batches.pop_front();
        }
    }

    /// The first kept batch after `position`; `None` if there is none, or if it is not in memory.
    pub(super) fn first_after(&self, position: Position) -> Option<&HotBatch> {
        if position < self.after {
            return None;
        }
        let index = self.batches.partition_point(|hot| hot.position <= position);
        self.batches.get(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::log::tests::batch;

    fn at(seq: u64) -> Position {
        Position { epoch: 1, seq }
    }

    #[test]
    fn batches_leave_memory_beyond_the_limit_and_after_every_reader_has_them() {
        let mut hot = HotBatches::default();
        for seq in 1..=4 {
            hot.push(HotBatch {
                position: at(seq),
                batch: batch(seq, 100),
                next: (1, seq * 100),
            });
            hot.cool(at(0), 250);
        }
        assert!(hot.first_after(at(1)).is_none(), "only 3 and 4 fit");
        assert_eq!(hot.first_after(at(2)).unwrap().position, at(3));
        assert!(hot.first_after(at(4)).is_none());
        hot.cool(at(3), 250);
        assert!(hot.first_after(at(2)).is_none(), "every reader has it");
        assert_eq!(hot.first_after(at(3)).unwrap().next, (1, 400));
    }
}
