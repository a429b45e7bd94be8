//! The source `flume`: what the Avro sinks and RPC clients of Flume agents send.
//!
//! `[read] -> [decode] -> [send] -> keep -> take -> process -> encode -> write -> settle`
//!
//! It promises: a call is answered with OK when everything in it has been kept (durable channel) or settled (memory), in
//! the order of the calls; a call that cannot be read, or that the end of a connection cuts, leaves nothing behind; reading
//! stops when the outlet has no room. It leaves to others: the protocol (`wire::avro::rpc`), listening and TLS (`net`).

mod compressed;
mod connection;
mod intake;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use millstream_config::{Node, OneOrMany};
use millstream_net::{Limits, Listen, Scheme, Server, Takes, Tls};
use millstream_pipeline::{
    failure::Failure,
    meters::{Meter, NodeMeters},
    node::{Build, Checked, Component, LocalFuture, Source, SourceContext},
    promise::{Guarantee, Promise},
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    connection::Patience,
    tagging::{PEER_VALUES, Tagging},
};

/// The entry in the list of sources.
pub const COMPONENT: Component = Component {
    name: "flume",
    summary: "Takes the events that Flume agents send by Avro RPC.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Source(build),
};

/// Options of the source `flume`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Where it listens: `tcp://ADDRESS:PORT` or `unix:///PATH`; one or a list.
    listen: OneOrMany<Listen>,
    /// Bounds on what peers may ask for.
    #[serde(default)]
    limits: Limits,
    /// TLS on every stream socket: a name of the top-level `tls`, or a block.
    #[serde(default)]
    tls: Tls,
    /// What the agents' `compression-type` says: `none` or `deflate`.
    #[serde(default)]
    compression: Compression,
    /// The tag: a text, or a template of `{host}` and `{peer}` (both the agent's address). Default: the node's name.
    #[serde(default)]
    tag: Option<String>,
}

/// Compression of both directions of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Compression {
    #[default]
    None,
    Deflate,
}

const TAKES: Takes = &[(Scheme::Tcp, None), (Scheme::Unix, None)];

fn build(_name: &str, options: &Node) -> Checked<Box<dyn Source>> {
    let config: Config = options.read()?;
    let (listen, limits) = (&config.listen, &config.limits);
    let mut problems = Vec::new();
    let server = Server::check(options, listen, TAKES, limits, &config.tls);
    let server = server.map_err(|found| problems.extend(found));
    let tag = Tagging::of(config.tag.as_deref(), PEER_VALUES, options);
    let tag = tag.map_err(|problem| problems.push(problem));
    match (server, tag) {
        (Ok(server), Ok(tag)) => Ok(Box::new(Flume {
            config,
            tag,
            server,
        })),
        _ => Err(problems),
    }
}

/// The source, checked; with its sockets once it is bound.
struct Flume {
    config: Config,
    tag: Tagging,
    server: Server,
}

impl Source for Flume {
    fn bind(&mut self, context: &SourceContext) -> Result<(), Failure> {
        self.server.bind(&context.reporter)
    }

    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let shared = Arc::new(Shared::new(&self.config, &self.tag, context.clone()));
            let each = move |connection| connection::serve(connection, shared.clone());
            self.server.serve(&context, each).await
        })
    }

    fn values(&self) -> &'static [&'static str] {
        PEER_VALUES
    }

    fn promise(&self, _durable: bool) -> Promise {
        Promise::new(
            Guarantee::AtLeastOnce,
            "a batch whose answer was lost comes again, and Flume's events carry no identity",
        )
    }

    fn message_bytes_max(&self) -> Option<usize> {
        Some(self.config.limits.frame.as_usize())
    }
}

/// What all connections of the source share.
struct Shared {
    context: SourceContext,
    tag: Tagging,
    frame_bytes_max: usize,
    decompressed_bytes_max: usize,
    patience: Patience,
    deflate: bool,
    meters: FlumeMeters,
}

impl Shared {
    fn new(config: &Config, tag: &Tagging, context: SourceContext) -> Self {
        Self {
            tag: tag.clone(),
            frame_bytes_max: config.limits.frame.as_usize(),
            decompressed_bytes_max: config.limits.decompressed.as_usize(),
            patience: Patience::of(&config.limits),
            deflate: config.compression == Compression::Deflate,
            meters: FlumeMeters::new(&context.meters),
            context,
        }
    }
}

/// What the source counts beside what its outlets count.
struct FlumeMeters {
    bytes_received: Meter,
    calls_answered: Meter,
    calls_refused: Meter,
    calls_cut: Meter,
    connections_refused: Meter,
}

impl FlumeMeters {
    fn new(meters: &NodeMeters) -> Self {
        Self {
            bytes_received: meters.counter("bytes_received"),
            calls_answered: meters.counter("calls_answered"),
            calls_refused: meters.counter("calls_refused"),
            calls_cut: meters.counter("calls_cut"),
            connections_refused: meters.counter("connections_refused"),
        }
    }
}
