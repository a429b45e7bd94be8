//! The options of the source `fuse`, and what they come to.

use std::{path::PathBuf, sync::Arc};

use millstream_config::{Node, OneOrMany, Size};
use millstream_pipeline::node::{Checked, Source};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    Fuse,
    cutter::{Framing, How},
    filter::Filter,
    rules::{NAMES, Rule, Rules, Text, directories_of, patterns},
    tree::{Owner, Recent},
};
use crate::{
    framing::{LINE_MAX, LINE_MAX_LARGEST, TooLong},
    tagging::Tagging,
};

/// Options of the source `fuse`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    /// The directory to mount over; it is made if it is not there.
    mount: String,
    /// What becomes of which files; the first rule whose `path` matches counts, when the file is opened.
    #[serde(default)]
    rules: Vec<RuleConfig>,
    /// The tag of files that no rule matches, and of rules that name none: a text in which `*` is the file's path with dots
    /// for slashes, or a template of `{path}` and `{host}`. Default: the node's name.
    #[serde(default)]
    tag: Option<String>,
    /// Where a record ends, unless a rule says otherwise.
    #[serde(default)]
    framing: Framing,
    /// The longest record, without its newline.
    #[serde(default = "line_max")]
    line_max: Size,
    /// What becomes of a longer one.
    #[serde(default)]
    too_long: TooLong,
    /// What a `write` does that finds no room: `block` waits for it (a fatal signal ends the wait), `fail` waits for a
    /// second and returns ENOSPC.
    #[serde(default)]
    when_full: WhenFull,
    /// How much of what was written can be read again (`tail -f`).
    #[serde(default)]
    recent: RecentConfig,
    /// Other users may use the mount, too; without root this takes `user_allow_other` in /etc/fuse.conf.
    #[serde(default)]
    allow_other: bool,
    /// The user that everything under the mount belongs to. Default: who makes it.
    #[serde(default)]
    uid: Option<u32>,
    /// The group that everything under the mount belongs to. Default: that of who makes it.
    #[serde(default)]
    gid: Option<u32>,
    /// Permissions that nothing under the mount has, in octal: `"027"`.
    #[serde(default)]
    umask: Option<String>,
}

/// A rule.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RuleConfig {
    /// Which files: patterns of paths below the mount, with `*`, `?`, `[a-z]`, `{a,b}` and `**` (any directories).
    path: OneOrMany<String>,
    /// Their tag, as the option of the source.
    #[serde(default)]
    tag: Option<String>,
    /// Regular expressions: records go through that match one of them. Default: all.
    #[serde(default)]
    allow: OneOrMany<String>,
    /// Regular expressions: records do not go through that match one of them.
    #[serde(default)]
    deny: OneOrMany<String>,
    /// What is replaced in the records, one after the other.
    #[serde(default)]
    rewrite: Vec<RewriteConfig>,
    /// Where a record ends.
    #[serde(default)]
    framing: Option<Framing>,
    /// The longest record.
    #[serde(default)]
    line_max: Option<Size>,
    /// What becomes of a longer one.
    #[serde(default)]
    too_long: Option<TooLong>,
    /// A real file that gets a copy of the records: a template of `{path}` and `{host}`, or a directory (with a slash at its
    /// end) in which the path goes on.
    #[serde(default)]
    tee: Option<String>,
    /// A command, word by word, that gets a copy of the records on its standard input; what it prints is not taken.
    #[serde(default)]
    exec: Vec<String>,
}

/// A replacement.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RewriteConfig {
    /// A regular expression.
    r#match: String,
    /// What stands in the place of every match: `$1`, `${name}` are its groups, `$$` a dollar.
    replace: String,
}

/// How much of what was written can be read again.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct RecentConfig {
    /// Of each file, at least.
    file: Size,
    /// Of all files together, at most.
    all: Size,
}

impl Default for RecentConfig {
    fn default() -> Self {
        Self {
            file: Size::bytes(64 << 10),
            all: Size::mib(16),
        }
    }
}

/// What a `write` does that finds no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum WhenFull {
    /// It waits.
    #[default]
    Block,
    /// It returns ENOSPC after a second.
    Fail,
}

fn line_max() -> Size {
    LINE_MAX
}

/// The checked options.
#[derive(Debug)]
pub(super) struct Options {
    pub mount: PathBuf,
    pub rules: Rules,
    pub when_full: WhenFull,
    pub recent: Recent,
    pub allow_other: bool,
    pub owner: Owner,
}

pub(super) fn build(_name: &str, node: &Node) -> Checked<Box<dyn Source>> {
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
                // What a rule takes over from the source is told there.
                if option.is_empty() || node.find(&place).is_some() {
                    wrong(&place, why);
                }
            }
        }
    }
    let rest = config.rest();
    let rest = rest.map_err(|(option, why)| wrong(option, why));
    let (Ok(rest), Some(umask), []) = (rest, umask, &problems[..]) else {
        return Err(problems);
    };
    Ok(Box::new(Fuse {
        options: Arc::new(Options {
            mount: PathBuf::from(config.mount),
            rules: Rules {
                rules,
                rest: Arc::new(rest),
            },
            when_full: config.when_full,
            recent: Recent {
                file: config.recent.file.as_usize(),
                all: config.recent.all.as_usize(),
            },
            allow_other: config.allow_other,
            owner: Owner {
                uid: config.uid,
                gid: config.gid,
                umask,
            },
        }),
        mounted: None,
    }))
}

fn check_line_max(line_max: Size) -> Result<usize, String> {
    if line_max.is_zero() || line_max > LINE_MAX_LARGEST {
        return Err("`line_max` must be between 1B and 1GiB".to_owned());
    }
    Ok(line_max.as_usize())
}

impl Config {
    /// The rule of files that no rule names.
    fn rest(&self) -> Result<Rule, (&'static str, String)> {
        let line_max = check_line_max(self.line_max).map_err(|why| ("line_max", why))?;
        let none = patterns([].into_iter()).map_err(|why| ("rules", why))?;
        Ok(Rule {
            paths: none,
            directories: Vec::new(),
            tag: Tagging::new(self.tag.as_deref(), &NAMES).map_err(|why| ("tag", why))?,
            how: Arc::new(How {
                end: self.framing.check().map_err(|why| ("framing", why))?,
                line_max,
                too_long: self.too_long,
            }),
            filter: Filter::default(),
            tee: None,
            exec: None,
        })
    }
}

impl RuleConfig {
    /// The error names the option, if it is one alone.
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
        let tee = self.tee.as_deref().map(Text::new).transpose();
        Ok(Rule {
            paths: patterns(paths()).map_err(|why| ("path", why))?,
            directories: paths().filter_map(directories_of).collect(),
            tag: Tagging::new(tag, &NAMES).map_err(|why| ("tag", why))?,
            how: Arc::new(How {
                end: framing.check().map_err(|why| ("framing", why))?,
                line_max: line_max.map_err(|why| ("line_max", why))?,
                too_long: self.too_long.unwrap_or(of.too_long),
            }),
            filter: filter.map_err(|why| ("", why))?,
            tee: tee.map_err(|why| ("tee", why))?,
            exec: (!self.exec.is_empty()).then(|| self.exec.clone()),
        })
    }
}
