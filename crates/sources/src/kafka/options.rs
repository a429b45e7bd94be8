//! The options of the source `kafka`.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use jiff::Timestamp;
use millstream_config::{Node, OneOrMany, Problem, Size};
use millstream_kafka::{Auth, Settings, Tls, Topics};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};

use crate::tagging::Tagging;

/// The values that the records of a partition share.
pub(super) const VALUES: &[&str] = &["topic", "partition", "host"];

/// The options of `kafka`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    /// First brokers to contact: `host:port`, one or a list.
    pub(super) brokers: OneOrMany<String>,
    /// Topics to read: names, or regular expressions that begin with `^`.
    pub(super) topics: OneOrMany<String>,
    /// Consumer group. Its members share the partitions, and reading continues at its committed offsets.
    pub(super) group: String,
    /// Fixed partitions: `all` or a list of numbers. They are read regardless of the other members of the group. With a disk
    /// channel, each record is read exactly once. Default: the group assigns partitions.
    #[serde(default)]
    pub(super) partitions: Option<Partitions>,
    /// Start of partitions without a committed offset: `beginning`, `end`, or a time (RFC 3339).
    #[serde(default)]
    pub(super) start: Start,
    /// Tag of the records: a template of `{topic}` and `{partition}`. Default: the name of the node.
    #[serde(default)]
    pub(super) tag: Option<String>,
    /// Format of the values of records.
    #[serde(default)]
    pub(super) format: Format,
    /// Names of fields for the other parts of a record. Existing fields are never overwritten.
    #[serde(default)]
    pub(super) fields: Fields,
    /// Also reads records of aborted and open transactions.
    #[serde(default)]
    pub(super) uncommitted: bool,
    /// Bytes that the client prefetches.
    #[serde(default = "prefetch")]
    pub(super) prefetch: Size,
    /// TLS of connections: `true`, or a block.
    #[serde(default)]
    pub(super) tls: Option<Tls>,
    /// Credentials.
    #[serde(default)]
    pub(super) auth: Option<Auth>,
    /// Properties of librdkafka, by name, for settings that have no option here.
    #[serde(default)]
    pub(super) properties: BTreeMap<String, String>,
}

/// 16 MiB: a broker delivers this many bytes in a few requests.
fn prefetch() -> Size {
    Size::mib(16)
}

/// Format of the values of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Format {
    /// Any bytes, which become the field `message`.
    #[default]
    Raw,
    /// A JSON object, whose fields become those of the record.
    Json,
    /// A MessagePack map, or an entry `[time, map]`.
    Msgpack,
}

/// Names of fields for the parts of a record other than its value.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Fields {
    /// The key; nil if there is none.
    pub(super) key: Option<String>,
    /// The offset.
    pub(super) offset: Option<String>,
    /// The topic.
    pub(super) topic: Option<String>,
    /// The number of the partition.
    pub(super) partition: Option<String>,
    /// The timestamp in milliseconds since 1970, which is also the time of the record.
    pub(super) timestamp: Option<String>,
    /// The headers, as a map.
    pub(super) headers: Option<String>,
}

/// Fixed partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Partitions {
    /// All partitions, including those that are added later.
    All,
    /// The partitions of every topic that have these numbers.
    Numbers(Vec<i32>),
}

impl<'de> Deserialize<'de> for Partitions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Partitions;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`all` or a list of numbers")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Partitions, E> {
                match text {
                    "all" => Ok(Partitions::All),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Partitions, A::Error> {
                let list = de::value::SeqAccessDeserializer::new(list);
                Vec::deserialize(list).map(Partitions::Numbers)
            }
        }
        deserializer.deserialize_any(Read)
    }
}

impl JsonSchema for Partitions {
    fn schema_name() -> Cow<'static, str> {
        "Partitions".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{ "const": "all" }, { "type": "array", "items": { "type": "integer", "minimum": 0 } }]
        })
    }
}

/// The start of partitions without a committed offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Start {
    /// The first record of the partition.
    #[default]
    Beginning,
    /// The end of the partition: only new records are read.
    End,
    /// The first record at or after this time, in milliseconds since 1970.
    Time(i64),
}

impl<'de> Deserialize<'de> for Start {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = Start;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`beginning`, `end` or a time such as 2026-11-21T00:00:00Z")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Start, E> {
                match text {
                    "beginning" => Ok(Start::Beginning),
                    "end" => Ok(Start::End),
                    time => match time.parse::<Timestamp>() {
                        Ok(time) => Ok(Start::Time(time.as_millisecond())),
                        Err(_) => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                    },
                }
            }
        }
        deserializer.deserialize_str(Read)
    }
}

impl JsonSchema for Start {
    fn schema_name() -> Cow<'static, str> {
        "KafkaStart".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{ "enum": ["beginning", "end"] }, { "type": "string", "format": "date-time" }]
        })
    }
}

/// Properties that the source sets. Users may not set them.
const OURS: &[&str] = &[
    "bootstrap.servers",
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "auto.offset.reset",
    "isolation.level",
    "enable.partition.eof",
];

impl Config {
    /// The problems of the options.
    pub(super) fn problems(&self, node: &Node) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut at =
            |option: &str, message: String| problems.push(node.problem_at(option, message));
        for (option, list) in [("brokers", &self.brokers), ("topics", &self.topics)] {
            if list.is_empty() {
                at(option, format!("`{option}` is empty"));
            }
        }
        if let Err(error) = Topics::new(&self.topics) {
            at("topics", error.message);
        }
        if self.group.is_empty() {
            at("group", "the group has no name".to_owned());
        }
        if let Some(Partitions::Numbers(numbers)) = &self.partitions
            && (numbers.is_empty() || numbers.iter().any(|number| *number < 0))
        {
            at("partitions", "at least one number, from 0 on".to_owned());
        }
        if let Some(name) = self
            .properties
            .keys()
            .find(|name| OURS.contains(&name.as_str()))
        {
            at("properties", format!("`{name}` is set by the source"));
        }
        if let Err(why) = self.tagging() {
            at("tag", why);
        }
        problems
    }

    /// The tagging of the records of a partition. The error describes the problem.
    pub(super) fn tagging(&self) -> Result<Tagging, String> {
        Tagging::new(self.tag.as_deref(), VALUES)
    }

    /// The settings of the client. With `once`, the client also reports the ends of partitions.
    pub(super) fn settings(&self, once: bool) -> Settings {
        let mut settings = Settings::new(&self.brokers);
        if !self.properties.contains_key("group.protocol") {
            // A rebalance then interrupts only the partitions that move.
            settings.set("partition.assignment.strategy", "cooperative-sticky");
        }
        for (name, value) in &self.properties {
            settings.set(name, value);
        }
        settings.secure(self.tls.as_ref(), self.auth.as_ref());
        settings.set("group.id", &self.group);
        settings.set("enable.auto.commit", "false");
        settings.set("enable.auto.offset.store", "false");
        // Every partition begins at an offset that was looked up. If that offset is missing, the client must report an error. It
        // must not continue at another offset silently.
        settings.set("auto.offset.reset", "error");
        settings.set("enable.partition.eof", if once { "true" } else { "false" });
        let level = if self.uncommitted {
            "read_uncommitted"
        } else {
            "read_committed"
        };
        settings.set("isolation.level", level);
        let kib = (self.prefetch.as_usize() / 1024).max(1);
        settings.set("queued.max.messages.kbytes", kib.to_string());
        settings
    }
}
