//! Which partition a record belongs to.
//!
//! Sources: Kafka's `Utils.murmur2` and `BuiltInPartitioner.java`; librdkafka's `rdkafka_msg.c` for the others. Records
//! without a key are dealt by whoever calls: they stay together for a batch.

use crc_fast::{CrcAlgorithm, checksum};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which partition a key belongs to. Records without a key stay on one partition for a while, then on another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Partitioner {
    /// As Java producers deal them.
    #[default]
    Murmur2,
    /// As librdkafka and what is built on it (Python, Go, .NET) deal them; an empty key is no key there.
    Crc32,
    /// As Sarama deals them.
    Fnv1a,
    /// Whatever the key is.
    Random,
}

impl Partitioner {
    /// The partition of a key, of `partitions`; None: any.
    pub(super) fn partition(self, key: Option<&[u8]>, partitions: usize) -> Option<usize> {
        let key = key?;
        let hash = match self {
            Self::Murmur2 => murmur2(key) & 0x7fff_ffff,
            Self::Crc32 if key.is_empty() => return None,
            Self::Crc32 => checksum(CrcAlgorithm::Crc32IsoHdlc, key) as u32,
            Self::Fnv1a => fnv1a(key),
            Self::Random => return None,
        };
        (hash as usize).checked_rem(partitions)
    }
}

/// As Java's client has it: MurmurHash2, 32 bits, with its own seed.
fn murmur2(bytes: &[u8]) -> u32 {
    const MIX: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ bytes.len() as u32;
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(MIX);
        k ^= k >> 24;
        hash = hash.wrapping_mul(MIX) ^ k.wrapping_mul(MIX);
    }
    for (place, byte) in rest.iter().enumerate().rev() {
        hash ^= u32::from(*byte) << (8 * place);
    }
    if !rest.is_empty() {
        hash = hash.wrapping_mul(MIX);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MIX);
    hash ^ (hash >> 15)
}

/// FNV-1a of 32 bits as a signed number, and its magnitude: what Sarama makes of it.
fn fnv1a(bytes: &[u8]) -> u32 {
    let hash = bytes.iter().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    });
    hash.cast_signed().unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_other_clients() {
        // From Kafka's UtilsTest.
        for (key, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            (
                "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()).cast_signed(), hash, "{key}");
        }
        // From librdkafka's rdfnv1a.c, which has them from Go.
        for (key, hash) in [
            ("kafka", 0x0d33_c4e1),
            ("giberish123456789", 0x77a5_8295),
            ("1234", 0x023b_dd03),
            ("234", 0x2dea_3cd2),
            ("", 0x7ee3_623b),
        ] {
            assert_eq!(fnv1a(key.as_bytes()), hash, "{key}");
        }
    }

    #[test]
    fn keys_without_a_place_may_go_anywhere() {
        assert_eq!(Partitioner::Murmur2.partition(None, 3), None);
        assert!(Partitioner::Murmur2.partition(Some(b""), 3).is_some());
        assert_eq!(Partitioner::Crc32.partition(Some(b""), 3), None);
        assert_eq!(Partitioner::Random.partition(Some(b"k"), 3), None);
        assert_eq!(Partitioner::Murmur2.partition(Some(b"k"), 0), None);
        // The check value of CRC-32.
        let place = (0xcbf4_3926_usize) % 7;
        assert_eq!(
            Partitioner::Crc32.partition(Some(b"123456789"), 7),
            Some(place)
        );
    }
}
