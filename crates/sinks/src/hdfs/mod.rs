//! The sink `hdfs`: writes records into files of HDFS, exactly once behind a disk channel, without Java.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! Where to look: `publish` (beside this directory) does the work of all sinks that publish by manifest, a small file that names
//! the outputs to publish and the position in the channel. This directory contains the destination (`store`) and the client
//! (`client`).
//!
//! Promise (docs/delivery.md): the same as that of `publish`. Every wait for the cluster ends after `retry.timeout`. If a write to
//! an output fails, the run fails, and the next run rereads the records that are in no manifest. Most other requests are retried.
//! `store` bounds the bytes in flight to data nodes. The crate `wire` implements the formats; the crate hdfs-native implements the
//! protocol of HDFS.

#[cfg(feature = "hdfs")]
mod client;
#[cfg(feature = "hdfs")]
mod name_nodes;
#[cfg(feature = "hdfs")]
mod store;
#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use millstream_config::{Node, Problem};
use millstream_pipeline::{
    failure::Failure,
    inlet::Inlet,
    node::{Build, Checked, Component, LocalFuture, Placement, Sink, SinkContext},
    promise::{Guarantee, Promise},
};
use millstream_wire::{avro::container, compression::Codec, format::Format, template::Template};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    format::{Formatting, schema_with},
    publish::{self, Encode, RotateConfig, Settings},
    sending::Retry,
};

/// The entry in the list of sinks.
pub const COMPONENT: Component = Component {
    name: "hdfs",
    summary: "Writes records into files of HDFS, as text or as Flume's Avro events; exactly once behind a disk channel.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: schema_with::<Config>,
    build: Build::Sink(build),
};

/// Maximum bytes of memory of all outputs together; above it, the largest output is finished.
const HELD_BYTES_MAX: usize = 64 << 20;

/// The options of the sink `hdfs`, in addition to those of the format.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Where to write: `hdfs://NAMENODE:PORT/DIRECTORY` or `hdfs://NAMESERVICE/DIRECTORY`. The directory is a template
    /// (`/logs/%Y/%m/%d/{.host}`) in which each value becomes one part of the path. Missing directories are created.
    url: Template,
    /// The directory of `core-site.xml` and `hdfs-site.xml`, which list the name nodes of a name service and the security settings.
    /// Default: `$HADOOP_CONF_DIR`, or none.
    hadoop_conf: Option<String>,
    /// The user, on a cluster without Kerberos. Default: `$HADOOP_USER_NAME`, or the user of the process.
    user: Option<String>,
    /// The credentials, on a cluster with Kerberos.
    auth: Option<Auth>,
    /// The compression of files: `gzip` or `zstd` for text; `snappy`, `deflate` or `zstd` for the blocks of Avro files.
    #[serde(default)]
    compression: Compression,
    /// When files are finished and published.
    #[serde(default)]
    rotate: RotateConfig,
    /// The prefix of file names.
    #[serde(default)]
    prefix: String,
    /// The name of an empty file, such as `_SUCCESS`, that is created in each directory after files have been published there.
    /// Default: none.
    marker: Option<String>,
    /// Maximum number of files that are written at a time; to begin another one, the least recently used file is finished.
    #[serde(default = "open_files")]
    open_files: u32,
    /// The retry policy for a cluster that fails. `give_up` must be `never`.
    #[serde(default)]
    retry: Retry,
}

/// The credentials.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Auth {
    /// Kerberos with a keytab.
    kerberos: Kerberos,
}

/// A principal and its keytab.
#[cfg_attr(not(feature = "hdfs"), allow(dead_code, reason = "for the client"))]
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Kerberos {
    /// The principal, such as `millstream@EXAMPLE.COM`. If it names no realm, the default realm applies.
    principal: String,
    /// The keytab file.
    keytab: String,
}

/// The compression of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Compression {
    /// No compression.
    #[default]
    None,
    /// gzip (RFC 1952), for text.
    Gzip,
    /// zstd (RFC 8878), for text and for Avro (`zstandard`).
    Zstd,
    /// Snappy, for Avro.
    Snappy,
    /// deflate (RFC 1951), for Avro.
    Deflate,
}

/// The default number of open files. Each open file needs a buffer of at least 64 KiB, and blocks that data nodes hold open.
fn open_files() -> u32 {
    256
}

