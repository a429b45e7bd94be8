//! The options of the source `fuse`: as configured, and after the check.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use millstream_config::{Node, OneOrMany, Period, Size};
use millstream_pipeline::node::Checked;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    cutter::{Boundaries, Framing},
    exec::Exec,
    filter::Filter,
    recent::Limits,
    rules::{CopyPath, NAMES, Rule, Rules, Way, directories_of, inside, patterns, sample},
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
    /// Treatment of files that are in the directory before the first start: they are shipped, and then moved to
    /// `data_dir/sources/NAME/adopted`. Without `adopt` and `below`, the first start refuses a directory with files.
    #[serde(default)]
    adopt: bool,
    /// Treatment of files that are in the directory before the first start: `keep` leaves them there. They are not shipped, and are
    /// visible again when the directory is unmounted.
    #[serde(default)]
    below: Option<BelowConfig>,
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
    /// Files that are not shipped. They can be written and read in the mount, and are counted.
    #[serde(default)]
    leave_out: LeaveOutConfig,
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
    /// Regular expressions, or blocks of `match` and `replace`. Only records that match one of them are shipped. The first one that
    /// matches decides: its `replace` is applied. Default: all records.
    #[serde(default)]
    allow: OneOrMany<AllowConfig>,
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
    /// Whether the records are shipped. With `false` they are only copied, by `tee` or `exec`.
    #[serde(default = "yes")]
    ship: bool,
    /// File that gets a copy of the records: a template of `{path}` and `{host}`, or a directory (ending in a slash), to which the
    /// file's path is appended. If it is below the mount, the copy is not stored: it is treated as if a program had written it
    /// there, so another rule can ship it.
    #[serde(default)]
    tee: Option<String>,
    /// Command that gets a copy of the records on its standard input: a list of words, or a block with `command` and `output`.
    #[serde(default)]
    exec: Option<ExecConfig>,
}

fn yes() -> bool {
    true
}

/// An entry of `allow`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum AllowConfig {
    /// Regular expression.
    Match(String),
    /// Regular expression with a replacement.
    Replace(RewriteConfig),
}

/// A command.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum ExecConfig {
    /// The words of the command. Its output is discarded.
    Words(Vec<String>),
    /// A command whose output is stored.
    Stored(StoredExec),
}

/// A command whose output is stored.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StoredExec {
    /// The words of the command.
    command: Vec<String>,
    /// File to which the standard output of the command is appended, outside the mount. Default: the output is discarded.
    #[serde(default)]
    output: Option<String>,
}

impl ExecConfig {
    /// `None` if the command has no words.
    fn check(&self) -> Option<Exec> {
        let (words, output) = match self {
            Self::Words(words) => (words, None),
            Self::Stored(stored) => (&stored.command, stored.output.as_ref()),
        };
        (!words.is_empty()).then(|| Exec {
            words: words.clone(),
            output: output.map(PathBuf::from),
        })
    }
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

/// Files that are not shipped.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct LeaveOutConfig {
    /// Patterns of file names (not of paths). Default: the swap and backup files of editors. `[]`: none.
    names: OneOrMany<String>,
    /// Whether files are left out whose first bytes are those of gzip, zstd, xz, bzip2, lz4, compress or zip.
    compressed: bool,
}

/// The names of swap and backup files of vim, Emacs and other editors. vim writes `4913` to try whether it can.
const EDITORS: [&str; 6] = ["*.swp", ".*.sw[a-p]", "*~", ".#*", "#*#", "4913"];

impl Default for LeaveOutConfig {
    fn default() -> Self {
        Self {
            names: OneOrMany(EDITORS.map(str::to_owned).to_vec()),
            compressed: true,
        }
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

/// The option `below`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum BelowConfig {
    /// The files stay below the mount.
    Keep,
}

/// Treatment of files that were in the directory before the first start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Existing {
    /// The source does not start.
    Refuse,
    /// They are shipped, and then moved aside.
    Adopt,
    /// They stay below the mount and are not shipped.
    Keep,
}

fn line_max() -> Size {
    LINE_MAX
}

/// The checked options.
#[derive(Debug)]
pub(super) struct Options {
    pub mount: PathBuf,
    pub existing: Existing,
    pub rules: Arc<Rules>,
    /// Whether compressed files are not shipped.
    pub skips_compressed: bool,
    pub when_full: WhenFull,
    pub after_mount: Vec<String>,
    /// `None` if nothing can be read back.
    pub recent: Option<Limits>,
    pub allow_other: bool,
    pub owner: Owner,
}

impl Options {
    /// The options that name files outside the mount, each with the beginning of the paths.
    pub(super) fn writes(&self) -> Vec<(String, PathBuf)> {
        let mut all = Vec::new();
        let absolute = std::path::absolute(&self.mount).unwrap_or_default();
        for (index, rule) in self.rules.rules.iter().enumerate() {
            let tee = rule.tee.as_ref().map(CopyPath::beginning);
            // A copy that leads back into the mount does not pass the kernel.
            if let Some(tee) = tee.filter(|tee| inside(&absolute, tee).is_none()) {
                all.push((format!("rules.{index}.tee"), PathBuf::from(tee)));
            }
            if let Some(output) = rule.exec.as_ref().and_then(|exec| exec.output.as_ref()) {
                all.push((format!("rules.{index}.exec.output"), output.clone()));
            }
        }
        all
    }
}

