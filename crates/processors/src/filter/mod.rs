//! The processor `filter`: keeps the records that match a condition.
//!
//! `read -> decode -> send -> keep -> read back -> [process] -> encode -> write -> settle`
//!
//! The smallest processor, and the one to copy for a new one. Adjacent records that match are passed on as one range, without a copy.

use std::sync::Arc;

use millstream_config::Node;
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component},
    output::Out,
    processor::{MAIN, Processor, Task},
};
use millstream_record::Batch;
use millstream_wire::condition::{Matcher, Where};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::condition::matcher;

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
    /// Condition that a record must match to be kept, such as `{ .level: [error, fatal], .ms: { gt: 500 } }`. All other records are
    /// filtered.
    #[serde(rename = "where")]
    condition: Where,
}

struct Filter(Matcher);

fn build(_name: &str, options: &Node) -> Checked<Arc<dyn Processor>> {
    let Config { condition } = options.read()?;
    let matcher = matcher(options, [("where".to_owned(), &condition)])?;
    Ok(Arc::new(Filter(matcher)))
}

impl Processor for Filter {
    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        Ok(Box::new(Self(self.0.clone())))
    }
}

impl Task for Filter {
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
        self.0.runs(batch, |run| match run.condition {
            Some(_) => out.keep(MAIN, run.range, run.count),
            None => out.filter(run.count),
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
