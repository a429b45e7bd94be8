//! Reduces wake-ups, as network cards reduce interrupts: a connection that sends single messages in quick succession is read only
//! once per tick. The option `gather` of the source sets the length of a tick.
//!
//! A server that is faster than its sender is woken for every message or two, and a wake-up costs more than decoding a message.
//! Idle streams and peers that wait for acks are never delayed.

use std::time::{Duration, Instant};

/// A read of fewer bytes is small: it cost a wake-up for only a few messages.
const SMALL_READ_BYTES: usize = 2 << 10;
/// After this many small reads within [`QUICK`], a connection is busy and read once per tick.
const SMALL_READS: u32 = 5;
/// The time within which the [`SMALL_READS`] must occur.
const QUICK: Duration = Duration::from_millis(2);

/// Recognizes a connection that sends single messages in quick succession.
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

    /// Whether to wait before the next read. Called after a read of `count` bytes at `now` that took everything available.
    /// `asked`: the peer waits for acks, so waiting would slow it down.
    pub(crate) fn is_busy(&mut self, count: usize, now: Instant, asked: bool) -> bool {
        if asked {
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

    /// Ends the busy state.
    pub(crate) fn calm(&mut self) {
        self.busy = false;
        self.small = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_reads_close_together_make_a_connection_busy_until_it_is_calm() {
        let mut pace = Pace::new(Duration::from_millis(1));
        let now = Instant::now();
        assert!((1..SMALL_READS).all(|_| !pace.is_busy(200, now, false)));
        assert!(pace.is_busy(200, now, false));
        assert!(pace.is_busy(SMALL_READ_BYTES, now, false));
        pace.calm();
        assert!(!pace.is_busy(200, now, false));
    }

    #[test]
    fn neither_slow_reads_nor_a_peer_that_waits_for_acks_make_a_connection_busy() {
        let mut pace = Pace::new(Duration::from_millis(1));
        let begin = Instant::now();
        assert!((0..100).all(|read| !pace.is_busy(200, begin + QUICK * read, false)));
        assert!((0..100).all(|_| !pace.is_busy(200, begin, true)));
    }
}
