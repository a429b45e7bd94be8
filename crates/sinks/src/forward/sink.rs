//! The checked sink: its options, and the state that its lanes share.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use jiff::tz::TimeZone;
use millstream_config::Node;
use millstream_net::ClientTls;
use millstream_pipeline::node::{Checked, SinkContext};
use millstream_record::Pool;
use millstream_wire::{
    format::{Format, Options},
    template::Template,
};

use super::{
    discovery::Discovery,
    encode::Encoder,
    heart::Hearts,
    leases::Turn,
    options::{Balance, Compression, Config, Failover, Metadata, Peer, TimeForm},
    settings::Settings,
};
use crate::sending::{Batching, Lateness};

/// The checked sink.
pub(super) struct Forward {
    pub(super) discovery: Discovery,
    pub(super) settings: Settings,
    pub(super) batch: Batching,
    /// Template whose value decides which server gets a record (`balance: { hash: TEMPLATE }`); None for any other `balance`.
    pub(super) flow: Option<Template>,
    pub(super) peer: Peer,
    time: TimeForm,
    metadata: Metadata,
    /// Whether the warning about dropped metadata was logged.
    warned_of_metadata: AtomicBool,
    compression: Compression,
    format: Options,
    /// Lets only the newest start of the sink write the leases (the records of which server may have which chunk).
    pub(super) leases_turn: Turn,
    pub(super) lateness: Lateness,
}

impl Forward {
    /// Reads and checks the options.
    pub(super) fn new(options: &Node) -> Checked<Self> {
        let mut config = Config::read(options)?;
        let tls = ClientTls::check(&config.tls, options)?.map(Arc::new);
        let metadata = config.metadata();
        let discovery = Discovery::of(&mut config, options);
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
        Ok(Self {
            discovery,
            settings: Settings {
                ack: config.ack,
                ack_timeout: config.ack_timeout.as_duration(),
                retry: config.retry,
                failover: config.failover,
                send_buffer: u32::try_from(config.send_buffer.as_bytes()).unwrap_or(u32::MAX),
                in_flight_bytes_max: config.in_flight.as_usize(),
                tls,
                auth: config.auth.map(Arc::new),
                to_all: config.balance == Balance::All,
                hearts: Hearts::new(config.heartbeat),
            },
            batch: config.batch,
            flow: match config.balance {
                Balance::RoundRobin | Balance::All => None,
                Balance::Hash(template) => Some(template),
            },
            peer: config.peer,
            time: config.time,
            metadata,
            warned_of_metadata: AtomicBool::new(false),
            compression: config.compression,
            format,
            leases_turn: Turn::default(),
            lateness: Lateness::default(),
        })
    }

    /// Returns a new encoder for a lane.
    pub(super) fn encoder(&self, pool: Pool) -> Encoder {
        let format = self.format.encoder(&TimeZone::UTC);
        Encoder {
            peer: self.peer,
            time: self.time,
            metadata: self.metadata,
            compression: self.compression,
            ack: self.settings.ack,
            keep_source: self.settings.retry.give_up.0.is_some(),
            adds: self
                .format
                .add
                .as_ref()
                .is_some_and(|add| !add.fields.is_empty()),
            format: format.expect("these options made a format when they were checked"),
            pool,
            dropped: 0,
        }
    }

    /// Counts records whose metadata was dropped, and warns once.
    pub(super) fn dropped_metadata(&self, context: &SinkContext, records: u64) {
        context.meters.counter("metadata_dropped").add(records);
        if !self.warned_of_metadata.swap(true, Ordering::Relaxed) {
            let text = "records have metadata beside their time, which fluentd up to 1.19.3 cannot store: it is dropped and counted \
                        (millstream_metadata_dropped_total); `metadata: keep` sends it to receivers that store it";
            context.reporter.warn("metadata", text);
        }
    }

    /// Whether the sink remembers across restarts which server may have received which chunk.
    pub(super) fn keeps_leases(&self) -> bool {
        let waits = self.settings.failover == Failover::Wait;
        self.settings.ack && waits && !self.settings.to_all
    }

    /// Whether there is only one server, and discovery is off.
    pub(super) fn has_one_server(&self) -> bool {
        self.discovery.place.is_none() && self.discovery.servers.len() == 1
    }
}
