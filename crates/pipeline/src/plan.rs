//! The plan: the checked graph, which `crate::layout` builds from the configuration and `crate::launch` runs.

use std::{path::PathBuf, sync::Arc};

use millstream_config::RejectedLimits;

use crate::{
    channel::{Consumer, pump_of},
    node::{ChannelConfig, Sink, Source},
    partition::Tasks,
    processor::Processor,
    tags::TagFilter,
};

/// A graph that can run.
pub struct Plan {
    /// Sources, in the order of the file.
    pub sources: Vec<SourcePlan>,
    /// Processors, in the order of the file. They run in the chains of channels and sinks.
    pub processors: Vec<ProcessorPlan>,
    /// Durable channels, in the order of the file.
    pub channels: Vec<ChannelPlan>,
    /// Sinks, in the order of the file.
    pub sinks: Vec<SinkPlan>,
    /// All connections of the graph as the configuration has them, in the order of the file. They are only shown to users; the graph
    /// runs from the other fields.
    pub links: Vec<Link>,
    /// The settings that the runtime needs.
    pub settings: RunSettings,
}

impl Plan {
    /// Returns the connections as they run: with a pump in front of each channel that reads another channel.
    pub(crate) fn running_links(&self) -> Vec<Link> {
        let pumped = || self.channels.iter().filter(|it| it.input.is_some());
        let link = |link: &Link| {
            let channel = pumped().find(|channel| channel.name == link.to);
            let to = channel.map_or(link.to.clone(), ChannelPlan::pump);
            Link { to, ..link.clone() }
        };
        let from_pump = |channel: &ChannelPlan| Link {
            from: channel.pump(),
            port: "".into(),
            to: channel.name.clone(),
            tags: None,
        };
        let from_pumps = pumped().map(from_pump);
        self.links.iter().map(link).chain(from_pumps).collect()
    }
}

/// A connection between two nodes.
#[derive(Clone)]
pub struct Link {
    /// The producer.
    pub from: Arc<str>,
    /// The name of its port: empty for `NAME`, otherwise a route or `rejected`.
    pub port: Arc<str>,
    /// The consumer.
    pub to: Arc<str>,
    /// The tags that it takes; `None`: all.
    pub tags: Option<TagFilter>,
}

/// The settings that the runtime needs.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// The directory of all durable state; one process locks it.
    pub data_dir: PathBuf,
    /// The limit of the memory of all batches and queues together, in bytes.
    pub memory_max: usize,
    /// The number of data threads.
    pub threads: usize,
    /// The value `host` of records that are written on this machine.
    pub host: Arc<str>,
    /// How many rejected records are kept.
    pub rejected: RejectedLimits,
}

/// A consumer of a port.
pub struct Route {
    /// The consumer.
    pub to: Target,
    /// The index of the entry in the consumer's chain; 0 if there is no chain.
    pub entry: usize,
    /// The tags that it takes; `None`: all.
    pub tags: Option<TagFilter>,
}

/// A consumer, by its index in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A durable channel.
    Channel(usize),
    /// A sink, through the memory channel in front of it.
    Sink(usize),
}

/// Returns the names of the durable channels that `routes` lead to. `channels` has the names of all channels of the plan.
pub(crate) fn filled(routes: &[Route], channels: &[Arc<str>]) -> Vec<Arc<str>> {
    let channel = |route: &Route| match route.to {
        Target::Channel(index) => channels.get(index).cloned(),
        Target::Sink(_) => None,
    };
    routes.iter().filter_map(channel).collect()
}

/// A source and its consumers.
pub struct SourcePlan {
    /// Its name.
    pub name: Arc<str>,
    /// The type, for `status` and `explain`.
    pub kind: &'static str,
    /// The built source.
    pub source: Box<dyn Source>,
    /// Its type and options as a text, without its connections. Equal texts mean that sources do the same.
    pub options: Arc<str>,
    /// The consumers of `NAME`.
    pub routes: Vec<Route>,
    /// The consumers of `NAME.rejected`. Without any, rejected records are kept in `data_dir/rejected`.
    pub rejects: Vec<Route>,
}

/// A processor.
pub struct ProcessorPlan {
    /// Its name.
    pub name: Arc<str>,
    /// The type.
    pub kind: &'static str,
    /// The built processor.
    pub processor: Arc<dyn Processor>,
    /// Its type and options as a text, with the programs that the options name. Equal texts mean that processors do the same.
    pub options: Arc<str>,
    /// Its tasks in each chain.
    pub tasks: Tasks,
    /// The channels and sinks whose chains contain it, in the order of the file. The first one reports the records that it rejects.
    pub consumers: Vec<Arc<str>>,
    /// The consumers of `NAME.rejected`. Without any, rejected records are kept in `data_dir/rejected`.
    pub rejects: Vec<Route>,
}

/// The processors on the way to a consumer. Equal plans make chains that do the same.
#[derive(Default, PartialEq)]
pub struct ChainPlan {
    /// The processors, ordered so that each one comes after the processors that feed it.
    pub nodes: Vec<ChainNode>,
    /// The first steps of each entry. An entry is a port of another node that leads into the chain.
    pub entries: Vec<Vec<Hop>>,
}

