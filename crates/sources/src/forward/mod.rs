//! The source `forward`: receives from Fluentd, Fluent Bit, their client libraries and other Millstreams.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `[read] -> [decode] -> [send] -> keep -> read back -> process -> encode -> write -> settle`
//!
//! Where to look: `connection` runs a connection and decodes the frames in the bytes that `input` reads. `frames` turns frames
//! into batches. `outgoing` sends the batches and queues their acks.
//!
//! Guarantees: a chunk that is acked is kept (durable channel) or settled (memory channel), byte for byte as received. A frame
//! cut off by the end of a connection is neither stored nor acked. Reading stops while the outlet is full. Each connection is one
//! task, and connections are spread evenly over the data threads. There is no lock and no allocation per record. The protocol is
//! in `wire::forward`, listening and TLS are in `net`. The disk channel recognizes chunks that arrive again by the origins (such
//! as chunk ids) in each batch.

mod acks;
mod auth;
mod bundle;
mod config;
mod connection;
mod content;
mod end;
mod frames;
mod gather;
mod greeting;
mod heartbeat;
mod input;
mod outgoing;
mod poison;
mod service;

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
use millstream_record::VALUE_NAMES;

use self::{config::Config, heartbeat::Heartbeats, poison::Poison, service::Service};
use crate::tagging::{PEER_VALUES, Tagging};

/// The entry in the list of sources.
pub const COMPONENT: Component = Component {
    name: "forward",
    summary: "Takes Fluentd's forward protocol from Fluentd, Fluent Bit, client libraries and other Millstreams.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Source(build),
};

/// The port of the protocol.
const PORT: u16 = 24224;
const TAKES: Takes = &[(Scheme::Tcp, Some(PORT)), (Scheme::Unix, None)];

fn build(_name: &str, options: &Node) -> Checked<Box<dyn Source>> {
    Ok(Box::new(Forward::new(options)?))
}

/// The source: its checked options, and its sockets after [`Source::bind`].
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
        let server = Server::check(options, listen, TAKES, limits, &config.tls, &config.socket);
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
        self.server.bind(context)?;
        let addresses = self.server.addresses();
        self.heartbeats.bind(&addresses, context);
        Ok(())
    }

    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let poison = self.poison.clone();
            let service = Service::new(&self.config, &self.tag, poison, context.clone());
            let service = Arc::new(service);
            let each = move |connection| connection::serve(connection, service.clone());
            let mut stop = context.stop.clone();
            let heartbeats = async {
                tokio::select! {
                    () = self.heartbeats.answer(&context.reporter) => {}
                    () = stop.stopped() => {}
                }
                Ok::<_, Failure>(())
            };
            tokio::try_join!(self.server.serve(&context, each), heartbeats)?;
            Ok(())
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

    fn drops(&self) -> &'static [&'static str] {
        &[
            "metrics, traces and other signals of Fluent Bit that are not logs: acked, counted in `frames_dropped`, and dropped",
        ]
    }

    fn message_bytes_max(&self) -> Option<usize> {
        Some(self.config.limits.frame.as_usize())
    }
}
