//! The sink `file`: writes records into files, exactly once behind a disk channel.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> [write] -> [settle]`
//!
//! Where to look: `run` takes batches and settles them, `encode` decides which bytes go into which file, `pending` holds these
//! bytes until they are written, `writer` writes and commits (`patient` retries failed writes behind a memory channel), `files`
//! opens and closes files, `rotate`, `naming` and `numbering` rename them. `ledger` (a `table` in a `journal`) holds the
//! committed state, which `recover` reads at the start.
//!
//! Guarantees (docs/delivery.md): behind a durable (disk) channel every record is in the files exactly once, also after SIGKILL
//! and power loss. Behind a memory channel every record is synced before it is settled. A record is never split between two
//! files. At each commit, a compressed file is a complete stream, and later writes do not change this part of the file. The
//! amount of data that is written but not yet on disk is bounded (`dirty`). The crate `wire` formats and compresses the
//! records.

mod compress;
mod config;
mod dirty;
mod encode;
mod failure;
mod files;
mod journal;
mod latest;
mod ledger;
mod naming;
mod numbering;
mod output;
mod outputs;
mod patient;
mod pending;
mod probe;
mod recover;
mod rotate;
mod run;
mod sync;
mod table;
#[cfg(test)]
mod tests;
mod writer;

use std::{path::PathBuf, sync::Arc};

use millstream_config::Node;
use millstream_pipeline::{
    failure::Failure,
    inlet::Inlet,
    node::{Build, Checked, Component, LocalFuture, Placement, Sink, SinkContext},
    promise::{Guarantee, Promise},
};
use millstream_sys::disk::{Disk, HostDisk};

use crate::format::schema_with;
use config::{Config, Settings};

/// The entry in the list of sinks.
pub const COMPONENT: Component = Component {
    name: "file",
    summary: "Writes records into files, exactly once behind a disk channel.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: schema_with::<Config>,
    build: Build::Sink(build),
};

/// The sink: checked options and the disk to write to.
struct FileSink {
    settings: Settings,
    disk: Arc<dyn Disk>,
}

fn build(_name: &str, node: &Node) -> Checked<Arc<dyn Sink>> {
    Ok(Arc::new(FileSink::new(node, Arc::new(HostDisk))?))
}

impl FileSink {
    fn new(node: &Node, disk: Arc<dyn Disk>) -> Checked<Self> {
        let settings = Settings::check(node)?;
        Ok(Self { settings, disk })
    }
}

impl Sink for FileSink {
    fn placement(&self) -> Placement {
        Placement::OwnThread
    }

    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        context: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(run::run(&self.settings, &self.disk, inlet, context))
    }

    fn promise(&self, durable: bool) -> Promise {
        if durable {
            Promise::new(
                Guarantee::ExactlyOnce,
                "as long as no other process writes or cuts the files",
            )
        } else {
            Promise::new(
                Guarantee::AtLeastOnce,
                "synced before the source is answered",
            )
        }
    }

    fn probe(&self) -> Option<Result<String, Failure>> {
        Some(probe::path(self.settings.path_text()))
    }

    fn writes(&self) -> Option<(&'static str, PathBuf)> {
        let text = self.settings.path_text();
        let plain = match text.find(['{', '%']) {
            // The last part may be the beginning of a longer name.
            Some(at) => text[..at].rfind('/').map_or(".", |slash| &text[..=slash]),
            None => text,
        };
        Some(("path", PathBuf::from(plain)))
    }
}
