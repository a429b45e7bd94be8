//! The name of a partition for a durable channel, which keeps the offset where reading goes on with the data.
//!
//! A channel knows places of files; a partition is a file that grows and whose places are offsets.
//!
//! ```text
//! device  2^64-2 (files have small ones, the generator has 2^64-1)
//! inode   FNV-1a of the cluster's id, a zero byte and the topic
//! head    the same from another start, so that two topics share both with odds of 1 in 2^128
//! birth   2^63-1 less the number: the table of a channel forgets what was born first
//! ```

use millstream_kafka::Partition;
use millstream_record::FileId;

/// No file system has it.
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
    fn partitions_have_names_of_their_own_that_stay() {
        let name = |cluster: &str, topic: &str, number| {
            let topic = topic.to_owned();
            identity(cluster, &Partition { topic, number })
        };
        let first = name("c", "t", 0);
        // What is on disks goes by it: it must never change.
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
