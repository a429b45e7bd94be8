//! The options of the sink `object`, and their checks.

use millstream_config::{Node, Problem, Size};
use millstream_net::{ClientTls, Tls};
use millstream_pipeline::node::Checked;
use millstream_wire::template::Template;
use schemars::{JsonSchema, Schema};
use serde::Deserialize;

use super::connect::{Auth, Scheme};
use crate::{
    format::{Formatting, schema_with},
    publish::{Compression, RotateConfig, no_give_up},
    sending::Retry,
};

/// The name of the format that only this sink has.
pub(super) const PARQUET: &str = "parquet";
/// The sizes that stores accept for all parts but the last.
const PART_MIN: Size = Size::mib(5);
const PART_MAX: Size = Size::gib(4);

/// The options of the sink `object`, in addition to those of the format.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    /// Where to write: `s3://BUCKET/DIRECTORIES`, `gs://BUCKET/DIRECTORIES`, `az://CONTAINER/DIRECTORIES` or `file:///DIRECTORIES`.
    /// The directories are a template in which each value becomes one part of the path (`s3://logs/{host}/%F/%H`). The sink chooses
    /// the names of the objects.
    pub(super) url: Template,
    /// The server to use instead of the cloud's own: `https://minio.example:9000`, or `http://` without TLS.
    pub(super) endpoint: Option<String>,
    /// The region of the bucket. Default: `AWS_REGION` of the environment, otherwise `us-east-1`.
    pub(super) region: Option<String>,
    /// The credentials. Default: those of the environment (`AWS_ACCESS_KEY_ID`, `GOOGLE_SERVICE_ACCOUNT`,
    /// `AZURE_STORAGE_ACCOUNT_NAME` and others), or the machine's role.
    #[serde(default)]
    pub(super) auth: Auth,
    /// TLS settings beyond those of `https://`: a name of the top-level `tls`, or a block. The files that it names are read again when
    /// they change.
    #[serde(default)]
    pub(super) tls: Tls,
    /// The prefix of object names.
    #[serde(default)]
    pub(super) prefix: String,
    /// The compression of objects, whose names then end with `.gz` or `.zst`. With `format: parquet`, the columns are compressed,
    /// and names end with `.parquet`.
    #[serde(default)]
    pub(super) compression: Compression,
    /// When objects are finished and published.
    #[serde(default)]
    pub(super) rotate: RotateConfig,
    /// The size of each part of an uploaded object, except the last part.
    #[serde(default = "part")]
    pub(super) part: Size,
    /// Maximum number of objects that are written at a time; to begin another one, the least recently used object is finished.
    #[serde(default = "open_max")]
    pub(super) open_max: u32,
    /// Maximum memory of all objects together; above it, the largest object is finished.
    #[serde(default = "held_max")]
    pub(super) held_max: Size,
    /// The retry policy for a store that fails. `give_up` must be `never`.
    #[serde(default)]
    pub(super) retry: Retry,
}

fn part() -> Size {
    Size::mib(8)
}

fn open_max() -> u32 {
    1000
}

fn held_max() -> Size {
    Size::mib(128)
}

impl Config {
    /// Returns a problem for each option that can be parsed but not used.
    pub(super) fn problems(&self, node: &Node) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut wrong = |option: &str, message: &str, help: &str| {
            problems.push(node.problem_at(option, message).help(help));
        };
        match Scheme::of(self.url.as_str()) {
            None => wrong(
                "url",
                "not the URL of an object store",
                "`s3://BUCKET/DIRECTORIES`, `gs://`, `az://` or `file:///DIRECTORIES`",
            ),
            Some((Scheme::File, rest)) if !rest.starts_with(['/', '.']) => wrong(
                "url",
                "a host instead of a directory",
                "three slashes: `file:///srv/objects/%F`; `file://./objects` is below the working directory",
            ),
            Some((scheme, rest)) => {
                let rest = rest.strip_prefix("./").unwrap_or(rest);
                let bucket = rest.split('/').next().unwrap_or_default();
                if scheme != Scheme::File && (bucket.is_empty() || bucket.contains(['{', '%'])) {
                    wrong(
                        "url",
                        "a bucket cannot change from record to record",
                        "name it, and put values into the directories: `s3://logs/{host}`",
                    );
                }
                if rest.split('/').any(|part| part == "." || part == "..") {
                    wrong(
                        "url",
                        "`.` and `..` are no directories here",
                        "leave them out",
                    );
                }
            }
        }
        let http = |url: &String| url.starts_with("http://") || url.starts_with("https://");
        if self.endpoint.as_ref().is_some_and(|url| !http(url)) {
            wrong(
                "endpoint",
                "no URL of a server",
                "begin with `https://`, or with `http://` without TLS",
            );
        }
        if self.prefix.contains('/') {
            wrong(
                "prefix",
                "a name cannot hold `/`",
                "put directories into `url`",
            );
        }
        if self.part < PART_MIN || self.part > PART_MAX {
            wrong(
                "part",
                "stores take parts of 5MiB to 4GiB",
                "8MiB is the default",
            );
        }
        if self.open_max == 0 {
            wrong(
                "open_max",
                "at least one object has to be open",
                "1000 is the default",
            );
        }
        problems.extend(no_give_up(node, &self.retry));
        problems
    }

    /// Returns the checked option `tls`, or None if it is not set.
    pub(super) fn tls(&self, node: &Node) -> Checked<Option<ClientTls>> {
        let wrong = |option: &str, message: &str, help: &str| {
            Err(vec![node.problem_at(option, message).help(help)])
        };
        let plain = self.endpoint.as_deref().unwrap_or_default();
        match &self.tls {
            Tls::Off => Ok(None),
            _ if self.url.as_str().starts_with("file:") => {
                wrong("tls", "a directory is not reached by TLS", "take it out")
            }
            _ if plain.starts_with("http://") => wrong(
                "tls",
                "`tls` with an `endpoint` that begins with http://",
                "write https://",
            ),
            Tls::Block(block) if block.server_name.is_some() => wrong(
                "tls.server_name",
                "the certificate of a store has the name by which it is reached",
                "take it out, and use that name in `endpoint`",
            ),
            tls => ClientTls::check(tls, node),
        }
    }
}

/// Reads the options. Parquet is not a format of `wire`; its body column is JSON, so it has the options of JSON.
pub(super) fn read(node: &Node, columnar: bool) -> Checked<(Formatting, Config)> {
    if !columnar {
        return Formatting::with_avro(node);
    }
    if node.get("delimiter").is_some() {
        let problem = node.problem_at("delimiter", "`delimiter` does nothing with this format");
        return Err(vec![problem.help("take it out, or set `format: json`")]);
    }
    let mut rest = node.clone();
    rest.take("format");
    let (format, config) = Formatting::with(&rest)?;
    Ok((format.without_time(), config))
}

/// Returns the schema of the options, with `parquet` added to the formats.
pub(super) fn schema() -> Schema {
    let mut schema = schema_with::<Config>();
    let formats = schema.pointer_mut("/$defs/Format/oneOf");
    if let Some(formats) = formats.and_then(|formats| formats.as_array_mut()) {
        formats.push(serde_json::json!({
            "description": "Parquet: the columns `time`, `tag` and `body`, the record as JSON.",
            "type": "string",
            "const": PARQUET
        }));
    }
    schema
}
