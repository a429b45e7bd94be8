//! The options of the sink `kafka`, and the client options that follow from them.

use jiff::tz::TimeZone;
use millstream_config::{Node, OneOrMany, Period, Problem, Size};
use millstream_kafka::{Auth, Compression, Partitioner, ProducerOptions, Tls, topic_fault};
use millstream_wire::{
    format::{Add, Encoder, Format as Wire, Options},
    json::InvalidUtf8,
    record::FieldPath,
    template::{Depends, Template},
    zone,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::sending::Retry;

/// Minimum buffer size in bytes. A smaller value of the option `buffer` would only slow down the sink.
const BUFFER_MIN: usize = 1 << 20;

/// The options of `kafka`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    /// Bootstrap brokers: `host:port`, one or a list.
    pub(super) brokers: OneOrMany<String>,
    /// Topic: a name or a template (`"logs.{tag}"`). A record whose topic Kafka does not allow is rejected.
    pub(super) topic: Template,
    /// Key: a template. Records with the same key go to the same partition. Default: none (`connect` with schemas: the tag).
    #[serde(default)]
    pub(super) key: Option<Template>,
    /// Headers and their templates.
    #[serde(default)]
    pub(super) headers: Option<Add>,
    /// How a key chooses its partition.
    #[serde(default)]
    pub(super) partitioner: Partitioner,
    /// How a record becomes a value.
    #[serde(default)]
    pub(super) format: Format,
    /// Whether `format: connect` writes the schema with every record, as `fluentd.schemas.enable` does.
    #[serde(default = "yes")]
    pub(super) schemas: bool,
    /// New fields and their templates; never overwrites a field of the record. The format json also adds `time: "{time}"`,
    /// unless a template here shows the event time. `time: null` leaves out the field `time`; `{}` adds nothing.
    #[serde(default)]
    pub(super) add: Option<Add>,
    /// How text that is not UTF-8 is written: `base64` (of the whole text), `replace` (U+FFFD for each invalid part) or
    /// `escape` (`\xff` for each invalid byte). Default: `base64` for json, where nothing marks such a text as encoded; unchanged
    /// bytes for raw and template.
    #[serde(default)]
    pub(super) invalid_utf8: Option<InvalidUtf8>,
    /// Field that `format: raw` writes. Default: `message`.
    #[serde(default)]
    pub(super) field: Option<FieldPath>,
    /// Template that `format: template` writes for each record.
    #[serde(default)]
    pub(super) template: Option<Template>,
    /// Time zone of strftime fields in templates, such as `Europe/Berlin` or `+09:00`. Default: the top-level `timezone` (`UTC`).
    #[serde(default)]
    pub(super) timezone: Option<String>,
    /// Compression of record batches.
    #[serde(default)]
    pub(super) compression: Compression,
    /// How records are gathered into batches.
    #[serde(default)]
    pub(super) batch: Batching,
    /// Maximum size of a record: key, value and headers, before compression. Larger records are rejected; so are those that
    /// exceed their topic's `max.message.bytes`.
    #[serde(default = "record_max")]
    pub(super) record_max: Size,
    /// Maximum bytes of records in the client that brokers have not acknowledged yet.
    #[serde(default = "buffer")]
    pub(super) buffer: Size,
    /// Behind a disk channel: the topic whose partition 0 holds the position that is committed with the records. Default: the
    /// option `topic`; if that is a template, `_millstream`, which is created if it does not exist.
    #[serde(default)]
    pub(super) position: Option<String>,
    /// How a cluster that fails is retried.
    #[serde(default)]
    pub(super) retry: Retry,
    /// Encryption of connections: `true`, or a block of options.
    #[serde(default)]
    pub(super) tls: Option<Tls>,
    /// How the sink authenticates.
    #[serde(default)]
    pub(super) auth: Option<Auth>,
    /// Client name for the brokers' logs and quotas.
    #[serde(default = "client_id")]
    pub(super) client_id: String,
    /// Behind a disk channel: time after which brokers abort an open transaction.
    #[serde(default = "transaction_timeout")]
    pub(super) transaction_timeout: Period,
}

fn yes() -> bool {
    true
}

fn client_id() -> String {
    ProducerOptions::default().client_id
}

/// The default of the Java client.
fn transaction_timeout() -> Period {
    Period::secs(60)
}

/// Just below the default limit of brokers (`message.max.bytes`: 1,048,588), which includes the framing.
fn record_max() -> Size {
    Size::bytes(1_000_000)
}

/// Small enough for the records to stay in the CPU cache until the producer's thread reads them. If the cluster answers within 10 ms,
/// this size allows 400 MB/s.
fn buffer() -> Size {
    Size::mib(4)
}

/// How a record becomes a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Format {
    /// One JSON object: the record's own fields and what `add` names. A line becomes `{"message": line}`.
    #[default]
    Json,
    /// The field `message` (option `field`); a plain line is written unchanged.
    Raw,
    /// A MessagePack entry `[time, record]`. A line becomes `{"message": line}`.
    Msgpack,
    /// The text of the option `template`.
    Template,
    /// The output of kafka-connect-fluentd and Connect's JsonConverter.
    Connect,
}

