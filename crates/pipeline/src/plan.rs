//! Plan: the checked graph. Made from the configuration by a pure function (`crate::layout`), run by `crate::launch`.

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
    /// What of the top level the runtime needs.
    pub settings: RunSettings,
}

/// What of the top level the runtime needs.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// Everything durable; locked by one process.
    pub data_dir: PathBuf,
    /// Bytes of all batches and queues together.
    pub memory_max: usize,
    /// Data threads.
    pub threads: usize,
    /// What `host` is for records written on this machine.
    pub host: Arc<str>,
    /// How many rejected records are kept.
    pub rejected: RejectedLimits,
}

/// Who takes from a port.
pub struct Route {
    /// Which one.
    pub to: Target,
    /// Which tags.
    pub tags: Option<TagFilter>,
}

/// A consumer, by its place in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A durable channel.
    Channel(usize),
    /// A sink, through the memory in front of it.
    Sink(usize),
}

/// A source and who takes from it.
pub struct SourcePlan {
    /// Its name.
    pub name: Arc<str>,
    /// The type, for `status` and `explain`.
    pub kind: &'static str,
    /// What it is.
    pub source: Box<dyn Source>,
    /// Who takes from `NAME`.
    pub routes: Vec<Route>,
    /// Who takes from `NAME.rejected`; nobody: it is kept in `data_dir/rejected`.
    pub rejects: Vec<Route>,
}

/// A durable channel and who reads it.
pub struct ChannelPlan {
    /// Its name.
    pub name: Arc<str>,
    /// The type.
    pub kind: &'static str,
    /// What it is.
    pub config: Box<dyn ChannelConfig>,
    /// The sinks that read it.
    pub consumers: Vec<Consumer>,
}

/// A sink and where it takes from.
pub struct SinkPlan {
    /// Its name.
    pub name: Arc<str>,
    /// The type.
    pub kind: &'static str,
    /// What it is.
    pub sink: Arc<dyn Sink>,
    /// Where it takes from.
    pub input: Input,
    /// Who takes from `NAME.rejected`; nobody: it is kept in `data_dir/rejected`.
    pub rejects: Vec<Route>,
}

/// Where a sink takes from.
pub enum Input {
    /// A durable channel, with a cursor.
    Channel {
        /// Which one, by its place in the plan.
        channel: usize,
        /// Which tags it takes from it.
        tags: Option<TagFilter>,
    },
    /// Memory: whatever is routed to it, by queues of so many bytes per lane.
    Memory {
        /// Bytes of a queue.
        queue_bytes: usize,
    },
}
