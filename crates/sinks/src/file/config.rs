//! The options of the sink `file`, read and checked.

use millstream_config::{Node, Period, Permissions, Problem, Size};
use millstream_pipeline::node::Checked;
use millstream_sys::disk::OutputMode;
use millstream_wire::{
    compression::Codec,
    template::{Renderer, Template},
};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use super::{compress::Compression, rotate::Rules};
use crate::format::Formatting;

/// Options of the sink `file`, in addition to those of the format.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    /// Path of the output: a template in which each value becomes one part of the path
    /// (`/var/log/{host}/{tag}.%Y-%m-%d.log`). Missing directories are created.
    path: Template,
    /// Symbolic link to the current file, for paths that change with time: a template like `path`, such as `/var/log/{tag}.log`. If
    /// an output has the same path as a link, the output replaces the link. Default: no link.
    latest: Option<Template>,
    /// Compression of the files. No extension is added to `path`, so let `path` end with `.gz` or `.zst`.
    #[serde(default)]
    compression: Compression,
    /// When a file is renamed and a new one is started.
    #[serde(default)]
    rotate: RotateConfig,
    /// Maximum number of open files. To open another one, the sink closes the least recently used files; it opens them again when
    /// they are needed.
    #[serde(default = "open_files")]
    open_files: u32,
    /// Whether written data stays in the page cache.
    #[serde(default)]
    cache: Cache,
    /// Permissions of new files, in octal, such as `0640`; they must let the owner read and write. New directories can be entered by
    /// everyone who may read the files in them. Default: set by the umask, usually `0644`.
    #[serde(default, deserialize_with = "mode")]
    #[schemars(with = "Option<String>")]
    mode: OutputMode,
    /// Maximum number of bytes that are written but not yet on disk. Beyond it, writing waits for the disk. 0: no limit.
    #[serde(default = "dirty_max")]
    dirty_max: Size,
}

/// When files are rotated. 0 turns a rule off.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct RotateConfig {
    /// Maximum size of a file, after compression. The file is rotated before a record would make it larger than this; a record that
    /// is longer than this gets its own file. 0: no limit.
    size: Size,
    /// Maximum number of records in a file. 0: no limit.
    records: u64,
    /// Maximum time between the first record of a file and the rotation of the file. The receive times of the records count, so that
    /// a backlog is divided into the same files as if it had been written on time. 0: no limit.
    interval: Period,
    /// Time without a new record after which a file is rotated. 0: never.
    idle: Period,
    /// Number of rotated files to keep for each path; older ones are removed. 0: all.
    keep: u32,
}

/// Whether written data stays in the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Cache {
    /// Removes written data from the page cache, so that the cache serves other programs. Where the system supports uncached writes
    /// (Linux 6.14), large writes need only a fraction of the CPU time.
    #[default]
    Drop,
    /// Keeps the data cached, for outputs that are read soon.
    Keep,
}

/// By default a process may have 1024 files open, and other nodes need some of them.
fn open_files() -> u32 {
    256
}

/// There is a checkpoint at least every 64 MiB of input, so this amount is synced at a time anyway. A disk of 2026 writes it within
/// a second.
fn dirty_max() -> Size {
    Size::mib(64)
}

/// Reads permissions with which the sink itself can use its files.
fn mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<OutputMode, D::Error> {
    match Option::<Permissions>::deserialize(deserializer)?.map(Permissions::bits) {
        None => Ok(OutputMode::Umask),
        Some(mode) if mode & 0o600 == 0o600 => Ok(OutputMode::Exactly(mode)),
        Some(_) => Err(D::Error::custom(
            "must be permissions in octal that let the owner read and write, such as 0640",
        )),
    }
}

/// The checked options.
pub(super) struct Settings {
    path: Template,
    pub(super) format: Formatting,
    pub(super) rules: Rules,
    latest: Option<Template>,
    pub(super) codec: Option<Codec>,
    pub(super) open_files: usize,
    /// Whether written data is removed from the page cache (`cache: drop`).
    pub(super) drops_cache: bool,
    /// Maximum number of bytes that are written but not yet on disk; 0: no limit.
    pub(super) dirty_max: u64,
    pub(super) mode: OutputMode,
}

impl Settings {
    /// Reads and checks the options of `node`.
    pub(super) fn check(node: &Node) -> Checked<Self> {
        let (format, config): (_, Config) = Formatting::with(node)?;
        let problems = config.problems(node);
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Self {
            path: config.path,
            format,
            rules: config.rotate.rules(),
            latest: config.latest,
            codec: config.compression.codec(),
            open_files: config.open_files as usize,
            drops_cache: config.cache == Cache::Drop,
            dirty_max: config.dirty_max.as_usize() as u64,
            mode: config.mode,
        })
    }

    /// The template of the path, as the configuration has it.
    pub(super) fn path_text(&self) -> &str {
        self.path.as_str()
    }

    /// Returns the renderer of paths.
    pub(super) fn path(&self) -> Renderer {
        Renderer::path(&self.path, self.format.zone())
    }

    /// Returns the renderer of the `latest` link, or None if no link is configured.
    pub(super) fn latest(&self) -> Option<Renderer> {
        let latest = self.latest.as_ref()?;
        Some(Renderer::path(latest, self.format.zone()))
    }
}

impl Config {
    /// Returns a problem for each option that can be read but makes no sense.
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
            let help = format!("give the link its own name, such as `{path}.latest`");
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
    fn rules(&self) -> Rules {
        Rules {
            size: self.size.as_usize() as u64,
            records: self.records,
            interval: self.interval.as_duration(),
            idle: self.idle.as_duration(),
            keep: self.keep as usize,
        }
    }
}
