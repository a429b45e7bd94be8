//! How long to wait before a destination is tried again: at once after a connection that did some work, then `first`, then
//! twice as long each time up to `max`, with an eighth more or less so that many senders do not come back together.

use std::time::Duration;

/// Counts the failures since something last went well.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    max: Duration,
    failures: u32,
    /// State of the generator that spreads the waits; never 0.
    random: u64,
}

impl Backoff {
    pub(crate) fn new(first: Duration, max: Duration, seed: u64) -> Self {
        Self {
            first,
            max: max.max(first),
            failures: 0,
            random: seed | 1,
        }
    }

    /// Something went well: the next failure is the first.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The wait after one more failure.
    pub(crate) fn failed(&mut self) -> Duration {
        let wait = self.first.saturating_mul(1 << self.failures.min(20));
        self.failures = self.failures.saturating_add(1);
        let wait = wait.min(self.max);
        // xorshift64: good enough to spread senders out.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let eighth = wait / 8;
        let part = u32::try_from(self.random % 1000).unwrap_or(0);
        (wait - eighth).saturating_add(eighth.saturating_mul(2 * part) / 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_most_and_start_over_after_success() {
        let (first, max) = (Duration::from_secs(1), Duration::from_secs(60));
        let mut backoff = Backoff::new(first, max, 42);
        let near =
            |wait: Duration, aim: f64| (0.87 * aim..1.13 * aim).contains(&wait.as_secs_f64());
        for aim in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0] {
            assert!(near(backoff.failed(), aim));
        }
        backoff.reset();
        assert!(near(backoff.failed(), 1.0));
    }

    #[test]
    fn no_number_of_failures_overflows() {
        let mut backoff = Backoff::new(Duration::from_secs(1 << 40), Duration::MAX, 0);
        for _ in 0..100 {
            backoff.failed();
        }
    }
}
