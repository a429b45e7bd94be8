//! The options of the source `tail`.

use std::{path::Path, sync::Arc, time::Duration};

use millstream_config::{Node, OneOrMany, Period, Size};
use millstream_pipeline::node::Checked;
use millstream_record::{Tag, Values};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    done::{self, WhenDone},
    kubernetes::{self, Kubernetes},
    scan::Patterns,
};
use crate::{
    framing::{Charset, Cr, Framer, Framing, LINE_MAX, LINE_MAX_LARGEST, TooLong},
    tagging::{Tagging, shown},
};

/// Options of the source `tail`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    /// Files to read: paths with `*`, `?`, `[a-z]`, `{a,b}` and `**` (any directories). Required without `kubernetes`.
    #[serde(default)]
    paths: OneOrMany<String>,
    /// Reads the logs of the pods of this machine; `{}` enables it with all defaults. Adds the paths of these logs to `paths`,
    /// reads the format of the container runtime (CRI or Docker), which a framing `multiline` then joins, sets the values `kubernetes.namespace`, `.pod`, `.container` and `.uid`, and
    /// makes `kube.NAMESPACE.POD.CONTAINER` the default tag.
    #[serde(default)]
    kubernetes: Option<Kubernetes>,
    /// Files to skip: patterns of names (`*.gz`) or, with a slash, of whole paths.
    #[serde(default)]
    exclude: OneOrMany<String>,
    /// Position at which to begin reading files that existed before the first start. Files that appear later are read from their
    /// beginning.
    #[serde(default)]
    start: Start,
    /// Tag of the records: a text in which `*` stands for the path of the file with dots instead of slashes, or a template of
    /// `{path}` and `{host}`. Default: the name of the node.
    #[serde(default)]
    tag: Option<String>,
    /// Format that determines where a record ends. Default: `lines`; with `kubernetes`: `cri`.
    #[serde(default)]
    framing: Option<Framing>,
    /// Longest line in bytes, without its newline.
    #[serde(default = "line_max")]
    line_max: Size,
    /// Treatment of lines that are longer than `line_max`.
    #[serde(default)]
    too_long: TooLong,
    /// Treatment of the carriage return (CR) at the end of lines.
    #[serde(default)]
    cr: Cr,
    /// Encoding of the text, which is converted to UTF-8: `shift_jis`, `euc-jp`, `latin1`, `utf-16le` ... In UTF-16, a byte order mark at
    /// the start of the text decides the byte order.
    #[serde(default = "encoding")]
    encoding: String,
    /// Treatment of files compressed by gzip.
    #[serde(default)]
    compressed: Compressed,
    /// Skips files that were last written longer ago than this, until they are written again. 0: no limit.
    #[serde(default)]
    ignore_older: Period,
    /// Largest number of bytes that are read from one file per second. 0: no limit. With or without a limit, files are read in
    /// turns.
    #[serde(default)]
    rate_max: Size,
    /// Action for a finished file. A file is finished when it was read to its end, it was not written for `rotate_wait`, and all
    /// its records are kept or settled. This option is meant for directories into which programs put complete files.
    #[serde(default)]
    when_done: WhenDone,
    /// Time without a write after which a renamed or removed file is closed.
    #[serde(default = "rotate_wait")]
    rotate_wait: Period,
    /// Interval at which directories are scanned. Files for which the kernel sends no notifications are checked at least this
    /// often. After a slow scan, the next one is delayed to a thousand times the duration of the scan, but at most to six times
    /// the interval.
    #[serde(default = "rescan")]
    rescan: Period,
}

fn line_max() -> Size {
    LINE_MAX
}

fn encoding() -> String {
    "utf-8".to_owned()
}

/// Gives a program enough time to open its new file after a rotation.
fn rotate_wait() -> Period {
    Period::secs(30)
}

/// A scan of a thousand files takes a few milliseconds.
fn rescan() -> Period {
    Period::secs(10)
}

/// Position at which to begin reading files that existed before the first start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Start {
    /// At the first line.
    #[default]
    Beginning,
    /// At the end. If the last line has no newline yet, at the start of that line.
    End,
}

/// Treatment of files compressed by gzip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Compressed {
    /// The files are decompressed and read once, even if their names do not end in `.gz`.
    #[default]
    Read,
    /// The files are not read.
    Skip,
}

