//! Cases: tests of processors, written in the configuration (option `tests` of a processor). A case lists records that enter a
//! processor, and records that should leave it.
//!
//! Every start reads and checks the cases with the rest of the configuration. Only `millstream test` runs the cases.

mod differ;
mod order;
mod read;
mod run;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use millstream_config::{Place, Problem, names};
use millstream_pipeline::plan::{Plan, ProcessorPlan};
use millstream_record::Batch;
use serde_json::Value;

pub use differ::{Difference, Side};
pub use read::{TESTS, read};

/// A case of a processor.
pub struct Case {
    /// The file and line of the case.
    pub place: Place,
    /// The processor that it tests.
    pub node: Arc<str>,
    /// The name of the case; `case N` if the configuration gives none.
    pub name: String,
    /// The node that the records enter, and the place where the case names this node. `None` if the records enter the tested processor.
    from: Option<(String, Place)>,
    /// The given records, one per batch. The result does not depend on how records are divided into batches.
    given: Vec<Batch>,
    /// The expected records of each port that the case names.
    expect: Vec<Leaving>,
    /// The records that should be rejected, as they were before the rejection.
    rejected: Vec<Expected>,
}

/// The expected records of a port.
struct Leaving {
    port: String,
    place: Place,
    records: Vec<Expected>,
}

/// An expected record.
struct Expected {
    record: Value,
    /// Names such as `tag`, with their values.
    metadata: Vec<(String, String)>,
}

/// A record that left a processor.
struct Seen {
    record: Value,
    /// The names and values of all its metadata.
    metadata: Vec<(String, String)>,
    /// Why the record was rejected; `None` if it was not rejected.
    reason: Option<String>,
}

impl Case {
    /// Reports the parts of the case that do not fit this graph. `expect` may name ports that the processor does not have. `from` may name
    /// a node from which no path leads to the processor.
    pub fn problems(&self, plan: &Plan) -> Vec<Problem> {
        let Some(tested) = find(plan, &self.node) else {
            return Vec::new();
        };
        let ports = tested.processor.ports();
        let unknown = |leaving: &&Leaving| ports.iter().all(|port| **port != *leaving.port);
        let unknown = self.expect.iter().filter(unknown);
        let mut problems: Vec<_> = unknown
            .map(|leaving| self.no_such_port(leaving, &ports))
            .collect();
        problems.extend(self.no_way(plan));
        problems
    }

    fn no_such_port(&self, leaving: &Leaving, ports: &[Arc<str>]) -> Problem {
        let (node, port) = (&self.node, &leaving.port);
        let quoted: Vec<_> = ports.iter().map(|port| format!("`{port}`")).collect();
        let there_are = format!("there are {}", quoted.join(", "));
        if port.is_empty() {
            let message = format!("`{node}` has several ports: `expect` must be a map of them");
            return Problem::new(&leaving.place, message).help(there_are);
        }
        if ports.iter().any(|port| port.is_empty()) {
            let message = format!("`{node}` has one port: `expect` must be a list of records");
            let help = "such as `[{ level: info }]`";
            return Problem::new(&leaving.place, message).help(help);
        }
        let problem = Problem::new(&leaving.place, format!("`{node}` has no port `{port}`"));
        match names::nearest(port, ports.iter().map(|port| &**port)) {
            Some(nearest) => problem.help(format!("did you mean `{nearest}`?")),
            None => problem.help(there_are),
        }
    }

    fn no_way(&self, plan: &Plan) -> Option<Problem> {
        let (from, place) = self.from.as_ref()?;
        if order::between(plan, from, &self.node).is_some() {
            return None;
        }
        let mut known: Vec<&str> = plan.links.iter().map(|link| &*link.from).collect();
        known.retain(|name| *name != &*self.node);
        if known.contains(&from.as_str()) {
            let message = format!("no records of `{from}` reach `{}`", self.node);
            return Some(Problem::new(place, message));
        }
        let problem = Problem::new(
            place,
            format!("no source, processor or channel is called `{from}`"),
        );
        Some(match names::nearest(from, known) {
            Some(nearest) => problem.help(format!("did you mean `{nearest}`?")),
            None => problem,
        })
    }
}

fn find<'a>(plan: &'a Plan, name: &str) -> Option<&'a ProcessorPlan> {
    plan.processors
        .iter()
        .find(|processor| *processor.name == *name)
}
