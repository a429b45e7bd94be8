//! Counts how often a chunk that cannot be decoded was refused. Such a chunk is refused a few times, because it may have been
//! damaged in transit. After that, its good records are kept and the rest is rejected.
//!
//! A sender that waits for an ack resends a damaged chunk again and again, on any connection. Attempts are therefore counted by a
//! key (the chunk's id, length and checksum) over all connections. Only the key and the number of attempts of a refused chunk are
//! stored.

use std::sync::{Mutex, PoisonError};

/// Maximum number of chunks that are remembered. The chunk that was seen least recently is forgotten first. If it arrives again,
/// its attempts are counted from 0.
const REMEMBERED_MAX: usize = 256;

/// Counts the attempts of chunks that cannot be decoded.
pub(super) struct Poison {
    after: u32,
    /// Chunks and the number of their attempts. The chunk that was seen most recently is last.
    tries: Mutex<Vec<(Key, u32)>>,
}

/// The identity of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// The id as received.
    pub id: Vec<u8>,
    /// The size of its payload in bytes.
    pub length: usize,
    /// CRC-32C of its payload.
    pub checksum: u32,
}

impl Poison {
    /// Refuses each chunk `after` times.
    pub(super) fn new(after: u32) -> Self {
        Self {
            after,
            tries: Mutex::default(),
        }
    }

    /// Whether to refuse the chunk this time.
    pub(super) fn refuses(&self, key: Key) -> bool {
        let mut all = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        let place = all.iter().position(|(known, _)| *known == key);
        let tries = place.map_or(0, |place| all.remove(place).1);
        if tries >= self.after {
            return false;
        }
        if all.len() >= REMEMBERED_MAX {
            all.remove(0);
        }
        all.push((key, tries + 1));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: u8) -> Key {
        Key {
            id: vec![id],
            length: 1,
            checksum: 2,
        }
    }

    #[test]
    fn a_chunk_is_refused_a_few_times_and_then_taken() {
        let poison = Poison::new(3);
        let refused: Vec<bool> = (0..5).map(|_| poison.refuses(key(1))).collect();
        // A chunk that was accepted is forgotten. If the same chunk arrives later, it is refused again.
        assert_eq!(refused, [true, true, true, false, true]);
        assert!(!Poison::new(0).refuses(key(1)));
    }

    #[test]
    fn the_number_of_remembered_chunks_is_bounded() {
        let poison = Poison::new(1);
        for id in 0..=255 {
            assert!(poison.refuses(key(id)));
        }
        let mut other = key(0);
        other.length = 9;
        assert!(poison.refuses(other));
        assert!(poison.refuses(key(0)), "the oldest was forgotten");
        assert!(!poison.refuses(key(255)));
    }
}
