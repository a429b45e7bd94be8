//! The request Produce, which sends batches of records to one broker. Batches are not copied into the request: the framing and the
//! batches are separate pieces, which are sent one after the other.

use crate::native::wire::{Put, Take};

/// Key and versions of Produce. Its body is sent in pieces: see [`produce_head`].
pub(in super::super) const PRODUCE: i16 = 0;
pub(in super::super) const PRODUCE_VERSIONS: [i16; 2] = [7, 8];

/// The head of a Produce request (versions 7 and 8), up to the number of its topics.
pub(in super::super) fn produce_head(
    out: &mut Vec<u8>,
    transactional_id: Option<&str>,
    timeout_ms: i32,
    topics: usize,
) {
    out.nullable(transactional_id);
    // acks=all
    out.i16(-1);
    out.i32(timeout_ms);
    out.count(topics);
}

/// The framing before the batches of a topic.
pub(in super::super) fn produce_topic(out: &mut Vec<u8>, topic: &str, partitions: usize) {
    out.string(topic);
    out.count(partitions);
}

/// The framing before a partition's batch of `bytes` bytes.
pub(in super::super) fn produce_partition(out: &mut Vec<u8>, partition: i32, bytes: usize) {
    out.i32(partition);
    out.count(bytes);
}

/// The answer for one batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Produced {
    pub(in super::super) topic: String,
    pub(in super::super) partition: i32,
    pub(in super::super) error: i16,
    pub(in super::super) text: Option<String>,
    /// The bad records because of which the batch was rejected, each with its index and message. Empty if the broker does not report them.
    pub(in super::super) bad: Vec<(i32, Option<String>)>,
}

pub(in super::super) fn read_produced(
    answer: &mut Take<'_>,
    version: i16,
) -> Option<Vec<Produced>> {
    let topics = answer.array(|topic| {
        let name = topic.string()?;
        topic.array(|partition| {
            let (number, error) = (partition.i32()?, partition.i16()?);
            let (_offset, _time, _start) = (partition.i64()?, partition.i64()?, partition.i64()?);
            let (mut bad, mut text) = (Vec::new(), None);
            if version >= 8 {
                bad = partition.array(|record| Some((record.i32()?, record.nullable()?)))?;
                text = partition.nullable()?;
            }
            Some(Produced {
                topic: name.clone(),
                partition: number,
                error,
                text,
                bad,
            })
        })
    })?;
    Some(topics.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bad_records_in_an_answer_are_read() {
        let mut out = Vec::new();
        out.count(1);
        out.string("t");
        out.count(1);
        out.i32(3);
        out.i16(87);
        for _ in 0..3 {
            out.i64(-1);
        }
        let old = out.clone();
        out.count(1);
        out.i32(5);
        out.nullable(Some("no key"));
        out.nullable(Some("refused"));
        let expected = Produced {
            topic: "t".to_owned(),
            partition: 3,
            error: 87,
            text: Some("refused".to_owned()),
            bad: vec![(5, Some("no key".to_owned()))],
        };
        assert_eq!(read_produced(&mut Take(&out), 8), Some(vec![expected]));
        let old = read_produced(&mut Take(&old), 7).unwrap();
        assert_eq!((old[0].error, old[0].bad.len()), (87, 0));
    }
}
