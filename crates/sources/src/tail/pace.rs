//! How far a reader is behind, and how often it lets itself be woken.
//!
//! A file that is written in small pieces would wake its reader for each, or keep it running for each. When several looks
//! in a row came close together and found little, the reader takes a nap before the next: a busy file gains much, an
//! idle one is never delayed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use millstream_pipeline::meters::Meter;

/// Wake-ups this near to each other are close together.
const NEAR: Duration = Duration::from_millis(10);
/// So many of them in a row make a nap.
const WAKES: u32 = 5;
/// How long a nap is: a busy stream is delayed by no more.
const NAP: Duration = Duration::from_millis(5);

/// The pace of one reader.
#[derive(Debug)]
pub(super) struct Pace {
    /// Bytes that all readers of the source have not read yet.
    lag: Meter,
    /// Our part of it, and where others see it.
    behind: u64,
    own: Arc<AtomicU64>,
    /// Bytes that were read since the last turn.
    pub owed: u64,
    woken: Instant,
    near: u32,
    /// When something was last read.
    pub last_read: Instant,
}

impl Pace {
    /// A reader that adds to a gauge.
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

    /// There are `bytes` bytes to read.
    pub(super) fn lag(&mut self, bytes: u64) {
        self.lag.add(bytes);
        self.lag.sub(self.behind);
        self.behind = bytes;
        self.own.store(bytes, Ordering::Relaxed);
    }

    /// `bytes` of them were read.
    pub(super) fn read(&mut self, bytes: u64) {
        self.lag(self.behind.saturating_sub(bytes));
        self.owed += bytes;
        self.last_read = Instant::now();
    }

    /// Whether these bytes are all that there is to read.
    pub(super) fn is_rest(&self, bytes: u64) -> bool {
        self.behind <= bytes
    }

    /// Whether all was read that was there.
    pub(super) fn at_end(&self) -> bool {
        self.behind == 0
    }

    /// The reader was woken, or has read up to the end; how long it should nap.
    pub(super) fn woken(&mut self) -> Option<Duration> {
        let now = Instant::now();
        // The nap itself does not make wake-ups rare.
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
