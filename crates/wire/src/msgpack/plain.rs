//! Skips plain records: small maps of short texts and small numbers, as nearly all records are. Twice as fast as
//! [`skip`](super::skip), which handles the others.
//!
//! ```text
//! a. .. | a. .. or d9 nn .. or da nn nn .. or 00-7f     one pair: key | value
//! ```
//!
//! The offset of a value follows from the length before it, so each step depends on the previous one. But the keys of a
//! record are mostly those of the previous record: if a key is compared with the previous one instead of read, its
//! length is known at once, and the processor speculates ahead.

/// A small map has fewer pairs than this.
const PAIRS_MAX: usize = 16;

/// Remembers the keys of the previous record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plain {
    keys: [Key; PAIRS_MAX],
}

/// The first byte of a key, and the size that follows from it. Both are stored, although one follows from the other, so
/// that the processor can speculate ahead.
#[derive(Clone, Copy, Debug)]
struct Key {
    marker: u8,
    size: u8,
}

impl Default for Key {
    /// The empty text.
    fn default() -> Self {
        Self {
            marker: 0xa0,
            size: 1,
        }
    }
}

impl Plain {
    /// Skips the pairs of a small map from `at` on, up to the first key or value that is not plain or not complete.
    /// Returns where it stopped and how many values are still owed there; 0 means that it is after the map.
    #[inline]
    pub(crate) fn skip(&mut self, bytes: &[u8], mut at: usize, pairs: u8) -> (usize, u64) {
        let mut owed = 2 * u64::from(pairs);
        for key in self.keys.iter_mut().take(usize::from(pairs)) {
            let Some(&marker) = bytes.get(at) else {
                break;
            };
            if marker != key.marker {
                if !matches!(marker, 0xa0..=0xbf) {
                    break;
                }
                let size = 1 + (marker & 0x1f);
                *key = Key { marker, size };
            }
            let value = at + usize::from(key.size);
            let Some(&[marker, a, b]) = bytes.get(value..).and_then(<[u8]>::first_chunk) else {
                break;
            };
            let size = match marker {
                0xd9 => 2 + usize::from(a),
                0xa0..=0xbf => 1 + usize::from(marker & 0x1f),
                0x00..=0x7f => 1,
                0xda => 3 + usize::from(u16::from_be_bytes([a, b])),
                _ => return (value, owed - 1),
            };
            if size > bytes.len() - value {
                return (value, owed - 1);
            }
            at = value + size;
            owed -= 2;
        }
        (at, owed)
    }
}
