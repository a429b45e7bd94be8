//! The options of the source `fuse`: as configured, and after the check.

use std::{path::PathBuf, sync::Arc, time::Duration};

use millstream_config::{Node, OneOrMany, Period, Size};
use millstream_pipeline::node::Checked;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    cutter::{Boundaries, Framing},
    filter::Filter,
    recent::Limits,
    rules::{CopyPath, NAMES, Rule, Rules, directories_of, patterns},
    tree::Owner,
};
use crate::{
    framing::{Cr, LINE_MAX, LINE_MAX_LARGEST, TooLong},
    tagging::Tagging,
};

/// Options of the source `fuse`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    /// Directory to mount. It is created if it does not exist.
    mount: String,
    /// Rules for files, by path. A file follows the first rule whose `path` matches when the file is opened.
    #[serde(default)]
    rules: Vec<RuleConfig>,
    /// Tag of the records of a file, unless the rule of the file has a `tag`: a text in which `*` stands for the file's path with
    /// dots instead of slashes, or a template of `{path}` and `{host}`. Default: the node's name.
    #[serde(default)]
    tag: Option<String>,
    /// Where a record ends, unless the rule has its own `framing`.
    #[serde(default)]
    framing: Framing,
    /// Longest record in bytes, without its newline.
    #[serde(default = "line_max")]
    line_max: Size,
    /// Treatment of a record that is longer than `line_max`.
    #[serde(default)]
    too_long: TooLong,
    /// Treatment of the carriage return (CR) at the end of lines, with the framings `lines` and `multiline`. Files that are read back
    /// always have it.
    #[serde(default)]
    cr: Cr,
    /// Behavior of a `write` when the next channel is full: `block` waits for free space (a fatal signal ends the wait),
    /// `block: 30s` waits for this time and then returns ENOSPC, `fail` waits for one second and then returns ENOSPC.
    #[serde(default)]
    when_full: WhenFullConfig,
    /// Amount of written data that can be read back, also after a restart.
    #[serde(default)]
    recent: RecentConfig,
    /// Lets other users access the mount. Without root this needs `user_allow_other` in /etc/fuse.conf.
    #[serde(default)]
    allow_other: bool,
    /// Command to run after each new mount, as a list of words, for example to make a program open its log again. It does not run if
    /// open files have survived a restart. It is killed after 30 seconds.
    #[serde(default)]
    after_mount: Vec<String>,
    /// User that owns everything in the mount. Default: a file or directory belongs to the user that creates it.
    #[serde(default)]
    uid: Option<u32>,
    /// Group that owns everything in the mount. Default: a file or directory belongs to the group of the process that creates it.
    #[serde(default)]
    gid: Option<u32>,
    /// Permissions to remove from everything in the mount, in octal: `"027"`. Default: none.
    #[serde(default)]
    umask: Option<String>,
}

/// A rule.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RuleConfig {
    /// Files that the rule applies to: patterns of paths below the mount, with `*`, `?`, `[a-z]`, `{a,b}` and `**` (any
    /// directories).
    path: OneOrMany<String>,
    /// Tag of the records. Default: the source's `tag`.
    #[serde(default)]
    tag: Option<String>,
    /// Regular expressions. Only records that match one of them are shipped. Default: all records.
    #[serde(default)]
    allow: OneOrMany<String>,
    /// Regular expressions. Records that match one of them are dropped.
    #[serde(default)]
    deny: OneOrMany<String>,
    /// Replacements in the records, applied one after the other.
    #[serde(default)]
    rewrite: Vec<RewriteConfig>,
    /// Where a record ends. Default: the source's `framing`.
    #[serde(default)]
    framing: Option<Framing>,
    /// Longest record in bytes. Default: the source's `line_max`.
    #[serde(default)]
    line_max: Option<Size>,
    /// Treatment of a record that is longer than `line_max`. Default: the source's `too_long`.
    #[serde(default)]
    too_long: Option<TooLong>,
    /// Treatment of the CR at the end of lines. Default: the source's `cr`.
    #[serde(default)]
    cr: Option<Cr>,
    /// File outside the mount that gets a copy of the records: a template of `{path}` and `{host}`, or a directory (ending in a
    /// slash), to which the file's path is appended.
    #[serde(default)]
    tee: Option<String>,
    /// Command that gets a copy of the records on its standard input, as a list of words. Its output is discarded.
    #[serde(default)]
    exec: Vec<String>,
}