/// How records are gathered into batches.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Batching {
    /// Maximum bytes of a batch for one partition.
    pub(super) size: Size,
    /// Maximum records of a batch; 0 sets no limit.
    pub(super) records: u32,
    /// Time that the first record of a batch waits for more. A batch that a checkpoint waits for is sent immediately.
    pub(super) linger: Period,
}

impl Default for Batching {
    fn default() -> Self {
        Self {
            size: Size::mib(1),
            records: 0,
            // Delays a batch only while no checkpoint waits for it. Full batches are cheapest for brokers and readers.
            linger: Period::millis(100),
        }
    }
}

impl Config {
    /// Reports options that parse but cannot be used.
    pub(super) fn problems(&self, node: &Node) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut at =
            |option: &str, message: String| problems.push(node.problem_at(option, message));
        if self.brokers.is_empty() {
            at("brokers", "no broker".to_owned());
        }
        let topic = self.topic.as_str();
        let fault = topic_fault(topic.as_bytes());
        if let (Depends::Nothing, Some(fault)) = (self.topic.depends(), fault) {
            at("topic", format!("`{topic}` is not a topic name: {fault}"));
        }
        if let Some(position) = &self.position
            && let Some(fault) = topic_fault(position.as_bytes())
        {
            at(
                "position",
                format!("`{position}` is not a topic name: {fault}"),
            );
        }
        if self.zone().is_none() {
            let name = self.timezone.as_deref().unwrap_or_default();
            at("timezone", format!("there is no time zone `{name}`"));
        }
        if self.format == Format::Connect && self.add.is_some() {
            let message = "`format: connect` writes the record as it is";
            at("add", message.to_owned());
        }
        if self.format == Format::Connect && self.invalid_utf8.is_some() {
            let message = "`format: connect` has its own rule for text that is not UTF-8";
            at("invalid_utf8", message.to_owned());
        }
        let headers = self.headers.iter().flat_map(|headers| &headers.without);
        for name in headers {
            at("headers", format!("the header `{name}` has no template"));
        }
        if let Err(error) = self.wire().encoder(&TimeZone::UTC) {
            problems.push(
                node.problem_at(error.option, error.message)
                    .help(error.help),
            );
        }
        problems
    }

    /// The time zone of templates.
    pub(super) fn zone(&self) -> Option<TimeZone> {
        self.timezone
            .as_deref()
            .map_or(Some(TimeZone::UTC), zone::find)
    }

    /// Returns the options of the encoder. For `connect`, which has a separate encoder, returns the options of json.
    fn wire(&self) -> Options {
        let format = match self.format {
            Format::Json | Format::Connect => Wire::Json,
            Format::Raw => Wire::Raw,
            Format::Msgpack => Wire::Msgpack,
            Format::Template => Wire::Template,
        };
        Options {
            format,
            add: self.add.clone(),
            field: self.field.clone(),
            template: self.template.clone(),
            // Each record is a separate message, which needs no delimiter.
            delimiter: (format != Wire::Msgpack).then(String::new),
            invalid_utf8: self.invalid_utf8,
            ..Options::default()
        }
    }

    /// The encoder of values.
    pub(super) fn encoder(&self) -> Encoder {
        let zone = self.zone().unwrap_or(TimeZone::UTC);
        let encoder = self.wire().encoder(&zone);
        encoder.expect("these options made an encoder when they were checked")
    }

    /// The topic that holds the position.
    pub(super) fn position_topic(&self) -> &str {
        match &self.position {
            Some(topic) => topic,
            None if self.is_templated() => "_millstream",
            None => self.topic.as_str(),
        }
    }

    /// Whether there may be many topics.
    pub(super) fn is_templated(&self) -> bool {
        self.topic.depends() != Depends::Nothing
    }

    /// The options of a producer without transactions. `batch_max`: the smallest known limit of a topic, in bytes.
    pub(super) fn producer(&self, batch_max: usize) -> ProducerOptions {
        let record_bytes = self.record_max.as_usize().max(1000);
        // The size before compression stays below every limit, so the compressed batch does, too.
        let batch_max = record_bytes.min(batch_max);
        ProducerOptions {
            brokers: self.brokers.to_vec(),
            client_id: self.client_id.clone(),
            tls: self.tls.clone(),
            auth: self.auth.clone(),
            transactional_id: None,
            transaction_timeout: self.transaction_timeout.as_duration(),
            partitioner: self.partitioner,
            compression: self.compression,
            record_bytes,
            batch_bytes: self.batch.size.as_usize().clamp(1, batch_max),
            batch_records: match self.batch.records {
                0 => usize::MAX,
                records => records as usize,
            },
            linger: self.batch.linger.as_duration(),
            buffer_bytes: self.buffer.as_usize().max(BUFFER_MIN),
        }
    }
}
