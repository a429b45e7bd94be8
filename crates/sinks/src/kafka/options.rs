//! The options of the sink `kafka`, and what the client is told of them.

use jiff::tz::TimeZone;
use millstream_config::{Node, OneOrMany, Period, Problem, Size};
use millstream_kafka::{Auth, Compression, Partitioner, ProducerOptions, Tls, topic_fault};
use millstream_wire::{
    format::{Add, Encoder, Format as Wire, Options},
    json::InvalidUtf8,
    record::FieldPath,
    template::{Depends, Template},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::retry::Retry;

/// A smaller `buffer` would hold up the line for nothing.
const BUFFER_MIN: usize = 1 << 20;

/// The options of `kafka`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    /// Where the cluster is asked for first: `host:port`, one or a list.
    pub(super) brokers: OneOrMany<String>,
    /// The topic: a name or a template (`"logs.{tag}"`). A record whose topic Kafka does not allow is rejected.
    pub(super) topic: Template,
    /// The key: a template. Records with the same key go to the same partition. Default: none (`connect` with schemas:
    /// the tag).
    #[serde(default)]
    pub(super) key: Option<Template>,
    /// Headers and their templates.
    #[serde(default)]
    pub(super) headers: Option<Add>,
    /// Which partition a key belongs to.
    #[serde(default)]
    pub(super) partitioner: Partitioner,
    /// How a record becomes a value.
    #[serde(default)]
    pub(super) format: Format,
    /// Whether `format: connect` writes the schema with every record, as `fluentd.schemas.enable` does.
    #[serde(default = "yes")]
    pub(super) schemas: bool,
    /// New fields and their templates; a field that a record has is never overwritten. The format json also adds
    /// `time: "{time}"`, unless a template here shows the event time. `time: null` leaves it out; `{}` adds nothing.
    #[serde(default)]
    pub(super) add: Option<Add>,
    /// What text that is not UTF-8 becomes where text is written: `base64` (of the whole text), `replace` (U+FFFD stands for
    /// what is invalid) or `escape` (`\xff` stands for each invalid byte). Default: `base64` for json, without a mark; the
    /// bytes as they are for raw and template.
    #[serde(default)]
    pub(super) invalid_utf8: Option<InvalidUtf8>,
    /// The field that `format: raw` writes. Default: `message`.
    #[serde(default)]
    pub(super) field: Option<FieldPath>,
    /// What `format: template` writes for each record.
    #[serde(default)]
    pub(super) template: Option<Template>,
    /// Of strftime fields in templates: a name such as `Europe/Berlin`. Default: what the top of the file says (`UTC`).
    #[serde(default)]
    pub(super) timezone: Option<String>,
    /// How batches of records are compressed.
    #[serde(default)]
    pub(super) compression: Compression,
    /// When records leave together.
    #[serde(default)]
    pub(super) batch: Batching,
    /// The largest record: key, value and headers, before compression. Larger ones are rejected; so are those that are
    /// larger than their topic's `max.message.bytes`.
    #[serde(default = "record_max")]
    pub(super) record_max: Size,
    /// Bytes that wait in the client for the brokers.
    #[serde(default = "buffer")]
    pub(super) buffer: Size,
    /// Behind a disk channel: the topic whose partition 0 names the position that is committed with the records. Default:
    /// the topic itself; with a template, `_millstream`, which is made if it is not there.
    #[serde(default)]
    pub(super) position: Option<String>,
    /// How a cluster that fails is tried again.
    #[serde(default)]
    pub(super) retry: Retry,
    /// How connections are encrypted: `true`, or a block.
    #[serde(default)]
    pub(super) tls: Option<Tls>,
    /// Who we are.
    #[serde(default)]
    pub(super) auth: Option<Auth>,
    /// What brokers call us in their logs, and count our quota by.
    #[serde(default = "client_id")]
    pub(super) client_id: String,
    /// Behind a disk channel: when brokers abort a transaction that is still open.
    #[serde(default = "transaction_timeout")]
    pub(super) transaction_timeout: Period,
}

fn yes() -> bool {
    true
}

fn client_id() -> String {
    ProducerOptions::default().client_id
}

/// As Java's client has it.
fn transaction_timeout() -> Period {
    Period::secs(60)
}

/// What brokers take unless they are told otherwise.
fn record_max() -> Size {
    Size::bytes(1_000_000)
}

/// Little enough to stay in the cache, where the producer's thread finds it. A cluster that takes 10 ms to answer is given
/// 400 MB/s.
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
    /// The record's `message` (option `field`); a line as it is.
    Raw,
    /// A MessagePack entry `[time, record]`. A line becomes `{"message": line}`.
    Msgpack,
    /// The text of the option `template`.
    Template,
    /// What kafka-connect-fluentd and Connect's JsonConverter write.
    Connect,
}

/// When records leave together.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Batching {
    /// Bytes of a batch for one partition at most.
    pub(super) size: Size,
    /// Records of a batch at most; 0: no limit.
    pub(super) records: u32,
    /// How long the first of them waits for more. Where an answer is waited for, none waits.
    pub(super) linger: Period,
}

impl Default for Batching {
    fn default() -> Self {
        Self {
            size: Size::mib(1),
            records: 0,
            // What a batch waits for where nothing is asked for sooner: full batches cost brokers and readers least.
            linger: Period::millis(100),
        }
    }
}

impl Config {
    /// What can be read and cannot be used.
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
            at("topic", format!("`{topic}` is no name of a topic: {fault}"));
        }
        if let Some(position) = &self.position
            && let Some(fault) = topic_fault(position.as_bytes())
        {
            at(
                "position",
                format!("`{position}` is no name of a topic: {fault}"),
            );
        }
        if self.zone().is_err() {
            let name = self.timezone.as_deref().unwrap_or_default();
            at("timezone", format!("no time zone is called `{name}`"));
        }
        if self.format == Format::Connect && self.add.is_some() {
            let message = "`format: connect` writes the record as it is";
            at("add", message.to_owned());
        }
        if self.format == Format::Connect && self.invalid_utf8.is_some() {
            let message = "`format: connect` has a rule of its own for text that is not UTF-8";
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
    pub(super) fn zone(&self) -> Result<TimeZone, jiff::Error> {
        self.timezone
            .as_deref()
            .map_or(Ok(TimeZone::UTC), TimeZone::get)
    }

    /// The options of the encoder; of `connect`, which has one of its own, those of json.
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
            // Each record stands by itself.
            delimiter: (format != Wire::Msgpack).then(String::new),
            invalid_utf8: self.invalid_utf8,
            ..Options::default()
        }
    }

    /// The encoder of values.
    pub(super) fn encoder(&self) -> Encoder {
        let zone = self.zone().unwrap_or(TimeZone::UTC);
        let encoder = self.wire().encoder(&zone);
        encoder.expect("the same options made one when they were checked")
    }

    /// The topic that names the position.
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

    /// What a producer is told, but for transactions; `batch_max`: what topics are known to take.
    pub(super) fn producer(&self, batch_max: usize) -> ProducerOptions {
        let record_bytes = self.record_max.as_usize().max(1000);
        // A batch with more than one record keeps below every limit, whatever it compresses to.
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
