//! Validates a payload of entries or of lines while it arrives.

use millstream_record::Encoding;

use crate::msgpack::{Malformed, Walker};

/// Counts and validates the records of a growing payload. Every call of [`Check::feed`] gets all bytes of the payload
/// received so far, and continues where the previous call stopped.
#[derive(Clone, Debug)]
pub enum Check {
    /// The state for entries.
    Packed(Walker),
    /// The state for lines.
    Lines {
        /// Bytes that were examined.
        seen: usize,
        /// Newlines before `seen`.
        lines: u32,
        /// The offset after the last newline.
        whole: usize,
    },
}

impl Check {
    /// The state at the start of a payload.
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

    /// Validates the bytes that arrived since the previous call. `bytes` are all bytes of the payload received so far.
    ///
    /// # Errors
    /// [`Malformed`]: the bytes after [`Check::whole`] cannot be read.
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

    /// The number of valid records before [`Check::whole`].
    pub fn records(&self) -> u32 {
        match self {
            Self::Packed(walker) => walker.entries(),
            Self::Lines { lines, .. } => *lines,
        }
    }

    /// The number of values before [`Check::whole`] that are not records.
    pub fn misfits(&self) -> u32 {
        match self {
            Self::Packed(walker) => walker.misfits(),
            Self::Lines { .. } => 0,
        }
    }

    /// Whether every value before [`Check::whole`] is a line, or an array with the marker `92` and without metadata
    /// beside its time.
    pub fn is_plain(&self) -> bool {
        match self {
            Self::Packed(walker) => walker.is_plain(),
            Self::Lines { .. } => true,
        }
    }

    /// The offset after the last complete record. If it is below the length of the complete payload, the payload is
    /// truncated.
    pub fn whole(&self) -> usize {
        match self {
            Self::Packed(walker) => walker.whole(),
            Self::Lines { whole, .. } => *whole,
        }
    }
}
