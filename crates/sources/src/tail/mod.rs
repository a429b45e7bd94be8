//! The source `tail`: follows growing files through rotation, restart and truncation.
//!
//! `[read] -> decode -> send -> keep -> take -> process -> encode -> write -> settle`
//!
//! - `scan.rs`: which files the patterns name; `watch.rs`: when that or a file changes.
//! - `identity.rs`: what tells one file from another; `known.rs`, `positions.rs`: what earlier runs knew.
//! - `run.rs`, `begin.rs`: gives each file a reader, and says where it begins.
//! - `reader.rs`: the hop itself, a file to batches; `rest.rs`: waiting at its end; `anew.rs`; `long_line.rs`.
//!
//! It promises that no line is lost that stands in a file, and that behind a durable channel none comes twice.

mod anew;
mod begin;
mod identity;
mod known;
mod long_line;
mod pace;
mod positions;
mod reader;
mod rest;
mod run;
mod scan;
mod shared;
mod tracked;
mod watch;

#[cfg(test)]
mod tests;

use std::{path::Path, sync::Arc, time::Duration};

use jiff::tz::TimeZone;
use millstream_config::{Node, OneOrMany, Period, Size};
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component, LocalFuture, Source, SourceContext},
    promise::{Guarantee, Promise},
};
use millstream_record::{Tag, Time, Values};
use millstream_wire::{
    event::{Event, Record},
    template::{Depends, Renderer, Shared, Template},
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::framing::{Framing, LINE_MAX, LINE_MAX_LARGEST, TooLong};
use scan::Patterns;

/// The entry in the list of sources.
pub const COMPONENT: Component = Component {
    name: "tail",
    summary: "Follows growing files through rotation, restart and truncation.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Source(build),
};

/// Options of the source `tail`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Which files: paths with `*`, `?`, `[a-z]`, `{a,b}` and `**` (any folders).
    paths: OneOrMany<String>,
    /// Which of them not: patterns of names (`*.gz`) or, with a slash, of whole paths.
    #[serde(default)]
    exclude: OneOrMany<String>,
    /// Where a file is begun that was there before the first start. Files that appear later are read from their beginning.
    #[serde(default)]
    start: Start,
    /// The tag: a text in which `*` is the file's path with dots for slashes, or a template of `{path}` and `{host}`.
    /// Default: the node's name.
    #[serde(default)]
    tag: Option<String>,
    /// Where a record ends.
    #[serde(default)]
    framing: Framing,
    /// The longest line, without its newline.
    #[serde(default = "line_max")]
    line_max: Size,
    /// What becomes of a longer one.
    #[serde(default)]
    too_long: TooLong,
    /// How long a file that was renamed or removed must have been quiet before it is closed.
    #[serde(default = "rotate_wait")]
    rotate_wait: Period,
    /// How often folders and files are looked at of which the kernel gives no notice.
    #[serde(default = "rescan")]
    rescan: Period,
}

fn line_max() -> Size {
    LINE_MAX
}

/// Long enough for a program that is told of the rotation to open its new file.
fn rotate_wait() -> Period {
    Period::secs(30)
}

/// A look at a thousand files takes a few milliseconds.
fn rescan() -> Period {
    Period::secs(10)
}

/// Where a file is begun that was there before the first start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Start {
    /// At its beginning: nothing that stands in it is missed.
    #[default]
    Beginning,
    /// At the line that is being written.
    End,
}

/// The checked options.
#[derive(Debug)]
struct Options {
    patterns: Patterns,
    start: Start,
    tag: TagRule,
    line_max: usize,
    too_long: TooLong,
    rotate_wait: Duration,
    rescan: Duration,
}

/// How a tag is made of a path.
#[derive(Debug)]
enum TagRule {
    /// The node's name.
    Name,
    /// A text in which `*` is the path with dots.
    Star(String),
    /// A template.
    Template(Template),
}

impl TagRule {
    fn new(tag: Option<&str>) -> Result<Self, String> {
        let Some(tag) = tag else {
            return Ok(Self::Name);
        };
        if !tag.contains(['{', '%']) {
            return Ok(Self::Star(tag.to_owned()));
        }
        let template = Template::parse(tag).map_err(|error| error.to_string())?;
        if template.depends() > Depends::Batch {
            return Err(
                "the tag of a file holds for all its lines: it cannot name a field or the time"
                    .to_owned(),
            );
        }
        let foreign = template
            .names()
            .find(|name| !["host", "path"].contains(name));
        match foreign.map(str::to_owned) {
            Some(name) => Err(format!(
                "a tailed file has no value `{name}`: there are `host` and `path`"
            )),
            None => Ok(Self::Template(template)),
        }
    }
}

impl Options {
    fn tag_of(&self, path: &Path, context: &SourceContext, values: &Values) -> Tag {
        match &self.tag {
            TagRule::Name => Tag::from(&*context.name),
            TagRule::Star(text) => {
                let path = path.to_string_lossy();
                let dotted = path.trim_start_matches('/').replace('/', ".");
                Tag::from(&*text.replace('*', &dotted))
            }
            TagRule::Template(template) => {
                let mut tag = Vec::new();
                let shared = Shared {
                    tag: &context.name,
                    values,
                };
                let event = Event {
                    time: Time::now(),
                    record: Record::None,
                };
                // All names were checked, so no value can be missing.
                let _ = Renderer::text(template, TimeZone::UTC).render(shared, event, &mut tag);
                Tag::from(&*String::from_utf8_lossy(&tag))
            }
        }
    }
}

fn build(_name: &str, node: &Node) -> Checked<Box<dyn Source>> {
    let config: Config = node.read()?;
    let mut problems = Vec::new();
    let Framing::Lines = config.framing;
    if config.paths.is_empty() {
        problems.push(node.problem_at("paths", "`paths` names no file"));
    }
    if config.line_max.is_zero() || config.line_max > LINE_MAX_LARGEST {
        problems.push(node.problem_at("line_max", "`line_max` must be between 1B and 1GiB"));
    }
    if config.rescan.is_zero() {
        problems.push(node.problem_at(
            "rescan",
            "`rescan` cannot be 0: without it files may be missed",
        ));
    }
    let patterns = Patterns::new(
        config.paths.iter().map(String::as_str),
        config.exclude.iter().map(String::as_str),
    );
    let patterns = patterns.map_err(|why| problems.push(node.problem_at("paths", why)));
    let tag = TagRule::new(config.tag.as_deref());
    let tag = tag.map_err(|why| problems.push(node.problem_at("tag", why)));
    let (Ok(patterns), Ok(tag), []) = (patterns, tag, &problems[..]) else {
        return Err(problems);
    };
    Ok(Box::new(Tail(Arc::new(Options {
        patterns,
        start: config.start,
        tag,
        line_max: config.line_max.as_usize(),
        too_long: config.too_long,
        rotate_wait: config.rotate_wait.as_duration(),
        rescan: config.rescan.as_duration(),
    }))))
}

/// The source.
struct Tail(Arc<Options>);

impl Source for Tail {
    fn bind(&mut self, _: &SourceContext) -> Result<(), Failure> {
        // Files that are missing may come; nothing is needed before.
        Ok(())
    }

    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move { run::Run::new(self.0.clone(), context)?.run().await })
    }

    fn promise(&self, durable: bool) -> Promise {
        match durable {
            true => Promise::new(
                Guarantee::ExactlyOnce,
                "what a truncation destroys before it is read is gone",
            ),
            false => Promise::new(
                Guarantee::AtLeastOnce,
                "what was read within about a second before a crash is read again",
            ),
        }
    }
}
