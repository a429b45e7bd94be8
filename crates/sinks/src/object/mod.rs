//! The sink `object`: records as objects of S3, Google Cloud Storage or Azure, or as files of a local directory.
//!
//! `read -> decode -> send -> keep -> take -> encode -> [write] -> settle`
//!
//! Where to look: `crate::publish` is how it works; `cloud` is a bucket as its destination, `local` a directory, `connect` makes
//! the client.
//!
//! It promises (delivery.md): behind a durable channel every record is published exactly once; behind memory it is published
//! before it is settled. Leaves to others: the text of the records and the compressed streams (`wire`), requests and their
//! signatures (the crate object_store).

mod cloud;
mod connect;
mod local;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use millstream_config::{Node, Problem, Size};
use millstream_pipeline::{
    failure::Failure,
    inlet::Inlet,
    node::{Build, Checked, Component, LocalFuture, Placement, Sink, SinkContext},
    promise::{Guarantee, Promise},
};
use millstream_wire::{avro::container, compression::Codec, format::Format, template::Template};
use schemars::{JsonSchema, Schema};
use serde::Deserialize;

use crate::{
    format::{Formatting, schema_with},
    publish::{self, Compression, Encode, Patience, RotateConfig, Settings, split_root},
    retry::Retry,
};
use cloud::Cloud;
use connect::{Auth, Bucket, Scheme};
use local::Local;

/// What `millstream components` and the configuration know of it.
pub const COMPONENT: Component = Component {
    name: "object",
    summary: "Writes objects to S3, Google Cloud Storage, Azure or a local directory, exactly once behind a disk channel.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema,
    build: Build::Sink(build),
};

/// The format that is of this sink alone.
const PARQUET: &str = "parquet";
/// Stores take no smaller part but as the last one, and no larger one.
const PART_MIN: Size = Size::mib(5);
const PART_MAX: Size = Size::gib(4);

/// Options of the sink `object`; those of the format stand beside them.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Where to write: `s3://BUCKET/FOLDERS`, `gs://BUCKET/FOLDERS`, `az://CONTAINER/FOLDERS` or `file:///FOLDERS`. The folders are
    /// a template, each value of which is one part (`s3://logs/{host}/%F/%H`); the names of the objects are made.
    url: Template,
    /// The server to speak to instead of the cloud's own: `https://minio.example:9000`, or `http://` without TLS.
    endpoint: Option<String>,
    /// The region of the bucket. Default: what the environment says (`AWS_REGION`), else `us-east-1`.
    region: Option<String>,
    /// Who we are to the store. Default: what the environment says (`AWS_ACCESS_KEY_ID`, `GOOGLE_SERVICE_ACCOUNT`,
    /// `AZURE_STORAGE_ACCOUNT_NAME` ...), or the machine's own role.
    #[serde(default)]
    auth: Auth,
    /// What the names of objects begin with.
    #[serde(default)]
    prefix: String,
    /// How objects are compressed; their names end with `.gz` or `.zst`. Of Parquet: its columns, and the names end with
    /// `.parquet`.
    #[serde(default)]
    compression: Compression,
    /// When objects are finished and published.
    #[serde(default)]
    rotate: RotateConfig,
    /// So large are the parts in which an object is uploaded, but for its last one.
    #[serde(default = "part")]
    part: Size,
    /// So many objects are written at a time; of more, the one used longest ago is finished.
    #[serde(default = "open_max")]
    open_max: u32,
    /// So much of all objects together is held in memory; of more, the largest is finished.
    #[serde(default = "held_max")]
    held_max: Size,
    /// How a store that fails is tried again. `give_up` has to be `never`.
    #[serde(default)]
    retry: Retry,
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

/// The sink: what the configuration says, checked.
struct ObjectSink {
    settings: Settings,
    format: Formatting,
    /// `format: parquet`.
    columnar: bool,
    codec: Option<Codec>,
    scheme: Scheme,
    /// Everything before the folders that change, without the bucket.
    root: String,
    /// The literal beginning of the URL, for people.
    url: String,
    bucket: Bucket,
    part_bytes: usize,
    retry: Retry,
}

fn build(name: &str, node: &Node) -> Checked<Arc<dyn Sink>> {
    Ok(Arc::new(ObjectSink::new(name, node)?))
}

