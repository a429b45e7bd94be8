//! Changes the processors of a running pipeline, and the connections that lead through them.
//!
//! A new chain is built beside the old one. If that fails, the old one continues and nothing has changed. Batches turn to the new chain
//! between two of a flow, so nothing is lost, repeated or overtaken, and nothing waits.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::{
    failure::Failure,
    graph::Graph,
    partition::Tasks,
    plan::{ChannelInput, Input, Plan, ProcessorPlan, filled},
    replay::Replay,
    running::{NodeStatus, Nodes},
    tags::TagFilter,
};

/// Reloads a running pipeline.
pub struct Reloader {
    graph: Graph,
    nodes: Nodes,
    known: Known,
}

/// The parts of a plan that a reload compares.
pub(crate) struct Known {
    processors: Vec<Processor>,
    /// For each channel and sink the durable channel that it reads.
    inputs: Vec<(Arc<str>, Option<Reads>)>,
}

/// A durable channel that a node reads, and the tags that it takes.
type Reads = (Arc<str>, Option<TagFilter>);

#[derive(PartialEq)]
struct Processor {
    name: Arc<str>,
    options: Arc<str>,
    tasks: Tasks,
}

/// A node after a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its name.
    pub node: Arc<str>,
    /// How it has changed.
    pub outcome: Outcome,
}

/// The outcome of a reload for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The processor was added.
    Added,
    /// The processor has other options.
    Replaced,
    /// The processor was removed.
    Removed,
    /// The channel or sink runs behind another chain.
    Reconnected,
    /// Nothing changed.
    Kept,
}

impl Outcome {
    /// The outcome as a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Replaced => "replaced",
            Self::Removed => "removed",
            Self::Reconnected => "reconnected",
            Self::Kept => "kept",
        }
    }
}

impl Known {
    pub(crate) fn of(plan: &Plan) -> Self {
        let processor = |plan: &ProcessorPlan| Processor {
            name: plan.name.clone(),
            options: plan.options.clone(),
            tasks: plan.tasks.clone(),
        };
        let input = |input: &ChannelInput| {
            let ChannelInput { channel, tags } = input;
            (plan.channels[*channel].name.clone(), tags.clone())
        };
        let channels = plan.channels.iter();
        let channels =
            channels.map(|channel| (channel.name.clone(), channel.input.as_ref().map(input)));
        let sinks = plan.sinks.iter().map(|sink| match &sink.input {
            Input::Channel(of) => (sink.name.clone(), Some(input(of))),
            Input::Memory { .. } => (sink.name.clone(), None),
        });
        Self {
            processors: plan.processors.iter().map(processor).collect(),
            inputs: channels.chain(sinks).collect(),
        }
    }

    fn processor(&self, name: &str) -> Option<&Processor> {
        self.processors.iter().find(|known| &*known.name == name)
    }

    /// The processors of `self` that `other` does not have.
    fn without<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a Arc<str>> {
        let names = self.processors.iter().map(|processor| &processor.name);
        names.filter(|name| other.processor(name).is_none())
    }

    /// Fails if a channel or sink takes its records from another place.
    fn check_inputs(&self, new: &Self) -> Result<(), Failure> {
        for (node, input) in &new.inputs {
            let old = self.inputs.iter().find(|(name, _)| name == node);
            let why = match (old.map(|(_, old)| old), input) {
                (Some(old), input) if old == input => continue,
                (Some(Some((old, _))), Some((new, _))) if old == new => {
                    format!("would read other tags of the channel {new}")
                }
                (_, Some((new, _))) => format!("would read the channel {new}"),
                (Some(Some((old, _))), None) => format!("would no longer read the channel {old}"),
                (_, None) => continue,
            };
            return Err(Failure::config(format!(
                "{node} {why}: this needs a restart"
            )));
        }
        Ok(())
    }
}

impl Reloader {
    /// Reloads the pipeline with these connections.
    pub(crate) fn new(graph: Graph, nodes: Nodes, known: Known) -> Self {
        Self {
            graph,
            nodes,
            known,
        }
    }

