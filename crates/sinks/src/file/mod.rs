//! The sink `file`: records into files, exactly once behind a disk channel.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! Where to look: `run` takes and settles, `encode` says which bytes go where, `writer` writes and commits, `files` opens
//! and lets go, `rotate` and `naming` give files other names, `journal` and `table` keep what `recover` needs at start.
//!
//! It promises (delivery.md): behind a durable channel every record is in the files exactly once, also after SIGKILL and
//! power loss; behind memory it is synced before it is settled. A record is never split between two files. What is
//! compressed is a whole stream up to every length that was committed (`compress`). Memory: what is written and not yet on
//! the disk is bounded (`dirty`). Leaves to others: the text of the records and the compressed streams (`wire`).

mod compress;
mod dirty;
mod encode;
mod files;
mod journal;
mod latest;
mod naming;
mod output;
mod pending;
mod probe;
mod recover;
mod rotate;
mod run;
mod sync;
mod table;
#[cfg(test)]
mod tests;
mod writer;

use std::{fmt::Display, path::Path, sync::Arc};

use millstream_config::{Node, Period, Problem, Size};
use millstream_pipeline::{
    failure::Failure,
    inlet::Inlet,
    node::{Build, Checked, Component, LocalFuture, Placement, Sink, SinkContext},
    promise::{Guarantee, Promise},
};
use millstream_sys::disk::{Disk, HostDisk, OutputMode};
use millstream_wire::{
    compression::Codec,
    template::{Renderer, Template},
};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use crate::format::{Formatting, schema_with};
use compress::Compression;
use rotate::Rotate;

/// What `millstream components` and the configuration know of it.
pub const COMPONENT: Component = Component {
    name: "file",
    summary: "Writes records into files, exactly once behind a disk channel.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: schema_with::<Config>,
    build: Build::Sink(build),
};

/// Options of the sink `file`; those of the format stand beside them.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Where to write: a template, each value of which is one part of the path (`/var/log/{host}/{tag}.%Y-%m-%d.log`).
    /// Directories are made at need.
    path: Template,
    /// A symbolic link to the file that is current, for paths that change with the time: a template as `path`, such as
    /// `/var/log/{tag}.log`. An output that has the name of a link replaces it.
    latest: Option<Template>,
    /// How files are compressed. The name is the one in `path`: end it with `.gz` or `.zst`.
    #[serde(default)]
    compression: Compression,
    /// When a file gets another name and a new one is begun.
    #[serde(default)]
    rotate: RotateConfig,
    /// So many files are open at a time; of more, those used longest ago are closed until they are needed.
    #[serde(default = "open_files")]
    open_files: u32,
    /// Whether what was written stays in the page cache.
    #[serde(default)]
    cache: Cache,
    /// The permissions of new files, in octal, such as `0640`; the owner needs to read and write. Whoever may read a file may also
    /// enter the directories that are made for it. Default: as the umask says, `0644` with the usual one.
    #[serde(default, deserialize_with = "mode")]
    #[schemars(with = "Option<String>")]
    mode: OutputMode,
    /// At most so much is written and not yet on the disk; then writing waits for the disk. 0: no bound.
    #[serde(default = "dirty_max")]
    dirty_max: Size,
}

/// When files are rotated; 0 = no such rule.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct RotateConfig {
    /// Before a record would make a file larger than this, as compressed (a longer record has a file of its own); 0: no
    /// such rule.
    size: Size,
    /// After so many records; 0: no such rule.
    records: u64,
    /// How long after its first record a file is rotated, by the times at which records were received (a backlog is cut as in
    /// time); 0: no such rule.
    interval: Period,
    /// So long after the last record of a file, by the clock; 0: no such rule.
    idle: Period,
    /// So many rotated files of each path are kept, older ones are removed; 0: all.
    keep: u32,
}

/// What becomes of the pages that were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Cache {
    /// The page cache is left to other programs. Large writes cost a fraction where the system can do that (Linux 6.14).
    #[default]
    Drop,
    /// They stay there, for somebody who reads them soon.
    Keep,
}

/// A process may have 1024 files open unless it asks for more; other nodes need some.
fn open_files() -> u32 {
    256
}

/// What a cut brings anyway, and a disk of 2026 writes within a second.
fn dirty_max() -> Size {
    Size::mib(64)
}

