//! Derives nodes, edges and paths with their promises from a plan, which is the checked configuration. A promise is a delivery guarantee,
//! and the condition under which the guarantee holds (delivery.md, "What a path promises").

use std::{path::PathBuf, time::Duration};

use millstream_config::RejectedLimits;
use millstream_pipeline::{
    plan::{Input, Link, Plan, ProcessorPlan, Route, Target},
    promise::{Guarantee, Promise},
    tags::TagFilter,
};

/// A plan, explained.
pub struct Explained {
    /// The directory of all durable data.
    pub data_dir: PathBuf,
    /// The limits of rejected records in `data_dir`.
    pub rejected: RejectedLimits,
    /// The maximum number of bytes of memory that all batches together may take.
    pub memory_max: usize,
    /// The number of data threads.
    pub threads: usize,
    /// Sources, then durable channels, then sinks, then processors. The nodes of each kind are in the order of the configuration file.
    pub nodes: Vec<Node>,
    /// The edges of the graph as it is configured.
    pub edges: Vec<Edge>,
    /// The edges between sources, channels and sinks. The processors between them are left out.
    pub ends: Vec<Edge>,
    /// The processors. Each entry lists the channels and sinks in front of which the processor runs.
    pub processors: Vec<Processor>,
    /// The promise of each source, and the nodes that it waits for.
    pub sources: Vec<Source>,
    /// The promises of the durable channels.
    pub keeps: Vec<Keeps>,
    /// Every path from a source to a sink.
    pub paths: Vec<Path>,
}

/// A node.
#[derive(Clone)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its type.
    pub type_: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Whether another node takes the rejected records of this node.
    pub rejects_taken: bool,
    /// For sinks: the maximum time that the sink takes to settle a record while its destination works. `None`: the time depends only on the
    /// destination.
    pub settles_within: Option<Duration>,
}

/// The kinds of node that a plan has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Where records enter.
    Source,
    /// Where records are kept.
    Channel,
    /// Where records leave.
    Sink,
    /// Where records are changed on the way.
    Processor,
}

/// The port of an edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Port {
    /// `NAME`.
    Records,
    /// `NAME.ROUTE`.
    Route(String),
    /// `NAME.rejected`.
    Rejected,
}

/// A connection of two nodes, which are given by their indexes in [`Explained::nodes`].
pub struct Edge {
    /// The producer.
    pub from: usize,
    /// The port of the producer.
    pub port: Port,
    /// The consumer.
    pub to: usize,
    /// The tags that the consumer takes, as written in the configuration; `None` for all tags.
    pub tags: Option<String>,
}

/// A processor and where it runs.
pub struct Processor {
    /// Its index in [`Explained::nodes`].
    pub node: usize,
    /// The indexes of the channels and sinks that run a copy of it.
    pub consumers: Vec<usize>,
    /// The names of its ports.
    pub ports: Vec<String>,
    /// The number of threads that the processor has in front of each consumer, and how records are distributed among the threads, in words.
    /// `None` if the processor has no separate thread.
    pub tasks: Option<String>,
    /// The reason why the processor may output different records when it gets the same input again. `None` if it always outputs the same
    /// records.
    pub not_repeatable: Option<String>,
}

/// A source, and the consumers for which the source waits before it sends an ack to its peer.
pub struct Source {
    /// Its index in [`Explained::nodes`].
    pub node: usize,
    /// Its promise.
    pub promise: Promise,
    /// The input that it drops on purpose.
    pub drops: &'static [&'static str],
    /// The channels that must keep a batch before the source answers.
    pub kept_by: Vec<usize>,
    /// The sinks that must settle a batch before the source answers.
    pub settled_by: Vec<usize>,
}

/// A channel, and its promise for the records that it has kept.
pub struct Keeps {
    /// Its index in [`Explained::nodes`].
    pub node: usize,
    /// The promise.
    pub promise: Promise,
}

/// A path from a source to a sink.
pub struct Path {
    /// The indexes of its nodes, from the source to the sink.
    pub nodes: Vec<usize>,
    /// The promise of the sink.
    pub exit: Promise,
    /// The guarantee of the path: the weakest guarantee of its nodes.
    pub guarantee: Guarantee,
}

