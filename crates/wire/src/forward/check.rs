//! Validates a payload while it arrives, in either encoding.

use millstream_record::Encoding;

use crate::msgpack::{Malformed, Walker};

/// Counts and validates the records of a payload that grows. Fed the same bytes with more behind them, it goes on where
/// it stopped.
#[derive(Clone, Debug)]
pub enum Check {
    /// Entries.
    Packed(Walker),
    /// Lines: how far they were counted, how many there are, and where the last one ends.
    Lines {
        /// Bytes looked at.
        seen: usize,
        /// Newlines before `seen`.
        lines: u32,
        /// The byte after the last newline.
        whole: usize,
    },
}

impl Check {
    /// At the start of a payload.
    pub fn new(encoding: Encoding) -> Self {
        match encoding {
            Encoding::Packed => Self::Packed(Walker::new()),
            Encoding::Lines => Self::Lines {
                seen: 0,
                lines: 0,
                whole: 0,
            },
        }
    }

    /// Goes on to the end of `bytes`.
    ///
    /// # Errors
    /// [`Malformed`]: what stands before [`Check::whole`] can be read, nothing behind it.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        match self {
            Self::Packed(walker) => walker.walk(bytes),
            Self::Lines { seen, lines, whole } => {
                let fresh = bytes.get(*seen..).unwrap_or_default();
                let count = memchr::memchr_iter(b'\n', fresh).count();
                *lines = lines.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
                if let Some(last) = memchr::memrchr(b'\n', fresh) {
                    *whole = *seen + last + 1;
                }
                *seen = bytes.len();
                Ok(())
            }
        }
    }

    /// Good records before [`Check::whole`].
    pub fn records(&self) -> u32 {
        match self {
            Self::Packed(walker) => walker.entries(),
            Self::Lines { lines, .. } => *lines,
        }
    }

    /// Values before [`Check::whole`] that are no records.
    pub fn misfits(&self) -> u32 {
        match self {
            Self::Packed(walker) => walker.misfits(),
            Self::Lines { .. } => 0,
        }
    }

    /// Whether no record before [`Check::whole`] has metadata beside its time.
    pub fn is_plain(&self) -> bool {
        match self {
            Self::Packed(walker) => walker.is_plain(),
            Self::Lines { .. } => true,
        }
    }

    /// The byte after the last whole record. Less than the payload's length at its end: the payload is cut.
    pub fn whole(&self) -> usize {
        match self {
            Self::Packed(walker) => walker.whole(),
            Self::Lines { whole, .. } => *whole,
        }
    }
}
