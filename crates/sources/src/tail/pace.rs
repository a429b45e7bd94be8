//! The lag of a reader (its number of unread bytes), and the frequency of its wake-ups.
//!
//! A file that is written in small pieces would wake its reader for each piece, or keep the reader running. After several wake-ups
//! in quick succession, the reader naps before it reads again. So a busy file needs far fewer reads, and a file that is rarely
//! written is never delayed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use millstream_pipeline::meters::Meter;

/// A wake-up is called near if it follows the previous one within this time.
const NEAR: Duration = Duration::from_millis(10);
/// This many near wake-ups in a row cause a nap.
const WAKES: u32 = 5;
/// The length of a nap, and so the longest delay of a busy file.
const NAP: Duration = Duration::from_millis(5);

/// The pace of one reader.
#[derive(Debug)]
pub(super) struct Pace {
    /// Unread bytes of all files of the source.
    lag: Meter,
    /// Unread bytes of this file.
    behind: u64,
    /// A copy of `behind` that `run.rs` reads.
    own: Arc<AtomicU64>,
    /// Bytes read since the reader last paused for `rate_max`.
    pub owed: u64,
    woken: Instant,
    /// The number of near wake-ups in a row.
    near: u32,
    /// When something was last read.
    pub last_read: Instant,
}

impl Pace {
    /// The pace of a file without unread bytes. When the number of unread bytes changes, `Pace` updates the gauge `lag` and the copy
    /// `own`.
    pub(super) fn new(lag: Meter, own: Arc<AtomicU64>) -> Self {
        let now = Instant::now();
        Self {
            lag,
            behind: 0,
            own,
            owed: 0,
            woken: now,
            near: 0,
            last_read: now,
        }
    }

    /// Sets the number of unread bytes.
    pub(super) fn lag(&mut self, bytes: u64) {
        self.lag.add(bytes);
        self.lag.sub(self.behind);
        self.behind = bytes;
        self.own.store(bytes, Ordering::Relaxed);
    }

    /// Notes that `bytes` bytes were read.
    pub(super) fn read(&mut self, bytes: u64) {
        self.lag(self.behind.saturating_sub(bytes));
        self.owed += bytes;
        self.last_read = Instant::now();
    }

    /// Whether no more than `bytes` bytes are unread.
    pub(super) fn is_rest(&self, bytes: u64) -> bool {
        self.behind <= bytes
    }

    /// Whether everything was read.
    pub(super) fn at_end(&self) -> bool {
        self.behind == 0
    }

    /// Notes that the reader was woken, or has read to the end. Returns how long it should nap.
    pub(super) fn woken(&mut self) -> Option<Duration> {
        let now = Instant::now();
        // If a nap came before, `self.woken` is the end of that nap. So the nap does not count as time between wake-ups.
        self.near = if now.duration_since(self.woken) < NEAR {
            self.near + 1
        } else {
            0
        };
        self.woken = now;
        (self.near >= WAKES).then(|| {
            self.woken += NAP;
            NAP
        })
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.lag(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_file_causes_naps_and_the_lag_goes_back_to_zero() {
        let (meter, own) = (Meter::default(), Arc::new(AtomicU64::new(0)));
        let mut pace = Pace::new(meter.clone(), own.clone());
        pace.lag(100);
        pace.read(60);
        assert_eq!((meter.get(), own.load(Ordering::Relaxed)), (40, 40));
        assert!(pace.is_rest(40) && !pace.at_end());
        assert_eq!(pace.owed, 60);
        let naps = (0..2 * WAKES).filter(|_| pace.woken().is_some()).count();
        assert!(naps > 0);
        drop(pace);
        assert_eq!(meter.get(), 0);
    }
}
