//! The sink `forward`: Fluentd's forward protocol to other Fluentds, Fluent Bits and Millstreams.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! ```text
//! inlet -> relay -> encode -> chunk -> (choice) -> link -> window -> connection -> server
//!            ^-- ledger <---------- done ------------------------------ ack ---------'
//! ```
//! - `relay`: takes batches, deals chunks to servers, settles cuts in order (`crate::ledger`). One task a lane.
//! - `encode`, `gather`, `crate::ids`: batches to chunks, uncopied wherever the peer takes them as they are.
//! - `cluster`, `choice`, `discovery`: the servers, who gets the next chunk, who joins and leaves.
//! - `link`: one server each, and its failures. `heart`: whether servers answer.
//! - `dial`, `auth`: a connection, the shared key. `connection`, `window`: bytes out, acks in.
//!
//! It promises that a batch is settled only after every chunk of it is acked by some server, that a chunk is sent again
//! with the same id and the same bytes until then, and that a server that cannot be reached stops nothing but itself.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jiff::tz::TimeZone;
use millstream_config::Node;
use millstream_net::ClientTls;
use millstream_pipeline::{
    failure::Failure,
    inlet::Inlet,
    node::{Build, Checked, Component, LocalFuture, Placement, Sink, SinkContext},
    promise::{Guarantee, Promise},
    report::Reporter,
};
use millstream_record::Pool;
use millstream_wire::{
    format::{Format, Options},
    template::Template,
};

mod auth;
mod choice;
mod chunk;
mod cluster;
mod connection;
mod dial;
mod discovery;
mod encode;
mod flow;
mod gather;
mod heart;
mod hub;
mod leases;
mod link;
mod options;
mod relay;
mod server;
mod window;

#[cfg(test)]
mod tests;

use discovery::Discovery;
use encode::Encoder;
use gather::Limits;
use heart::Hearts;
use hub::Settings;
use options::{Balance, Compression, Config, Failover, Metadata, Peer, TimeForm};
use relay::Relay;

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

/// The checked sink.
struct Forward {
    discovery: Discovery,
    settings: Settings,
    gather: Limits,
    /// What decides about the server of a record; None: round robin.
    flow: Option<Template>,
    peer: Peer,
    time: TimeForm,
    metadata: Metadata,
    /// The operator was told that metadata is dropped.
    metadata_told: AtomicBool,
    compression: Compression,
    format: Options,
    /// Who may write the leases: the number of the run that has them.
    leases_turn: leases::Turn,
    /// How late each lane is: the meter shows the latest.
    behind: Mutex<BTreeMap<usize, Duration>>,
}

fn build(_name: &str, options: &Node) -> Checked<Arc<dyn Sink>> {
    let mut config = Config::read(options)?;
    let tls = ClientTls::check(&config.tls, options)?.map(Arc::new);
    let metadata = config.metadata();
    let discovery = config.take_discovery(options);
    let format = Options {
        format: Format::Msgpack,
        add: config.add,
        ..Options::default()
    };
    format.encoder(&TimeZone::UTC).map_err(|error| {
        vec![
            options
                .problem_at(error.option, error.message)
                .help(error.help),
        ]
    })?;
    Ok(Arc::new(Forward {
        discovery,
        settings: Settings {
            ack: config.ack,
            ack_timeout: config.ack_timeout.as_duration(),
            retry_first: config.retry.first.as_duration(),
            retry_max: config.retry.max.as_duration(),
            connect_timeout: config.retry.timeout.as_duration(),
            give_up: config.retry.give_up.0,
            failover: config.failover,
            send_buffer: u32::try_from(config.send_buffer.as_bytes()).unwrap_or(u32::MAX),
            in_flight_bytes_max: config.in_flight.as_usize(),
            tls,
            auth: config.auth.map(Arc::new),
            to_all: config.balance == Balance::All,
            hearts: Hearts::new(config.heartbeat),
        },
        gather: Limits {
            bytes: config.batch.size.as_usize(),
            records: config.batch.records,
            linger: config.batch.linger.as_duration(),
        },
        flow: match config.balance {
            Balance::RoundRobin | Balance::All => None,
            Balance::Hash(template) => Some(template),
        },
        peer: config.peer,
        time: config.time,
        metadata,
        metadata_told: AtomicBool::new(false),
        compression: config.compression,
        format,
        leases_turn: leases::Turn::default(),
        behind: Mutex::default(),
    }))
}

impl Forward {
    /// The encoder of a task.
    fn encoder(&self, pool: Pool) -> Encoder {
        let format = self.format.encoder(&TimeZone::UTC);
        Encoder {
            peer: self.peer,
            time: self.time,
            metadata: self.metadata,
            compression: self.compression,
            ack: self.settings.ack,
            keep_source: self.settings.give_up.is_some(),
            adds: self
                .format
                .add
                .as_ref()
                .is_some_and(|add| !add.fields.is_empty()),
            format: format.expect("the same options made one when they were checked"),
            pool,
            dropped: 0,
        }
    }

    /// Counts records whose metadata was dropped, and says so once.
    fn dropped_metadata(&self, context: &SinkContext, records: u64) {
        context.meters.counter("metadata_dropped").add(records);
        if !self.metadata_told.swap(true, Ordering::Relaxed) {
            let text = "records have metadata beside their time, which fluentd up to 1.19.3 cannot store: it is dropped and counted \
                        (millstream_metadata_dropped_total); `metadata: keep` sends it to receivers that store it";
            context.reporter.warn("metadata", text);
        }
    }

    /// Whether it is remembered, behind a durable channel, which server may have what.
    fn keeps_leases(&self) -> bool {
        let waits = self.settings.failover == Failover::Wait;
        self.settings.ack && waits && !self.settings.to_all
    }

    /// Whether there is one server and never another.
    fn is_alone(&self) -> bool {
        self.discovery.place.is_none() && self.discovery.servers.len() == 1
    }

    /// Notes how old the oldest record of a lane is that is not yet done.
    fn behind(&self, context: &SinkContext, age: Duration) {
        let mut lanes = self.behind.lock().unwrap_or_else(PoisonError::into_inner);
        if lanes.insert(context.lane, age) != Some(age) {
            let latest = lanes.values().max().map_or(0, Duration::as_secs);
            context.meters.gauge("behind_seconds").set(latest);
        }
    }
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
                "`ack: false`: what is in flight when the connection breaks is gone",
            );
        }
        // Where every server gets everything, none gets what another may have.
        let exact = self.is_alone() || self.keeps_leases() || self.settings.to_all;
        match (durable, self.peer, exact) {
            (true, Peer::Millstream, true) => Promise::new(
                Guarantee::ExactlyOnce,
                "every server is a Millstream with a disk channel; at least once otherwise",
            ),
            (true, Peer::Millstream, false) => Promise::new(
                Guarantee::AtLeastOnce,
                "a chunk in doubt may go to another server; exactly once with `failover: wait`",
            ),
            _ => Promise::new(Guarantee::AtLeastOnce, ""),
        }
    }

    fn settles_within(&self) -> Option<Duration> {
        // When the server acks.
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