impl Config {
    /// Makes the records of a text. The error describes a wrong `framing`.
    fn framer(&self, charset: Charset) -> Result<Framer, String> {
        let pods = self.kubernetes.is_some();
        if pods && self.framing == Some(Framing::Lines) {
            return Err(
                "container runtimes add a time and a stream to each line of a pod: remove `framing`, or set `cri` or `multiline`"
                    .to_owned(),
            );
        }
        let framing = self.framing.clone().unwrap_or_default();
        let framer = Framer::new(&framing, charset, self.line_max.as_usize(), self.too_long)?;
        let framer = framer.with_cr(self.cr);
        Ok(match pods {
            true => framer.behind_runtime(),
            false => framer,
        })
    }
}

/// The checked options.
#[derive(Debug)]
pub(super) struct Options {
    pub patterns: Patterns,
    pub start: Start,
    tag: Tagging,
    kubernetes: Option<Kubernetes>,
    pub framer: Framer,
    pub line_max: usize,
    pub too_long: TooLong,
    pub compressed: Compressed,
    pub ignore_older: Duration,
    pub rate_max: u64,
    pub when_done: WhenDone,
    pub rotate_wait: Duration,
    pub rescan: Duration,
}

impl Options {
    /// The values that all records of a file share.
    pub(super) fn values_of(&self, path: &Path, host: &str) -> Values {
        let mut values = Values::new();
        values.set("host", host);
        values.set("path", &*shown(&path.to_string_lossy()));
        if let Some(kubernetes) = &self.kubernetes {
            kubernetes.set_values(path, &mut values);
        }
        values
    }

    /// The names of the values that [`Options::values_of`] sets.
    pub(super) fn values(&self) -> &'static [&'static str] {
        values(self.kubernetes.is_some())
    }

    /// The tag of a file.
    pub(super) fn tag_of(&self, path: &Path, node: &str, values: &Values) -> Tag {
        self.tag.tag(node, Some(&path.to_string_lossy()), values)
    }
}

fn values(pods: bool) -> &'static [&'static str] {
    match pods {
        true => &kubernetes::FILE_VALUES,
        false => &["host", "path"],
    }
}

/// Reads and checks the options.
pub(super) fn check(node: &Node) -> Checked<Arc<Options>> {
    let config: Config = node.read()?;
    let mut problems = Vec::new();
    let mut problem = |option: &str, why: String| problems.push(node.problem_at(option, why));
    if config.paths.is_empty() && config.kubernetes.is_none() {
        problem("paths", "`paths` is empty".to_owned());
    }
    if config.line_max.is_zero() || config.line_max > LINE_MAX_LARGEST {
        problem(
            "line_max",
            "`line_max` must be between 1B and 1GiB".to_owned(),
        );
    }
    if config.rescan.is_zero() {
        let why = "`rescan` must not be 0: without it files may be missed";
        problem("rescan", why.to_owned());
    }
    let pods = config.kubernetes.as_ref();
    let paths = config.paths.iter().cloned();
    let paths: Vec<String> = paths.chain(pods.map(Kubernetes::paths)).collect();
    let exclude = config.exclude.iter().cloned();
    let mut exclude: Vec<String> = exclude.chain(pods.and_then(Kubernetes::itself)).collect();
    if config.when_done == WhenDone::Rename {
        exclude.push(format!("*{}", done::SUFFIX));
    }
    let patterns = Patterns::new(
        paths.iter().map(String::as_str),
        exclude.iter().map(String::as_str),
    );
    let patterns = patterns.map_err(|why| problem("paths", why));
    let known = values(pods.is_some());
    let own = config.tag.as_deref();
    let tag = Tagging::new(own.or(pods.map(|_| kubernetes::TAG)), known);
    let tag = tag.map_err(|why| problem("tag", why));
    let charset = Charset::named(&config.encoding).unwrap_or_else(|| {
        let why = format!("no encoding is called `{}`", config.encoding);
        problem("encoding", why);
        Charset::default()
    });
    let framer = config.framer(charset);
    let framer = framer.map_err(|why| problem("framing", why));
    let (Ok(patterns), Ok(tag), Ok(framer), []) = (patterns, tag, framer, &problems[..]) else {
        return Err(problems);
    };
    Ok(Arc::new(Options {
        patterns,
        start: config.start,
        tag,
        framer,
        line_max: config.line_max.as_usize(),
        too_long: config.too_long,
        compressed: config.compressed,
        ignore_older: config.ignore_older.as_duration(),
        rate_max: config.rate_max.as_usize() as u64,
        when_done: config.when_done,
        rotate_wait: config.rotate_wait.as_duration(),
        rescan: config.rescan.as_duration(),
        kubernetes: config.kubernetes,
    }))
}