/// A processor in a chain.
pub struct ChainNode {
    /// Its name.
    pub name: Arc<str>,
    /// Its index in [`Plan::processors`].
    pub index: usize,
    /// The built processor.
    pub processor: Arc<dyn Processor>,
    /// Its tasks.
    pub tasks: Tasks,
    /// Its ports, `NAME` first.
    pub ports: Vec<ChainPort>,
    /// Whether this chain counts the processor's work and reports the records that it rejects. Exactly one of the processor's chains
    /// does.
    pub reports: bool,
    /// From [`ProcessorPlan::options`].
    pub options: Arc<str>,
}

impl PartialEq for ChainNode {
    fn eq(&self, other: &Self) -> bool {
        let Self {
            name,
            index: _,
            processor: _,
            tasks,
            ports,
            reports,
            options,
        } = self;
        *name == other.name
            && *tasks == other.tasks
            && *ports == other.ports
            && *reports == other.reports
            && *options == other.options
    }
}

impl ChainPlan {
    /// Whether all records that arrive by this entry go directly to the consumer, without a processor.
    pub(crate) fn is_direct(&self, entry: usize) -> bool {
        let hops = self.entries.get(entry);
        hops.is_some_and(|hops| matches!(hops[..], [Hop { to: Step::End, .. }]))
    }

    /// Returns the step into a processor; `None` if the processor is not in the chain.
    pub(crate) fn input_of(&self, node: &str) -> Option<Hop> {
        let at = self.nodes.iter().position(|it| *it.name == *node)?;
        Some(Hop {
            to: Step::Node(at),
            tags: None,
        })
    }
}

impl ChainNode {
    /// Returns the first port with the same next steps as `port`. Records of both ports share an output, so that they stay in order.
    pub fn joined(&self, port: usize) -> usize {
        let hops = &self.ports[port].hops;
        let is_same = |other: &ChainPort| other.hops == *hops;
        self.ports.iter().position(is_same).unwrap_or(port)
    }
}

/// A port of a processor in a chain.
#[derive(PartialEq)]
pub struct ChainPort {
    /// Whether some node of the graph takes it. Otherwise its records are filtered.
    pub is_taken: bool,
    /// The next steps within this chain.
    pub hops: Vec<Hop>,
}

/// A step from a port.
#[derive(Clone, Debug, PartialEq)]
pub struct Hop {
    /// The next step.
    pub to: Step,
    /// The tags that it takes; `None`: all.
    pub tags: Option<TagFilter>,
}

/// A step of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The node with this index.
    Node(usize),
    /// The consumer.
    End,
}

/// A durable channel and its consumers.
pub struct ChannelPlan {
    /// Its name.
    pub name: Arc<str>,
    /// The type.
    pub kind: &'static str,
    /// The built channel.
    pub config: Box<dyn ChannelConfig>,
    /// Its type and options as a text, without its connections. Equal texts mean that channels do the same.
    pub options: Arc<str>,
    /// The durable channel that it reads through a pump. `None`: other nodes put batches into it directly.
    pub input: Option<ChannelInput>,
    /// The processors in front of it, if there are any.
    pub chain: Option<Arc<ChainPlan>>,
    /// The channels that read it, followed by the sinks.
    pub consumers: Vec<Consumer>,
}

impl ChannelPlan {
    /// Returns the name of the pump that fills this channel from its input.
    pub fn pump(&self) -> Arc<str> {
        pump_of(&self.name)
    }

    /// Returns a consumer by its name.
    pub(crate) fn consumer(&self, name: &str) -> Consumer {
        let found = self.consumers.iter().find(|it| *it.name == *name);
        found.cloned().unwrap_or_else(|| name.into())
    }
}

/// A sink and its input.
pub struct SinkPlan {
    /// Its name.
    pub name: Arc<str>,
    /// The type.
    pub kind: &'static str,
    /// The built sink.
    pub sink: Arc<dyn Sink>,
    /// Its type and options as a text, without its connections. Equal texts mean that sinks do the same.
    pub options: Arc<str>,
    /// Its input.
    pub input: Input,
    /// The processors in front of it, if there are any.
    pub chain: Option<Arc<ChainPlan>>,
    /// The consumers of `NAME.rejected`. Without any, rejected records are kept in `data_dir/rejected`.
    pub rejects: Vec<Route>,
}

/// A durable channel that a consumer reads.
#[derive(Clone)]
pub struct ChannelInput {
    /// The channel's index in the plan.
    pub channel: usize,
    /// The tags that the consumer takes; `None`: all.
    pub tags: Option<TagFilter>,
}

/// The input of a sink.
pub enum Input {
    /// A durable channel, with a cursor.
    Channel(ChannelInput),
    /// Memory: a queue for each lane.
    Memory {
        /// The size of each queue in bytes.
        queue_bytes: usize,
        /// The lanes; by default one for each data thread.
        tasks: Tasks,
    },
}
