//! Kept and settled: the one answer that travels back along the graph.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> write -> [settle]`
//!
//! Everything that one batch of a source becomes carries a [`Token`]; the source holds the [`Receipt`]. When the last
//! token is settled, the receipt is good: a durable channel has kept the batch, or every sink is done with it. A token
//! that is dropped without being settled (a panic, a stop, an error path that returns early) makes the receipt fail, so
//! that forgetting can never look like success.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context, Poll},
};

use atomic_waker::AtomicWaker;

use crate::meters::Meter;

/// What remains to be done for a batch. Cloning it (one more consumer, one more part) means one more to settle.
#[derive(Debug)]
pub struct Token(Option<Arc<Shared>>);

/// Waits until every token of a batch is settled.
#[derive(Debug)]
pub struct Receipt(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    open: AtomicU32,
    failed: AtomicBool,
    awaited: bool,
    records: u64,
    tally: Arc<Tally>,
    waker: AtomicWaker,
}

/// Counts the records of one port by what became of them.
#[derive(Debug, Default)]
pub struct Tally {
    /// Records whose fate is open.
    pub pending: Meter,
    /// Records that were dropped before they were settled: their senders have to send them again, if they can.
    pub dropped: Meter,
}

impl From<Meter> for Arc<Tally> {
    fn from(pending: Meter) -> Self {
        let dropped = Meter::default();
        Self::new(Tally { pending, dropped })
    }
}

/// The batch was dropped before everybody was done with it; whoever sent it must send it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsettled;

/// A token and its receipt for `records` records. `awaited`: somebody waits for the answer, so that consumers should not
/// leave it for later; `tally` counts the records.
pub fn receipt(awaited: bool, records: u64, tally: impl Into<Arc<Tally>>) -> (Token, Receipt) {
    let tally = tally.into();
    tally.pending.add(records);
    let shared = Arc::new(Shared {
        open: AtomicU32::new(1),
        failed: AtomicBool::new(false),
        awaited,
        records,
        tally,
        waker: AtomicWaker::new(),
    });
    (Token(Some(shared.clone())), Receipt(shared))
}

impl Token {
    /// This consumer is done with the batch: it is kept, written, or was not for it.
    pub fn settle(mut self) {
        if let Some(shared) = self.0.take() {
            shared.release();
        }
    }

    /// Whether somebody waits for the answer.
    pub fn awaited(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| shared.awaited)
    }
}

impl Clone for Token {
    fn clone(&self) -> Self {
        if let Some(shared) = &self.0 {
            shared.open.fetch_add(1, Ordering::Relaxed);
        }
        Self(self.0.clone())
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            shared.failed.store(true, Ordering::Relaxed);
            shared.release();
        }
    }
}

impl Shared {
    fn release(&self) {
        // AcqRel: what the consumers did before they settled happened before the receipt is read.
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            if self.failed.load(Ordering::Relaxed) {
                self.tally.dropped.add(self.records);
            }
            self.tally.pending.sub(self.records);
            self.waker.wake();
        }
    }

    fn outcome(&self) -> Option<Result<(), Unsettled>> {
        if self.open.load(Ordering::Acquire) != 0 {
            return None;
        }
        Some(if self.failed.load(Ordering::Relaxed) {
            Err(Unsettled)
        } else {
            Ok(())
        })
    }
}

impl Receipt {
    /// The answer if it is there already.
    pub fn try_outcome(&self) -> Option<Result<(), Unsettled>> {
        self.0.outcome()
    }
}

impl Future for Receipt {
    type Output = Result<(), Unsettled>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(outcome) = self.0.outcome() {
            return Poll::Ready(outcome);
        }
        self.0.waker.register(context.waker());
        // Between the look and the registration the last token may have gone.
        self.0.outcome().map_or(Poll::Pending, Poll::Ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_is_good_when_every_consumer_has_settled() {
        let pending = Meter::default();
        let (token, receipt) = receipt(true, 7, pending.clone());
        let other = token.clone();
        token.settle();
        assert_eq!(receipt.try_outcome(), None);
        assert_eq!(pending.get(), 7);
        other.settle();
        assert_eq!(receipt.try_outcome(), Some(Ok(())));
        assert_eq!(pending.get(), 0);
    }

    #[test]
    fn a_dropped_token_fails_the_receipt() {
        let (token, receipt) = receipt(false, 1, Meter::default());
        token.clone().settle();
        drop(token);
        assert_eq!(receipt.try_outcome(), Some(Err(Unsettled)));
    }
}
