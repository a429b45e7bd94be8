//! Receipts: the only answer that travels back along the graph. It says that a batch is *kept* or *settled*.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> write -> [settle]`
//!
//! All batches that result from one batch of a source carry a [`Token`]; the source holds the [`Receipt`]. When the last token is
//! settled, the receipt succeeds: a durable channel has kept the batch, or every sink is done with it. A token that is dropped
//! without being settled (a panic, a stop, an error path that returns early) makes the receipt fail, so that a forgotten batch
//! can never look like success.
//!
//! A sender that stops waiting may withdraw a batch ([`Receipt::withdraw`]), unless a durable channel has claimed it
//! ([`Token::claim`]), which it does before it keeps the batch. So either the batch is not kept, or the sender learns that it
//! may be.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Instant,
};

use atomic_waker::AtomicWaker;

use crate::meters::{Meter, histogram::Histogram};

/// A consumer's duty to settle a batch. Each clone, for another consumer or another part, must be settled, too.
#[derive(Debug)]
pub struct Token(Option<Arc<Count>>);

/// Waits until every token of a batch is settled.
#[derive(Debug)]
pub struct Receipt(Arc<Count>);

/// Counts the tokens of a batch that are not settled yet.
#[derive(Debug)]
struct Count {
    open: AtomicU32,
    failed: AtomicBool,
    /// The claims of durable channels, or [`WITHDRAWN`].
    claims: AtomicI32,
    awaited: bool,
    alone: bool,
    size: Size,
    sent: Instant,
    tally: Arc<Tally>,
    waker: AtomicWaker,
}

/// The sender has withdrawn the batch.
const WITHDRAWN: i32 = -1;

/// The size of a group that is sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Size {
    /// Its records.
    pub records: u64,
    /// The bytes of its batches.
    pub bytes: u64,
}

/// Counts the records of one port by their outcome.
#[derive(Debug, Default)]
pub struct Tally {
    /// Records in flight: neither settled nor dropped.
    pub pending: Meter,
    /// Records that were dropped before they were settled. Their senders must send them again, if they can.
    pub dropped: Meter,
    /// Bytes in flight.
    pub pending_bytes: Meter,
    /// Time from sending to settling.
    pub latency: Histogram,
}

impl From<Meter> for Arc<Tally> {
    fn from(pending: Meter) -> Self {
        Self::new(Tally {
            pending,
            ..Tally::default()
        })
    }
}

/// A consumer dropped the batch without settling it. The sender must send the batch again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsettled;

/// Returns a token for `records` records and its receipt; `tally` counts them. `awaited` means that a peer waits for the answer, so
/// consumers should not delay the answer.
pub fn receipt(awaited: bool, records: u64, tally: impl Into<Arc<Tally>>) -> (Token, Receipt) {
    sized(awaited, Size { records, bytes: 0 }, tally)
}

/// Like [`receipt`], and also counts bytes.
pub fn sized(awaited: bool, size: Size, tally: impl Into<Arc<Tally>>) -> (Token, Receipt) {
    counted((awaited, false), size, tally.into())
}

/// Like [`sized`], for a sender that sends nothing else of the same flow until it has the answer.
pub fn alone(awaited: bool, size: Size, tally: impl Into<Arc<Tally>>) -> (Token, Receipt) {
    counted((awaited, true), size, tally.into())
}

fn counted((awaited, alone): (bool, bool), size: Size, tally: Arc<Tally>) -> (Token, Receipt) {
    tally.pending.add(size.records);
    tally.pending_bytes.add(size.bytes);
    let count = Arc::new(Count {
        open: AtomicU32::new(1),
        failed: AtomicBool::new(false),
        claims: AtomicI32::new(0),
        awaited,
        alone,
        size,
        sent: Instant::now(),
        tally,
        waker: AtomicWaker::new(),
    });
    (Token(Some(count.clone())), Receipt(count))
}

impl Token {
    /// This consumer is done with the batch: it kept or wrote it, or did not want it.
    pub fn settle(mut self) {
        if let Some(count) = self.0.take() {
            count.release();
        }
    }

    /// A durable channel claims the batch before it keeps it. Returns false if the sender has withdrawn the batch. The channel
    /// then drops the batch.
    pub fn claim(&self) -> bool {
        let Some(count) = &self.0 else {
            return true;
        };
        let more = |claims| (claims != WITHDRAWN).then_some(claims + 1);
        let claimed = count
            .claims
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        claimed.is_ok()
    }