/// A replacement.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RewriteConfig {
    /// Regular expression.
    r#match: String,
    /// Replacement of each match: `$1` and `${name}` are groups of the expression, `$$` is a dollar sign.
    replace: String,
}

/// Amount of written data that can be read back.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct RecentConfig {
    /// Number of bytes at the end of each file that can be read back. Older bytes read as zeros. `0` keeps nothing.
    file: Size,
    /// Largest number of bytes for all files together, in `data_dir`. Beyond it, the files that were written or read longest
    /// ago read as zeros.
    all: Size,
}

impl Default for RecentConfig {
    fn default() -> Self {
        Self {
            file: Size::gib(1),
            all: Size::gib(4),
        }
    }
}

impl RecentConfig {
    fn limits(self) -> Option<Limits> {
        let limits = Limits {
            file: self.file.as_bytes().min(self.all.as_bytes()),
            all: self.all.as_bytes(),
        };
        (limits.file > 0).then_some(limits)
    }
}

/// Behavior of a `write` when the next channel is full, as configured.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum WhenFullConfig {
    Always(WhenFullWord),
    Limited(WhenFullLimit),
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum WhenFullWord {
    /// Waits for free space.
    Block,
    /// Returns ENOSPC after one second.
    Fail,
}

/// A limited wait.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WhenFullLimit {
    /// How long a `write` waits for free space before it returns ENOSPC.
    block: Period,
}

impl Default for WhenFullConfig {
    fn default() -> Self {
        Self::Always(WhenFullWord::Block)
    }
}

/// How long a write waits for free space before it fails, with `when_full: fail`.
const FAIL_AFTER: Duration = Duration::from_secs(1);

/// Behavior of a `write` when the next channel is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhenFull {
    /// Waits for free space.
    Block,
    /// Waits for this time and then returns ENOSPC.
    Limited(Duration),
}

impl WhenFull {
    /// How long a write waits. `None`: without a limit.
    pub(super) fn limit(self) -> Option<Duration> {
        match self {
            Self::Block => None,
            Self::Limited(limit) => Some(limit),
        }
    }
}

impl From<WhenFullConfig> for WhenFull {
    fn from(config: WhenFullConfig) -> Self {
        match config {
            WhenFullConfig::Always(WhenFullWord::Block) => Self::Block,
            WhenFullConfig::Always(WhenFullWord::Fail) => Self::Limited(FAIL_AFTER),
            WhenFullConfig::Limited(limited) => Self::Limited(limited.block.as_duration()),
        }
    }
}

fn line_max() -> Size {
    LINE_MAX
}

/// The checked options.
#[derive(Debug)]
pub(super) struct Options {
    pub mount: PathBuf,
    pub rules: Arc<Rules>,
    pub when_full: WhenFull,
    pub after_mount: Vec<String>,
    /// `None` if nothing can be read back.
    pub recent: Option<Limits>,
    pub allow_other: bool,
    pub owner: Owner,
}

