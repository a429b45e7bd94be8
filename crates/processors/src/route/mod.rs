//! The processor `route`: sends each record by the port of the first condition that it matches.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> [process] -> encode -> write -> settle`
//!
//! Consecutive conditions that are maps are evaluated together, in one pass over the record. Adjacent records that take the same
//! route are passed on as one range, without a copy.

use std::sync::Arc;

use millstream_config::{Node, Problem};
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component},
    output::Out,
    processor::{Processor, Task},
};
use millstream_record::Batch;
use millstream_wire::condition::Where;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::condition::{Conditions, Decider};

/// The entry in the list of processors.
pub const COMPONENT: Component = Component {
    name: "route",
    summary: "Sends each record by the port of the first condition that it matches.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Processor(build),
};

/// The port for records that match no condition.
const REST: &str = "rest";
/// Names that a route cannot have, because every `route` processor has ports of these names.
const RESERVED: [&str; 2] = [REST, "rejected"];

/// The options of `route`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Routes by name, each with its condition: `{ errors: { where: { .level: [error, fatal] } } }`. A record leaves by the port
    /// `NAME.ROUTE` of the first route, in the order of the file, whose condition it matches. A record that matches none leaves by
    /// `NAME.rest`.
    routes: std::collections::BTreeMap<String, Route>,
    /// Time zone that conditions in VRL use for times without a zone. Default: the top-level `timezone`.
    timezone: Option<String>,
}

/// A route.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Route {
    /// Condition of the route: a map, or a text in VRL.
    #[serde(rename = "where")]
    condition: Where,
}

struct Router {
    ports: Vec<Arc<str>>,
    conditions: Conditions,
}

fn build(_name: &str, options: &Node) -> Checked<Arc<dyn Processor>> {
    let Config {
        mut routes,
        timezone,
    } = options.read()?;
    // `routes` is sorted by name, so the order in the file is taken from `options`.
    let names: Vec<_> = options
        .get("routes")
        .map(Node::entries)
        .unwrap_or_default()
        .iter()
        .collect();
    let mut problems = Vec::new();
    let mut ordered = Vec::new();
    for (name, _) in names {
        let path = format!("routes.{}", name.text);
        if RESERVED.contains(&name.text.as_str()) {
            let message = format!("`{}` is a port of every route processor", name.text);
            problems.push(
                options
                    .problem_at(&path, message)
                    .help("choose another name"),
            );
        } else if let Err(why) = millstream_config::names::check(&name.text) {
            problems.push(options.problem_at(&path, why));
        }
        ordered.extend(
            routes
                .remove(&name.text)
                .map(|route| (name.text.clone(), route)),
        );
    }
    if ordered.is_empty() {
        problems.push(options.problem_at("routes", "there is no route"));
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let conditions = ordered.iter();
    let conditions =
        conditions.map(|(name, route)| (format!("routes.{name}.where"), &route.condition));
    let conditions = Conditions::new(options, timezone.as_deref(), conditions)?;
    let ports = ordered.iter().map(|(name, _)| name.as_str());
    let ports = ports.chain([REST]).map(Arc::from).collect();
    Ok(Arc::new(Router { ports, conditions }))
}

impl Processor for Router {
    fn ports(&self) -> Vec<Arc<str>> {
        self.ports.clone()
    }

    fn warnings(&self) -> &[Problem] {
        &self.conditions.warnings
    }

    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        Ok(Box::new(Routing {
            rest: self.ports.len() - 1,
            decider: self.conditions.decider(),
        }))
    }
}

struct Routing {
    /// The index of the port `rest`.
    rest: usize,
    decider: Decider,
}

impl Task for Routing {
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
        let rest = self.rest;
        let failed = self.decider.runs(batch, |run| {
            out.keep(run.condition.unwrap_or(rest), run.range, run.count);
        });
        out.fail(failed);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
