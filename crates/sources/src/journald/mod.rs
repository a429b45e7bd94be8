//! The source `journald`: the entries of systemd's journal, read through `journalctl`.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `[read] -> [decode] -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! - `child.rs`: runs `journalctl -o export` and makes records from its output, on a separate thread.
//! - `run.rs`: sends the records, and restarts the child when it ends.
//! - `cursors.rs`: stores the journald cursor (a text that identifies an entry) after which a restart continues.
//!
//! No entry that is in the journal is lost. If the source sends to a durable channel, no entry is delivered twice.

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
    /// Reads only entries of these units: names, or patterns such as `nginx*`. Default: all entries.
    #[serde(default)]
    units: OneOrMany<String>,
    /// Reads only entries with these fields, as `FIELD=VALUE`. Several values of one field are alternatives; several fields
    /// must all match; with `+` between two groups of fields, one of the groups must match. Default: all entries.
    #[serde(default)]
    matches: OneOrMany<String>,
    /// Entry at which the first start begins to read. Default: `beginning`.
    #[serde(default)]
    start: Start,
    /// Tag of the records: a text, or a template with `{host}`. Default: the node's name.
    #[serde(default)]
    tag: Option<String>,
    /// Largest entry, in bytes of the export format. The first `entry_max` bytes of a larger entry leave by the port
    /// `NAME.rejected`. Default: 16MiB.
    #[serde(default = "entry_max")]
    entry_max: Size,
    /// Program to run and its first arguments, for example `[journalctl, "--namespace=web"]` or `[journalctl, --merge]`.
    /// Default: `journalctl`.
    #[serde(default = "command")]
    command: OneOrMany<String>,
}

/// 16 MiB: larger than any usual log entry. Core dumps are stored outside of the journal.
fn entry_max() -> Size {
    Size::mib(16)
}

fn command() -> OneOrMany<String> {
    OneOrMany(vec!["journalctl".to_owned()])
}

/// Entry at which the first start begins to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Start {
    /// At the oldest entry.
    #[default]
    Beginning,
    /// After the newest entry.
    End,
}

fn build(_name: &str, node: &Node) -> Checked<Box<dyn Source>> {
    let config: Config = node.read()?;
    let mut problems = Vec::new();
    if config.command.is_empty() {
        problems.push(node.problem_at("command", "`command` does not name a program"));
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
        problems.push(node.problem_at("units", "a unit has no name"));
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
            context.outlet.until_kept(context.stop.clone()).await;
            run::Follower::new(self.config.clone(), &self.tag, context)?
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
                "entries that the journal drops before they are read are lost",
            ),
            false => Promise::new(
                Guarantee::AtLeastOnce,
                "entries that were read within about a second before a crash are read again",
            ),
        }
    }
}
