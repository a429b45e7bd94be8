//! The options of the sink `http`.

use std::collections::BTreeMap;

use millstream_config::{Node, Period, Problem, Secret};
use millstream_net::Tls;
use millstream_wire::template::Template;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::success::Success;
use crate::sending::{Batching, Retry};

/// The options of `http` in addition to those of the format.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    /// URL of the server: `http://` or `https://`, a host, and a path that may be a template. Values in the path are escaped, so
    /// that they cannot change the structure of the path.
    pub(super) url: Template,
    /// Method of the requests.
    #[serde(default)]
    pub(super) method: MethodOption,
    /// How records become requests.
    #[serde(default)]
    pub(super) framing: Framing,
    /// With `framing: bulk`: what Elasticsearch and OpenSearch do with each record, and in which index.
    #[serde(default)]
    pub(super) bulk: Option<Bulk>,
    /// With OTLP: attributes of the resource, for records without a field `resources`; templates. An attribute without a value is
    /// left out.
    #[serde(default = "resource")]
    pub(super) resource: BTreeMap<String, Template>,
    /// Headers of each request; templates. Records with different header values are sent in different requests.
    #[serde(default)]
    pub(super) headers: BTreeMap<String, Template>,
    /// Credentials: `{ bearer }`, `{ username, password }`, or `{ scheme, token }` for `Authorization: SCHEME TOKEN`.
    #[serde(default)]
    pub(super) auth: Option<Auth>,
    /// Compression of bodies.
    #[serde(default)]
    pub(super) compression: Compression,
    /// TLS options, if `https://` alone is not enough: the name of an entry in the top-level `tls`, or a block of options.
    #[serde(default)]
    pub(super) tls: Tls,
    /// Size of a request, and how long its first record waits for more records. With `idempotency_key` and behind a disk channel, no
    /// request holds records of two batches of the channel.
    #[serde(default)]
    pub(super) batch: Batching,
    /// Maximum number of requests in flight. With more than 1, requests may arrive out of order.
    #[serde(default = "in_flight")]
    pub(super) in_flight: usize,
    /// Statuses on which a request is retried unchanged, in addition to 5xx.
    #[serde(default = "again")]
    pub(super) again: Vec<u16>,
    /// Time for which a refusal is retried that no single record causes: a 4xx other than 400, 413 and 422, such as a 404 while a table
    /// or an index is missing. After this time the records leave by `NAME.rejected`, at once also those of later requests to the
    /// same URL, until the server accepts one. 0: records are rejected at once.
    #[serde(default = "refuse_after")]
    pub(super) refuse_after: Period,
    /// Which answers mean that the server has stored the request, if a 2xx alone does not. An answer that does not fulfil this is never
    /// counted as delivered.
    #[serde(default)]
    pub(super) success: Success,
    /// Whether each request has a header `Idempotency-Key`, which stays the same when the request is resent; behind a disk channel
    /// even after a restart. `{ query: NAME }` sends the key as the parameter NAME of the URL instead, as ClickHouse's
    /// `insert_deduplication_token`. Default: `true`; `false` with `framing: bulk`.
    #[serde(default)]
    pub(super) idempotency_key: Option<IdempotencyKey>,
    /// How a server that fails is retried, unless its `Retry-After` names a longer time.
    #[serde(default)]
    pub(super) retry: Retry,
}

/// Whether and where a request has its key.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum IdempotencyKey {
    /// Whether requests have the header `Idempotency-Key`.
    Header(bool),
    /// The key is a parameter of the URL.
    Query(KeyQuery),
}

/// The parameter of the URL that holds the key.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyQuery {
    /// Name of the parameter: letters, digits, `_`, `-` and `.`.
    pub(super) query: String,
}

/// The method.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum MethodOption {
    /// POST.
    #[default]
    Post,
    /// PUT.
    Put,
    /// PATCH.
    Patch,
}

/// How records become requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Framing {
    /// Records one after the other, each as `format` writes it (json: one per line).
    #[default]
    Lines,
    /// A JSON array of records.
    Array,
    /// One request per record.
    Single,
    /// The `_bulk` of Elasticsearch and OpenSearch: a line with the action and a line with the record.
    Bulk,
    /// OpenTelemetry logs in protobuf (OTLP/HTTP).
    Otlp,
    /// OpenTelemetry logs in JSON.
    OtlpJson,
}

/// The action of Elasticsearch and OpenSearch for each record, and its target.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Bulk {
    /// Index, alias or data stream; a template.
    pub(super) index: Template,
    /// Action: `create` adds a document and never overwrites one; `index` may overwrite.
    #[serde(default)]
    pub(super) action: Action,
    /// Id of the document: `position` (behind a disk channel: position and checksum of the record, so that a resent record makes no
    /// second document), `none` (the server makes an id), or a template.
    #[serde(default)]
    pub(super) id: DocumentId,
    /// Name of the ingest pipeline.
    #[serde(default)]
    pub(super) pipeline: Option<String>,
}

/// The action for each record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Action {
    /// `create`: the only action that data streams accept.
    #[default]
    Create,
    /// `index`.
    Index,
}

