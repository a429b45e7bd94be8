//! Builds the plan from the checked graph. In the plan, nodes refer to each other by indexes.

use std::sync::Arc;

use super::{
    Built, Entry, Exit, Inputs, Port, Taker, Takers,
    chains::{ChainLayout, Chained},
    is_channel, is_memory,
};
use crate::{
    channel::{Behind, Consumer, pump_of},
    node::Build,
    partition::Tasks,
    plan::{
        ChainNode, ChainPlan, ChainPort, ChannelInput, ChannelPlan, Hop, Input, Link, Plan,
        ProcessorPlan, Route, RunSettings, SinkPlan, SourcePlan, Step, Target,
    },
};

/// Builds the plan. `takers` has the consumers of all ports. `chained` has the chains, and the consumers of the endpoints'
/// ports. Endpoints are sources, channels and sinks. `queues` has the size of the memory queue in front of each node, in bytes. `inputs`
/// has the input options of each consumer.
pub fn assemble(
    entries: &[Entry],
    built: Vec<Option<Built>>,
    takers: &Takers,
    chained: &Chained,
    queues: &[usize],
    inputs: &[Option<Inputs>],
    settings: RunSettings,
) -> Plan {
    let wires = Wires::new(entries, &built, takers, chained, inputs);
    let wired: Vec<_> = (0..entries.len())
        .map(|at| {
            (
                wires.input(at, queues[at]),
                wires.routes((at, Exit::MAIN)),
                wires.routes((at, Exit::Rejected)),
                (wires.chain(at), wires.options(at)),
            )
        })
        .collect();
    let mut plan = Plan {
        sources: Vec::new(),
        processors: wires.processors(),
        channels: Vec::new(),
        sinks: Vec::new(),
        links: wires.links(),
        settings,
    };
    for (at, (node, (input, routes, rejects, (chain, options)))) in
        built.into_iter().zip(wired).enumerate()
    {
        let (name, kind) = (entries[at].name.clone(), entries[at].component.name);
        match node {
            Some(Built::Source(source)) => plan.sources.push(SourcePlan {
                name,
                kind,
                source,
                options,
                routes,
                rejects,
            }),
            Some(Built::Channel(config)) if config.memory_bytes().is_none() => {
                plan.channels.push(ChannelPlan {
                    name,
                    kind,
                    config,
                    options,
                    input: match input {
                        Input::Channel(input) => Some(input),
                        Input::Memory { .. } => None,
                    },
                    chain,
                    consumers: consumers(at, entries, chained, inputs),
                });
            }
            Some(Built::Sink(sink)) => plan.sinks.push(SinkPlan {
                name,
                kind,
                sink,
                options,
                input,
                chain,
                rejects,
            }),
            _ => {}
        }
    }
    plan
}

/// The consumers of a durable channel: first the pumps of channels that read it, then the sinks.
fn consumers(
    channel: usize,
    entries: &[Entry],
    chained: &Chained,
    inputs: &[Option<Inputs>],
) -> Vec<Consumer> {
    let readers = chained.takers.get(&(channel, Exit::MAIN));
    let (pumps, sinks): (Vec<_>, Vec<_>) = readers
        .into_iter()
        .flatten()
        .partition(|taker| is_channel(entries, taker.node));
    let consumer = |taker: &Taker| {
        let name = &entries[taker.node].name;
        Consumer {
            name: match is_channel(entries, taker.node) {
                true => pump_of(name),
                false => name.clone(),
            },
            behind: behind(&inputs[taker.node]),
            tags: taker.tags.clone(),
        }
    };
    pumps.into_iter().chain(sinks).map(consumer).collect()
}

fn behind(inputs: &Option<Inputs>) -> Behind {
    let behind = inputs.as_ref().and_then(|inputs| inputs.behind.as_ref());
    behind.map(|(behind, _)| *behind).unwrap_or_default()
}

struct Wires<'a> {
    entries: &'a [Entry],
    built: &'a [Option<Built>],
    takers: &'a Takers,
    chained: &'a Chained,
    inputs: &'a [Option<Inputs>],
    /// For each consumer, its index in the plan's list of channels or sinks.
    targets: Vec<Target>,
    /// The indexes of all processors in `entries`, in the order of the plan.
    processors: Vec<usize>,
}

impl<'a> Wires<'a> {
    fn new(
        entries: &'a [Entry],
        built: &'a [Option<Built>],
        takers: &'a Takers,
        chained: &'a Chained,
        inputs: &'a [Option<Inputs>],
    ) -> Self {
        let (mut channels, mut sinks) = (0, 0);
        let target = |(at, entry): (usize, &Entry)| {
            let (count, target): (_, fn(usize) -> Target) = match entry.component.build {
                Build::Channel(_) => (&mut channels, Target::Channel),
                _ => (&mut sinks, Target::Sink),
            };
            let found = target(*count);
            let is_listed = match entry.component.build {
                Build::Source(_) | Build::Processor(_) => false,
                Build::Channel(_) | Build::Sink(_) => !is_memory(built, at),
            };
            *count += usize::from(is_listed);
            found
        };
        let targets = entries.iter().enumerate().map(target).collect();
        let is_processor = |at: &usize| matches!(built[*at], Some(Built::Processor(_)));
        Self {
            entries,
            built,
            takers,
            chained,
            inputs,
            targets,
            processors: (0..entries.len()).filter(is_processor).collect(),
        }
    }

