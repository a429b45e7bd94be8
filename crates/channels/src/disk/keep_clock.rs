//! The clock of a channel.
//!
//! Everything that depends on elapsed time (the option `behind.age` of a sink, the age of ids, the delay until the next sync) is measured
//! between keep times, the times at which the channel kept its batches. The wall clock can jump by days. After a jump forward, everything
//! would look old immediately; after a jump back, nothing would look old for days. So the keep clock starts when the channel opens, at
//! the time of the wall clock or at the newest keep time, whichever is later. From then on, it advances with the monotonic clock.

use std::time::Instant;

use millstream_record::Time;

/// A clock that never jumps and never goes back.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeepClock {
    start: Time,
    started: Instant,
}

impl KeepClock {
    /// A clock that continues after `newest`, the newest keep time of the channel. `wall` is the time of the wall clock.
    pub(super) fn new(newest: Time, wall: Time) -> Self {
        Self {
            start: newest.max(wall),
            started: Instant::now(),
        }
    }

    /// The keep time now.
    pub(super) fn now(&self) -> Time {
        let since = i64::try_from(self.started.elapsed().as_nanos()).unwrap_or(i64::MAX);
        Time(self.start.0.saturating_add(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_starts_at_the_later_time_and_never_goes_back() {
        for (newest, wall) in [(Time(5), Time(7)), (Time(7), Time(5))] {
            let clock = KeepClock::new(newest, wall);
            let first = clock.now();
            assert!(first >= Time(7) && first < Time::from_parts(60, 0));
            assert!(clock.now() >= first);
        }
    }
}
