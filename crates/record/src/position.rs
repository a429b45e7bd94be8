//! Positions in a channel: identities that are never used twice.

use std::fmt;

/// Where a frame stands in a disk channel: the epoch first, then the sequence number. Every start after anything but a
/// clean stop begins a new epoch, so a number never stands for two different contents. `seq` goes on across epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Raised at every unclean start.
    pub epoch: u32,
    /// Raised with every frame.
    pub seq: u64,
}

impl Position {
    /// The position after it in the same epoch.
    #[must_use]
    pub fn next(self) -> Self {
        Self {
            seq: self.seq + 1,
            ..self
        }
    }

    /// The position before it in the same epoch; the first one has itself.
    #[must_use]
    pub fn before(self) -> Self {
        Self {
            seq: self.seq.saturating_sub(1),
            ..self
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.seq)
    }
}
