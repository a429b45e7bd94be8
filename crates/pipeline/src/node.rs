//! The contract of sources and sinks, and what the runtime gives them.

use std::{future::Future, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use millstream_config::{Node, Problem};
use millstream_record::Pool;

use crate::{
    channel::{BoxFuture, Channel, Consumer, Reader},
    failure::Failure,
    inlet::{CHECKPOINT_AGE, Inlet},
    meters::NodeMeters,
    outlet::Outlet,
    promise::Promise,
    report::Reporter,
    stop::Stop,
    threads::Threads,
};

/// A future that stays on its thread.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Where batches come from.
pub trait Source: Send {
    /// Takes what the source needs from outside (listeners, directories) before anything runs. A failure ends the start, but
    /// one of its own state ([`Failure::state`]) only leaves this source out. Called once.
    fn bind(&mut self, context: &SourceContext) -> Result<(), Failure>;
    /// Reads until the inputs have ended, or until `context.stop` says so; then waits for what its peers wait for, and
    /// returns. Called again after a failure or a panic (what `bind` took is kept in `self`). Runs on a data thread and
    /// must not block it.
    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>>;
    /// The values that its batches can carry, beside the tag: names out of [`millstream_record::VALUE_NAMES`]. The layout
    /// refuses templates behind the source that ask for others.
    fn values(&self) -> &'static [&'static str];
    /// What it promises its peers; `durable`: a disk channel follows at once.
    fn promise(&self, durable: bool) -> Promise;
    /// The largest message of a peer that it takes (`limits.frame`), for `check`. None: it has no peers.
    fn message_bytes_max(&self) -> Option<usize> {
        None
    }
}

/// Where batches land. Holds the checked configuration; the state of a running sink lives in the future of `run`.
pub trait Sink: Send + Sync {
    /// On which threads it runs.
    fn placement(&self) -> Placement;
    /// Recovers what an earlier run has left, calls `inlet.resume` (with its own position, if it commits one), then takes
    /// batches until the inlet ends. Called again after a failure or a panic.
    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        context: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>>;
    /// What it promises for what it takes; `durable`: it stands behind a disk channel.
    fn promise(&self, durable: bool) -> Promise;
    /// The longest time from taking a batch to settling it while the destination works, for `explain` and `check`.
    /// None: somebody else decides (the next server's ack).
    fn settles_within(&self) -> Option<Duration> {
        Some(CHECKPOINT_AGE)
    }
    /// Tries whether the destination can be reached or written, changing nothing, for `check --connect`; what it says is
    /// shown. May block for some seconds. None: there is nothing to try.
    fn probe(&self) -> Option<Result<String, Failure>> {
        None
    }
}

/// On which threads a sink runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// One task per data thread, each taking what that thread reads. Must not block. Behind a durable channel there is
    /// one task only, on a thread of its own.
    DataThreads,
    /// One task on a thread of its own, where it may block (writes, syncs).
    OwnThread,
}

/// What a source gets. Cheap to clone and to send to other threads.
#[derive(Clone)]
pub struct SourceContext {
    /// The node's name.
    pub name: Arc<str>,
    /// The port `NAME`.
    pub outlet: Outlet,
    /// The port `NAME.rejected`: send it what [`crate::reject::batch`] makes.
    pub rejects: Outlet,
    /// The data threads, to deal connections to.
    pub threads: Threads,
    /// When to stop reading.
    pub stop: Stop,
    /// Whether the run ends when the inputs have ended (`--once`): a source that would wait for more stops instead.
    pub once: bool,
    /// Where buffers come from: `reserve` what comes in.
    pub pool: Pool,
    /// The node's meters.
    pub meters: NodeMeters,
    /// The node's log lines.
    pub reporter: Reporter,
    /// What `host` is for records that are written on this machine.
    pub host: Arc<str>,
    /// A directory of the node's own for durable state; made when first used (`data_dir/sources/NAME`).
    pub directory: PathBuf,
}

/// What a sink gets.
#[derive(Clone)]
pub struct SinkContext {
    /// The node's name.
    pub name: Arc<str>,
    /// When the process wants to end. The inlet ends then too, after what was taken; a sink looks at this only to cut
    /// waiting (for a destination that does not answer) short.
    pub stop: Stop,
    /// Where buffers come from: `take` what drains.
    pub pool: Pool,
    /// The node's meters.
    pub meters: NodeMeters,
    /// The node's log lines.
    pub reporter: Reporter,
    /// A directory of the node's own for durable state; made when first used (`data_dir/sinks/NAME`).
    pub directory: PathBuf,
    /// Behind memory with a lane per data thread: which lane this is (0 else).
    pub lane: usize,
}

/// What a channel gets to open.
#[derive(Clone)]
pub struct ChannelContext {
    /// The node's name.
    pub name: Arc<str>,
    /// Where buffers come from: readers `take`.
    pub pool: Pool,
    /// The node's meters.
    pub meters: NodeMeters,
    /// The node's log lines.
    pub reporter: Reporter,
    /// The channel's directory (`data_dir/channels/NAME`); made by the channel.
    pub directory: PathBuf,
}

/// A channel that is open: takes groups, and gives each consumer a reader.
pub struct Opened {
    /// The producers' side.
    pub channel: Arc<dyn Channel>,
    /// The readers, in the order of the consumers' names.
    pub readers: Vec<Box<dyn Reader>>,
    /// Ready when, after `close` and the last reader's end, everything that was taken is kept and all files are closed.
    pub finished: BoxFuture<'static, Result<(), Failure>>,
}

/// A channel's checked configuration.
pub trait ChannelConfig: Send {
    /// Opens (recovers) a durable channel for these consumers.
    fn open(&self, context: ChannelContext, consumers: &[Consumer]) -> Result<Opened, Failure>;
    /// For a channel that keeps nothing: the bytes of a queue. The plan leaves it out and lays such queues between its
    /// inputs and its consumers.
    fn memory_bytes(&self) -> Option<usize> {
        None
    }
    /// The bytes of disk that it may take below `data_dir`; 0 if it keeps nothing.
    fn disk_bytes(&self) -> u64 {
        0
    }
    /// What it promises for what it has kept.
    fn promise(&self) -> Promise;
}

/// One component, as its directory describes it: the entry in the list of its crate.
pub struct Component {
    /// Its name in `type:`.
    pub name: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// The directory's README.md.
    pub readme: &'static str,
    /// The directory's example.yaml: a complete configuration that runs.
    pub example: &'static str,
    /// The JSON Schema of its options (without `type`, `inputs` and `tags`).
    pub schema: fn() -> schemars::Schema,
    /// Checks its options and builds it.
    pub build: Build,
}

/// A node that was built, or everything that is wrong with its options.
pub type Checked<T> = Result<T, Vec<Problem>>;

/// How a component is built from the rest of its options, once `type`, `inputs` and `tags` are taken out. Pure: nothing
/// is opened or made.
#[derive(Clone, Copy)]
pub enum Build {
    /// A source.
    Source(fn(&str, &Node) -> Checked<Box<dyn Source>>),
    /// A channel.
    Channel(fn(&str, &Node) -> Checked<Box<dyn ChannelConfig>>),
    /// A sink.
    Sink(fn(&str, &Node) -> Checked<Arc<dyn Sink>>),
}