/// The encoding of a file.
#[derive(Clone, Copy)]
enum Content {
    Text(Option<Codec>),
    Avro(container::Codec),
}

/// The cluster and the credentials.
#[cfg_attr(not(feature = "hdfs"), allow(dead_code, reason = "for the client"))]
struct Target {
    /// The URL of the cluster, such as `hdfs://nameservice1`.
    cluster: String,
    /// The constant part of the directory in the option `url`, without a trailing slash.
    root: String,
    hadoop_conf: Option<String>,
    user: Option<String>,
    kerberos: Option<Kerberos>,
    marker: Option<String>,
    timeout: Duration,
    /// The number of timeouts in all runs. It decides which name node is asked first.
    turns: AtomicUsize,
}

/// The sink with its checked configuration.
struct HdfsSink {
    settings: Settings,
    target: Arc<Target>,
    format: Formatting,
    content: Content,
    retry: Retry,
}

fn build(name: &str, node: &Node) -> Checked<Arc<dyn Sink>> {
    let (format, config): (_, Config) = Formatting::with_avro(node)?;
    let mut problems = config.problems(node);
    let place = config.place(node);
    let content = config.content(node, format.format());
    let (Ok((cluster, root, directory)), Ok(content), true) =
        (&place, &content, problems.is_empty())
    else {
        problems.extend(place.err());
        problems.extend(content.err());
        return Err(problems);
    };
    let settings = Settings {
        sink: name.to_owned(),
        directory: directory.clone(),
        zone: format.zone(),
        prefix: config.prefix,
        extension: extension(format.format(), *content),
        rotate: config.rotate.rules(),
        open_max: config.open_files as usize,
        held_max: HELD_BYTES_MAX,
    };
    let target = Target {
        cluster: cluster.clone(),
        root: root.clone(),
        hadoop_conf: config.hadoop_conf,
        user: config.user,
        kerberos: config.auth.map(|auth| auth.kerberos),
        marker: config.marker,
        timeout: config.retry.timeout.as_duration(),
        turns: AtomicUsize::new(0),
    };
    Ok(Arc::new(HdfsSink {
        settings,
        target: Arc::new(target),
        format,
        content: *content,
        retry: config.retry,
    }))
}

impl Config {
    /// Returns the URL of the cluster, the constant part of the directory, and the template of the directories below that part.
    fn place(&self, node: &Node) -> Result<(String, String, Template), Problem> {
        let help = "write it as `hdfs://NAMENODE:PORT/DIRECTORY` or `hdfs://NAMESERVICE/DIRECTORY`";
        let wrong = |text: String| node.problem_at("url", text).help(help);
        let url = self.url.as_str();
        let rest = url.strip_prefix("hdfs://");
        let rest = rest.ok_or_else(|| wrong(format!("`{url}` is no URL of HDFS")))?;
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if host.contains(['{', '%']) {
            return Err(wrong(
                "the host of a cluster cannot change with the record".to_owned(),
            ));
        }
        let path = Template::parse(path);
        let path = path.map_err(|error| wrong(format!("the directory is no template: {error}")))?;
        let (root, directory) = publish::split_root(&path);
        Ok((format!("hdfs://{host}"), root, directory))
    }

    fn content(&self, node: &Node, format: Format) -> Result<Content, Problem> {
        let content = match (format, self.compression) {
            (Format::AvroEvent, Compression::None) => Content::Avro(container::Codec::Null),
            (Format::AvroEvent, Compression::Snappy) => Content::Avro(container::Codec::Snappy),
            (Format::AvroEvent, Compression::Deflate) => Content::Avro(container::Codec::Deflate),
            (Format::AvroEvent, Compression::Zstd) => Content::Avro(container::Codec::Zstandard),
            (Format::AvroEvent, Compression::Gzip) => {
                let problem = node.problem_at("compression", "an Avro file has no gzip");
                return Err(
                    problem.help("take `deflate`, which is the same inside, `snappy` or `zstd`")
                );
            }
            (_, Compression::None) => Content::Text(None),
            (_, Compression::Gzip) => Content::Text(Some(Codec::Gzip)),
            (_, Compression::Zstd) => Content::Text(Some(Codec::Zstd)),
            (_, Compression::Snappy | Compression::Deflate) => {
                let text = "text is compressed by `gzip` or `zstd`";
                let problem = node.problem_at("compression", text);
                return Err(problem.help("take one of them, or `format: avro_event`"));
            }
        };
        Ok(content)
    }