    /// The consumers of an endpoint's port.
    fn routes(&self, port: Port) -> Vec<Route> {
        let all = self.chained.takers.get(&port).into_iter().flatten();
        all.map(|taker| Route {
            to: self.targets[taker.node],
            entry: taker.entry,
            tags: taker.tags.clone(),
        })
        .collect()
    }

    /// The input of a channel or sink.
    fn input(&self, consumer: usize, queue_bytes: usize) -> Input {
        let behind = self.chained.takers.iter().find_map(|((node, _), all)| {
            let taker = all
                .iter()
                .find(|taker| taker.node == consumer && is_channel(self.entries, *node))?;
            let Target::Channel(channel) = self.targets[*node] else {
                return None;
            };
            Some(Input::Channel(ChannelInput {
                channel,
                tags: taker.tags.clone(),
            }))
        });
        behind.unwrap_or(Input::Memory {
            queue_bytes,
            tasks: self.tasks(consumer),
        })
    }

    /// The type and options of a node as a text, without its connections. Equal texts mean that the nodes do the same.
    fn options(&self, at: usize) -> Arc<str> {
        let Entry {
            component, options, ..
        } = &self.entries[at];
        let mut options = options.clone();
        for connection in ["inputs", "tags"] {
            options.take(connection);
        }
        let options = options.read::<serde_json::Value>();
        // If JSON cannot represent the options, the text has the list of problems instead.
        let options = options.map_or_else(|problems| format!("{problems:?}"), |it| it.to_string());
        let file = match &self.built[at] {
            Some(Built::Processor(processor)) => processor.text_of_file(),
            _ => "",
        };
        format!("{} {options} {file}", component.name).into()
    }

    fn tasks(&self, consumer: usize) -> Tasks {
        let inputs = self.inputs[consumer].as_ref();
        inputs
            .map(|inputs| inputs.tasks.clone())
            .unwrap_or_default()
    }

    /// The chain of a consumer.
    fn chain(&self, consumer: usize) -> Option<Arc<ChainPlan>> {
        let layout = self.chained.chains[consumer].as_ref()?;
        let hops = |port| {
            let steps = layout.steps(port, consumer, self.takers);
            steps.map(|taker| self.hop(taker, layout)).collect()
        };
        let node = |at: &usize| {
            let Some(Built::Processor(processor)) = &self.built[*at] else {
                return None;
            };
            let port = |number| ChainPort {
                is_taken: self.takers.contains_key(&(*at, Exit::Records(number))),
                hops: hops((*at, Exit::Records(number))),
            };
            Some(ChainNode {
                name: self.entries[*at].name.clone(),
                index: self.processors.iter().position(|other| other == at)?,
                ports: (0..processor.ports().len()).map(port).collect(),
                processor: processor.clone(),
                tasks: self.tasks(*at),
                reports: self.consumers(*at).next() == Some(consumer),
                options: self.options(*at),
            })
        };
        Some(Arc::new(ChainPlan {
            nodes: layout.nodes.iter().filter_map(node).collect(),
            entries: layout.entries.iter().map(|port| hops(*port)).collect(),
        }))
    }

    fn hop(&self, taker: &Taker, layout: &ChainLayout) -> Hop {
        let at = layout.nodes.iter().position(|node| *node == taker.node);
        Hop {
            to: at.map_or(Step::End, Step::Node),
            tags: taker.tags.clone(),
        }
    }

    /// Returns the consumers whose chains contain a processor.
    fn consumers(&self, processor: usize) -> impl Iterator<Item = usize> {
        let chains = self.chained.chains.iter().enumerate();
        chains.filter_map(move |(consumer, chain)| {
            let chain = chain.as_ref()?;
            chain.nodes.contains(&processor).then_some(consumer)
        })
    }

    fn processors(&self) -> Vec<ProcessorPlan> {
        let plan = |at: &usize| {
            let Some(Built::Processor(processor)) = &self.built[*at] else {
                return None;
            };
            Some(ProcessorPlan {
                name: self.entries[*at].name.clone(),
                kind: self.entries[*at].component.name,
                processor: processor.clone(),
                options: self.options(*at),
                tasks: self.tasks(*at),
                consumers: (self.consumers(*at))
                    .map(|consumer| self.entries[consumer].name.clone())
                    .collect(),
                rejects: self.routes((*at, Exit::Rejected)),
            })
        };
        self.processors.iter().filter_map(plan).collect()
    }

    /// All connections between nodes, as the configuration has them.
    fn links(&self) -> Vec<Link> {
        let mut ports: Vec<_> = self.takers.iter().collect();
        ports.sort_unstable_by_key(|(port, _)| **port);
        let link = |((node, exit), taker): (Port, &Taker)| Link {
            from: self.entries[node].name.clone(),
            port: self.name(node, exit),
            to: self.entries[taker.node].name.clone(),
            tags: taker.tags.clone(),
        };
        let links = ports.into_iter();
        let links = links.flat_map(|(port, all)| all.iter().map(|taker| (*port, taker)));
        links.map(link).collect()
    }

    /// The name of a port without its node's name.
    fn name(&self, node: usize, exit: Exit) -> Arc<str> {
        match (exit, &self.built[node]) {
            (Exit::Rejected, _) => "rejected".into(),
            (Exit::Records(number), Some(Built::Processor(processor))) => {
                processor.ports().get(number).cloned().unwrap_or_default()
            }
            _ => "".into(),
        }
    }
}
