//! The source `tail`: follows growing files through rotation, restart and truncation.
//!
//! `[read] -> decode -> send -> keep -> take -> process -> encode -> write -> settle`
//!
//! - `scan.rs`: which files the patterns name; `watch.rs`: when that or a file changes.
//! - `identity.rs`: what tells one file from another; `known.rs`, `positions.rs`: what earlier runs knew;
//!   `tracked.rs`, `heads.rs`: what a file that is being read held, and whether another is its copy.
//! - `run.rs`, `begin.rs`, `store.rs`: gives each file a reader, and says where it begins.
//! - `reader.rs`, `send.rs`: the hop itself, a file to batches; `framed.rs`: the same line by line; `rest.rs`: waiting at its end;
//!   `anew.rs`, `hole.rs`, `long_line.rs`, `gzip.rs`, `done.rs`.
//! - `options.rs`; `kubernetes.rs`: what the path of a pod's log says.
//!
//! It promises that no line is lost that stands in a file, and that behind a durable channel none comes twice.

mod anew;
mod begin;
mod done;
mod framed;
mod gzip;
mod heads;
mod hole;
mod identity;
mod known;
mod kubernetes;
mod long_line;
mod options;
mod pace;
mod positions;
mod reader;
mod rest;
mod run;
mod scan;
mod send;
mod shared;
mod store;
mod tracked;
mod watch;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use millstream_config::Node;
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component, LocalFuture, Source, SourceContext},
    promise::{Guarantee, Promise},
};

use options::{Config, Options};

/// The entry in the list of sources.
pub const COMPONENT: Component = Component {
    name: "tail",
    summary: "Follows growing files through rotation, restart and truncation.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Source(build),
};

fn build(_name: &str, node: &Node) -> Checked<Box<dyn Source>> {
    Ok(Box::new(Tail(options::check(node)?)))
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

    fn values(&self) -> &'static [&'static str] {
        self.0.values()
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
