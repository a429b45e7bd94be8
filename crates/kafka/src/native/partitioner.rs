//! The partition of a record, by its key.
//!
//! Sources: Kafka's `Utils.murmur2` and `BuiltInPartitioner.java`; librdkafka's `rdkafka_msg.c` for the other hashes. For
//! records without a key, the caller chooses the partition: all of them go to one partition until its batch is full or due.

use crc_fast::{CrcAlgorithm, checksum};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Partitioner for records with a key. Records without a key stay on one partition for a batch, then move to another
/// one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Partitioner {
    /// As in Java producers.
    #[default]
    Murmur2,
    /// As in librdkafka and the clients built on it (Python, Go, .NET), which treat an empty key as no key.
    Crc32,
    /// As in Sarama.
    Fnv1a,
    /// Any partition, whatever the key.
    Random,
}

impl Partitioner {
    /// The partition of a key, out of `partitions`. `None`: any partition will do.
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

/// MurmurHash2 with 32 bits and the seed of the Java client.
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

/// The absolute value of the 32-bit FNV-1a hash as a signed number, as Sarama computes it.
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
    fn hashes_match_those_of_other_clients() {
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
        // From librdkafka's rdfnv1a.c, which took them from Go.
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
    fn records_without_a_key_may_go_to_any_partition() {
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
