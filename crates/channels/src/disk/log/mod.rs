//! The segment log.
//!
//! ```text
//! DIRECTORY/channel            format version and random id of the channel (recover.rs)
//! DIRECTORY/lock               held by the process that has the channel open
//! DIRECTORY/0000000017.seg     a segment: header (segment.rs) and frames (frame.rs)
//! DIRECTORY/0000000016.ids     the chunk ids of a closed segment (ids.rs); outlives the segment
//! DIRECTORY/0000000016.bad     a segment in which damage was found, put aside once nobody needs it any more
//! DIRECTORY/free-12.seg        a used segment waiting to be written over
//! DIRECTORY/NAME.cursor        where the consumer NAME is (cursor.rs)
//!
//! channel-records/NAME.record   what is known of the channel when its directory is gone (record.rs)
//! channel-records/NAME.losses   what is missing of it, and whether an operator has accepted that (loss.rs)
//! ```
//!
//! [`Log`] is the writer: one thread owns it, stages groups with [`Log::append`] and keeps them with [`Log::commit`].
//! [`Reader`] is one consumer; it sees only what is kept. Neither starts a thread, waits or asks the clock: who drives
//! them does, so that a test can drive them through every step and every crash.

mod append;
mod bytes;
mod claims;
mod commit;
mod consumers;
mod cursor;
#[cfg(test)]
mod damage_tests;
mod directory;
mod error;
mod frame;
#[cfg(test)]
mod full_tests;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod ids;
mod index;
pub mod inspect;
mod key;
mod loss;
#[cfg(test)]
mod loss_tests;
mod origins;
mod reader;
mod record;
mod recover;
mod repair;
mod roll;
mod seal;
mod segment;
mod skip;
mod survey;
mod tail;
#[cfg(test)]
mod tests;
mod walk;
mod window;
mod write;

use std::{fmt, time::Duration};

pub use claims::Unclaimed;
pub use commit::Log;
pub use error::Error;
pub use index::Watch;
pub use loss::{Loss, Losses, Missing};
pub use millstream_pipeline::channel::{Behind, Then};
pub use reader::{Item, Lost, Reader};
pub use recover::Recovered;
pub use segment::Blank;
pub use skip::Skipped;
pub use window::Dedupe;

/// The random id of a channel: 128 bits, made with the channel.
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

/// When what is written is synced, and so what *kept* means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Kept = fdatasync has returned: survives a power cut.
    Batch,
    /// Kept = written: survives SIGKILL; a power cut takes what was written in up to this time.
    Every(Duration),
    /// Kept = written; only closed segments are synced.
    Never,
}

/// What a channel is opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// When to sync.
    pub sync: Sync,
    /// Bytes that all segments may take together, used or waiting to be used.
    pub size_max: u64,
    /// Bytes of one segment.
    pub segment_bytes: u64,
    /// Bytes of kept batches that stay in memory for the readers that follow closely.
    pub hot_bytes: usize,
    /// The window of repeats.
    pub dedupe: Dedupe,
}

/// Bytes of a segment: large enough that rolling (two syncs and a name) does not show, small enough that disk room comes
/// back while a reader follows.
pub const SEGMENT_BYTES: u64 = 64 << 20;

/// Where the disk is nearly full, segments are smaller: down to this, unless one group takes more.
pub const SEGMENT_BYTES_LEAST: u64 = 256 << 10;

impl Default for Options {
    fn default() -> Self {
        Self {
            sync: Sync::Batch,
            size_max: 10 << 30,
            segment_bytes: SEGMENT_BYTES,
            // A queue is 2-4 MiB, so that a batch is still in the cache when the reader takes it.
            hot_bytes: 4 << 20,
            dedupe: Dedupe::default(),
        }
    }
}
