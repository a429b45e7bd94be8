//! The source `fuse`: a mounted directory. It ships the lines that programs write to its files.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `[read] -> [decode] -> [send] -> keep -> read back -> process -> encode -> write -> settle`
//!
//! - Serving: `mount.rs` mounts, `run.rs` starts and stops, `live.rs` keeps a mount while a reload replaces its source. On each data
//!   thread, `session.rs` reads requests and answers them: `namespace.rs` handles requests about names, `mounted.rs` handles requests
//!   about open files. `handover.rs` leaves a mount to the next program, and
//!   `holders.rs` names the programs whose files did not survive.
//!   `waiting.rs` has the requests that wait, `patience.rs` their limits, and `alias.rs` the numbers of files whose writes wait.
//! - Open files: `open_files.rs` is their table, `open_file.rs` sends and syncs the bytes of one file. `stream.rs` turns the
//!   bytes of a write into a parcel: a batch, and the unfinished bytes after its records (`parcel.rs`). For this, `cutter/` cuts
//!   the bytes into records, `batcher.rs` makes the batch, and `writers.rs` supplies the values of the batch. `in_flight.rs`
//!   tracks the batches that were sent to a memory channel and are not settled yet.
//! - Unfinished lines, which have no newline yet: `unfinished.rs` tracks them in memory, `journal/` stores them on the disk. If
//!   lines are joined into records, `quiet.rs` sends the last record after a pause.
//! - Names: `tree/` holds the names of the mount in memory. `below.rs` accesses the plain directory below the mount, that is, the
//!   directory that the mount hides. `given.rs` knows which files in it the source may take, and `follow.rs` ships these.
//!   `place.rs` refuses directories that must not be mounted over.
//! - Reading: `recent/` keeps what was written readable, also after a restart.
//! - Rules: `config.rs`, `rules.rs`, `filter.rs`. Copies of records: `tee.rs` writes them to a file, `exec.rs` to a command.
//!
//! If the source sends to a durable channel, written bytes are kept when `write` returns, and durable when `fsync` returns. A
//! `write` whose bytes cannot be accepted returns an error.

mod alias;
mod batcher;
mod below;
mod config;
mod cutter;
mod exec;
mod filter;
mod follow;
mod given;
mod handover;
mod holders;
mod in_flight;
mod journal;
mod live;
mod mount;
mod mounted;
mod namespace;
mod open_file;
mod open_files;
mod parcel;
mod patience;
mod place;
mod process;
mod quiet;
mod recent;
mod rules;
mod run;
mod session;
mod shipper;
mod stream;
mod tee;
#[cfg(test)]
mod tests;
mod tree;
mod unfinished;
mod waiting;
mod writers;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_config::Node;
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component, LocalFuture, Source, SourceContext},
    promise::{Guarantee, Promise},
};

use config::{Config, Options};
use handover::Taken;
pub use handover::abandon_left;
use live::{Live, Seat, Start};

/// The entry in the list of sources.
pub const COMPONENT: Component = Component {
    name: "fuse",
    summary: "A mounted directory: what programs write to its files is shipped, line by line.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Source(build),
};

fn build(_name: &str, node: &Node) -> Checked<Box<dyn Source>> {
    Ok(Box::new(Fuse {
        options: Arc::new(config::check(node)?),
        mounted: None,
        seat: None,
    }))
}

/// The source.
struct Fuse {
    options: Arc<Options>,
    /// The mount that `bind` made or took over. The first `run` takes it.
    mounted: Option<Start>,
    /// Where the source before leaves its mount, and where this one leaves it for the next.
    seat: Option<Arc<Seat>>,
}

impl Fuse {
    /// Takes over the mount that an earlier program has left, or mounts the directory.
    fn mount(&self, context: &SourceContext) -> Result<Start, Failure> {
        match Taken::find(&context.name, &self.options) {
            Ok(Some(taken)) => return Ok(Start::Taken(Box::new(taken))),
            Ok(None) => {}
            Err(why) => {
                let text = format_args!(
                    "the mount that an earlier start has left cannot be taken over ({why}): {} is mounted anew, and programs must \
                     open their files in it again",
                    self.options.mount.display()
                );
                context.reporter.warn("stale", text);
            }
        }
        mount::mount(&self.options, context).map(Start::New)
    }
}

impl Source for Fuse {
    fn bind(&mut self, context: &SourceContext) -> Result<(), Failure> {
        if context.once {
            return Ok(());
        }
        let (seat, is_taken) = Seat::of(&context.name, &self.options)?;
        if !is_taken {
            self.mounted = Some(self.mount(context)?);
        }
        self.seat = Some(seat);
        Ok(())
    }

    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            if context.once {
                let below = mount::open_below(&self.options, &context)?;
                return run::once(self.options.clone(), below, context).await;
            }
            let seat = match &self.seat {
                Some(seat) => seat,
                None => self.seat.insert(Seat::of(&context.name, &self.options)?.0),
            };
            let options = self.options.clone();
            let live = match seat.take() {
                Some(live) => live.with(options)?,
                None => {
                    let mounted = match self.mounted.take() {
                        Some(mounted) => mounted,
                        None => Start::New(mount::mount(&self.options, &context)?),
                    };
                    Live::begin(options, mounted, &context).await?
                }
            };
            run::run(live, seat, context).await
        })
    }

    fn mount(&self) -> Option<&Path> {
        Some(&self.options.mount)
    }

    fn writes(&self) -> Vec<(String, PathBuf)> {
        self.options.writes()
    }

    fn obstacle(&self, directory: &Path) -> Option<(&'static str, String)> {
        let mount = &self.options.mount;
        let why = place::obstacle(mount).or_else(|| match place::is_mounted(mount) {
            true => None,
            false => given::obstacle(mount, directory, self.options.existing),
        });
        why.map(|why| ("mount", why))
    }

    fn values(&self) -> &'static [&'static str] {
        rules::VALUES
    }

    fn promise(&self, durable: bool) -> Promise {
        match durable {
            true => Promise::new(
                Guarantee::ExactlyOnce,
                "once `write` has returned; an unfinished line survives a power cut only once `fsync` has returned. A channel \
                 with `sync: batch` syncs the disk for each `write`; with `sync: 1s` a `write` survives SIGKILL when it \
                 returns, `fsync` still syncs, and programs that write each line separately are several times as fast",
            ),
            false => Promise::new(
                Guarantee::AtMostOnce,
                "a crash loses what was written since the last `fsync`; files below the mount are read again instead",
            ),
        }
    }
}
