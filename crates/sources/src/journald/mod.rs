//! The source `journald`: the entries of systemd's journal, by `journalctl`.
//!
//! `[read] -> [decode] -> send -> keep -> take -> process -> encode -> write -> settle`
//!
//! - `child.rs`: runs `journalctl -o export` on a thread of its own and makes records of what it writes.
//! - `run.rs`: sends them, and begins the child again when it ends; `cursors.rs`: what a restart goes on from.
//!
//! It promises that no entry is lost that stands in the journal, and that behind a durable channel none comes twice.

mod child;
mod cursors;
mod run;

#[cfg(test)]
mod tests;

use millstream_config::{Node, OneOrMany, Size};
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component, LocalFuture, Source, SourceContext},
    promise::{Guarantee, Promise},
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::tagging::{LOCAL_VALUES, Tagging};

/// The entry in the list of sources.
pub const COMPONENT: Component = Component {
    name: "journald",
    summary: "Follows systemd's journal, with all fields of its entries.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Source(build),
};

/// Options of the source `journald`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Only what these units wrote or what was written about them: names, or patterns such as `nginx*`. Default: all.
    #[serde(default)]
    units: OneOrMany<String>,
    /// Only entries with these fields, as `FIELD=VALUE`: of several for one field any, for several fields each; `+`
    /// between two groups means either.
    #[serde(default)]
    matches: OneOrMany<String>,
    /// Where the journal is begun at the first start.
    #[serde(default)]
    start: Start,
    /// The tag: a text, or a template of `{host}`. Default: the node's name.
    #[serde(default)]
    tag: Option<String>,
    /// The largest entry, in export format. A larger one leaves by `NAME.rejected`, as far as it was read.
    #[serde(default = "entry_max")]
    entry_max: Size,
    /// The program, and what it is given before all else: `[journalctl, "--namespace=web"]`, `[journalctl, --merge]`.
    #[serde(default = "command")]
    command: OneOrMany<String>,
}

/// Larger than any log line; core dumps stand in files of their own.
fn entry_max() -> Size {
    Size::mib(16)
}

fn command() -> OneOrMany<String> {
    OneOrMany(vec!["journalctl".to_owned()])
}

/// Where the journal is begun at the first start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Start {
    /// At the oldest entry that there is.
    #[default]
    Beginning,
    /// Behind the newest one.
    End,
}

fn build(_name: &str, node: &Node) -> Checked<Box<dyn Source>> {
    let config: Config = node.read()?;
    let mut problems = Vec::new();
    if config.command.is_empty() {
        problems.push(node.problem_at("command", "`command` names no program"));
    }
    if config.entry_max.is_zero() {
        problems.push(node.problem_at("entry_max", "`entry_max` cannot be 0"));
    }
    let is_match = |text: &&String| {
        *text == "+" || text.split_once('=').is_some_and(|(name, _)| is_field(name))
    };
    if let Some(wrong) = config.matches.iter().find(|text| !is_match(text)) {
        let why = format!("`{wrong}` is not of the form FIELD=VALUE");
        problems.push(node.problem_at("matches", why));
    }
    if config.units.iter().any(|unit| unit.is_empty()) {
        problems.push(node.problem_at("units", "a unit without a name"));
    }
    let tag = Tagging::of(config.tag.as_deref(), LOCAL_VALUES, node);
    match tag.map_err(|problem| problems.push(problem)) {
        Ok(tag) if problems.is_empty() => Ok(Box::new(Journald { config, tag })),
        _ => Err(problems),
    }
}

fn is_field(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    !name.is_empty() && name.bytes().all(is_part)
}

/// The source.
struct Journald {
    config: Config,
    tag: Tagging,
}

impl Source for Journald {
    fn bind(&mut self, _: &SourceContext) -> Result<(), Failure> {
        Ok(())
    }

    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            run::Run::new(self.config.clone(), &self.tag, context)?
                .run()
                .await
        })
    }

    fn values(&self) -> &'static [&'static str] {
        LOCAL_VALUES
    }

    fn promise(&self, durable: bool) -> Promise {
        match durable {
            true => Promise::new(
                Guarantee::ExactlyOnce,
                "what the journal drops before it is read is gone",
            ),
            false => Promise::new(
                Guarantee::AtLeastOnce,
                "what was read within about a second before a crash is read again",
            ),
        }
    }
}