/// Checks the options of a node.
pub(super) fn check(node: &Node) -> Checked<Options> {
    let config: Config = node.read()?;
    let mut problems = Vec::new();
    let mut wrong = |option: &str, why: String| problems.push(node.problem_at(option, why));
    if config.mount.is_empty() {
        wrong("mount", "`mount` names no directory".to_owned());
    }
    let existing = config.existing().map_err(|why| wrong("below", why));
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
    let names = patterns(config.leave_out.names.iter().map(String::as_str));
    let names = names.map_err(|why| wrong("leave_out.names", why));
    let default = config.default_rule();
    let default = default.map_err(|(option, why)| wrong(option, why));
    let (Ok(default), Ok(names), Ok(existing), Some(umask), []) =
        (default, names, existing, umask, &problems[..])
    else {
        return Err(problems);
    };
    let rules = Rules {
        rules,
        default: Arc::new(default),
        left_out: names,
    };
    let mount = PathBuf::from(config.mount);
    if let Some((index, why)) = wrong_way(&rules, &mount) {
        return Err(vec![node.problem_at(&format!("rules.{index}.tee"), why)]);
    }
    Ok(Options {
        mount,
        existing,
        rules: Arc::new(rules),
        skips_compressed: config.leave_out.compressed,
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

/// The first rule whose copies go wrong, and why.
fn wrong_way(rules: &Rules, mount: &Path) -> Option<(usize, &'static str)> {
    let absolute = std::path::absolute(mount).ok()?;
    let (index, way) = rules.wrong_way(&absolute)?;
    let why = match way {
        Way::Circle => {
            "this copy is below the mount, and leads back to the rule that makes it, directly or through other rules: it would \
             never end"
        }
        Way::Joins => {
            "this copy is below the mount, and follows a rule with `framing: multiline` or `file`: give it a rule with `lines` or `write`"
        }
    };
    Some((index, why))
}

fn check_line_max(line_max: Size) -> Result<usize, String> {
    if line_max.is_zero() || line_max > LINE_MAX_LARGEST {
        return Err("`line_max` must be between 1B and 1GiB".to_owned());
    }
    Ok(line_max.as_usize())
}

impl Config {
    fn existing(&self) -> Result<Existing, String> {
        match (self.adopt, self.below) {
            (false, None) => Ok(Existing::Refuse),
            (true, None) => Ok(Existing::Adopt),
            (false, Some(BelowConfig::Keep)) => Ok(Existing::Keep),
            (true, Some(BelowConfig::Keep)) => Err(
                "`adopt: true` ships the files that are there, `below: keep` does not: choose one"
                    .to_owned(),
            ),
        }
    }

    /// The rule of files that no configured rule matches.
    fn default_rule(&self) -> Result<Rule, (&'static str, String)> {
        let line_max = check_line_max(self.line_max).map_err(|why| ("line_max", why))?;
        let none = patterns([].into_iter()).map_err(|why| ("rules", why))?;
        Ok(Rule {
            paths: none,
            directories: Vec::new(),
            samples: Vec::new(),
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
            ships: true,
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
        let allow = self.allow.iter().map(|allow| match allow {
            AllowConfig::Match(text) => (&**text, None),
            AllowConfig::Replace(to) => (&*to.r#match, Some(&*to.replace)),
        });
        let filter = Filter::new(
            allow,
            self.deny.iter().map(String::as_str),
            rewrite.map(|rewrite| (&*rewrite.r#match, &*rewrite.replace)),
        );
        let tee = self.tee.as_deref().map(CopyPath::new).transpose();
        let exec = self.exec.as_ref().and_then(ExecConfig::check);
        if !self.ship && self.tee.is_none() && exec.is_none() {
            let why =
                "`ship: false` needs a `tee` or an `exec`: without one, the records would be lost";
            return Err(("ship", why.to_owned()));
        }
        Ok(Rule {
            paths: patterns(paths()).map_err(|why| ("path", why))?,
            directories: paths().filter_map(directories_of).collect(),
            samples: paths().map(sample).collect(),
            tag: Tagging::new(tag, &NAMES).map_err(|why| ("tag", why))?,
            boundaries: Arc::new(Boundaries {
                end: framing.check().map_err(|why| ("framing", why))?,
                line_max: line_max.map_err(|why| ("line_max", why))?,
                too_long: self.too_long.unwrap_or(of.too_long),
                cr: self.cr.unwrap_or(of.cr),
            }),
            filter: filter.map_err(|why| ("", why))?,
            tee: tee.map_err(|why| ("tee", why))?,
            exec,
            ships: self.ship,
        })
    }
}
