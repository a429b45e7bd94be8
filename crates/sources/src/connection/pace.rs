//! Moderates wake-ups, as network cards do: a connection that sends single messages without pause is read once a tick.
//!
//! A server that is faster than its sender is woken for every message or two, and a wake-up costs more than a message. An
//! idle stream is never delayed, nor is a peer that waits for acks.

use std::time::{Duration, Instant};

/// A read of fewer bytes is small: a few messages, each of which costs a wake-up.
const SMALL_READ_BYTES: usize = 2 << 10;
/// A read of so many bytes shows a peer that does not wait for us: once a tick would be too seldom for it, as its own
/// buffer is full before.
const LARGE_READ_BYTES: usize = 16 << 10;
/// After so many small reads within [`QUICK`] a connection is read once a tick.
const SMALL_READS: u32 = 5;
/// See [`SMALL_READS`].
const QUICK: Duration = Duration::from_millis(2);

/// Moderates wake-ups: tells a connection that sends single messages without pause.
pub(crate) struct Pace {
    on: bool,
    small: u32,
    since: Instant,
    busy: bool,
}

impl Pace {
    pub(crate) fn new(gather: Duration) -> Self {
        Self {
            on: !gather.is_zero(),
            small: 0,
            since: Instant::now(),
            busy: false,
        }
    }

    /// Whether to wait before the next read, after one of `count` bytes at `now` that took all there was. `asked`: the
    /// peer waits for acks, so waiting would slow it down.
    pub(crate) fn is_busy(&mut self, count: usize, now: Instant, asked: bool) -> bool {
        if asked || count >= LARGE_READ_BYTES {
            self.calm();
        } else if !self.busy {
            if now.duration_since(self.since) > QUICK || count >= SMALL_READ_BYTES {
                (self.since, self.small) = (now, 0);
            }
            self.small += 1;
            self.busy = self.small >= SMALL_READS;
        }
        self.busy && self.on
    }

    /// The connection is not busy.
    pub(crate) fn calm(&mut self) {
        self.busy = false;
        self.small = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_reads_close_together_make_a_connection_busy_until_one_is_large() {
        let mut pace = Pace::new(Duration::from_millis(1));
        let now = Instant::now();
        let mut read = |count| pace.is_busy(count, now, false);
        assert!((1..SMALL_READS).all(|_| !read(200)));
        assert!(read(200));
        assert!(read(LARGE_READ_BYTES - 1));
        assert!(!read(LARGE_READ_BYTES));
        assert!(!read(200));
    }

    #[test]
    fn neither_slow_reads_nor_a_peer_that_waits_for_acks_make_it_busy() {
        let mut pace = Pace::new(Duration::from_millis(1));
        let begin = Instant::now();
        assert!((0..100).all(|read| !pace.is_busy(200, begin + QUICK * read, false)));
        assert!((0..100).all(|_| !pace.is_busy(200, begin, true)));
    }
}
