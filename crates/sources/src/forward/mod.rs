//! The source `forward`: what Fluentd, Fluent Bit, their client libraries and other Millstreams send.
//!
//! `[read] -> [decode] -> [send] -> keep -> take -> process -> encode -> write -> settle`
//!
//! It promises: what a peer is acked for has been kept (durable channel) or settled (memory), byte for byte as it came; a
//! frame that the end of a connection cuts is neither stored nor acked; reading stops when the outlet has no room. One
//! task a connection, dealt evenly over the data threads; no lock and no allocation per record. It leaves to others:
//! the protocol (`wire::forward`), telling repeats apart (the disk channel, by the origins that go with each batch), and
//! TLS and the shared key, which will stand between [`listen`] and [`connection`].

mod acks;
mod connection;
mod end;
mod gather;
mod heartbeat;
mod listen;
mod outgoing;
mod pace;
mod payload;
mod poison;
mod socket;
mod stash;
mod watch;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use millstream_config::{Node, OneOrMany, Period, Problem, Size};
use millstream_pipeline::{
    failure::Failure,
    meters::{Meter, NodeMeters},
    node::{Build, Checked, Component, LocalFuture, Source, SourceContext},
    promise::{Guarantee, Promise},
};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::Semaphore;

use self::{
    listen::{Bound, Listen},
    poison::Poison,
};

/// The entry in the list of sources.
pub const COMPONENT: Component = Component {
    name: "forward",
    summary: "Takes Fluentd's forward protocol from Fluentd, Fluent Bit, client libraries and other Millstreams.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Source(build),
};

/// Options of the source `forward`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Where it listens: `tcp://ADDRESS:PORT` (port 24224 if left out; UDP heartbeats are answered on the same port) or
    /// `unix:///PATH`; one or a list.
    listen: OneOrMany<Listen>,
    /// Bounds on what peers may ask for.
    #[serde(default)]
    limits: Limits,
    /// How long to wait before reading a connection again that sends many small messages without asking for acks; it
    /// saves wake-ups and delays a record by at most this. An idle stream is never delayed. 0: never wait.
    #[serde(default = "default_gather")]
    gather: Period,
    /// A chunk that is complete but cannot be read to its end is refused so many times by its id; then its good records
    /// are kept, the rest leaves by the port `rejected`, and it is acked.
    #[serde(default = "default_poison_after")]
    poison_after: u32,
}

/// Bounds on what peers may ask for.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Limits {
    /// Connections at a time; more wait in the backlog of the listener.
    connections: u32,
    /// Bytes of one frame; a connection that sends a longer one is closed.
    frame: Size,
    /// Bytes of one payload after decompression; a longer one is treated as one that cannot be read.
    decompressed: Size,
    /// How long a peer may take for TLS and shared key (with `tls` and `auth`, which this version does not have yet).
    handshake: Period,
    /// A connection on which nothing came for so long, and that waits for no ack, is closed.
    idle: Period,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            frame: Size::mib(64),
            decompressed: Size::mib(256),
            handshake: Period::secs(10),
            idle: Period::secs(600),
        }
    }
}

/// One tick of the clock, as network cards moderate their interrupts.
fn default_gather() -> Period {
    Period::millis(1)
}

fn default_poison_after() -> u32 {
    3
}

/// Positions in a batch have 32 bits, and so do lengths on the wire.
const FRAME_BYTES_MAX: u64 = 1 << 30;

fn build(_name: &str, options: &Node) -> Checked<Box<dyn Source>> {
    Ok(Box::new(Forward::new(options)?))
}

/// The source, checked; with its listeners once it is bound.
struct Forward {
    config: Config,
    bound: Vec<Bound>,
    /// One permit for each connection that is open.
    room: Arc<Semaphore>,
    poison: Arc<Poison>,
}

impl Forward {
    fn new(options: &Node) -> Checked<Self> {
        let config: Config = options.read()?;
        let mut problems = Vec::new();
        let mut refuse = |path: &str, text: &str| {
            let place = options
                .find(path)
                .map_or(&options.place, |node| &node.place);
            problems.push(Problem::new(place, text));
        };
        if config.listen.is_empty() {
            refuse("listen", "`listen` names no address");
        }
        let sizes = [
            ("limits.frame", config.limits.frame),
            ("limits.decompressed", config.limits.decompressed),
        ];
        for (path, size) in sizes {
            if size.is_zero() || size.as_bytes() > FRAME_BYTES_MAX {
                refuse(path, &format!("`{path}` must lie between 1B and 1GiB"));
            }
        }
        if config.limits.connections == 0 {
            let path = "limits.connections";
            refuse(path, "`limits.connections` must be at least 1");
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Self {
            poison: Arc::new(Poison::new(config.poison_after)),
            bound: Vec::new(),
            room: Arc::new(Semaphore::new(config.limits.connections as usize)),
            config,
        })
    }
}

impl Source for Forward {
    fn bind(&mut self, context: &SourceContext) -> Result<(), Failure> {
        for listen in &self.config.listen {
            self.bound.push(Bound::new(listen, &context.reporter)?);
        }
        Ok(())
    }

    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let connections = self.config.limits.connections;
            let shared = Arc::new(Shared::new(&self.config, self.poison.clone(), context));
            listen::accept_all(&self.bound, &self.room, &shared).await?;
            // Every connection gives its permit back when its last ack is written.
            let _ = self.room.acquire_many(connections).await;
            Ok(())
        })
    }

    fn promise(&self, durable: bool) -> Promise {
        if durable {
            Promise::new(
                Guarantee::ExactlyOnce,
                "for senders that ask for acks, keep their chunk ids and return to this receiver within the window; at most once for those that ask for none",
            )
        } else {
            Promise::new(
                Guarantee::AtLeastOnce,
                "for senders that ask for acks; at most once for those that ask for none",
            )
        }
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        for bound in &self.bound {
            bound.remove();
        }
    }
}

/// What all connections of the source share.
struct Shared {
    context: SourceContext,
    /// Whether origins are asked for: only a durable channel can tell repeats.
    durable: bool,
    frame_bytes_max: usize,
    decompressed_bytes_max: usize,
    idle: std::time::Duration,
    gather: std::time::Duration,
    poison: Arc<Poison>,
    meters: ForwardMeters,
}

impl Shared {
    fn new(config: &Config, poison: Arc<Poison>, context: SourceContext) -> Self {
        Self {
            durable: context.outlet.is_durable(),
            frame_bytes_max: config.limits.frame.as_usize(),
            decompressed_bytes_max: config.limits.decompressed.as_usize(),
            idle: config.limits.idle.as_duration(),
            gather: config.gather.as_duration(),
            poison,
            meters: ForwardMeters::new(&context.meters),
            context,
        }
    }
}

/// What the source counts beside what its outlets count.
struct ForwardMeters {
    connections: Meter,
    bytes_received: Meter,
    chunks_acked: Meter,
    chunks_refused: Meter,
    connections_refused: Meter,
    frames_cut: Meter,
    values_skipped: Meter,
}

impl ForwardMeters {
    fn new(meters: &NodeMeters) -> Self {
        Self {
            connections: meters.gauge("connections"),
            bytes_received: meters.counter("bytes_received"),
            chunks_acked: meters.counter("chunks_acked"),
            chunks_refused: meters.counter("chunks_refused"),
            connections_refused: meters.counter("connections_refused"),
            frames_cut: meters.counter("frames_cut"),
            values_skipped: meters.counter("values_skipped"),
        }
    }
}
