//! The batches of one file that were sent and are not settled: in order, and bounded.

use std::collections::VecDeque;

use millstream_pipeline::delivery::{Receipt, Unsettled};

use super::identity::Mark;

/// So many batches of a file are under way at most: between two cuts of a sink behind memory (64 MiB or a second) there
/// may be many small ones. Their bytes are bounded by the queues; this bounds the receipts.
const BATCHES_MAX: usize = 1024;

/// The batches under way of one file, and up to where it is settled.
#[derive(Debug, Default)]
pub(super) struct Flight {
    under_way: VecDeque<(Receipt, Mark)>,
    /// Everything before it is settled.
    settled: Mark,
}

impl Flight {
    /// None under way, all settled up to `settled`.
    pub(super) fn new(settled: Mark) -> Self {
        Self {
            under_way: VecDeque::new(),
            settled,
        }
    }

    /// A batch that ends at `mark` was sent.
    pub(super) fn push(&mut self, receipt: Receipt, mark: Mark) {
        self.under_way.push_back((receipt, mark));
    }

    /// What stands before `mark` needs no receipt.
    pub(super) fn skip(&mut self, mark: Mark) {
        match self.under_way.back_mut() {
            Some((_, last)) => *last = mark,
            None => self.settled = mark,
        }
    }

    /// Up to where everything is settled.
    pub(super) fn settled(&self) -> Mark {
        self.settled
    }

    /// Whether one has to wait before the next batch.
    pub(super) fn is_full(&self) -> bool {
        self.under_way.len() >= BATCHES_MAX
    }

    /// Takes the answers that are there; whether any came.
    pub(super) fn collect(&mut self) -> Result<bool, Unsettled> {
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
    pub(super) async fn answered(&mut self) {
        match self.under_way.front_mut() {
            // What it says is for `collect`.
            Some((receipt, _)) => drop(receipt.await),
            None => std::future::pending().await,
        }
    }

    /// Waits for all answers; the first that is bad is told after all are there.
    pub(super) async fn land(&mut self) -> Result<(), Unsettled> {
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