    /// Returns a problem for each option that can be parsed but not used.
    fn problems(&self, node: &Node) -> Vec<Problem> {
        let mut problems = Vec::new();
        let is_name = |text: &str| !text.contains(['/', ':']);
        if !is_name(&self.prefix) || self.prefix.starts_with(['_', '.']) {
            let text =
                "Hive and Spark ignore names that begin like this, or they are not valid names";
            let help = "use letters, digits, `-`, `_` and `.`, and begin with a letter or digit";
            problems.push(node.problem_at("prefix", text).help(help));
        }
        if let Some(marker) = &self.marker
            && (!is_name(marker) || !marker.starts_with(['_', '.']))
        {
            let text = "a marker's name must begin with `_` or `.`, so that readers ignore it";
            problems.push(node.problem_at("marker", text).help("take `_SUCCESS`"));
        }
        if self.open_files == 0 {
            problems.push(node.problem_at("open_files", "at least one file has to be open"));
        }
        if self.user.is_some() && self.auth.is_some() {
            let text = "with `auth.kerberos` the principal says who writes";
            problems.push(node.problem_at("user", text).help("take one of them out"));
        }
        problems.extend(publish::no_give_up(node, &self.retry));
        problems
    }
}

/// The suffix of file names.
fn extension(format: Format, content: Content) -> String {
    let name = match format {
        Format::Json => ".json",
        Format::Ltsv => ".ltsv",
        Format::Csv => ".csv",
        Format::Msgpack => ".msgpack",
        Format::Raw | Format::Template => ".txt",
        Format::AvroEvent => ".avro",
    };
    let codec = match content {
        Content::Text(Some(Codec::Gzip)) => ".gz",
        Content::Text(Some(Codec::Zstd)) => ".zst",
        // The header of an Avro file names the compression, so the file name needs no suffix for it.
        Content::Text(None) | Content::Avro(_) => "",
    };
    format!("{name}{codec}")
}

impl HdfsSink {
    fn encode(&self) -> Result<Box<dyn Encode>, Failure> {
        match self.content {
            Content::Text(codec) => publish::text(&self.format, codec),
            Content::Avro(codec) => publish::avro(&self.format, codec),
        }
    }

    #[cfg(feature = "hdfs")]
    async fn publish(&self, inlet: &mut Inlet, context: SinkContext) -> Result<(), Failure> {
        let durable = inlet.channel_id().is_some();
        let patience = publish::Patience::new(&self.retry, &context, durable);
        let store = store::HdfsStore::new(&self.target, patience)?;
        publish::run(&self.settings, store, self.encode()?, inlet, context).await
    }

    #[cfg(not(feature = "hdfs"))]
    async fn publish(&self, _: &mut Inlet, _: SinkContext) -> Result<(), Failure> {
        let _ = (self.encode()?, &self.retry);
        Err(no_client())
    }
}

impl Sink for HdfsSink {
    fn placement(&self) -> Placement {
        Placement::OwnThread
    }

    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        context: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(self.publish(inlet, context))
    }

    fn promise(&self, durable: bool) -> Promise {
        if durable {
            Promise::new(
                Guarantee::ExactlyOnce,
                "if no other program writes below its `_millstream`",
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
        Some(probe(&self.target))
    }
}

/// Tests whether the cluster answers.
#[cfg(feature = "hdfs")]
fn probe(target: &Arc<Target>) -> Result<String, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::us(format!("cannot start: {error}")))?;
    let connection = client::Connection::new(target)?;
    let client = connection.client();
    runtime.block_on(connection.answer("look for /", client.get_file_info("/")))?;
    Ok(format!("{} answers", target.cluster))
}

#[cfg(not(feature = "hdfs"))]
fn probe(_: &Arc<Target>) -> Result<String, Failure> {
    Err(no_client())
}

#[cfg(not(feature = "hdfs"))]
fn no_client() -> Failure {
    Failure::config("this build has no client for HDFS: build it with `--features millstream/hdfs`")
}
