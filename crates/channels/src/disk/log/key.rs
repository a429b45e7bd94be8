//! The key of a chunk: 128 bits by which a repeat is recognized.
//!
//! Two chunks have the same key if their ids, their tags on arrival, and the lengths and checksums of their payloads are equal. These
//! values are hashed with SipHash-2-4-128 (Aumasson, Bernstein: "SipHash: a fast short-input PRF", 2012) under the channel's random
//! id, so that no sender can forge the key of another sender's chunk. The odds that two of a million chunks share a key are about 1 in
//! 10^27.
//!
//! The key of a part of a position of another Millstream's channel ([`PartId`]) has no content in it, because the processors in front of
//! that Millstream's sink may have changed before the part is sent again. See repeats.rs.

use millstream_record::ChunkOrigin;
use millstream_wire::part_id::{PartId, id_text};

/// The key of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key(pub(super) [u8; 16]);

/// Whether equal keys prove that two chunks are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// The id is random, or the sender numbers its chunks: equal keys mean the same chunk.
    Unique,
    /// The id is a hash of the content (Fluent Bit: 32 hex digits) or too short to be unique: two different chunks with equal bytes
    /// can have equal keys.
    Shared,
}

/// Shorter ids cannot be unique: simple senders write `chunk: 1`.
const UNIQUE_BYTES_MIN: usize = 16;
/// Fluent Bit's content hash has this many hex digits.
const CONTENT_DIGITS: usize = 32;

/// Decides whether the id of a chunk is unique. Only an id that is a MessagePack string or binary can be unique.
pub(super) fn identity(id: &[u8]) -> Identity {
    let Some(text) = id_text(id) else {
        return Identity::Shared;
    };
    let content = text.len() == CONTENT_DIGITS && text.iter().all(u8::is_ascii_hexdigit);
    if content || text.len() < UNIQUE_BYTES_MIN {
        Identity::Shared
    } else {
        Identity::Unique
    }
}

/// Computes the keys of one channel.
#[derive(Debug)]
pub(super) struct Keys {
    secret: [u8; 16],
    input: Vec<u8>,
}

impl Keys {
    pub(super) fn new(secret: [u8; 16]) -> Self {
        Self {
            secret,
            input: Vec::new(),
        }
    }

    pub(super) fn key(&mut self, chunk: &ChunkOrigin) -> Key {
        let input = &mut self.input;
        input.clear();
        // Reserved bytes. They must not change, because id files on disk hold keys that include them.
        input.extend_from_slice(&[0; 8]);
        input.extend_from_slice(&chunk.length.to_le_bytes());
        input.extend_from_slice(&chunk.checksum.to_le_bytes());
        input.extend_from_slice(&(chunk.id.len() as u64).to_le_bytes());
        input.extend_from_slice(&chunk.id);
        input.extend_from_slice(chunk.tag.as_str().as_bytes());
        Key(siphash128(&self.secret, input))
    }

    /// The key of a part of a position; `None`: of its last part, whatever its number.
    pub(super) fn part(&mut self, id: &PartId<'_>, part: Option<u32>) -> Key {
        let input = &mut self.input;
        input.clear();
        // Different from the reserved bytes above, so that no chunk has the key of a part.
        input.extend_from_slice(&[1; 8]);
        input.extend_from_slice(&id.channel.to_le_bytes());
        input.extend_from_slice(&id.position.epoch.to_le_bytes());
        input.extend_from_slice(&id.position.seq.to_le_bytes());
        input.extend_from_slice(&id.received.0.to_le_bytes());
        input.push(id.flow);
        input.extend_from_slice(&part.unwrap_or(u32::MAX).to_le_bytes());
        input.extend_from_slice(id.sink.as_bytes());
        Key(siphash128(&self.secret, input))
    }
}

/// SipHash-2-4 with 128 bits of output.
fn siphash128(secret: &[u8; 16], input: &[u8]) -> [u8; 16] {
    let (k0, k1) = (word(&secret[..8]), word(&secret[8..]));
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let mut words = input.chunks_exact(8);
    for chunk in &mut words {
        absorb(&mut v, word(chunk));
    }
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    // The highest byte of the last word is the lowest byte of the length.
    last[7] = input.len().to_le_bytes()[0];
    absorb(&mut v, u64::from_le_bytes(last));
    let mut output = [0; 16];
    v[2] ^= 0xee;
    (0..4).for_each(|_| round(&mut v));
    output[..8].copy_from_slice(&(v[0] ^ v[1] ^ v[2] ^ v[3]).to_le_bytes());
    v[1] ^= 0xdd;
    (0..4).for_each(|_| round(&mut v));
    output[8..].copy_from_slice(&(v[0] ^ v[1] ^ v[2] ^ v[3]).to_le_bytes());
    output
}

fn absorb(v: &mut [u64; 4], word: u64) {
    v[3] ^= word;
    round(v);
    round(v);
    v[0] ^= word;
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

/// Eight bytes as a number; callers pass exactly eight.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use millstream_wire::part_id::REQUEST_MARK;

    use super::*;

    #[test]
    fn the_hash_matches_the_published_test_vectors() {
        let secret: [u8; 16] = std::array::from_fn(|i| u8::try_from(i).unwrap());
        let hex = |input: &[u8]| {
            siphash128(&secret, input)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        assert_eq!(hex(b""), "a3817f04ba25a8e66df67214c7550293");
        assert_eq!(hex(&[0]), "da87c1d86b99af44347659119b22fc45");
    }

    #[test]
    fn the_ids_of_a_sink_and_of_its_requests_are_parts_of_positions() {
        let text = b"000000000000000000000000000000ab.next.3.41.5.0.0.1.00000000";
        let plain = [&[0xd9, 57][..], text].concat();
        let request = [&[0xd9, 73][..], REQUEST_MARK, text].concat();
        let id = PartId::of_chunk(&plain).unwrap();
        assert_eq!((id.sink, PartId::of_chunk(&request)), ("next", Some(id)));
        assert_eq!(PartId::of_chunk(text), None);
        let mut keys = Keys::new([1; 16]);
        let other = PartId { flow: 1, ..id };
        let of = [(id, None), (id, Some(0)), (other, None)];
        let [last, first, other] = of.map(|(id, part)| keys.part(&id, part));
        assert!(last != first && last != other);
    }

    #[test]
    fn content_hashes_and_short_ids_alone_prove_nothing() {
        let content = [b"\xd9\x20".as_slice(), &[b'a'; 32]].concat();
        let fluentd = [b"\xb8".as_slice(), b"PdjoG1yfRwmC9QbEo1eNzA=="].concat();
        assert_eq!(identity(&content), Identity::Shared);
        assert_eq!(identity(&fluentd), Identity::Unique);
        assert_eq!(identity(&[1]), Identity::Shared);
        assert_eq!(identity(b"\xa11"), Identity::Shared);
    }
}
