//! Positions in a channel, which are never reused.

use std::{fmt, str::FromStr};

/// The position of a frame (a stored batch) in a disk channel: first the epoch, then the sequence number. Every start after an unclean
/// stop begins a new epoch, so a position always identifies the same content. `seq` continues across epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Incremented at every start after an unclean stop.
    pub epoch: u32,
    /// Incremented with every frame.
    pub seq: u64,
}

impl Position {
    /// The next position in the same epoch.
    #[must_use]
    pub fn next(self) -> Self {
        Self {
            seq: self.seq + 1,
            ..self
        }
    }

    /// The previous position in the same epoch. Returns the position itself if `seq` is 0.
    #[must_use]
    pub fn before(self) -> Self {
        Self {
            seq: self.seq.saturating_sub(1),
            ..self
        }
    }
}

impl FromStr for Position {
    type Err = String;

    /// Reads `EPOCH.SEQ`.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('.');
        let read = parts.and_then(|(epoch, seq)| {
            Some(Self {
                epoch: epoch.parse().ok()?,
                seq: seq.parse().ok()?,
            })
        });
        read.ok_or_else(|| format!("`{text}` is no position, such as `1.2000`"))
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.seq)
    }
}
