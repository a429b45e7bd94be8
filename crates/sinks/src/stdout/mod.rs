//! The sink `stdout`: writes records to the standard output of the process.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! It runs on its own thread, because the reader of the output may be slow. It writes immediately when no more input is ready, so
//! gathering delays no record. It promises that a batch is settled only after the system has accepted the whole batch. If the
//! reader closes the output, the run ends with an error.

use std::{fs::File, io, os::fd::AsFd, sync::Arc};

use millstream_config::Node;
use millstream_pipeline::{
    failure::Failure,
    inlet::{Inlet, Item},
    node::{Build, Checked, Component, LocalFuture, Placement, Sink, SinkContext},
    probation::waiting,
    promise::{Guarantee, Promise},
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    format::{Formatting, schema_with},
    sending::{Refused, by_reason, unencoded},
};

mod writer;

#[cfg(test)]
mod tests;

use writer::Writer;

/// The entry in the list of sinks.
pub const COMPONENT: Component = Component {
    name: "stdout",
    summary: "Writes to the standard output.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: schema_with::<Config>,
    build: Build::Sink(build),
};

/// The options of `stdout` in addition to those of the format: none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {}

struct Stdout {
    formatting: Formatting,
}

fn build(_name: &str, options: &Node) -> Checked<Arc<dyn Sink>> {
    let (formatting, Config {}) = Formatting::with(options)?;
    Ok(Arc::new(Stdout { formatting }))
}

impl Sink for Stdout {
    fn placement(&self) -> Placement {
        Placement::OwnThread
    }

    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        context: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            // Bypasses std's buffer, which flushes at every newline.
            let stdout = io::stdout().as_fd().try_clone_to_owned();
            let stdout = stdout.map_err(|error| failure(&error))?;
            let writer = Writer::new(
                Waiting(File::from(stdout)),
                self.formatting.encoder(),
                context.pool,
            );
            run(inlet, writer).await
        })
    }

    fn promise(&self, _durable: bool) -> Promise {
        Promise::new(
            Guarantee::AtMostOnce,
            "records in flight to the reader are lost when either side fails",
        )
    }
}

/// The standard output, whose reader may be slow.
struct Waiting(File);

impl io::Write for Waiting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        waiting(|| self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Reads until the end, and writes whenever no more input is ready.
async fn run(inlet: &mut Inlet, mut writer: Writer<impl io::Write>) -> Result<(), Failure> {
    inlet.resume(None)?;
    loop {
        let item = tokio::select! {
            biased;
            item = inlet.next() => item?,
            () = std::future::ready(()), if writer.has_more() => {
                writer.flush().map_err(|error| failure(&error))?;
                continue;
            }
        };
        match item {
            Some(Item::Batch(batch, _)) => {
                let rejects = writer.write(&batch).map_err(|error| failure(&error))?;
                let refused: Vec<Refused> = rejects.into_iter().map(unencoded).collect();
                for (reason, records) in by_reason(&batch, &refused) {
                    inlet.reject(&batch, records, &reason).await;
                }
            }
            Some(Item::Checkpoint(checkpoint)) => {
                writer.flush().map_err(|error| failure(&error))?;
                inlet.settle(checkpoint).await?;
            }
            None => return Ok(()),
        }
    }
}

fn failure(error: &io::Error) -> Failure {
    let peer = |text| Failure::peer(text).never_again();
    match error.kind() {
        io::ErrorKind::BrokenPipe => {
            peer("the reader of the standard output has closed it".to_owned())
        }
        _ => peer(format!("cannot write to the standard output: {error}")),
    }
}
