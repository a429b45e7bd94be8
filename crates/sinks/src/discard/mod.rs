//! The sink `discard`: counts and forgets.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! The smallest sink there is, and the one to copy for a new one (CONTRIBUTING.md). It promises that everything it takes
//! is settled. What it counts are the meters that every sink has: records and bytes received, records settled.

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

/// What `millstream components` and the configuration know of it.
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
            // It commits no position of its own, so it goes on where the channel says.
            inlet.resume(None)?;
            while let Some(item) = inlet.next().await? {
                match item {
                    // Here another sink would write the batch. The inlet has counted it already.
                    Item::Batch(..) => {}
                    // And here it would make durable what it wrote since the last checkpoint, and only then settle.
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
