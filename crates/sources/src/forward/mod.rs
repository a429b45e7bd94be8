//! The source `forward`: what Fluentd, Fluent Bit, their client libraries and other Millstreams send.
//!
//! `[read] -> [decode] -> [send] -> keep -> take -> process -> encode -> write -> settle`
//!
//! It promises: what a peer is acked for has been kept (durable channel) or settled (memory), byte for byte as it came; a
//! frame that the end of a connection cuts is neither stored nor acked; reading stops when the outlet has no room. One
//! task a connection, dealt evenly over the data threads; no lock and no allocation per record. It leaves to others:
//! the protocol (`wire::forward`), listening and TLS (`net`), and telling repeats apart (the disk channel, by the origins
//! that go with each batch).

mod auth;
mod connection;
mod end;
mod gather;
mod greeting;
mod heartbeat;
mod outgoing;
mod payload;
mod poison;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use millstream_config::{Node, OneOrMany, Period};
use millstream_net::{Limits, Listen, Scheme, Server, Takes, Tls};
use millstream_pipeline::{
    failure::Failure,
    meters::{Meter, NodeMeters},
    node::{Build, Checked, Component, LocalFuture, Source, SourceContext},
    promise::{Guarantee, Promise},
};
use millstream_record::VALUE_NAMES;
use schemars::JsonSchema;
use serde::Deserialize;

use self::{auth::Auth, heartbeat::Heartbeats, poison::Poison};
use crate::{
    connection::Patience,
    tagging::{PEER_VALUES, Tagging},
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
    /// The tag: a text, or a template of `{tag}` (the sender's), `{host}` and `{peer}` (both the sender's address). Default:
    /// the sender's.
    #[serde(default)]
    tag: Option<String>,
    /// Bounds on what peers may ask for.
    #[serde(default)]
    limits: Limits,
    /// TLS on every stream socket: a name of the top-level `tls`, or a block.
    #[serde(default)]
    tls: Tls,
    /// A key, and users if there are any, by which senders prove that they may send (fluentd: `<security>`). Without it
    /// everybody may who can connect.
    #[serde(default)]
    auth: Option<Auth>,
    /// How long to wait before reading a connection again that sends many small messages without asking for acks; it
    /// saves wake-ups and delays a record by at most this. An idle stream is never delayed. 0: never wait.
    #[serde(default = "default_gather")]
    gather: Period,
    /// A chunk that is complete but cannot be read to its end is refused so many times by its id; then its good records
    /// are kept, the rest leaves by the port `rejected`, and it is acked.
    #[serde(default = "default_poison_after")]
    poison_after: u32,
}

/// One tick of the clock, as network cards moderate their interrupts.
fn default_gather() -> Period {
    Period::millis(1)
}

fn default_poison_after() -> u32 {
    3
}

/// The port of the protocol.
const PORT: u16 = 24224;
const TAKES: Takes = &[(Scheme::Tcp, Some(PORT)), (Scheme::Unix, None)];

fn build(_name: &str, options: &Node) -> Checked<Box<dyn Source>> {
    Ok(Box::new(Forward::new(options)?))
}

/// The source, checked; with its sockets once it is bound.
struct Forward {
    config: Config,
    tag: Tagging,
    server: Server,
    heartbeats: Heartbeats,
    poison: Arc<Poison>,
}

impl Forward {
    fn new(options: &Node) -> Checked<Self> {
        let config: Config = options.read()?;
        let (listen, limits) = (&config.listen, &config.limits);
        let server = Server::check(options, listen, TAKES, limits, &config.tls);
        let mut problems = Vec::new();
        if let Some(auth) = &config.auth {
            auth.check(options, &mut problems);
        }
        let server = server.map_err(|found| problems.extend(found));
        let tag = Tagging::of(config.tag.as_deref(), PEER_VALUES, options);
        let tag = tag.map_err(|problem| problems.push(problem));
        match (server, tag) {
            (Ok(server), Ok(tag)) if problems.is_empty() => Ok(Self {
                server,
                tag,
                heartbeats: Heartbeats::default(),
                poison: Arc::new(Poison::new(config.poison_after)),
                config,
            }),
            _ => Err(problems),
        }
    }
}

impl Source for Forward {
    fn bind(&mut self, context: &SourceContext) -> Result<(), Failure> {
        self.server.bind(&context.reporter)?;
        let addresses = self.server.addresses();
        self.heartbeats.bind(&addresses, &context.reporter);
        Ok(())
    }

    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let shared = Arc::new(Shared::new(
                &self.config,
                &self.tag,
                self.poison.clone(),
                context.clone(),
            ));
            let each = move |connection| connection::serve(connection, shared.clone());
            let mut stop = context.stop.clone();
            let heartbeats = async {
                tokio::select! {
                    () = self.heartbeats.answer(&context.reporter) => {}
                    () = stop.stopped() => {}
                }
            };
            let (served, ()) = tokio::join!(self.server.serve(&context, each), heartbeats);
            served
        })
    }

    fn values(&self) -> &'static [&'static str] {
        &VALUE_NAMES
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

    fn message_bytes_max(&self) -> Option<usize> {
        Some(self.config.limits.frame.as_usize())
    }
}

/// What all connections of the source share.
struct Shared {
    context: SourceContext,
    tag: Tagging,
    /// Whether origins are asked for: only a durable channel can tell repeats.
    durable: bool,
    /// None: everybody may send.
    auth: Option<Auth>,
    frame_bytes_max: usize,
    decompressed_bytes_max: usize,
    patience: Patience,
    gather: std::time::Duration,
    poison: Arc<Poison>,
    meters: ForwardMeters,
}

impl Shared {
    fn new(config: &Config, tag: &Tagging, poison: Arc<Poison>, context: SourceContext) -> Self {
        Self {
            tag: tag.clone(),
            durable: context.outlet.is_durable(),
            auth: config.auth.clone(),
            frame_bytes_max: config.limits.frame.as_usize(),
            decompressed_bytes_max: config.limits.decompressed.as_usize(),
            patience: Patience::of(&config.limits),
            gather: config.gather.as_duration(),
            poison,
            meters: ForwardMeters::new(&context.meters),
            context,
        }
    }
}

/// What the source counts beside what its outlets count.
struct ForwardMeters {
    bytes_received: Meter,
    chunks_acked: Meter,
    chunks_refused: Meter,
    connections_refused: Meter,
    unauthenticated: Meter,
    frames_cut: Meter,
    values_skipped: Meter,
}

impl ForwardMeters {
    fn new(meters: &NodeMeters) -> Self {
        Self {
            bytes_received: meters.counter("bytes_received"),
            chunks_acked: meters.counter("chunks_acked"),
            chunks_refused: meters.counter("chunks_refused"),
            connections_refused: meters.counter("connections_refused"),
            unauthenticated: meters.counter("connections_unauthenticated"),
            frames_cut: meters.counter("frames_cut"),
            values_skipped: meters.counter("values_skipped"),
        }
    }
}
