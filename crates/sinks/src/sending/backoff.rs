//! Exponential back-off with jitter.
//!
//! The first wait is `retry.first`; each further failure doubles it, up to `retry.max`. A jitter of one eighth in either direction
//! keeps many senders from retrying at the same moment.

use std::time::Duration;

use millstream_sys::random::Spread;

use super::Retry;

/// Counts the failures since the last success.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    max: Duration,
    failures: u32,
    jitter: Spread,
}

impl Backoff {
    pub(crate) fn new(retry: &Retry) -> Self {
        let (first, max) = (retry.first.as_duration(), retry.max.as_duration());
        Self {
            first,
            max: max.max(first),
            failures: 0,
            jitter: Spread::new(),
        }
    }

    /// Resets the back-off after a success: the next failure counts as the first.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Counts a failure and returns the time to wait before the next attempt.
    pub(crate) fn failed(&mut self) -> Duration {
        let wait = self.first.saturating_mul(1 << self.failures.min(20));
        self.failures = self.failures.saturating_add(1);
        let wait = wait.min(self.max);
        let eighth = wait / 8;
        let part = u32::try_from(self.jitter.draw() % 1000).unwrap_or(0);
        (wait - eighth).saturating_add(eighth.saturating_mul(2 * part) / 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backoff(first: &str, max: &str) -> Backoff {
        Backoff::new(&Retry {
            first: first.parse().unwrap(),
            max: max.parse().unwrap(),
            ..Retry::default()
        })
    }

    #[test]
    fn waits_double_up_to_the_maximum_and_start_over_after_a_success() {
        let mut backoff = backoff("1s", "60s");
        let near =
            |wait: Duration, aim: f64| (0.87 * aim..1.13 * aim).contains(&wait.as_secs_f64());
        for aim in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0] {
            assert!(near(backoff.failed(), aim));
        }
        backoff.reset();
        assert!(near(backoff.failed(), 1.0));
    }

    #[test]
    fn any_number_of_failures_and_the_longest_periods_do_not_overflow() {
        let mut backoff = Backoff {
            first: Duration::from_secs(1 << 40),
            max: Duration::MAX,
            ..backoff("1s", "1s")
        };
        for _ in 0..100 {
            backoff.failed();
        }
    }
}
