//! The source `fuse`: a mounted directory; what programs write to its files is shipped.
//!
//! `[read] -> [decode] -> [send] -> keep -> take -> process -> encode -> write -> settle`
//!
//! - `session.rs`: a task for each data thread reads the kernel's requests and answers them; `dispatch.rs`: all but writes.
//! - `write.rs`, `stream/`: the hop itself, a write to batches (`parcel.rs`), and when it is answered; `cutter/`,
//!   `filter.rs`: bytes to records; `tails.rs`: the bound on unfinished ones; `rules.rs`; `waiting.rs`: requests that have to wait, and how they are given up;
//!   `quiet.rs`: records of several lines that are taken as whole after a while.
//! - `tree/`: names and attributes; `handles.rs`: open files; `journal/`: unfinished lines that survive a crash.
//! - `below.rs`, `follow.rs`: the plain directory below the mount, and what was written there while nobody was here.
//! - `tee.rs`, `exec.rs`: copies to files and commands.
//!
//! It promises that a `write` that has returned is kept (behind a durable channel), that `fsync` returns when it is
//! synced, and that what it cannot take is an error for the writer, and never silence.

mod below;
mod config;
mod cutter;
mod dispatch;
mod exec;
mod filter;
mod follow;
mod handles;
mod journal;
mod mounted;
mod parcel;
mod quiet;
mod rules;
mod run;
mod session;
mod stream;
mod tails;
mod tee;
#[cfg(test)]
mod tests;
mod tree;
mod waiting;
mod write;

use std::sync::Arc;

use millstream_pipeline::{
    failure::Failure,
    node::{Build, Component, LocalFuture, Source, SourceContext},
    promise::{Guarantee, Promise},
};
use millstream_sys::fuse::{Device, Mount};

use below::Below;
use config::{Config, Options, build};

/// The entry in the list of sources.
pub const COMPONENT: Component = Component {
    name: "fuse",
    summary: "A mounted directory: what programs write to its files is shipped, line by line.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Source(build),
};

/// The source.
struct Fuse {
    options: Arc<Options>,
    /// Once it is mounted.
    mounted: Option<(Device, Mount, Arc<Below>)>,
}

impl Source for Fuse {
    fn bind(&mut self, context: &SourceContext) -> Result<(), Failure> {
        if !context.once {
            self.mounted = Some(run::mount(&self.options, context)?);
        }
        Ok(())
    }

    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            if context.once {
                let below = Arc::new(Below::open(&self.options.mount)?);
                return run::once(self.options.clone(), below, context).await;
            }
            let mounted = match self.mounted.take() {
                Some(mounted) => mounted,
                None => run::mount(&self.options, &context)?,
            };
            run::run(self.options.clone(), mounted, context).await
        })
    }

    fn values(&self) -> &'static [&'static str] {
        rules::VALUES
    }

    fn promise(&self, durable: bool) -> Promise {
        match durable {
            true => Promise::new(
                Guarantee::ExactlyOnce,
                "from the return of `write`; an unfinished line against a power cut from `fsync`",
            ),
            false => Promise::new(
                Guarantee::AtMostOnce,
                "until `fsync` has returned, or the file is read again below the mount",
            ),
        }
    }
}