    /// Gives a claim back, because the channel has no space for the batch now. The sender may withdraw the batch until the channel
    /// claims it again.
    pub fn release_claim(&self) {
        if let Some(count) = &self.0 {
            count.claims.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Whether the sender sends nothing else of the same flow until it has the answer. A channel that can keep the batch at once
    /// should do so.
    pub fn is_alone(&self) -> bool {
        self.0.as_ref().is_some_and(|count| count.alone)
    }

    /// Whether a peer waits for the answer.
    pub fn awaited(&self) -> bool {
        self.0.as_ref().is_some_and(|count| count.awaited)
    }
}

impl Clone for Token {
    fn clone(&self) -> Self {
        if let Some(count) = &self.0 {
            count.open.fetch_add(1, Ordering::Relaxed);
        }
        Self(self.0.clone())
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some(count) = self.0.take() {
            count.failed.store(true, Ordering::Relaxed);
            count.release();
        }
    }
}

impl Count {
    fn release(&self) {
        // AcqRel: everything the consumers did before they settled happens before the receipt is read.
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            let Size { records, bytes } = self.size;
            if self.failed.load(Ordering::Relaxed) {
                // Of a withdrawn batch, its sender knows that nothing was accepted.
                if self.claims.load(Ordering::Acquire) != WITHDRAWN {
                    self.tally.dropped.add(records);
                }
            } else if records > 0 {
                self.tally.latency.observe(self.sent.elapsed());
            }
            self.tally.pending.sub(records);
            self.tally.pending_bytes.sub(bytes);
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
    /// Returns the outcome if it is known already, otherwise `None`; does not wait.
    pub fn try_outcome(&self) -> Option<Result<(), Unsettled>> {
        self.0.outcome()
    }

    /// Withdraws the batch. Durable channels then do not keep it, and it does not count as dropped. Returns false if a durable
    /// channel has claimed the batch: it keeps it now, or has kept it.
    pub fn withdraw(&self) -> bool {
        let claims = &self.0.claims;
        claims
            .compare_exchange(0, WITHDRAWN, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

impl Future for Receipt {
    type Output = Result<(), Unsettled>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(outcome) = self.0.outcome() {
            return Poll::Ready(outcome);
        }
        self.0.waker.register(context.waker());
        // The last token may have been settled just before the waker was registered.
        self.0.outcome().map_or(Poll::Pending, Poll::Ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_succeeds_when_every_consumer_has_settled() {
        let tally = Arc::new(Tally::default());
        let size = Size {
            records: 7,
            bytes: 70,
        };
        let (token, receipt) = sized(true, size, tally.clone());
        let pending = || (tally.pending.get(), tally.pending_bytes.get());
        let other = token.clone();
        token.settle();
        assert_eq!(receipt.try_outcome(), None);
        assert_eq!(pending(), (7, 70));
        assert_eq!(tally.latency.read().count(), 0);
        other.settle();
        assert_eq!(receipt.try_outcome(), Some(Ok(())));
        assert_eq!(pending(), (0, 0));
        assert_eq!(tally.latency.read().count(), 1);
    }

    #[test]
    fn a_sender_can_withdraw_a_batch_unless_a_channel_has_claimed_it() {
        let tally = Arc::new(Tally::default());
        let (token, kept) = receipt(true, 3, tally.clone());
        assert!(token.claim());
        assert!(!kept.withdraw());
        token.release_claim();
        assert!(token.claim());
        token.settle();
        assert!(!kept.withdraw());
        assert_eq!(kept.try_outcome(), Some(Ok(())));
        let (token, withdrawn) = receipt(true, 3, tally.clone());
        assert!(token.claim());
        token.release_claim();
        assert!(withdrawn.withdraw());
        assert!(!token.claim());
        drop(token);
        assert_eq!(withdrawn.try_outcome(), Some(Err(Unsettled)));
        assert_eq!((tally.dropped.get(), tally.pending.get()), (0, 0));
    }

    #[test]
    fn a_dropped_token_fails_the_receipt() {
        let (token, receipt) = receipt(false, 1, Meter::default());
        token.clone().settle();
        drop(token);
        assert_eq!(receipt.try_outcome(), Some(Err(Unsettled)));
    }
}