/// Checks the options of a node.
pub(super) fn check(node: &Node) -> Checked<Options> {
    let config: Config = node.read()?;
    let mut problems = Vec::new();
    let mut wrong = |option: &str, why: String| problems.push(node.problem_at(option, why));
    if config.mount.is_empty() {
        wrong("mount", "`mount` names no directory".to_owned());
    }
    let umask = config.umask.as_deref().unwrap_or("0");
    let umask = u32::from_str_radix(umask, 8)
        .ok()
        .filter(|umask| *umask <= 0o777);
    if umask.is_none() {
        wrong(
            "umask",
            "`umask` takes an octal number of three digits in quotes: \"027\"".to_owned(),
        );
    }
    let mut rules = Vec::new();
    for (index, rule) in config.rules.iter().enumerate() {
        match rule.check(&config) {
            Ok(rule) => rules.push(Arc::new(rule)),
            Err((option, why)) => {
                let place = format!("rules.{index}.{option}");
                // An option that the rule inherits from the source is reported only once, by the check of the default rule below.
                if option.is_empty() || node.find(&place).is_some() {
                    wrong(&place, why);
                }
            }
        }
    }
    let default = config.default_rule();
    let default = default.map_err(|(option, why)| wrong(option, why));
    let (Ok(default), Some(umask), []) = (default, umask, &problems[..]) else {
        return Err(problems);
    };
    Ok(Options {
        mount: PathBuf::from(config.mount),
        rules: Arc::new(Rules {
            rules,
            default: Arc::new(default),
        }),
        when_full: config.when_full.into(),
        after_mount: config.after_mount,
        recent: config.recent.limits(),
        allow_other: config.allow_other,
        owner: Owner {
            uid: config.uid,
            gid: config.gid,
            umask,
        },
    })
}

fn check_line_max(line_max: Size) -> Result<usize, String> {
    if line_max.is_zero() || line_max > LINE_MAX_LARGEST {
        return Err("`line_max` must be between 1B and 1GiB".to_owned());
    }
    Ok(line_max.as_usize())
}

impl Config {
    /// The rule of files that no configured rule matches.
    fn default_rule(&self) -> Result<Rule, (&'static str, String)> {
        let line_max = check_line_max(self.line_max).map_err(|why| ("line_max", why))?;
        let none = patterns([].into_iter()).map_err(|why| ("rules", why))?;
        Ok(Rule {
            paths: none,
            directories: Vec::new(),
            tag: Tagging::new(self.tag.as_deref(), &NAMES).map_err(|why| ("tag", why))?,
            boundaries: Arc::new(Boundaries {
                end: self.framing.check().map_err(|why| ("framing", why))?,
                line_max,
                too_long: self.too_long,
                cr: self.cr,
            }),
            filter: Filter::default(),
            tee: None,
            exec: None,
        })
    }
}

impl RuleConfig {
    /// An error holds the name of the wrong option and the reason. The name is empty for `allow`, `deny` and `rewrite`, which are
    /// checked together.
    fn check(&self, of: &Config) -> Result<Rule, (&'static str, String)> {
        if self.path.is_empty() {
            return Err(("path", "`path` names no file".to_owned()));
        }
        let paths = || self.path.iter().map(String::as_str);
        let tag = self.tag.as_deref().or(of.tag.as_deref());
        let framing = self.framing.as_ref().unwrap_or(&of.framing);
        let line_max = check_line_max(self.line_max.unwrap_or(of.line_max));
        let rewrite = self.rewrite.iter();
        let filter = Filter::new(
            self.allow.iter().map(String::as_str),
            self.deny.iter().map(String::as_str),
            rewrite.map(|rewrite| (&*rewrite.r#match, &*rewrite.replace)),
        );
        let tee = self.tee.as_deref().map(CopyPath::new).transpose();
        Ok(Rule {
            paths: patterns(paths()).map_err(|why| ("path", why))?,
            directories: paths().filter_map(directories_of).collect(),
            tag: Tagging::new(tag, &NAMES).map_err(|why| ("tag", why))?,
            boundaries: Arc::new(Boundaries {
                end: framing.check().map_err(|why| ("framing", why))?,
                line_max: line_max.map_err(|why| ("line_max", why))?,
                too_long: self.too_long.unwrap_or(of.too_long),
                cr: self.cr.unwrap_or(of.cr),
            }),
            filter: filter.map_err(|why| ("", why))?,
            tee: tee.map_err(|why| ("tee", why))?,
            exec: (!self.exec.is_empty()).then(|| self.exec.clone()),
        })
    }
}
