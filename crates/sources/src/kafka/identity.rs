//! Makes the file id of a partition. A durable channel keeps the next offset of the partition under this id, together with the
//! data.
//!
//! A channel keeps an offset for each file. A channel treats a partition as a growing file, whose offsets are those of the
//! records.
//!
//! ```text
//! device  2^64-2 (the device numbers of file systems are small, and the source `generate` uses 2^64-1)
//! inode   FNV-1a of the id of the cluster, a zero byte and the topic
//! head    the same hash with another start value, so that two topics share both hashes only with a probability of 1 in 2^128
//! birth   2^63-1 minus the partition number: a late birth, because a channel forgets the files with the earliest births first
//! ```

use millstream_kafka::Partition;
use millstream_record::FileId;

/// No file system has this device number.
const DEVICE: u64 = u64::MAX - 1;

/// The identity of a partition of a cluster.
pub(super) fn identity(cluster: &str, partition: &Partition) -> FileId {
    let text = || {
        let cluster = cluster.bytes().chain([0]);
        cluster.chain(partition.topic.bytes())
    };
    FileId {
        device: DEVICE,
        inode: fnv(0xcbf2_9ce4_8422_2325, text()),
        birth: i64::MAX - i64::from(partition.number),
        head: fnv(0x6c62_272e_07bb_0142, text()),
    }
}

fn fnv(start: u64, bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(start, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_partition_has_its_own_identity_that_never_changes() {
        let name = |cluster: &str, topic: &str, number| {
            let topic = topic.to_owned();
            identity(cluster, &Partition { topic, number })
        };
        let first = name("c", "t", 0);
        // Data on disk contains this identity, so it must never change.
        assert_eq!(first.inode, 0xf725_f919_0df7_1826);
        assert_eq!(first, name("c", "t", 0));
        for other in [
            name("c", "t", 1),
            name("c", "u", 0),
            name("d", "t", 0),
            name("ct", "", 0),
        ] {
            assert_ne!(first, other);
        }
    }
}
