//! Turns the configuration into the plan: a pure function that reports all errors of the graph together.

mod assemble;
mod chains;
mod faults;
mod inputs;
mod templates;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc};

use millstream_config::{Node, Place, Problem, Severity};

use crate::{
    channel::Behind,
    node::{Build, ChannelConfig, Component, Sink, Source},
    partition::Tasks,
    plan::{Plan, RunSettings},
    processor::Processor,
    tags::TagFilter,
};

pub use templates::nearest_value;

use self::{
    assemble::assemble,
    chains::fold,
    faults::{check_graph, check_tasks, cycle, mutual, repeated, unused},
    inputs::{resolve, take_inputs},
    templates::check_templates,
};

/// One node of the configuration.
#[derive(Clone)]
pub struct Entry {
    /// Its name.
    pub name: Arc<str>,
    /// The place of the name in the configuration.
    pub place: Place,
    /// The component that its `type` names.
    pub component: &'static Component,
    /// Its options without `type`.
    pub options: Node,
}

/// A plan and its warnings.
pub struct Laid {
    /// The graph.
    pub plan: Plan,
    /// Warnings: things that work but are probably mistakes.
    pub warnings: Vec<Problem>,
    /// Notes: things that work and could cost less.
    pub notes: Vec<Problem>,
}

/// The node that a component built.
enum Built {
    Source(Box<dyn Source>),
    Channel(Box<dyn ChannelConfig>),
    Processor(Arc<dyn Processor>),
    Sink(Arc<dyn Sink>),
}

impl Built {
    fn warnings(&self) -> Vec<Problem> {
        match self {
            Self::Processor(processor) => processor.warnings().to_vec(),
            Self::Source(_) | Self::Channel(_) | Self::Sink(_) => Vec::new(),
        }
    }
}

/// The input options of a consumer.
struct Inputs {
    patterns: Vec<(String, Place)>,
    tags: Option<TagFilter>,
    /// The option `behind` and its place.
    behind: Option<(Behind, Place)>,
    tasks: Tasks,
    /// The place of `parallelism` or `partition`.
    tasks_place: Option<Place>,
    place: Place,
}

/// Identifies one of a node's ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Exit {
    /// The port for records with this index. All nodes except processors have only the first one, `NAME`.
    Records(usize),
    /// `NAME.rejected`.
    Rejected,
}

impl Exit {
    /// The port `NAME` of a source or channel.
    const MAIN: Self = Self::Records(0);

    fn is_rejected(self) -> bool {
        self == Self::Rejected
    }
}

/// A port: the index of its node in the list of entries, and the port within the node.
type Port = (usize, Exit);

/// A consumer of a port.
#[derive(Clone)]
struct Taker {
    /// The consumer's index in the list of entries.
    node: usize,
    /// The tags that it takes; `None`: all.
    tags: Option<TagFilter>,
    /// The index of the entry (in the consumer's chain) that the port leads to; 0 if there is no chain.
    entry: usize,
}

/// The consumers of each port.
type Takers = HashMap<Port, Vec<Taker>>;

