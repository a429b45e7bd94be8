//! The timeout of transactions, which grows while transactions cannot end in time, and how such
//! transactions are kept small. Otherwise one large frame over a slow link, or a frame whose
//! records must be sent one by one, would be aborted and repeated forever.
//!
//! After a transaction that did not end in time, records are sent in steps. At the end of each step
//! nothing is in flight, so that the transaction can be committed there if it has lasted long, also
//! within a frame (see `progress`).

use std::time::{Duration, Instant};

/// The first step. Later ones are smaller after a failure, and larger after a success.
const STEP: usize = 256 << 10;
/// With larger steps, records are no longer sent in steps: this is the size of a usual transaction.
const STEP_MAX: usize = 64 << 20;

/// The timeout of the next session's transactions.
#[derive(Debug)]
pub(super) struct Timeout {
    /// The option `transaction_timeout`.
    configured: Duration,
    pub(super) current: Duration,
    /// The largest timeout that brokers may accept (`transaction.max.timeout.ms`), as far as it is
    /// known.
    max: Duration,
    /// How many bytes are sent before their acknowledgements are awaited. `None`: any number.
    pub(super) step: Option<usize>,
}

impl Timeout {
    pub(super) fn new(configured: Duration) -> Self {
        Self {
            configured,
            current: configured,
            max: Duration::MAX,
            step: None,
        }
    }

    /// A transaction did not end in time: doubles the timeout, unless brokers accept no larger one,
    /// and sends in smaller steps.
    pub(super) fn expired(&mut self) {
        self.current = self.current.saturating_mul(2).min(self.max);
        self.step = Some(self.step.map_or(STEP, |step| (step / 2).max(1)));
    }

    /// Kafka has a part of a frame, which did not fit one transaction.
    pub(super) fn divide(&mut self) {
        self.step.get_or_insert(STEP);
    }

    /// Brokers have refused the timeout. Returns false if it is the configured one.
    pub(super) fn refused(&mut self) -> bool {
        let was_grown = self.current > self.configured;
        self.current = (self.current / 2).max(self.configured);
        self.max = self.current;
        was_grown
    }

    /// Whether a transaction that began at `begun` should end soon.
    pub(super) fn is_late(&self, begun: Instant) -> bool {
        begun.elapsed() >= self.current / 2
    }

    /// A transaction has ended well. If it was fast enough, only an outage had delayed its
    /// predecessor.
    pub(super) fn took(&mut self, time: Duration) {
        if time < self.configured / 2 {
            self.current = self.configured;
            let larger = self.step.map(|step| step.saturating_mul(2));
            self.step = larger.filter(|step| *step < STEP_MAX);
        }
    }
}
