//! The options of a log, and its id.

use std::{fmt, time::Duration};

use super::Dedupe;

/// The random id of a channel: 128 bits, created with the channel.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChannelId(pub [u8; 16]);

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// When written frames are synced, which defines *kept*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// A batch is kept when fdatasync has returned. It survives a power cut.
    Batch,
    /// A batch is kept when it is written. It survives SIGKILL. A power cut loses at most the batches that were written within this time
    /// before the cut.
    Every(Duration),
    /// A batch is kept when it is written. Only closed segments are synced.
    Never,
}

/// The options of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// When to sync.
    pub sync: Sync,
    /// The maximum number of bytes of all segments together, used or waiting to be reused.
    pub size_max: u64,
    /// Bytes of one segment.
    pub segment_bytes: u64,
    /// The maximum number of bytes of kept batches in memory, for readers that follow closely.
    pub hot_bytes: usize,
    /// The window in which repeats are recognized.
    pub dedupe: Dedupe,
    /// The age beyond which batches are skipped for every consumer; zero: never.
    pub max_age: Duration,
}

/// Bytes of a segment. A roll, the change to a new segment, costs two syncs and a rename. Segments of this size are large enough that
/// rolls cost little, and small enough that disk space is freed while a reader follows.
pub const SEGMENT_BYTES: u64 = 64 << 20;

/// Bytes of the smallest segment on a nearly full disk, unless one group takes more.
pub const SEGMENT_BYTES_LEAST: u64 = 256 << 10;

impl Default for Options {
    fn default() -> Self {
        Self {
            sync: Sync::Batch,
            size_max: 10 << 30,
            segment_bytes: SEGMENT_BYTES,
            // Small enough that a batch is still in the CPU's cache when the reader gets it.
            hot_bytes: 4 << 20,
            dedupe: Dedupe::default(),
            max_age: Duration::ZERO,
        }
    }
}