/// Reads permissions in octal. YAML takes `0640` for the number 640, so the digits of a number are octal, too.
fn mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<OutputMode, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Digits {
        Number(u32),
        Text(String),
    }
    let digits = match Option::<Digits>::deserialize(deserializer)? {
        None => return Ok(OutputMode::Umask),
        Some(Digits::Number(number)) => number.to_string(),
        Some(Digits::Text(text)) => text,
    };
    let mode = u32::from_str_radix(&digits, 8).ok();
    match mode.filter(|mode| *mode <= 0o777 && mode & 0o600 == 0o600) {
        Some(mode) => Ok(OutputMode::Exactly(mode)),
        None => Err(D::Error::custom(
            "must be permissions in octal that let the owner read and write, such as 0640",
        )),
    }
}

/// The sink: what the configuration says, checked.
struct FileSink {
    path: Template,
    format: Formatting,
    rotate: Rotate,
    latest: Option<Template>,
    codec: Option<Codec>,
    open_files: usize,
    lets_go: bool,
    dirty_max: u64,
    mode: OutputMode,
    disk: Arc<dyn Disk>,
}

fn build(_name: &str, node: &Node) -> Checked<Arc<dyn Sink>> {
    Ok(Arc::new(FileSink::new(node, Arc::new(HostDisk))?))
}

impl FileSink {
    fn new(node: &Node, disk: Arc<dyn Disk>) -> Checked<Self> {
        let (format, config): (_, Config) = Formatting::with(node)?;
        let problems = config.problems(node);
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Self {
            path: config.path,
            format,
            rotate: config.rotate.rules(),
            latest: config.latest,
            codec: config.compression.codec(),
            open_files: config.open_files as usize,
            lets_go: config.cache == Cache::Drop,
            dirty_max: config.dirty_max.as_usize() as u64,
            mode: config.mode,
            disk,
        })
    }

    fn path(&self) -> Renderer {
        Renderer::path(&self.path, self.format.zone())
    }

    fn latest(&self) -> Option<Renderer> {
        let latest = self.latest.as_ref()?;
        Some(Renderer::path(latest, self.format.zone()))
    }
}

impl Config {
    /// What can be read and cannot be used.
    fn problems(&self, node: &Node) -> Vec<Problem> {
        let mut problems = Vec::new();
        let path = self.path.as_str();
        if path.is_empty() || path.ends_with('/') {
            let help = format!("add a name, such as `{path}{{tag}}.log`");
            problems.push(
                node.problem_at("path", "a path that names no file")
                    .help(help),
            );
        }
        if let Some(latest) = self.latest.as_ref().map(Template::as_str)
            && (latest == path || latest.is_empty() || latest.ends_with('/'))
        {
            let help = format!("give the link a name of its own, such as `{path}.latest`");
            problems.push(
                node.problem_at("latest", "a link needs a name, and not that of the file")
                    .help(help),
            );
        }
        if self.open_files == 0 {
            problems.push(node.problem_at("open_files", "at least one file has to be open"));
        }
        if self.rotate.keep > 0 && !self.rotate.rules().is_any() {
            let help = "add `size`, `records`, `interval` or `idle`";
            problems.push(
                node.problem_at("rotate.keep", "nothing is ever rotated")
                    .help(help),
            );
        }
        problems
    }
}

impl RotateConfig {
    fn rules(&self) -> Rotate {
        Rotate {
            size: self.size.as_usize() as u64,
            records: self.records,
            interval: self.interval.as_duration(),
            idle: self.idle.as_duration(),
            keep: self.keep as usize,
        }
    }
}

impl Sink for FileSink {
    fn placement(&self) -> Placement {
        Placement::OwnThread
    }

    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        context: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(run::run(self, inlet, context))
    }

    fn promise(&self, durable: bool) -> Promise {
        if durable {
            Promise::new(
                Guarantee::ExactlyOnce,
                "as long as nobody else writes or cuts the files",
            )
        } else {
            Promise::new(
                Guarantee::AtLeastOnce,
                "synced before the source is answered",
            )
        }
    }

    fn probe(&self) -> Option<Result<String, Failure>> {
        Some(probe::path(self.path.as_str()))
    }
}

/// A failure of the disk, with what was tried at which path.
fn trouble(verb: &str, path: &Path, error: &dyn Display) -> Failure {
    Failure::disk(format!("cannot {verb} {}: {error}", path.display()))
}
