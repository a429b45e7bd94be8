//! The sink `discard`: counts records and drops them.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! The smallest sink, and the one to copy when you write a sink (CONTRIBUTING.md). It promises that every batch that it reads is
//! settled. The counts are the meters that every sink has: records and bytes received, records settled.

use std::sync::Arc;

use millstream_config::Node;
use millstream_pipeline::{
    failure::Failure,
    inlet::{Inlet, Item},
    node::{Build, Checked, Component, LocalFuture, Placement, Sink, SinkContext},
    promise::{Guarantee, Promise},
};
use schemars::JsonSchema;
use serde::Deserialize;

/// The entry in the list of sinks.
pub const COMPONENT: Component = Component {
    name: "discard",
    summary: "Counts and forgets.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Sink(build),
};

/// The options of `discard`: none.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {}

/// The sink. It has no state.
struct Discard;

fn build(_name: &str, options: &Node) -> Checked<Arc<dyn Sink>> {
    let Config {} = options.read()?;
    Ok(Arc::new(Discard))
}

impl Sink for Discard {
    fn placement(&self) -> Placement {
        Placement::DataThreads
    }

    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        _: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            // This sink commits no position, so it continues at the channel's cursor.
            inlet.resume(None)?;
            while let Some(item) = inlet.next().await? {
                match item {
                    // Another sink would write the batch here. The inlet has counted it already.
                    Item::Batch(..) => {}
                    // Another sink would first make durable what it wrote since the last checkpoint.
                    Item::Checkpoint(checkpoint) => inlet.settle(checkpoint).await?,
                }
            }
            Ok(())
        })
    }

    fn promise(&self, _durable: bool) -> Promise {
        Promise::new(Guarantee::ExactlyOnce, "counted, then forgotten")
    }
}

#[cfg(test)]
mod tests;
