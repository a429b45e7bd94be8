//! The request OffsetFetch, which reads the position that a sink has committed.
//!
//! Its newer version is "flexible": the header of the request and of the answer ends with tagged fields. This code writes and reads these
//! tagged fields as the beginning of the body.

use super::{Request, put_partitions};
use crate::native::wire::{Put, Take};

/// The oldest version (Kafka 2.5) that has the field `require_stable`.
const STABLE: i16 = 7;

/// Requests the offset that a group has committed for partition 0 of a topic.
pub(in super::super) struct OffsetFetch<'a> {
    pub(in super::super) group: &'a str,
    pub(in super::super) topic: &'a str,
    /// Concerns a transaction that commits an offset and is not completed yet. If true, the broker answers with `UNSTABLE_OFFSET_COMMIT`
    /// until the transaction is completed. If false, or if the broker does not support this option, the broker answers with the offset
    /// before the transaction.
    pub(in super::super) stable: bool,
}

pub(in super::super) struct Fetched {
    pub(in super::super) error: i16,
    /// -1 if the group has not committed an offset.
    pub(in super::super) offset: i64,
    pub(in super::super) metadata: String,
}

impl Request for OffsetFetch<'_> {
    const NAME: &'static str = "OffsetFetch";
    const KEY: i16 = 9;
    const VERSIONS: &'static [i16] = &[5, STABLE];
    type Answer = Fetched;

    fn write(&self, version: i16, out: &mut Vec<u8>) {
        if version < STABLE {
            out.string(self.group);
            put_partitions(out, &vec![(self.topic.to_owned(), vec![0])]);
            return;
        }
        out.no_tags();
        out.compact_string(self.group);
        out.compact_count(1);
        out.compact_string(self.topic);
        out.compact_count(1);
        out.i32(0);
        out.no_tags();
        out.i8(self.stable.into());
        out.no_tags();
    }

    fn read(version: i16, answer: &mut Take<'_>) -> Option<Fetched> {
        let flexible = version >= STABLE;
        if flexible {
            answer.tags()?;
        }
        let _throttled = answer.i32()?;
        let topics = if flexible {
            answer.compact_array(|topic| {
                let _name = topic.compact_nullable()?;
                let partitions = topic.compact_array(|one| read_partition(one, flexible))?;
                topic.tags()?;
                Some(partitions)
            })?
        } else {
            answer.array(|topic| {
                let _name = topic.string()?;
                topic.array(|one| read_partition(one, flexible))
            })?
        };
        let error = answer.i16()?;
        if flexible {
            answer.tags()?;
        }
        let none = Fetched {
            error,
            offset: -1,
            metadata: String::new(),
        };
        let first = topics.into_iter().flatten().next();
        Some(first.filter(|_| error == 0).unwrap_or(none))
    }
}

fn read_partition(partition: &mut Take<'_>, flexible: bool) -> Option<Fetched> {
    let (_number, offset) = (partition.i32()?, partition.i64()?);
    let _epoch = partition.i32()?;
    let metadata = if flexible {
        partition.compact_nullable()?
    } else {
        partition.nullable()?
    };
    let error = partition.i16()?;
    if flexible {
        partition.tags()?;
    }
    Some(Fetched {
        error,
        offset,
        metadata: metadata.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(version: i16, stable: bool) -> Vec<u8> {
        let (group, topic) = ("group", "t");
        let request = OffsetFetch {
            group,
            topic,
            stable,
        };
        let mut out = Vec::new();
        request.write(version, &mut out);
        out
    }

    /// By hand from the protocol guide. Version 7: tagged fields of the header, COMPACT_STRING group, COMPACT_ARRAY of topics
    /// (COMPACT_STRING name, COMPACT_ARRAY of INT32, tagged fields), BOOLEAN require_stable, tagged fields.
    #[test]
    fn the_request_has_the_bytes_of_the_protocol_guide() {
        let old = b"\0\x05group\0\0\0\x01\0\x01t\0\0\0\x01\0\0\0\0";
        assert_eq!(written(5, true), old);
        let new = b"\0\x06group\x02\x02t\x02\0\0\0\0\0\x01\0";
        assert_eq!(written(7, true), new);
        assert_eq!(written(7, false)[new.len() - 2..], [0, 0]);
    }

    fn read(version: i16, answer: &[u8]) -> Option<(i16, i64, String)> {
        let mut rest = Take(answer);
        let fetched = OffsetFetch::read(version, &mut rest)?;
        assert!(rest.0.is_empty(), "{version}");
        Some((fetched.error, fetched.offset, fetched.metadata))
    }

    #[test]
    fn the_answer_is_read_in_both_versions() {
        let found = Some((0, 42, "pos".to_owned()));
        let old = b"\0\0\0\0\0\0\0\x01\0\x01t\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\x2a\xff\xff\xff\xff\0\x03pos\0\0\0\0";
        assert_eq!(read(5, old), found);
        let new = b"\0\0\0\0\0\x02\x02t\x02\0\0\0\0\0\0\0\0\0\0\0\x2a\xff\xff\xff\xff\x04pos\0\0\0\0\0\0\0";
        assert_eq!(read(7, new), found);
        // Later brokers may add tagged fields. They are skipped in every place where the format allows them.
        let tagged = b"\x01\x05\x02ab\0\0\0\0\x02\x02t\x02\0\0\0\0\0\0\0\0\0\0\0\x2a\xff\xff\xff\xff\x04pos\0\0\x01\0\0\x01\0\x01x\0\0\x02\0\0\x01\0";
        assert_eq!(read(7, tagged), found);
        for length in 0..tagged.len() {
            assert_eq!(read(7, &tagged[..length]), None, "{length}");
        }
    }

    #[test]
    fn an_error_of_the_partition_or_of_the_group_is_read() {
        // No offset, null metadata, UNSTABLE_OFFSET_COMMIT.
        let unstable = b"\0\0\0\0\0\x02\x02t\x02\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0\x58\0\0\0\0\0";
        assert_eq!(read(7, unstable), Some((88, -1, String::new())));
        // No topics, NOT_COORDINATOR.
        let moved = b"\0\0\0\0\0\x01\0\x10\0";
        assert_eq!(read(7, moved), Some((16, -1, String::new())));
    }
}
