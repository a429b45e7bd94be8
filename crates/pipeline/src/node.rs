//! The contract of sources, channels and sinks, and the context that the runtime gives them. The contract of processors is in
//! `processor`.

use std::{
    any::Any,
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use millstream_config::{Node, Problem};
use millstream_record::Pool;

use crate::{
    channel::{BoxFuture, Channel, Consumer, Reader},
    failure::Failure,
    inlet::{CHECKPOINT_AGE, Inlet},
    meters::NodeMeters,
    outlet::Outlet,
    processor::Processor,
    promise::Promise,
    report::Reporter,
    stop::Stop,
    threads::Threads,
};

/// A future that stays on its thread.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A producer of batches.
pub trait Source: Send {
    /// Acquires listeners, directories and other resources before anything runs. After a failure of the source's own state
    /// ([`Failure::state`]), the start leaves out only this source. Any other failure ends the start. Called once. At a reload it is
    /// called while the previous source of the same name still runs, and must take over the listeners of that source.
    fn bind(&mut self, context: &SourceContext) -> Result<(), Failure>;
    /// Reads until the inputs end or `context.stop` is requested, then waits for the receipts that peers need, and returns. Called
    /// again after a failure or a panic (`self` keeps what `bind` acquired). Runs on a data thread and must not block it.
    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>>;
    /// The values that its batches can carry beside the tag: names from [`millstream_record::VALUE_NAMES`]. The layout refuses a template
    /// with a value that no upstream source sets, unless the value is in `VALUE_NAMES` and the template has a default for it.
    fn values(&self) -> &'static [&'static str];
    /// Returns its promise to its peers. `durable`: a disk channel follows directly.
    fn promise(&self, durable: bool) -> Promise;
    /// The kind of input that it reads, if another source of this kind may read the same input: `files`, `partitions`. If a reload ends
    /// a source of a kind, sources of this kind that begin later wait for it (`readings.rs`). `None` for sources whose peers send.
    fn reads(&self) -> Option<&'static str> {
        None
    }
    /// Whether a reload may replace it by another source of the same name. If false, a reload that changes its options is refused.
    fn is_replaceable(&self) -> bool {
        true
    }
    /// The input that it drops on purpose, and how this is counted, for `explain`.
    fn drops(&self) -> &'static [&'static str] {
        &[]
    }
    /// The directory that it mounts. Nothing that Millstream writes may be below it.
    fn mount(&self) -> Option<&Path> {
        None
    }
    /// The options that name files that it writes, each with the file or directory with which their paths begin.
    fn writes(&self) -> Vec<(String, PathBuf)> {
        Vec::new()
    }
    /// The option that keeps it from starting, and the reason, as far as the file system shows them now. `directory`: its directory for
    /// durable state. Changes nothing.
    fn obstacle(&self, _directory: &Path) -> Option<(&'static str, String)> {
        None
    }
    /// The largest message that it accepts from a peer, in bytes (`limits.frame`), for the command `check`. `None`: it has no peers.
    fn message_bytes_max(&self) -> Option<usize> {
        None
    }
}

/// A consumer of batches. It holds the checked configuration; the state of a running sink is in the future of `run`.
pub trait Sink: Send + Sync {
    /// The threads that it runs on.
    fn placement(&self) -> Placement;
    /// Recovers what an earlier run left, calls `inlet.resume` (with its own position, if it commits one), then reads batches
    /// until the inlet ends. Called again after a failure or a panic.
    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        context: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>>;
    /// Its promise for the batches that it takes. `durable`: it reads from a disk channel.
    fn promise(&self, durable: bool) -> Promise;
    /// The longest time from taking a batch to settling it while the destination works, for `explain` and `check`. `None`: the time depends
    /// on the destination, for example on the ack of the next server.
    fn settles_within(&self) -> Option<Duration> {
        Some(CHECKPOINT_AGE)
    }
    /// Tests, for `check --connect`, whether the destination can be reached or written. Changes nothing. The command shows the
    /// returned text. May block for some seconds. `None`: there is nothing to test.
    fn probe(&self) -> Option<Result<String, Failure>> {
        None
    }
    /// The option that names the files that it writes, and the file or directory with which their paths begin.
    fn writes(&self) -> Option<(&'static str, PathBuf)> {
        None
    }
}

/// The threads that a sink runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Tasks on the data threads. By default each data thread has one task, which gets the batches that were read on this thread. A task
    /// must not block. A sink that reads a durable channel has only one task, on a separate thread.
    DataThreads,
    /// One task on a separate thread, where it may block (writes, syncs).
    OwnThread,
}

