//! The timeout of transactions, which grows while transactions cannot end in time. Otherwise one
//! large frame over a slow link, or a frame whose records must be sent one by one, would be aborted
//! and repeated forever.

use std::time::Duration;

/// The timeout of the next session's transactions.
#[derive(Debug)]
pub(super) struct Timeout {
    /// The option `transaction_timeout`.
    configured: Duration,
    pub(super) current: Duration,
    /// The largest timeout that brokers may accept (`transaction.max.timeout.ms`), as far as it is
    /// known.
    max: Duration,
}

impl Timeout {
    pub(super) fn new(configured: Duration) -> Self {
        Self {
            configured,
            current: configured,
            max: Duration::MAX,
        }
    }

    /// Doubles the timeout, after a transaction that did not end in time. Returns false if brokers
    /// accept no larger one.
    pub(super) fn grow(&mut self) -> bool {
        let next = self.current.saturating_mul(2).min(self.max);
        std::mem::replace(&mut self.current, next) < next
    }

    /// Brokers have refused the timeout. Returns false if it is the configured one.
    pub(super) fn refused(&mut self) -> bool {
        let was_grown = self.current > self.configured;
        self.current = (self.current / 2).max(self.configured);
        self.max = self.current;
        was_grown
    }

    /// A transaction has ended well. If it was fast enough, only an outage had delayed its
    /// predecessor.
    pub(super) fn took(&mut self, time: Duration) {
        if time < self.configured / 2 {
            self.current = self.configured;
        }
    }
}
