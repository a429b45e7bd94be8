//! The sink `http`: sends records in HTTP requests, as JSON, text, OTLP or `_bulk` (of Elasticsearch and OpenSearch).
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! ```text
//! inlet -> relay -> encode -> gather -> request -> delivery -> client -> server
//!            ^-- lane <-------------- finished ------'
//! ```
//! - `relay`: takes batches, keeps requests in flight, settles checkpoints (with `crate::sending`). There is one such task per
//!   lane.
//! - `encode`, `gather`, `request`: turn batches into items (encoded records), and items into requests. Each request has one
//!   `target`.
//! - `delivery`, `answer`, `bulk`: send one request until it is finished, and interpret the answers.
//! - `client`: connections.
//!
//! The sink promises that a batch is settled only when each of its records is accepted by the server (2xx) or rejected: sent to
//! the port `rejected`. A record that the server refuses does not affect its neighbors, except in the cases that `delivery`
//! describes. A request that is resent has the same body and the same `Idempotency-Key`, except that with `framing: bulk` the
//! body contains only the items that failed. Behind a disk channel and with `idempotency_key`, body and key are also the same
//! after a restart, even after `kill -9`.

use std::{sync::Arc, time::Duration};

use millstream_config::Node;
use millstream_pipeline::{
    failure::Failure,
    inlet::Inlet,
    meters::Meter,
    node::{Build, Checked, Component, LocalFuture, Placement, Sink, SinkContext},
    promise::{Guarantee, Promise},
    report::Reporter,
};

mod answer;
mod bulk;
mod client;
mod delivery;
mod encode;
mod gather;
mod options;
mod patience;
mod relay;
mod request;
mod sink;
mod stuck;
mod success;
mod target;

#[cfg(test)]
mod tests;

use crate::{format::schema_with, probe};
use options::{Config, DocumentId};
use relay::Relay;
use sink::Http;

/// The entry in the list of sinks.
pub const COMPONENT: Component = Component {
    name: "http",
    summary: "Requests of JSON, text, OTLP or `_bulk`, over HTTP and HTTPS.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: schema_with::<Config>,
    build: Build::Sink(build),
};

fn build(_name: &str, options: &Node) -> Checked<Arc<dyn Sink>> {
    Ok(Arc::new(Http::new(options)?))
}

impl Sink for Http {
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
        let positions = self
            .config
            .bulk
            .as_ref()
            .is_some_and(|bulk| bulk.id != DocumentId::None);
        let text = match (durable, self.idempotency_key, positions) {
            (true, true, _) => {
                "exactly once by a server that honours `Idempotency-Key`, as Millstream with a disk channel does; at least once for positions of \
                 several requests that are in doubt while the processors are edited"
            }
            (true, _, true) => {
                "a record that is sent again makes no second document: its id is the same"
            }
            (true, false, false) => {
                "a request whose answer was lost is sent again; `idempotency_key: true` lets a server recognize it"
            }
            (false, _, _) => {
                "without a disk channel in front of it, what senders repeat is sent again"
            }
        };
        Promise::new(Guarantee::AtLeastOnce, text)
    }

    fn settles_within(&self) -> Option<Duration> {
        // The time depends on the server.
        None
    }

    fn probe(&self) -> Option<Result<String, Failure>> {
        let client = self.client(Reporter::new("check"), Meter::default());
        let probe = async |_: &str| client.probe().await;
        Some(probe::servers(&[self.site.to_string()], probe))
    }
}