impl ObjectSink {
    fn new(name: &str, node: &Node) -> Checked<Self> {
        let columnar = node.get("format").and_then(Node::as_text) == Some(PARQUET);
        let (format, config) = options(node, columnar)?;
        let problems = config.problems(node);
        if !problems.is_empty() {
            return Err(problems);
        }
        // `problems` has looked at all of this.
        let (scheme, rest) = Scheme::of(config.url.as_str()).unwrap_or((Scheme::File, ""));
        let path = Template::parse(rest).unwrap_or_else(|_| config.url.clone());
        let (root, folder) = split_root(&path);
        let (bucket, root) = match scheme {
            Scheme::File => ("", root.as_str()),
            _ => root.split_once('/').unwrap_or((&root, "")),
        };
        let extension = match columnar {
            true => ".parquet".to_owned(),
            false if format.format() == Format::AvroEvent => ".avro".to_owned(),
            false => {
                let text = extension(format.format());
                format!("{text}{}", config.compression.extension())
            }
        };
        Ok(Self {
            settings: Settings {
                sink: name.to_owned(),
                folder,
                zone: format.zone(),
                prefix: config.prefix,
                extension,
                rotate: config.rotate.rules(),
                open_max: config.open_max as usize,
                held_max: config.held_max.as_usize(),
            },
            format,
            columnar,
            codec: config.compression.codec(),
            scheme,
            root: root.to_owned(),
            url: config.url.as_str().to_owned(),
            bucket: Bucket {
                scheme,
                name: bucket.to_owned(),
                endpoint: config.endpoint,
                region: config.region,
                auth: config.auth,
            },
            part_bytes: config.part.as_usize(),
            retry: config.retry,
        })
    }

    fn encode(&self) -> Result<Box<dyn Encode>, Failure> {
        match self.columnar {
            true => publish::parquet(&self.format, self.codec),
            false if self.format.format() == Format::AvroEvent => {
                publish::avro(&self.format, blocks(self.codec))
            }
            false => publish::text(&self.format, self.codec),
        }
    }

    async fn run(&self, inlet: &mut Inlet, context: SinkContext) -> Result<(), Failure> {
        let encode = self.encode()?;
        if self.scheme == Scheme::File {
            let local = Local::new(&self.root);
            return publish::run(&self.settings, local, encode, inlet, context).await;
        }
        let durable = inlet.channel_id().is_some();
        let cloud = Cloud {
            objects: connect::connect(&self.bucket, &self.retry)?,
            url: self.url.clone(),
            root: self.root.clone(),
            part_bytes: self.part_bytes,
            patience: Patience::new(&self.retry, &context, durable),
            reporter: context.reporter.clone(),
            begun: context.folder.join("uploads"),
        };
        publish::run(&self.settings, cloud, encode, inlet, context).await
    }
}

impl Config {
    /// What can be read and cannot be used.
    fn problems(&self, node: &Node) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut wrong = |option: &str, message: &str, help: &str| {
            problems.push(node.problem_at(option, message).help(help));
        };
        match Scheme::of(self.url.as_str()) {
            None => wrong(
                "url",
                "not the URL of an object store",
                "`s3://BUCKET/FOLDERS`, `gs://`, `az://` or `file:///FOLDERS`",
            ),
            Some((Scheme::File, rest)) if !rest.starts_with(['/', '.']) => wrong(
                "url",
                "a folder of which machine?",
                "three slashes: `file:///srv/objects/%F`; `file://./objects` is below the working folder",
            ),
            Some((scheme, rest)) => {
                let rest = rest.strip_prefix("./").unwrap_or(rest);
                let bucket = rest.split('/').next().unwrap_or_default();
                if scheme != Scheme::File && (bucket.is_empty() || bucket.contains(['{', '%'])) {
                    wrong(
                        "url",
                        "a bucket cannot change from record to record",
                        "name it, and put values into the folders: `s3://logs/{host}`",
                    );
                }
                if rest.split('/').any(|part| part == "." || part == "..") {
                    wrong("url", "`.` and `..` are no folders here", "leave them out");
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
            wrong("prefix", "a name cannot hold `/`", "put folders into `url`");
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
        if self.retry.give_up.0.is_some() {
            wrong(
                "retry.give_up",
                "what is written into an object cannot be given up by the record",
                "take it out; `behind: { then: skip }` drops what is too old",
            );
        }
        problems
    }
}

/// Reads the options. Parquet is no format of `wire`: what it holds of a record is JSON, so those are its options.
fn options(node: &Node, columnar: bool) -> Checked<(Formatting, Config)> {
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
    Ok((format.bare(), config))
}

/// How the blocks of an Avro file are compressed.
fn blocks(codec: Option<Codec>) -> container::Codec {
    match codec {
        None => container::Codec::Null,
        Some(Codec::Gzip) => container::Codec::Deflate,
        Some(Codec::Zstd) => container::Codec::Zstandard,
    }
}

/// The options with `format: parquet` among the formats.
fn schema() -> Schema {
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

/// How the name of an object of this format ends.
fn extension(format: Format) -> &'static str {
    match format {
        Format::Json => ".json",
        Format::Ltsv => ".ltsv",
        Format::Csv => ".csv",
        Format::Raw => ".log",
        Format::Msgpack => ".msgpack",
        Format::Template => ".txt",
        Format::AvroEvent => ".avro",
    }
}

impl Sink for ObjectSink {
    fn placement(&self) -> Placement {
        Placement::OwnThread
    }

    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        context: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(self.run(inlet, context))
    }

    fn promise(&self, durable: bool) -> Promise {
        if durable {
            Promise::new(
                Guarantee::ExactlyOnce,
                "as long as nobody else touches `_millstream` at the destination",
            )
        } else {
            Promise::new(
                Guarantee::AtLeastOnce,
                "published before the source is answered",
            )
        }
    }

    fn settles_within(&self) -> Option<Duration> {
        self.settings.rotate.longest()
    }
}
