//! A producer's requests and their answers. Each has a version that all brokers since Kafka 2.4 support.
//!
//! Source: the message schemas of Apache Kafka (`clients/src/main/resources/common/message`). Two requests have a second version:
//! - Produce: version 8 reports which records are bad. Version 7 is for brokers on the level of Kafka 2.1 (older versions of Redpanda).
//! - OffsetFetch: version 7 can report that a transaction with an offset is not completed yet. It is the only "flexible" version here,
//!   which encodes lengths differently.

mod offset_fetch;
mod produce;
mod transactions;

use super::wire::{Put, Take};
pub(super) use offset_fetch::OffsetFetch;
pub(super) use produce::{
    PRODUCE, PRODUCE_VERSIONS, Produced, produce_head, produce_partition, produce_topic,
    read_produced,
};
pub(super) use transactions::{
    AddOffsetsToTxn, AddPartitionsToTxn, EndTxn, Identity, InitProducerId, TxnOffsetCommit,
};

/// A request: its name, key and versions, its encoding, and the decoding of its answer.
pub(super) trait Request {
    const NAME: &'static str;
    const KEY: i16;
    /// Oldest first. The newest version that the broker supports is used.
    const VERSIONS: &'static [i16];
    type Answer;

    fn write(&self, version: i16, out: &mut Vec<u8>);

    /// `None` if the answer ends early or is invalid.
    fn read(version: i16, answer: &mut Take<'_>) -> Option<Self::Answer>;
}

pub(super) struct ApiVersions;

pub(super) struct Versions {
    pub(super) error: i16,
    /// Key, oldest and newest version.
    pub(super) apis: Vec<(i16, i16, i16)>,
}

impl Request for ApiVersions {
    const NAME: &'static str = "ApiVersions";
    const KEY: i16 = 18;
    const VERSIONS: &'static [i16] = &[0];
    type Answer = Versions;

    fn write(&self, _: i16, _: &mut Vec<u8>) {}

    fn read(_: i16, answer: &mut Take<'_>) -> Option<Versions> {
        Some(Versions {
            error: answer.i16()?,
            apis: answer.array(|api| Some((api.i16()?, api.i16()?, api.i16()?)))?,
        })
    }
}

pub(super) struct SaslHandshake<'a> {
    pub(super) mechanism: &'a str,
}

impl Request for SaslHandshake<'_> {
    const NAME: &'static str = "SaslHandshake";
    const KEY: i16 = 17;
    const VERSIONS: &'static [i16] = &[1];
    /// The error, and the supported mechanisms.
    type Answer = (i16, Vec<String>);

    fn write(&self, _: i16, out: &mut Vec<u8>) {
        out.string(self.mechanism);
    }

    fn read(_: i16, answer: &mut Take<'_>) -> Option<Self::Answer> {
        Some((answer.i16()?, answer.array(Take::string)?))
    }
}

pub(super) struct SaslAuthenticate<'a> {
    pub(super) bytes: &'a [u8],
}

impl Request for SaslAuthenticate<'_> {
    const NAME: &'static str = "SaslAuthenticate";
    const KEY: i16 = 36;
    const VERSIONS: &'static [i16] = &[0];
    /// The error with its text, and the server's message.
    type Answer = (i16, Option<String>, Vec<u8>);

    fn write(&self, _: i16, out: &mut Vec<u8>) {
        out.bytes(self.bytes);
    }

    fn read(_: i16, answer: &mut Take<'_>) -> Option<Self::Answer> {
        Some((answer.i16()?, answer.nullable()?, answer.bytes()?.to_vec()))
    }
}

/// Requests brokers and topics.
pub(super) struct Metadata<'a> {
    pub(super) topics: &'a [String],
    /// Whether a topic that does not exist is created if the broker's settings say so.
    pub(super) creates: bool,
}

pub(super) struct Cluster {
    /// Id and `host:port`.
    pub(super) brokers: Vec<(i32, String)>,
    pub(super) id: Option<String>,
    pub(super) controller: i32,
    pub(super) topics: Vec<TopicMetadata>,
}

pub(super) struct TopicMetadata {
    pub(super) error: i16,
    pub(super) name: String,
    /// Number and leader of each partition. The leader is -1 if there is none at the moment.
    pub(super) partitions: Vec<(i32, i32)>,
}

impl Request for Metadata<'_> {
    const NAME: &'static str = "Metadata";
    const KEY: i16 = 3;
    const VERSIONS: &'static [i16] = &[4];
    type Answer = Cluster;

    fn write(&self, _: i16, out: &mut Vec<u8>) {
        out.count(self.topics.len());
        for topic in self.topics {
            out.string(topic);
        }
        // allow_auto_topic_creation
        out.i8(self.creates.into());
    }

    fn read(_: i16, answer: &mut Take<'_>) -> Option<Cluster> {
        let _throttled = answer.i32()?;
        let brokers = answer.array(|broker| {
            let (id, host, port) = (broker.i32()?, broker.string()?, broker.i32()?);
            let _rack = broker.nullable()?;
            let host = if host.contains(':') {
                format!("[{host}]")
            } else {
                host
            };
            Some((id, format!("{host}:{port}")))
        })?;
        let id = answer.nullable()?;
        let controller = answer.i32()?;
        let topics = answer.array(|topic| {
            let (error, name, _internal) = (topic.i16()?, topic.string()?, topic.i8()?);
            let partitions = topic.array(|partition| {
                let _error = partition.i16()?;
                let (number, leader) = (partition.i32()?, partition.i32()?);
                let _replicas = partition.array(Take::i32)?;
                let _in_sync = partition.array(Take::i32)?;
                Some((number, leader))
            })?;
            Some(TopicMetadata {
                error,
                name,
                partitions,
            })
        })?;
        Some(Cluster {
            brokers,
            id,
            controller,
            topics,
        })
    }
}

