//! The sink `syslog`: messages of RFC 5424 or RFC 3164 over TCP, TLS, UDP and unix sockets.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! ```text
//! inlet -> relay -> messages -> link -> server
//!            '------- doubt <---'
//! ```
//! - `relay`: takes batches, writes messages, reconnects, settles checkpoints (`crate::sending`). Each lane (parallel task)
//!   of the sink has one.
//! - `messages`: encodes batches as framed messages, each with its record.
//! - `link`: the connection.
//! - `doubt`: estimates what a broken connection may have lost.
//!
//! The sink promises that a record is settled only after the server's operating system has acknowledged its whole message, on a
//! connection that has proven itself (`crate::sending::Trust`). Everything else is sent again when a connection breaks. A broken
//! connection is reported with the number of settled records that it may have lost: syslog has no acknowledgements, so a sender cannot
//! know more.

use std::{sync::Arc, time::Duration};

use millstream_config::Node;
use millstream_net::Scheme;
use millstream_pipeline::{
    failure::Failure,
    inlet::Inlet,
    node::{Build, Checked, Component, LocalFuture, Placement, Sink, SinkContext},
    promise::{Guarantee, Promise},
    report::Reporter,
};

mod doubt;
mod link;
mod messages;
mod options;
mod relay;
mod sink;
mod target;

#[cfg(test)]
mod tests;

use crate::{format::schema_with_default, probe};
use link::Link;
use options::Config;
use relay::Relay;
use sink::Syslog;

/// The entry in the list of sinks.
pub const COMPONENT: Component = Component {
    name: "syslog",
    summary: "Syslog by TCP, TLS, UDP and unix sockets; RFC 5424 and 3164.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schema_with_default::<Config>("raw"),
    build: Build::Sink(build),
};

fn build(_name: &str, options: &Node) -> Checked<Arc<dyn Sink>> {
    Ok(Arc::new(Syslog::new(options)?))
}

impl Sink for Syslog {
    fn placement(&self) -> Placement {
        Placement::DataThreads
    }

    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        context: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move { Relay::new(self, inlet, context).run().await })
    }

    fn promise(&self, _durable: bool) -> Promise {
        Promise::new(
            Guarantee::AtMostOnce,
            "syslog has no acknowledgements: a record counts as delivered when the server's system has acknowledged its bytes. Delivered records that a broken connection may have lost are counted and logged; all others are sent again and may arrive twice",
        )
    }

    fn settles_within(&self) -> Option<Duration> {
        // The time depends on the server.
        None
    }

    fn probe(&self) -> Option<Result<String, Failure>> {
        match self.target.url.scheme() {
            // Datagrams are not answered.
            Scheme::Udp => None,
            _ => {
                let reporter = Reporter::new("check");
                let probe = async |_: &str| Link::probe(&self.target, &reporter).await;
                Some(probe::servers(&[self.target.url.to_string()], probe))
            }
        }
    }
}