/// The context of a source. Cheap to clone and to send to other threads.
#[derive(Clone)]
pub struct SourceContext {
    /// The node's name.
    pub name: Arc<str>,
    /// The sources whose listeners it may take over: those that end in the reload that binds this source.
    pub follows: Arc<[Arc<str>]>,
    /// The port `NAME`.
    pub outlet: Outlet,
    /// The port `NAME.rejected`, for the batches that [`crate::reject::batch`] builds.
    pub rejects: Outlet,
    /// The data threads, which run connections.
    pub threads: Threads,
    /// Requested when the source should stop reading.
    pub stop: Stop,
    /// Whether the run ends when its inputs end (`--once`). A source that would wait for more input stops instead.
    pub once: bool,
    /// The pool of buffers, in which a source reserves memory for its input (`Pool::reserve`).
    pub pool: Pool,
    /// The node's meters.
    pub meters: NodeMeters,
    /// The node's log lines.
    pub reporter: Reporter,
    /// The value `host` of records that are written on this machine.
    pub host: Arc<str>,
    /// The node's directory for durable state (`data_dir/sources/NAME`), created when it is first used.
    pub directory: PathBuf,
}

/// The context of a sink.
#[derive(Clone)]
pub struct SinkContext {
    /// The node's name.
    pub name: Arc<str>,
    /// Requested when the process should end. The inlet then ends too, after the batches that were already taken. A sink needs this
    /// only to shorten the wait for a destination that does not answer.
    pub stop: Stop,
    /// The pool of buffers, from which a sink takes memory for its output (`Pool::take`).
    pub pool: Pool,
    /// The node's meters.
    pub meters: NodeMeters,
    /// The node's log lines.
    pub reporter: Reporter,
    /// The node's directory for durable state (`data_dir/sinks/NAME`), created when it is first used.
    pub directory: PathBuf,
    /// The index of the sink's lane that this task serves, if the sink reads from memory; otherwise 0.
    pub lane: usize,
}

/// The context of a channel.
#[derive(Clone)]
pub struct ChannelContext {
    /// The node's name.
    pub name: Arc<str>,
    /// The pool of buffers, from which the channel's readers take memory (`Pool::take`).
    pub pool: Pool,
    /// The node's meters.
    pub meters: NodeMeters,
    /// The node's log lines.
    pub reporter: Reporter,
    /// The channel's directory (`data_dir/channels/NAME`), created by the channel.
    pub directory: PathBuf,
}

/// An open channel: accepts groups and has a reader for each consumer.
pub struct Opened {
    /// The producers' side.
    pub channel: Arc<dyn Channel>,
    /// One reader for each consumer, in the order of the consumers in [`ChannelConfig::open`].
    pub readers: Vec<Box<dyn Reader>>,
    /// Resolves after `close`, once everything that was accepted is kept and the channel has stopped writing.
    pub finished: BoxFuture<'static, Result<(), Failure>>,
}

/// A channel's checked configuration.
pub trait ChannelConfig: Send {
    /// Opens (recovers) a durable channel for these consumers.
    fn open(&self, context: ChannelContext, consumers: &[Consumer]) -> Result<Opened, Failure>;
    /// Returns the size of each queue in bytes, for a memory channel. The plan replaces a memory channel by queues between its inputs and
    /// its consumers. `None` for a durable channel.
    fn memory_bytes(&self) -> Option<usize> {
        None
    }
    /// The disk space that it may take below `data_dir`, in bytes; 0 if it keeps nothing.
    fn disk_bytes(&self) -> u64 {
        0
    }
    /// Its promise for the batches that it has kept.
    fn promise(&self) -> Promise;
    /// Its options, to be applied to a running channel of this type ([`Channel::change`]).
    fn options(&self) -> Box<dyn Any + Send> {
        Box::new(())
    }
}

/// A component: a type of node, as the files in its directory describe it. Each crate has a list of its components.
pub struct Component {
    /// Its name in `type:`.
    pub name: &'static str,
    /// A summary of one sentence.
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

/// A built node, or all errors of its options.
pub type Checked<T> = Result<T, Vec<Problem>>;

/// Builds a component from the options that remain without `type`, `inputs` and `tags`. Pure: nothing is opened or created.
#[derive(Clone, Copy)]
pub enum Build {
    /// A source.
    Source(fn(&str, &Node) -> Checked<Box<dyn Source>>),
    /// A channel.
    Channel(fn(&str, &Node) -> Checked<Box<dyn ChannelConfig>>),
    /// A processor.
    Processor(fn(&str, &Node) -> Checked<Arc<dyn Processor>>),
    /// A sink.
    Sink(fn(&str, &Node) -> Checked<Arc<dyn Sink>>),
}
