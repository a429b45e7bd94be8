//! The source `tail`: follows growing files through rotation, restart and truncation.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `[read] -> decode -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! - `run.rs` finds files and gives each a reader. `scan.rs` scans the directories, `watch.rs` reports changes, `renames.rs`
//!   recognizes files that were renamed before a scan saw them, `admission.rs` decides which files are read and from where
//!   (`begin.rs`), `store.rs` decides when positions are written.
//! - `reader.rs` reads one file until it is done with it. In each step (`stepper.rs`), it opens the file (`open_file.rs`,
//!   `turns.rs`), reads a chunk (`chunk.rs`), cuts it into records (`records.rs`, `decoder.rs`) and sends them (`sender.rs`).
//!   `position.rs` tracks how far the file was sent and settled, and `pace.rs` delays reads so that batches grow. `gzip.rs`,
//!   `long_line.rs`, `blank.rs`, `join.rs`, `copy.rs` and `done.rs` handle one special case each.
//! - `identity.rs` distinguishes files. `known.rs` and `positions.rs` remember the files of earlier runs. `tracked.rs` holds the
//!   state of the files that are being read, and `heads.rs` recognizes copies of them, also by their names (`names.rs`).
//! - `source_state.rs`, `context.rs`, `ends.rs` and `signal.rs` connect the readers with `run.rs`.
//!
//! No line is lost, unless a truncation destroys it before it is settled. If the source sends to a durable channel, no line is
//! delivered twice.

mod admission;
mod begin;
mod blank;
mod chunk;
mod context;
mod copy;
mod decoder;
mod done;
mod ends;
mod gone;
mod gzip;
mod heads;
mod identity;
mod join;
mod known;
mod kubernetes;
mod lag;
mod long_line;
mod names;
mod open_file;
mod options;
mod pace;
mod position;
mod positions;
mod reader;
mod records;
mod renames;
mod run;
mod scan;
mod sender;
mod signal;
mod source_state;
mod stepper;
mod store;
mod tracked;
mod turns;
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
        // There is nothing to bind: `run` finds the files, and they may appear later.
        Ok(())
    }

    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            context.outlet.until_kept(context.stop.clone()).await;
            run::Run::new(self.0.clone(), context)?.run().await
        })
    }

    fn reads(&self) -> Option<&'static str> {
        Some("files")
    }

    fn values(&self) -> &'static [&'static str] {
        self.0.values()
    }

    fn promise(&self, durable: bool) -> Promise {
        match durable {
            true => Promise::new(
                Guarantee::ExactlyOnce,
                "lines that a truncation destroys before they are read are lost",
            ),
            false => Promise::new(
                Guarantee::AtLeastOnce,
                "lines that were read within about a second before a crash are read again",
            ),
        }
    }
}
