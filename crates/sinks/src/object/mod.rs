//! The sink `object`: writes records as objects to S3, Google Cloud Storage or Azure, or as files into a local directory.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! Where to look: `crate::publish` does the work; `options` is the configuration, `cloud` makes a bucket the destination (`begun`
//! is its journal of uploads), `local` makes a directory the destination, `connect` creates the client, `trouble` adds advice to
//! errors, and `probe` serves `check --connect`.
//!
//! Promise (docs/delivery.md): behind a durable channel every record is published exactly once; behind memory every record is
//! published before it is settled. `wire` encodes the records, and the crate object_store signs and sends the requests.

mod begun;
mod cloud;
mod connect;
mod local;
mod options;
mod probe;
mod requests;
mod slow;
#[cfg(test)]
mod tests;
mod trouble;

use std::{sync::Arc, time::Duration};

use millstream_config::Node;
use millstream_net::ClientTls;
use millstream_pipeline::{
    failure::Failure,
    inlet::Inlet,
    node::{Build, Checked, Component, LocalFuture, Placement, Sink, SinkContext},
    promise::{Guarantee, Promise},
    report::Reporter,
};
use millstream_wire::{avro::container, compression::Codec, format::Format, template::Template};

use crate::{
    format::Formatting,
    publish::{self, Encode, Patience, Settings, split_root},
    sending::Retry,
};
use begun::Begun;
use cloud::{Cloud, Objects};
use connect::{Bucket, Scheme};
use local::Local;
use options::PARQUET;
use requests::Http;

/// The entry in the list of sinks.
pub const COMPONENT: Component = Component {
    name: "object",
    summary: "Writes objects to S3, Google Cloud Storage, Azure or a local directory, exactly once behind a disk channel.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: options::schema,
    build: Build::Sink(build),
};

/// The sink with its checked configuration.
struct ObjectSink {
    settings: Settings,
    format: Formatting,
    /// Whether the format is Parquet.
    columnar: bool,
    codec: Option<Codec>,
    scheme: Scheme,
    /// The directories of the URL before the first directory with a placeholder. Does not include the bucket.
    root: String,
    /// The URL as configured, for messages.
    url: String,
    bucket: Bucket,
    /// TLS settings; None for the defaults of `https://`.
    tls: Option<Arc<ClientTls>>,
    part_bytes: usize,
    retry: Retry,
}

fn build(name: &str, node: &Node) -> Checked<Arc<dyn Sink>> {
    Ok(Arc::new(ObjectSink::new(name, node)?))
}

impl ObjectSink {
    fn new(name: &str, node: &Node) -> Checked<Self> {
        let columnar = node.get("format").and_then(Node::as_text) == Some(PARQUET);
        let (format, config) = options::read(node, columnar)?;
        let mut problems = config.problems(node);
        let tls = config.tls(node).map_err(|more| problems.extend(more));
        let (Ok(tls), true) = (tls, problems.is_empty()) else {
            return Err(problems);
        };
        // `problems` has checked that the URL can be parsed.
        let (scheme, rest) = Scheme::of(config.url.as_str()).unwrap_or((Scheme::File, ""));
        let path = Template::parse(rest).unwrap_or_else(|_| config.url.clone());
        let (root, directory) = split_root(&path);
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
                directory,
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
            tls: tls.map(Arc::new),
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
        let http = self.http(self.retry.timeout.as_duration(), &context.reporter);
        let objects = connect::connect(&self.bucket, &http)?;
        self.run_over(objects, encode, inlet, context).await
    }

    fn http(&self, timeout: Duration, reporter: &Reporter) -> Http {
        Http {
            timeout,
            part_bytes: self.part_bytes,
            tls: self.tls.clone(),
            reporter: reporter.clone(),
        }
    }

    /// Runs the sink with a bucket as the destination.
    async fn run_over(
        &self,
        objects: Arc<dyn Objects>,
        encode: Box<dyn Encode>,
        inlet: &mut Inlet,
        context: SinkContext,
    ) -> Result<(), Failure> {
        let durable = inlet.channel_id().is_some();
        let cloud = Cloud {
            objects,
            url: self.url.clone(),
            root: self.root.clone(),
            part_bytes: self.part_bytes,
            patience: Patience::new(&self.retry, &context, durable),
            reporter: context.reporter.clone(),
            begun: Begun::at(context.directory.join("uploads")),
        };
        publish::run(&self.settings, cloud, encode, inlet, context).await
    }
}

/// Returns the compression of the blocks of an Avro file.
fn blocks(codec: Option<Codec>) -> container::Codec {
    match codec {
        None => container::Codec::Null,
        Some(Codec::Gzip) => container::Codec::Deflate,
        Some(Codec::Zstd) => container::Codec::Zstandard,
    }
}

/// Returns the suffix of object names of this format.
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
                "if no other program changes `_millstream` at the destination",
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

    fn probe(&self) -> Option<Result<String, Failure>> {
        match self.scheme {
            Scheme::File => None,
            Scheme::S3 | Scheme::Gs | Scheme::Az => Some(probe::bucket(self)),
        }
    }
}