/// Lays out the graph of `entries`, which are in the order of the file.
///
/// `left_out` has the names of nodes that are missing from `entries` because they have errors; references to these nodes are not errors.
/// `queue_bytes` is the size of the queue in front of a sink whose inputs name no memory channel.
pub fn lay_out(
    entries: Vec<Entry>,
    left_out: &[String],
    settings: RunSettings,
    queue_bytes: usize,
) -> Result<Laid, Vec<Problem>> {
    let mut problems = Vec::new();
    let (mut built, mut inputs) = (Vec::new(), Vec::new());
    for entry in &entries {
        let mut options = entry.options.clone();
        let is_source = matches!(entry.component.build, Build::Source(_));
        inputs.push(if is_source {
            None
        } else {
            take_inputs(entry, &mut options, &mut problems)
        });
        match build(entry, &options) {
            Ok(node) => built.push(Some(node)),
            Err(found) => {
                problems.extend(found);
                built.push(None);
            }
        }
    }
    let takers = resolve(&entries, &built, &inputs, left_out, &mut problems);
    let takers = pass_through_memory(takers, &built);
    if let Some(problem) = cycle(&entries, &built, &inputs, &takers) {
        problems.push(problem);
        return Err(problems);
    }
    let chained = fold(&takers, &built);
    if let Some(problem) = mutual(&entries, &inputs, &built, &chained) {
        problems.push(problem);
    }
    let queues = (0..entries.len())
        .map(|sink| queue_of(sink, &inputs, &entries, &built, queue_bytes))
        .collect::<Vec<_>>();
    check_graph(&entries, &chained.takers, &inputs, &mut problems);
    check_tasks(&entries, &built, &chained.takers, &inputs, &mut problems);
    let mut warnings = check_templates(&entries, &built, &takers, &mut problems);
    warnings.extend(built.iter().flatten().flat_map(Built::warnings));
    let mut notes = Vec::new();
    // Outputs are checked only if no node has an error, because a node with an error could be the one that takes an output.
    if problems.is_empty() && left_out.is_empty() {
        let unused = unused(&entries, &built, &takers, &chained.takers);
        let is_error = |problem: &Problem| problem.severity == Severity::Error;
        let (errors, unused): (Vec<_>, Vec<_>) = unused.into_iter().partition(is_error);
        problems = errors;
        warnings.extend(unused);
        let repeated = repeated(&entries, &built, &takers, &chained);
        let is_note = |problem: &Problem| problem.severity == Severity::Note;
        let (more, repeated): (Vec<_>, Vec<_>) = repeated.into_iter().partition(is_note);
        notes = more;
        warnings.extend(repeated);
    }
    if !problems.is_empty() {
        problems.extend(warnings);
        return Err(problems);
    }
    Ok(Laid {
        plan: assemble(
            &entries, built, &takers, &chained, &queues, &inputs, settings,
        ),
        warnings,
        notes,
    })
}

fn build(entry: &Entry, options: &Node) -> Result<Built, Vec<Problem>> {
    Ok(match entry.component.build {
        Build::Source(build) => Built::Source(build(&entry.name, options)?),
        Build::Channel(build) => Built::Channel(build(&entry.name, options)?),
        Build::Processor(build) => Built::Processor(build(&entry.name, options)?),
        Build::Sink(build) => Built::Sink(build(&entry.name, options)?),
    })
}

fn is_memory(built: &[Option<Built>], at: usize) -> bool {
    matches!(&built[at], Some(Built::Channel(channel)) if channel.memory_bytes().is_some())
}

/// Replaces memory channels by direct edges from their inputs to their consumers.
fn pass_through_memory(takers: Takers, built: &[Option<Built>]) -> Takers {
    let expand = |taker: &Taker| -> Vec<Taker> {
        let (mut open, mut done, mut seen) = (vec![taker.clone()], Vec::new(), vec![]);
        while let Some(taker) = open.pop() {
            if !is_memory(built, taker.node) {
                done.push(taker);
            } else if !seen.contains(&taker.node) {
                seen.push(taker.node);
                for next in takers.get(&(taker.node, Exit::MAIN)).into_iter().flatten() {
                    open.push(Taker {
                        tags: TagFilter::both(taker.tags.clone(), next.tags.clone()),
                        ..next.clone()
                    });
                }
            }
        }
        done
    };
    let ports = takers
        .iter()
        .filter(|((node, _), _)| !is_memory(built, *node));
    let straight = |all: &Vec<Taker>| {
        let mut ends: Vec<_> = all.iter().flat_map(expand).collect();
        ends.sort_by_key(|taker| taker.node);
        ends
    };
    ports.map(|(port, all)| (*port, straight(all))).collect()
}

/// Returns the size in bytes of the queue in front of a sink: the size of the largest memory channel in the sink's `inputs`, or the
/// default.
fn queue_of(
    sink: usize,
    inputs: &[Option<Inputs>],
    entries: &[Entry],
    built: &[Option<Built>],
    queue_bytes: usize,
) -> usize {
    let patterns = inputs[sink].iter().flat_map(|inputs| &inputs.patterns);
    let named = patterns
        .filter_map(|(pattern, _)| entries.iter().position(|entry| *entry.name == **pattern));
    let bytes = named.filter_map(|at| match &built[at] {
        Some(Built::Channel(channel)) => channel.memory_bytes(),
        _ => None,
    });
    bytes.max().unwrap_or(queue_bytes)
}

fn is_channel(entries: &[Entry], at: usize) -> bool {
    matches!(entries[at].component.build, Build::Channel(_))
}
