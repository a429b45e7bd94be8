//! The plan: the checked graph, which `crate::layout` builds from the configuration and `crate::launch` runs.

use std::{path::PathBuf, sync::Arc};

use millstream_config::RejectedLimits;

use crate::{
    channel::Consumer,
    node::{ChannelConfig, Sink, Source},
    tags::TagFilter,
};

/// A graph that can run.
pub struct Plan {
    /// Sources, in the order of the file.
    pub sources: Vec<SourcePlan>,
    /// Durable channels, in the order of the file.
    pub channels: Vec<ChannelPlan>,
    /// Sinks, in the order of the file.
    pub sinks: Vec<SinkPlan>,
    /// The settings that the runtime needs.
    pub settings: RunSettings,
}

/// The settings that the runtime needs.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// The directory of all durable state; one process locks it.
    pub data_dir: PathBuf,
    /// Bound of all batches and queues together, in bytes.
    pub memory_max: usize,
    /// Data threads.
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
    /// The tags that it takes.
    pub tags: Option<TagFilter>,
}

/// A consumer, by its index in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A durable channel.
    Channel(usize),
    /// A sink, through the memory in front of it.
    Sink(usize),
}

/// A source and its consumers.
pub struct SourcePlan {
    /// Its name.
    pub name: Arc<str>,
    /// The type, for `status` and `explain`.
    pub kind: &'static str,
    /// The built source.
    pub source: Box<dyn Source>,
    /// The consumers of `NAME`.
    pub routes: Vec<Route>,
    /// The consumers of `NAME.rejected`. Without any, rejected records are kept in `data_dir/rejected`.
    pub rejects: Vec<Route>,
}

/// A durable channel and its consumers.
pub struct ChannelPlan {
    /// Its name.
    pub name: Arc<str>,
    /// The type.
    pub kind: &'static str,
    /// The built channel.
    pub config: Box<dyn ChannelConfig>,
    /// The sinks that read it.
    pub consumers: Vec<Consumer>,
}

/// A sink and its input.
pub struct SinkPlan {
    /// Its name.
    pub name: Arc<str>,
    /// The type.
    pub kind: &'static str,
    /// The built sink.
    pub sink: Arc<dyn Sink>,
    /// Its input.
    pub input: Input,
    /// The consumers of `NAME.rejected`. Without any, rejected records are kept in `data_dir/rejected`.
    pub rejects: Vec<Route>,
}

/// The input of a sink.
pub enum Input {
    /// A durable channel, with a cursor.
    Channel {
        /// The channel's index in the plan.
        channel: usize,
        /// The tags that it takes.
        tags: Option<TagFilter>,
    },
    /// Memory: a queue for each lane.
    Memory {
        /// Size of a queue in bytes.
        queue_bytes: usize,
    },
}
