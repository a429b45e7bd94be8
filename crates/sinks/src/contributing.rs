//! The sinks that CONTRIBUTING.md walks through, so that its code compiles and runs. Tests only.

mod courier;

use std::{collections::BTreeMap, sync::Arc};

use millstream_config::Node;
use millstream_pipeline::{
    failure::Failure,
    inlet::{Inlet, Item},
    node::{Build, Checked, Component, LocalFuture, Placement, Sink, SinkContext},
    promise::{Guarantee, Promise},
};
use millstream_record::Tag;
use schemars::JsonSchema;
use serde::Deserialize;

pub const COMPONENT: Component = Component {
    name: "tally",
    summary: "Logs the number of records of every tag.",
    readme: include_str!("discard/README.md"),
    example: include_str!("discard/example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Sink(build),
};

/// The options of `tally`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Config {
    /// Leaves out tags with fewer records than this since the last report.
    at_least: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { at_least: 1 }
    }
}

struct Tally {
    at_least: u64,
}

fn build(_name: &str, options: &Node) -> Checked<Arc<dyn Sink>> {
    let Config { at_least } = options.read()?;
    Ok(Arc::new(Tally { at_least }))
}

impl Sink for Tally {
    fn placement(&self) -> Placement {
        Placement::DataThreads
    }

    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        context: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let mut counts: BTreeMap<Tag, u64> = BTreeMap::new();
            // `None`: continue at the channel's cursor. A sink that commits positions itself passes the last one.
            inlet.resume(None)?;
            while let Some(item) = inlet.next().await? {
                match item {
                    Item::Batch(batch, _) => {
                        *counts.entry(batch.tag).or_default() += u64::from(batch.count)
                    }
                    Item::Checkpoint(checkpoint) => {
                        for (tag, count) in std::mem::take(&mut counts) {
                            if count >= self.at_least {
                                context
                                    .reporter
                                    .info("tally", format_args!("{count} records for {tag}"));
                            }
                        }
                        inlet.settle(checkpoint).await?;
                    }
                }
            }
            Ok(())
        })
    }

    fn promise(&self, _durable: bool) -> Promise {
        Promise::new(Guarantee::AtLeastOnce, "counted again after a crash")
    }
}

mod tests {
    use millstream_testkit::{block_on, walk_through::assert_walk_through};

    use super::*;
    use crate::rig::{Rig, Upstream, lines};

    #[test]
    fn every_record_is_counted_and_settled() {
        let upstream = Upstream::memory();
        let receipt = upstream.put(lines("web", "a\nb\n"), true);
        upstream.close();
        let mut rig = Rig::new(
            &COMPONENT,
            r#"{"at_least": 2}"#,
            &upstream,
            "unused".as_ref(),
        );
        block_on(rig.run()).unwrap();
        assert_eq!(receipt.try_outcome(), Some(Ok(())));
    }

    #[test]
    fn the_walk_throughs_of_contributing_are_this_code() {
        let text = include_str!("../../../CONTRIBUTING.md");
        let tally = ["modtally", "tally::"];
        let code = include_str!("contributing.rs");
        assert_walk_through(text, "## Add a sink in twenty minutes", code, &tally, 4);
        let code = include_str!("contributing/courier.rs");
        assert_walk_through(
            text,
            "## Add a sink that sends over a network",
            code,
            &[],
            4,
        );
        let sink = code.split("mod tests {").next().unwrap();
        let lines = sink.lines().count();
        assert!(
            lines < 250,
            "a sink that sends over a network takes {lines} lines"
        );
    }
}
