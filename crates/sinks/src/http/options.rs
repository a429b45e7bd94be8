//! The options of the sink `http`.

use std::collections::BTreeMap;

use millstream_config::{Node, Problem, Secret};
use millstream_net::Tls;
use millstream_wire::template::Template;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{batching::Batching, retry::Retry};

/// The options of `http` beside those of the format.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    /// Where requests go: `http://` or `https://`, a host, and a path that may be a template. Values in it are escaped, so that
    /// none can change its parts.
    pub(super) url: Template,
    /// The method.
    #[serde(default)]
    pub(super) method: MethodOption,
    /// What makes a request of records.
    #[serde(default)]
    pub(super) framing: Framing,
    /// Of `framing: bulk`: what Elasticsearch and OpenSearch do with each record, and where.
    #[serde(default)]
    pub(super) bulk: Option<Bulk>,
    /// Of OTLP: attributes of the resource of records that have no field `resources`; templates. A value that is missing is
    /// left out.
    #[serde(default = "resource")]
    pub(super) resource: BTreeMap<String, Template>,
    /// Headers of each request; templates. Records for which they differ go in different requests.
    #[serde(default)]
    pub(super) headers: BTreeMap<String, Template>,
    /// `{ bearer }`, `{ username, password }`, or `{ scheme, token }` for `Authorization: SCHEME TOKEN`.
    #[serde(default)]
    pub(super) auth: Option<Auth>,
    /// How bodies are compressed.
    #[serde(default)]
    pub(super) compression: Compression,
    /// TLS towards the server, if there is more to say than `https://`: a name of the top-level `tls`, or a block.
    #[serde(default)]
    pub(super) tls: Tls,
    /// How large a request becomes, and how long its first record waits for more. Behind a disk channel with
    /// `idempotency_key` no request holds records of two frames.
    #[serde(default)]
    pub(super) batch: Batching,
    /// Requests under way at a time. More than 1: they may arrive in another order.
    #[serde(default = "in_flight")]
    pub(super) in_flight: usize,
    /// Statuses, beside 5xx, on which a request is sent again as it is. Other 4xx say that it is refused for good.
    #[serde(default = "again")]
    pub(super) again: Vec<u16>,
    /// Whether each request has a header `Idempotency-Key`, the same when it is sent again; behind a disk channel also
    /// after a restart. Default: `true`, but for `bulk`.
    #[serde(default)]
    pub(super) idempotency_key: Option<bool>,
    /// How a server that fails is tried again, unless its `Retry-After` says more.
    #[serde(default)]
    pub(super) retry: Retry,
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

/// What makes a request of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Framing {
    /// One behind the other, each as `format` writes it (json: a line each).
    #[default]
    Lines,
    /// A JSON array of them.
    Array,
    /// A request for each record.
    Single,
    /// Elasticsearch's and OpenSearch's `_bulk`: an action and the record, a line each.
    Bulk,
    /// OpenTelemetry's logs in protobuf (OTLP/HTTP).
    Otlp,
    /// The same in JSON.
    OtlpJson,
}

/// What Elasticsearch and OpenSearch do with each record, and where.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Bulk {
    /// The index, alias or data stream; a template.
    pub(super) index: Template,
    /// What is done: `create` adds a document and never writes over one; `index` may.
    #[serde(default)]
    pub(super) action: Action,
    /// The document's id: `position` (behind a disk channel: made of the record's position, so that a record that is sent again
    /// makes no second document), `none` (the server makes one), or a template.
    #[serde(default)]
    pub(super) id: DocumentId,
    /// An ingest pipeline.
    #[serde(default)]
    pub(super) pipeline: Option<String>,
}

/// What is done with each record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Action {
    /// `create`: all that data streams take.
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

/// How the server knows us.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Auth {
    /// A token: `Authorization: Bearer TOKEN`.
    pub(super) bearer: Option<Secret>,
    /// A user, by `Authorization: Basic`.
    pub(super) username: Option<String>,
    /// The user's password.
    pub(super) password: Option<Secret>,
    /// Another scheme, such as `Splunk` or `ApiKey`.
    pub(super) scheme: Option<String>,
    /// Its token.
    pub(super) token: Option<Secret>,
}

/// How bodies are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Compression {
    /// Not at all.
    #[default]
    None,
    /// gzip: nearly every server.
    Gzip,
    /// zstd: faster and smaller.
    Zstd,
    /// deflate (in zlib's format, RFC 1950).
    Deflate,
}

/// Enough that a distant server is kept busy.
fn in_flight() -> usize {
    4
}

/// Later may be better: somebody must look at tokens first; it was too much at once; it took too long.
fn again() -> Vec<u16> {
    vec![401, 403, 407, 408, 425, 429]
}

fn resource() -> BTreeMap<String, Template> {
    let known = [("service.name", "{tag}"), ("host.name", "{host}")];
    let known = known.map(|(name, text)| {
        let template = Template::parse(text).expect("a template that can be read");
        (name.to_owned(), template)
    });
    known.into()
}

impl Auth {
    /// The value of the header.
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
                "one of `{ bearer }`, `{ username, password }` and `{ scheme, token }`",
            )),
        }
    }
}

impl Config {
    /// What of them does not go together.
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
            wrong("format", "OTLP has a format of its own: take it out");
        }
        if self.in_flight == 0 || self.in_flight > 1024 {
            wrong("in_flight", "between 1 and 1024 requests");
        }
        if self.again.iter().any(|status| !(300..600).contains(status)) {
            wrong("again", "statuses from 300 to 599");
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
