//! The processor `filter`: keeps the records that match a condition.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> [process] -> encode -> write -> settle`
//!
//! This is the smallest processor, and a good one to copy for a new processor. Adjacent records that match are passed on as one
//! range, without a copy.

use std::sync::Arc;

use millstream_config::{Node, Problem};
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component},
    output::Out,
    processor::{MAIN, Processor, Task},
};
use millstream_record::Batch;
use millstream_wire::condition::Where;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::condition::{Conditions, Decider};

/// The entry in the list of processors.
pub const COMPONENT: Component = Component {
    name: "filter",
    summary: "Keeps the records that match a condition.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Processor(build),
};

/// The options of `filter`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Condition that a record must match to be kept: a map such as `{ .level: [error, fatal], .ms: { gt: 500 } }`, or a text in VRL such
    /// as `'length!(.tags) > 3'`. All other records are dropped, and counted as filtered.
    #[serde(rename = "where")]
    condition: Where,
    /// Time zone that a condition in VRL uses for times without a zone. Default: the top-level `timezone`.
    timezone: Option<String>,
}

struct Filter(Conditions);

struct Filtering(Decider);

fn build(_name: &str, options: &Node) -> Checked<Arc<dyn Processor>> {
    let config: Config = options.read()?;
    let condition = ("where".to_owned(), &config.condition);
    let conditions = Conditions::new(options, config.timezone.as_deref(), [condition])?;
    Ok(Arc::new(Filter(conditions)))
}

impl Processor for Filter {
    fn warnings(&self) -> &[Problem] {
        &self.0.warnings
    }

    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        Ok(Box::new(Filtering(self.0.decider())))
    }
}

impl Task for Filtering {
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
        let failed = self.0.runs(batch, |run| match run.condition {
            Some(_) => out.keep(MAIN, run.range, run.count),
            None => out.filter(run.count),
        });
        out.fail(failed);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