/// The id of a document.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum DocumentId {
    #[default]
    Position,
    None,
    Template(Template),
}

impl<'de> Deserialize<'de> for DocumentId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let template = Template::deserialize(deserializer)?;
        Ok(match template.as_str() {
            "position" => Self::Position,
            "none" => Self::None,
            _ => Self::Template(template),
        })
    }
}

impl JsonSchema for DocumentId {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "DocumentId".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let template = generator.subschema_for::<Template>();
        schemars::json_schema!({ "anyOf": [template], "default": "position" })
    }
}

/// How the sink authenticates.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Auth {
    /// Token for `Authorization: Bearer TOKEN`.
    pub(super) bearer: Option<Secret>,
    /// User for `Authorization: Basic`.
    pub(super) username: Option<String>,
    /// Password of the user.
    pub(super) password: Option<Secret>,
    /// Another scheme, such as `Splunk` or `ApiKey`.
    pub(super) scheme: Option<String>,
    /// Token of the scheme.
    pub(super) token: Option<Secret>,
}

/// Compression of bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Compression {
    /// No compression.
    #[default]
    None,
    /// gzip: supported by nearly every server.
    Gzip,
    /// zstd: faster and smaller than gzip.
    Zstd,
    /// deflate (in zlib's format, RFC 1950).
    Deflate,
}

/// Long enough for a table that is dropped and made again, or a server that is deployed again.
fn refuse_after() -> Period {
    Period::secs(300)
}

/// Enough to keep a distant server busy.
fn in_flight() -> usize {
    4
}

/// The statuses of failures that may pass: an expired token, too many requests, a timeout.
fn again() -> Vec<u16> {
    vec![401, 403, 407, 408, 425, 429]
}

fn resource() -> BTreeMap<String, Template> {
    let known = [("service.name", "{tag}"), ("host.name", "{host}")];
    let known = known.map(|(name, text)| {
        let template = Template::parse(text).expect("a valid template");
        (name.to_owned(), template)
    });
    known.into()
}

impl Auth {
    /// Returns the value of the header `Authorization`, or the name of the wrong option and why it is wrong.
    pub(super) fn header(&self) -> Result<String, (&'static str, &'static str)> {
        match (&self.bearer, &self.username, &self.scheme) {
            (Some(token), None, None) => Ok(format!("Bearer {}", token.expose())),
            (None, Some(name), None) => {
                use base64::{Engine, engine::general_purpose::STANDARD};
                let password = self.password.as_ref().map_or("", Secret::expose);
                Ok(format!(
                    "Basic {}",
                    STANDARD.encode(format!("{name}:{password}"))
                ))
            }
            (None, None, Some(scheme)) => match &self.token {
                Some(token) => Ok(format!("{scheme} {}", token.expose())),
                None => Err(("auth", "`scheme` needs `token`")),
            },
            _ => Err((
                "auth",
                "expected one of `{ bearer }`, `{ username, password }` and `{ scheme, token }`",
            )),
        }
    }
}

impl Config {
    /// Whether requests have a key.
    pub(super) fn has_key(&self) -> bool {
        match &self.idempotency_key {
            None => self.framing != Framing::Bulk,
            Some(IdempotencyKey::Header(has_key)) => *has_key,
            Some(IdempotencyKey::Query(_)) => true,
        }
    }

    /// The parameter of the URL that holds the key, if it is not in a header.
    pub(super) fn key_query(&self) -> Option<String> {
        match &self.idempotency_key {
            Some(IdempotencyKey::Query(key)) => Some(key.query.clone()),
            _ => None,
        }
    }

    /// Reports options that contradict each other.
    pub(super) fn check(&self, options: &Node) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut wrong = |option: &str, text: &str| problems.push(options.problem_at(option, text));
        match (self.framing, &self.bulk) {
            (Framing::Bulk, None) => {
                wrong("framing", "`framing: bulk` needs `bulk: { index: NAME }`");
            }
            (Framing::Bulk, Some(_)) | (_, None) => {}
            (_, Some(_)) => wrong("bulk", "`bulk` does nothing without `framing: bulk`"),
        }
        let otlp = matches!(self.framing, Framing::Otlp | Framing::OtlpJson);
        if otlp && options.get("format").is_some() {
            wrong("format", "OTLP has its own format: remove this option");
        }
        if self.in_flight == 0 || self.in_flight > 1024 {
            wrong("in_flight", "it must be between 1 and 1024");
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let query = self.key_query();
        if query.is_some_and(|name| name.is_empty() || !name.chars().all(is_name)) {
            let text = "the name of a parameter has letters, digits, `_`, `-` and `.`";
            wrong("idempotency_key.query", text);
        }
        if self.again.iter().any(|status| !(300..600).contains(status)) {
            wrong("again", "it must hold statuses from 300 to 599");
        }
        for (option, period) in [
            ("retry.first", self.retry.first),
            ("retry.timeout", self.retry.timeout),
        ] {
            if period.is_zero() {
                wrong(option, "it must be longer than 0");
            }
        }
        problems
    }
}