    /// Turns to the processors of `plan` and to the connections that lead through them. Sources, channels and sinks must be those that
    /// run, with the options that they run with. After a failure the pipeline runs as before.
    pub fn reload(&mut self, plan: &Plan) -> Result<Vec<Change>, Failure> {
        let new = Known::of(plan);
        self.known.check_inputs(&new)?;
        let drafted = self.graph.draft(plan).and_then(|draft| {
            let Some(source) = draft.changes_durability() else {
                return Ok(draft);
            };
            Err(Failure::config(format!(
                "the records of {source} would not be kept by the same kinds of channels: this needs a restart"
            )))
        });
        let draft = match drafted {
            Ok(draft) => draft,
            Err(failure) => {
                new.without(&self.known)
                    .for_each(|name| self.graph.forget(name));
                return Err(failure);
            }
        };
        let reconnected: Vec<_> = draft.changed().cloned().collect();
        drop(self.graph.apply(draft, plan));
        self.known
            .without(&new)
            .for_each(|name| self.graph.forget(name));
        self.show(plan);
        let changes = self.changes(&new, plan, &reconnected);
        self.known = new;
        Ok(changes)
    }

    /// A replay of what a node has rejected, or why there can be none.
    pub fn replay(&mut self, node: &str) -> Result<Replay, String> {
        let inputs = self.known.inputs.iter();
        let inputs = inputs.map(|(sink, input)| (sink, input.as_ref().map(|(channel, _)| channel)));
        self.graph.replay(&node.into(), inputs)
    }

    /// Asks a durable channel to forget a consumer that no sink reads for; `None` if no such channel runs.
    pub fn forget_consumer(
        &self,
        channel: &str,
        consumer: &str,
    ) -> Option<oneshot::Receiver<Result<(), String>>> {
        self.graph.forget_consumer(channel, consumer)
    }

    fn changes(&self, new: &Known, plan: &Plan, reconnected: &[Arc<str>]) -> Vec<Change> {
        let processors = new.processors.iter().map(|processor| {
            let outcome = match self.known.processor(&processor.name) {
                None => Outcome::Added,
                Some(old) if old == processor => Outcome::Kept,
                Some(_) => Outcome::Replaced,
            };
            (&processor.name, outcome)
        });
        let removed = self.known.without(new).map(|name| (name, Outcome::Removed));
        let sources = plan.sources.iter().map(|source| &source.name);
        let channels = plan.channels.iter().map(|channel| &channel.name);
        let ends = sources
            .chain(channels)
            .chain(plan.sinks.iter().map(|sink| &sink.name));
        let ends = ends.map(|name| match reconnected.contains(name) {
            true => (name, Outcome::Reconnected),
            false => (name, Outcome::Kept),
        });
        let all = processors.chain(removed).chain(ends);
        let change = |(node, outcome): (&Arc<str>, Outcome)| Change {
            node: node.clone(),
            outcome,
        };
        all.map(change).collect()
    }

    /// Shows the nodes of the plan in `status`: processors behind the channels.
    fn show(&mut self, plan: &Plan) {
        let old = self.nodes.now();
        let channels: Vec<_> = plan.channels.iter().map(|it| it.name.clone()).collect();
        let sources = plan.sources.iter().map(|it| (&it.name, &it.routes));
        let sinks = plan.sinks.iter().map(|it| (&it.name, &it.rejects));
        let routes: Vec<_> = sources.chain(sinks).collect();
        let kept = |node: &NodeStatus| {
            let found = routes.iter().find(|(name, _)| **name == node.name);
            NodeStatus {
                fills: found.map_or_else(Vec::new, |(_, routes)| filled(routes, &channels)),
                ..node.clone()
            }
        };
        let processor = |plan: &ProcessorPlan| NodeStatus {
            name: plan.name.clone(),
            section: "processor",
            kind: plan.kind,
            states: Vec::new(),
            reporter: self.graph.reporter(&plan.name),
            fills: filled(&plan.rejects, &channels),
            consumer: None,
        };
        let ends = old.iter().filter(|node| node.section != "processor");
        let mut all: Vec<_> = ends.map(kept).collect();
        let behind = all
            .iter()
            .take_while(|node| node.section == "channel")
            .count();
        all.splice(behind..behind, plan.processors.iter().map(processor));
        self.nodes.replace(all, plan.running_links());
    }
}