impl Explained {
    /// Explains a plan.
    pub fn new(plan: &Plan) -> Self {
        let places = Places {
            channels: plan.sources.len(),
            sinks: plan.sources.len() + plan.channels.len(),
        };
        let mut explained = Self {
            data_dir: plan.settings.data_dir.clone(),
            rejected: plan.settings.rejected,
            memory_max: plan.settings.memory_max,
            threads: plan.settings.threads,
            edges: Vec::new(),
            ends: edges(plan, &places),
            nodes: nodes(plan),
            processors: Vec::new(),
            sources: Vec::new(),
            keeps: Vec::new(),
            paths: Vec::new(),
        };
        for (at, channel) in plan.channels.iter().enumerate() {
            let promise = channel.config.promise();
            let node = places.channels + at;
            explained.keeps.push(Keeps { node, promise });
        }
        for (node, source) in plan.sources.iter().enumerate() {
            let (mut kept_by, mut settled_by) = (Vec::new(), Vec::new());
            for route in &source.routes {
                match route.to {
                    Target::Channel(_) => kept_by.push(places.of(route.to)),
                    Target::Sink(_) => settled_by.push(places.of(route.to)),
                }
            }
            // This is also the rule of the runtime: a source is durable if it has consumers and all of them are durable channels.
            let durable = !kept_by.is_empty() && settled_by.is_empty();
            let promise = source.source.promise(durable);
            explained.sources.push(Source {
                node,
                promise,
                drops: source.source.drops(),
                kept_by,
                settled_by,
            });
        }
        explained.paths = explained.paths(plan, &places);
        explained.edges = explained.links(plan);
        explained.processors = explained.processors(plan);
        explained
    }

    /// The index of the node with this name.
    pub fn place(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.name == name)
    }

    fn links(&self, plan: &Plan) -> Vec<Edge> {
        let link = |link: &Link| {
            Some(Edge {
                from: self.place(&link.from)?,
                port: match &*link.port {
                    "" => Port::Records,
                    "rejected" => Port::Rejected,
                    route => Port::Route(route.to_owned()),
                },
                to: self.place(&link.to)?,
                tags: link.tags.as_ref().map(TagFilter::to_string),
            })
        };
        plan.links.iter().filter_map(link).collect()
    }

    fn processors(&self, plan: &Plan) -> Vec<Processor> {
        let processor = |processor: &ProcessorPlan| {
            let consumers = processor.consumers.iter();
            Some(Processor {
                node: self.place(&processor.name)?,
                consumers: consumers.filter_map(|name| self.place(name)).collect(),
                ports: (processor.processor.ports().iter())
                    .map(|port| port.to_string())
                    .collect(),
                tasks: tasks(processor),
                not_repeatable: processor.processor.repeatable().err(),
            })
        };
        plan.processors.iter().filter_map(processor).collect()
    }

    fn paths(&self, plan: &Plan, places: &Places) -> Vec<Path> {
        let mut paths = Vec::new();
        let exit = |sink: usize, durable| plan.sinks[sink - places.sinks].sink.promise(durable);
        for source in &self.sources {
            for sink in &source.settled_by {
                let exit = exit(*sink, false);
                let guarantee = source.promise.guarantee.min(exit.guarantee);
                let nodes = vec![source.node, *sink];
                paths.push(Path {
                    nodes,
                    exit,
                    guarantee,
                });
            }
            let mut open: Vec<_> = (source.kept_by.iter().rev())
                .map(|channel| (vec![source.node, *channel], source.promise.guarantee))
                .collect();
            while let Some((nodes, entry)) = open.pop() {
                let channel = nodes[nodes.len() - 1];
                let kept = self.keeps.iter().find(|keeps| keeps.node == channel);
                let entry = kept.map_or(entry, |keeps| entry.min(keeps.promise.guarantee));
                for node in self.consumers(channel) {
                    let nodes = [&nodes[..], &[node]].concat();
                    if node < places.sinks {
                        open.push((nodes, entry));
                        continue;
                    }
                    let exit = exit(node, true);
                    let guarantee = entry.min(exit.guarantee);
                    paths.push(Path {
                        nodes,
                        exit,
                        guarantee,
                    });
                }
            }
        }
        paths
    }

    /// The channels and sinks that take the records of a source or channel, without its rejected records.
    pub fn consumers(&self, node: usize) -> Vec<usize> {
        let edges = self.ends.iter();
        let taken = edges.filter(|edge| edge.from == node && edge.port == Port::Records);
        taken.map(|edge| edge.to).collect()
    }

    /// The sources and channels from which a channel or sink takes records, except rejected records.
    pub fn feeders(&self, node: usize) -> Vec<usize> {
        let edges = self.ends.iter();
        let given = edges.filter(|edge| edge.to == node && edge.port == Port::Records);
        given.map(|edge| edge.from).collect()
    }

    /// The durable channel from which a processor gets records, directly or through other processors; `None` if there is none.
    pub fn channel_before(&self, processor: usize) -> Option<usize> {
        let (mut open, mut seen) = (vec![processor], vec![]);
        while let Some(at) = open.pop() {
            let edges = self.edges.iter();
            for edge in edges.filter(|edge| edge.to == at && edge.port != Port::Rejected) {
                match self.nodes[edge.from].kind {
                    Kind::Channel => return Some(edge.from),
                    Kind::Processor if !seen.contains(&edge.from) => {
                        seen.push(edge.from);
                        open.push(edge.from);
                    }
                    Kind::Processor | Kind::Source | Kind::Sink => {}
                }
            }
        }
        None
    }

    /// The name of the port at which an edge begins, as it is written in `inputs`.
    pub fn port_name(&self, edge: &Edge) -> String {
        let name = &self.nodes[edge.from].name;
        match &edge.port {
            Port::Records => name.clone(),
            Port::Route(route) => format!("{name}.{route}"),
            Port::Rejected => format!("{name}.rejected"),
        }
    }

    /// The names of these nodes.
    pub fn names(&self, nodes: &[usize]) -> Vec<&str> {
        nodes.iter().map(|at| &*self.nodes[*at].name).collect()
    }
}

