//! The sink `forward`: sends records by Fluentd's forward protocol to Fluentd, Fluent Bit and Millstream.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! ```text
//! inlet -> relay -> encode -> chunk -> (choice) -> link -> window -> connection -> server
//!            ^-- lane <------------ hub ----------------------------- ack ---------'
//! ```
//! - `relay`: takes batches, makes chunks, settles checkpoints (with `crate::sending`). There is one such task per lane.
//! - `encode`, `gather`, `bundle`, `flow`: make chunks from batches. A body that the peer accepts unchanged is not copied.
//! - `hub`: holds the chunks that no server has been chosen for, and the numbers of finished chunks.
//! - `cluster`, `choice`, `discovery`: the list of servers, the choice of a server for the next chunk, servers that join and leave.
//! - `link`: one server's connections and failures. `heart`: heartbeats. `endpoint`, `standing`: the state of one server, which
//!   `cluster`, `link` and `connection` share.
//! - `dial`, `auth`: connect, and do the handshake with the shared key. `connection`, `window`: write chunks and read acks.
//! - `leases`, `lessor`: remember across restarts which server may have received which chunk.
//!
//! The sink promises three things. With acks, a batch is settled only after each of its chunks is acked by a server (with
//! `balance: all`, by every server in the list) or rejected. Until a server acks a chunk, the chunk is resent with the same id and
//! the same bytes. A server that cannot be reached delays no other server.

use std::{sync::Arc, time::Duration};

use millstream_config::Node;
use millstream_pipeline::{
    failure::Failure,
    inlet::Inlet,
    node::{Build, Checked, Component, LocalFuture, Placement, Sink, SinkContext},
    promise::{Guarantee, Promise},
    report::Reporter,
};

mod auth;
mod bundle;
mod choice;
mod chunk;
mod cluster;
mod connection;
mod dial;
mod discovery;
mod encode;
mod endpoint;
mod flow;
mod gather;
mod heart;
mod hub;
mod leases;
mod lessor;
mod link;
mod options;
mod relay;
mod server;
mod settings;
mod sink;
mod standing;
mod window;

#[cfg(test)]
mod tests;

use options::{Config, Peer};
use relay::Relay;
use sink::Forward;

use crate::probe;

/// The entry in the list of sinks.
pub const COMPONENT: Component = Component {
    name: "forward",
    summary: "Fluentd's forward protocol, with acks, to one or more servers.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Sink(build),
};

fn build(_name: &str, options: &Node) -> Checked<Arc<dyn Sink>> {
    Ok(Arc::new(Forward::new(options)?))
}

impl Sink for Forward {
    fn placement(&self) -> Placement {
        Placement::DataThreads
    }

    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        context: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move { Relay::new(self, inlet, context)?.run().await })
    }

    fn promise(&self, durable: bool) -> Promise {
        if !self.settings.ack {
            return Promise::new(
                Guarantee::AtMostOnce,
                "`ack: false`: what the server's system has acknowledged counts as delivered; a broken connection may lose some of it, and what was not acknowledged is sent again",
            );
        }
        // With `balance: all` each server has its own copy of a chunk. A copy in doubt (sent, but not acked) is resent only to the
        // same server. The name identifies a server: the sink does not remember to which address of the name a chunk was sent.
        let exact = self.has_one_server() || self.keeps_leases() || self.settings.to_all;
        match (durable, self.peer, exact) {
            (true, Peer::Millstream, true) => Promise::new(
                Guarantee::ExactlyOnce,
                "every server is a Millstream with a disk channel, and its name has one address; at least once otherwise, and for positions above \
                 8 MiB that are in doubt while the processors are edited",
            ),
            (true, Peer::Millstream, false) => Promise::new(
                Guarantee::AtLeastOnce,
                "a chunk in doubt may go to another server; exactly once with `failover: wait`",
            ),
            (true, _, _) => Promise::new(
                Guarantee::AtLeastOnce,
                "a chunk whose ack was lost is sent again, and its server may store it twice; exactly once with `peer: millstream`, if \
                 every server is a Millstream with a disk channel",
            ),
            (false, _, _) => Promise::new(
                Guarantee::AtLeastOnce,
                "without a disk channel in front of it, what senders repeat is sent again",
            ),
        }
    }

    fn settles_within(&self) -> Option<Duration> {
        // There is no limit: checkpoints are settled when the servers ack.
        None
    }

    fn probe(&self) -> Option<Result<String, Failure>> {
        let servers = match self.discovery.look() {
            Ok(servers) => servers.into_iter().map(|server| server.address),
            Err(text) => return Some(Err(Failure::peer(text))),
        };
        let servers: Vec<String> = servers.collect();
        let reporter = Reporter::new("check");
        let probe = async |server: &str| dial::probe(server, &self.settings, &reporter).await;
        Some(probe::servers(&servers, probe))
    }
}
