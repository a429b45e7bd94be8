//! Skips plain records: maps whose keys are short texts, and whose values are texts, numbers, booleans or nil. Nearly
//! all records are plain. This module is two to ten times as fast as [`skip`](super::skip), which handles all other
//! records.
//!
//! ```text
//! a0-bf .. | a0-bf .. or d9 nn .. or da nn nn .. or a scalar of fixed size     one pair: key | value
//! ```
//!
//! The offset of a key or value follows from the length of the one before, so each step depends on the previous step.
//! But the keys of a record are mostly those of the previous record. So the first byte of a key is compared with the
//! first byte of the key at the same index of the previous record. If the two bytes are equal, the length of the key is
//! known immediately, and the CPU speculates ahead.

/// The maximum number of keys of a map that are remembered. [`skip`](super::skip) handles the pairs after them.
const PAIRS_MAX: usize = 64;

/// The sizes of scalars by their first byte: nil, booleans, integers and floats. 0 for any other value.
const SCALARS: [u8; 256] = scalars();

const fn scalars() -> [u8; 256] {
    let mut sizes = [0; 256];
    let mut marker = 0;
    while marker < sizes.len() {
        sizes[marker] = match marker {
            0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => 1,
            0xcc | 0xd0 => 2,
            0xcd | 0xd1 => 3,
            0xca | 0xce | 0xd2 => 5,
            0xcb | 0xcf | 0xd3 => 9,
            _ => 0,
        };
        marker += 1;
    }
    sizes
}

/// Remembers the keys of the previous record.
#[derive(Clone, Debug)]
pub(crate) struct Plain {
    keys: [Key; PAIRS_MAX],
}

/// The first byte of a key, and the size that follows from it. The size is stored, too, so that the CPU can speculate
/// ahead.
#[derive(Clone, Copy, Debug)]
struct Key {
    marker: u8,
    size: u8,
}

impl Default for Key {
    /// A key that is an empty text.
    fn default() -> Self {
        Self {
            marker: 0xa0,
            size: 1,
        }
    }
}

impl Default for Plain {
    fn default() -> Self {
        Self {
            keys: [Key::default(); PAIRS_MAX],
        }
    }
}

impl Plain {
    /// Skips the pairs of a map from `at` on, up to the first key or value that is not plain or not complete. Returns
    /// the offset of that key or value, and the number of keys and values that remain from there; 0 means that the
    /// whole map was skipped.
    #[inline]
    pub(crate) fn skip(&mut self, bytes: &[u8], mut at: usize, pairs: u16) -> (usize, u64) {
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
                _ => match SCALARS[usize::from(marker)] {
                    0 => return (value, owed - 1),
                    size => usize::from(size),
                },
            };
            if size > bytes.len() - value {
                return (value, owed - 1);
            }
            at = value + size;
            owed -= 2;
        }
        (at, owed)
    }

    /// Like [`Plain::skip`], for entries with less common heads. It is not inlined, so that the loop over common
    /// entries stays small.
    #[inline(never)]
    pub(crate) fn skip_rare(&mut self, bytes: &[u8], at: usize, pairs: u16) -> (usize, u64) {
        self.skip(bytes, at, pairs)
    }
}