/// The indexes in [`Explained::nodes`] at which the channels and the sinks begin.
struct Places {
    channels: usize,
    sinks: usize,
}

impl Places {
    fn of(&self, target: Target) -> usize {
        match target {
            Target::Channel(at) => self.channels + at,
            Target::Sink(at) => self.sinks + at,
        }
    }
}

/// The threads of a processor in words; `None` if it has no separate thread.
fn tasks(processor: &ProcessorPlan) -> Option<String> {
    match processor.tasks.count.unwrap_or(1) {
        1 if processor.processor.blocking() => Some("on its own thread".to_owned()),
        1 => None,
        count => {
            let partition = &processor.tasks.partition;
            Some(format!("on {count} threads, partition {partition}"))
        }
    }
}

fn nodes(plan: &Plan) -> Vec<Node> {
    let node = |name: &str, type_, kind, rejects: &[Route]| Node {
        name: name.to_owned(),
        type_,
        kind,
        rejects_taken: !rejects.is_empty(),
        settles_within: None,
    };
    let sources = plan.sources.iter();
    let sources = sources.map(|s| node(&s.name, s.kind, Kind::Source, &s.rejects));
    let channels = plan.channels.iter();
    let channels = channels.map(|c| node(&c.name, c.kind, Kind::Channel, &[]));
    let sinks = plan.sinks.iter().map(|s| Node {
        settles_within: s.sink.settles_within(),
        ..node(&s.name, s.kind, Kind::Sink, &s.rejects)
    });
    let processors = plan.processors.iter();
    let processors = processors.map(|p| node(&p.name, p.kind, Kind::Processor, &p.rejects));
    sources
        .chain(channels)
        .chain(sinks)
        .chain(processors)
        .collect()
}

fn edges(plan: &Plan, places: &Places) -> Vec<Edge> {
    let mut edges = Vec::new();
    let mut add = |from, port, to, tags: &Option<TagFilter>| {
        edges.push(Edge {
            from,
            port,
            to,
            tags: tags.as_ref().map(TagFilter::to_string),
        });
    };
    for (from, source) in plan.sources.iter().enumerate() {
        for route in &source.routes {
            add(from, Port::Records, places.of(route.to), &route.tags);
        }
        for route in &source.rejects {
            add(from, Port::Rejected, places.of(route.to), &route.tags);
        }
    }
    for (at, channel) in plan.channels.iter().enumerate() {
        if let Some(input) = &channel.input {
            let from = places.channels + input.channel;
            add(from, Port::Records, places.channels + at, &input.tags);
        }
    }
    for (at, sink) in plan.sinks.iter().enumerate() {
        let own = places.sinks + at;
        if let Input::Channel(input) = &sink.input {
            add(
                places.channels + input.channel,
                Port::Records,
                own,
                &input.tags,
            );
        }
        for route in &sink.rejects {
            add(own, Port::Rejected, places.of(route.to), &route.tags);
        }
    }
    edges
}