/// The kind of coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Coordinates {
    Group = 0,
    Transaction = 1,
}

pub(super) struct FindCoordinator<'a> {
    pub(super) of: Coordinates,
    pub(super) key: &'a str,
}

impl Request for FindCoordinator<'_> {
    const NAME: &'static str = "FindCoordinator";
    const KEY: i16 = 10;
    const VERSIONS: &'static [i16] = &[1];
    /// The error, and `host:port`.
    type Answer = (i16, String);

    fn write(&self, _: i16, out: &mut Vec<u8>) {
        out.string(self.key);
        out.i8(self.of as i8);
    }

    fn read(_: i16, answer: &mut Take<'_>) -> Option<Self::Answer> {
        let _throttled = answer.i32()?;
        let error = answer.i16()?;
        let _text = answer.nullable()?;
        let (_id, host, port) = (answer.i32()?, answer.string()?, answer.i32()?);
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host
        };
        Some((error, format!("{host}:{port}")))
    }
}

/// Partitions by topic, as several requests list them.
pub(super) type Partitions = Vec<(String, Vec<i32>)>;

fn put_partitions(out: &mut Vec<u8>, topics: &Partitions) {
    out.count(topics.len());
    for (topic, partitions) in topics {
        out.string(topic);
        out.count(partitions.len());
        for partition in partitions {
            out.i32(*partition);
        }
    }
}

/// Creates a topic with one partition and the broker's default replication.
pub(super) struct CreateTopic<'a> {
    pub(super) name: &'a str,
    pub(super) timeout_ms: i32,
}

impl Request for CreateTopic<'_> {
    const NAME: &'static str = "CreateTopics";
    const KEY: i16 = 19;
    const VERSIONS: &'static [i16] = &[4];
    /// The error and its text.
    type Answer = (i16, Option<String>);

    fn write(&self, _: i16, out: &mut Vec<u8>) {
        out.count(1);
        out.string(self.name);
        out.i32(1);
        out.i16(-1);
        // No assignments, no settings.
        out.count(0);
        out.count(0);
        out.i32(self.timeout_ms);
        // Create, do not only validate.
        out.i8(0);
    }

    fn read(_: i16, answer: &mut Take<'_>) -> Option<Self::Answer> {
        let _throttled = answer.i32()?;
        let topics = answer.array(|topic| {
            let _name = topic.string()?;
            Some((topic.i16()?, topic.nullable()?))
        })?;
        topics.into_iter().next()
    }
}

/// Requests one setting of a topic.
pub(super) struct DescribeTopic<'a> {
    pub(super) name: &'a str,
    pub(super) setting: &'a str,
}

impl Request for DescribeTopic<'_> {
    const NAME: &'static str = "DescribeConfigs";
    const KEY: i16 = 32;
    const VERSIONS: &'static [i16] = &[1];
    /// The error and its text, and the value.
    type Answer = (i16, Option<String>, Option<String>);

    fn write(&self, _: i16, out: &mut Vec<u8>) {
        out.count(1);
        // The resource type TOPIC.
        out.i8(2);
        out.string(self.name);
        out.count(1);
        out.string(self.setting);
        // No synonyms.
        out.i8(0);
    }

    fn read(_: i16, answer: &mut Take<'_>) -> Option<Self::Answer> {
        let _throttled = answer.i32()?;
        let resources = answer.array(|resource| {
            let (error, text) = (resource.i16()?, resource.nullable()?);
            let (_kind, _name) = (resource.i8()?, resource.string()?);
            let values = resource.array(|entry| {
                let (_name, value) = (entry.string()?, entry.nullable()?);
                let (_read_only, _source, _sensitive) = (entry.i8()?, entry.i8()?, entry.i8()?);
                entry.array(|synonym| {
                    let (_name, _value) = (synonym.string()?, synonym.nullable()?);
                    synonym.i8()
                })?;
                Some(value)
            })?;
            Some((error, text, values.into_iter().next().flatten()))
        })?;
        resources.into_iter().next()
    }
}

/// Reads bytes as each kind of answer that a producer receives.
#[cfg(any(test, feature = "fuzzing"))]
pub fn read_each_answer(bytes: &[u8]) {
    macro_rules! each {
        ($($request:ty),*) => { $(
            for version in <$request>::VERSIONS {
                let _ = <$request>::read(*version, &mut Take(bytes));
            }
        )* };
    }
    each!(
        ApiVersions,
        SaslHandshake<'_>,
        SaslAuthenticate<'_>,
        Metadata<'_>,
        FindCoordinator<'_>,
        InitProducerId<'_>,
        AddPartitionsToTxn<'_>,
        AddOffsetsToTxn<'_>,
        TxnOffsetCommit<'_>,
        EndTxn<'_>,
        OffsetFetch<'_>,
        CreateTopic<'_>,
        DescribeTopic<'_>
    );
    for version in PRODUCE_VERSIONS {
        let _ = read_produced(&mut Take(bytes), version);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Most bytes are small numbers, so that counts and lengths pass the first checks.
        #[test]
        fn no_answer_makes_the_reader_panic(bytes in prop::collection::vec(prop_oneof![3 => Just(0_u8), 3 => 0..4_u8, 1 => any::<u8>()], 0..200)) {
            read_each_answer(&bytes);
        }
    }
}
