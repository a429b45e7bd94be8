//! The source `flume`: events from the Avro sinks and RPC clients of Flume agents.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `[read] -> [decode] -> [send] -> keep -> read back -> process -> encode -> write -> settle`
//!
//! Calls are answered in order. A call is answered with OK once all its events are kept (durable channel) or settled (memory
//! channel). A call that cannot be decoded, or that is cut off by the end of the connection, leaves no records. While the next
//! channel is full, nothing is read. The protocol is in `wire::avro::rpc`, listening and TLS are in `net`.

mod compressed;
mod connection;
mod end;
mod endpoint;
mod intake;
mod options;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use millstream_config::Node;
use millstream_net::{Scheme, Server, Takes};
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component, LocalFuture, Source, SourceContext},
    promise::{Guarantee, Promise},
};

use crate::tagging::{PEER_VALUES, Tagging};
use endpoint::Endpoint;
use options::Config;

/// The entry in the list of sources.
pub const COMPONENT: Component = Component {
    name: "flume",
    summary: "Receives events from Flume agents by Avro RPC.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Source(build),
};

const TAKES: Takes = &[(Scheme::Tcp, None), (Scheme::Unix, None)];

fn build(_name: &str, options: &Node) -> Checked<Box<dyn Source>> {
    let config: Config = options.read()?;
    let (listen, limits) = (&config.listen, &config.limits);
    let mut problems = Vec::new();
    let server = Server::check(options, listen, TAKES, limits, &config.tls, &config.socket);
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

/// The source. [`Source::bind`] opens its sockets.
struct Flume {
    config: Config,
    tag: Tagging,
    server: Server,
}

impl Source for Flume {
    fn bind(&mut self, context: &SourceContext) -> Result<(), Failure> {
        self.server.bind(context)
    }

    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let endpoint = Endpoint::new(&self.config, &self.tag, context.clone());
            let endpoint = Arc::new(endpoint);
            let each = move |connection| connection::serve(connection, endpoint.clone());
            self.server.serve(&context, each).await
        })
    }

    fn values(&self) -> &'static [&'static str] {
        PEER_VALUES
    }

    fn promise(&self, _durable: bool) -> Promise {
        Promise::new(
            Guarantee::AtLeastOnce,
            "a batch whose answer was lost is sent again, and Flume events have no id",
        )
    }

    fn message_bytes_max(&self) -> Option<usize> {
        Some(self.config.limits.frame.as_usize())
    }
}
