//! The options of the sink `forward`.

use std::path::PathBuf;

use millstream_config::{Node, OneOrMany, Period, Problem, Size};
use millstream_net::Tls;
use millstream_wire::{format::Add, template::Template};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    auth::Auth,
    server::{ServerOptions, address},
};
use crate::sending::{Batching, Retry};

/// The options of `forward`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    /// Servers: `"host[:24224]"` or `{ address, weight, standby }`, one or a list. Chunks are dealt round robin by weight; when
    /// a server fails the others take over, standbys last.
    #[serde(default)]
    pub(super) servers: OneOrMany<ServerOptions>,
    /// Where to look up servers beside those in `servers`; they join and leave while the sink runs.
    #[serde(default)]
    pub(super) discovery: Option<DiscoveryOptions>,
    /// How chunks are dealt to the servers.
    #[serde(default)]
    pub(super) balance: Balance,
    /// Kind of receiver: `any` forward receiver (lines become records, only `add` is written beside them), or another
    /// `millstream` (lines stay lines; the values of a batch and its receive time travel along).
    #[serde(default)]
    pub(super) peer: Peer,
    /// Whether the sink asks for acks. Without acks, chunks in flight when a connection breaks may be lost.
    #[serde(default = "ack")]
    pub(super) ack: bool,
    /// Time after which a connection is closed if an ack is due and nothing moves on it.
    #[serde(default = "ack_timeout")]
    pub(super) ack_timeout: Period,
    /// Compression of payloads.
    #[serde(default)]
    pub(super) compression: Compression,
    /// Form of event times: `event` (nanoseconds), or `integer` seconds for old receivers.
    #[serde(default)]
    pub(super) time: TimeForm,
    /// Metadata that newer Fluent Bits write beside the time, `[[time, {...}], record]`: `keep` it for receivers that store
    /// such records (Fluent Bit, Millstream), or `drop` it, because fluentd up to 1.19.3 acks such records and loses them.
    /// Default: `keep` with `peer: millstream`, otherwise `drop`; dropped metadata is counted and logged.
    #[serde(default)]
    pub(super) metadata: Option<Metadata>,
    /// New fields and their templates; never overwrites a field of the record.
    #[serde(default)]
    pub(super) add: Option<Add>,
    /// When small batches leave together (behind memory; behind a durable channel each frame is a chunk).
    #[serde(default)]
    pub(super) batch: Batching,
    /// TLS to the servers: a name of the top-level `tls`, a block, or `true` (the system's root certificates). A certificate
    /// must hold the name or address with which `servers` names its server, or `server_name`.
    #[serde(default)]
    pub(super) tls: Tls,
    /// Shared key, and a user, for servers that ask for them.
    #[serde(default)]
    pub(super) auth: Option<Auth>,
    /// Maximum bytes in flight to each server, without an ack.
    #[serde(default = "in_flight")]
    pub(super) in_flight: Size,
    /// Size of the kernel's send buffer of each connection (SO_SNDBUF); 0 lets the kernel decide, for long distances.
    #[serde(default = "send_buffer")]
    pub(super) send_buffer: Size,
    /// How servers that fail are retried.
    #[serde(default)]
    pub(super) retry: Retry,
    /// How the sink notices that a server does not answer before records wait for it.
    #[serde(default)]
    pub(super) heartbeat: Heartbeat,
    /// Treatment of chunks in doubt (sent, but not acked) when their server fails: `resend` them to another server (at least
    /// once), or `wait` until it is back.
    #[serde(default)]
    pub(super) failover: Failover,
}

fn ack() -> bool {
    true
}

/// The same as in fluentd, whose receivers may ack late.
fn ack_timeout() -> Period {
    Period::secs(190)
}

/// Enough for a chunk being written, one being stored and some being acked; small enough for the cache.
fn in_flight() -> Size {
    Size::mib(4)
}

/// On a local network a larger buffer is no faster: sender and receiver then compete for the cache.
fn send_buffer() -> Size {
    Size::kib(128)
}

/// Where servers are looked up.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DiscoveryOptions {
    /// YAML file with a list as in `servers`; read again when it changes.
    pub(super) file: Option<PathBuf>,
    /// DNS name, `host[:24224]`: every address is a server.
    pub(super) dns: Option<String>,
    /// Time between two lookups.
    #[serde(default = "look_interval")]
    pub(super) interval: Period,
}

/// Short enough that a new server gets its share within two seconds; a small file or a cached name costs little.
fn look_interval() -> Period {
    Period::secs(1)
}

/// How chunks are dealt to servers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Balance {
    /// Round robin by weight among servers with room.
    #[default]
    RoundRobin,
    /// By the value of this template (`"{tag}"`, `"{.user}"`): records with the same value go to one server, in order, as long
    /// as it works.
    Hash(Template),
    /// Every server gets everything; a batch is settled when all of them have it. The slowest sets the pace.
    All,
}

/// Treatment of the metadata of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Metadata {
    /// Sends it.
    Keep,
    /// Leaves it out.
    Drop,
}

/// How heartbeats are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Beat {
    /// A connection with all its handshakes, closed at once.
    #[default]
    Transport,
    /// A datagram to the same port, answered by a datagram: also notices a server that hangs. Where no datagram is ever
    /// answered (a firewall), no server is judged.
    Udp,
    /// No heartbeats.
    None,
}

/// Heartbeats.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Heartbeat {
    /// Kind of heartbeat.
    pub(super) by: Beat,
    /// Time between two heartbeats.
    pub(super) interval: Period,
    /// Time without an answer after which a server that answered before gets no more chunks, until it answers again.
    pub(super) silence: Period,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self {
            by: Beat::Transport,
            interval: Period::secs(1),
            silence: Period::secs(5),
        }
    }
}

/// The kind of receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Peer {
    /// Any receiver of the forward protocol.
    #[default]
    Any,
    /// Another Millstream.
    Millstream,
}

/// Compression of payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Compression {
    /// No compression.
    #[default]
    None,
    /// gzip: supported by every recent receiver.
    Gzip,
    /// zstd: faster and smaller; fluentd since 1.19, and Millstream.
    Zstd,
}

/// Form of event times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum TimeForm {
    /// EventTime, with nanoseconds.
    #[default]
    Event,
    /// Whole seconds.
    Integer,
}

/// Treatment of chunks in doubt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Failover {
    /// They go to another server at once.
    #[default]
    Resend,
    /// They wait for their server.
    Wait,
}

impl Config {
    /// Whether metadata is sent. By default only to peers that store it.
    pub(super) fn metadata(&self) -> Metadata {
        self.metadata.unwrap_or(match self.peer {
            Peer::Millstream => Metadata::Keep,
            Peer::Any => Metadata::Drop,
        })
    }

    fn check_discovery(&self, wrong: &mut impl FnMut(&str, &str)) {
        match &self.discovery {
            Some(looked) if looked.file.is_some() == looked.dns.is_some() => wrong(
                "discovery",
                "servers are looked up in one place: `file` or `dns`",
            ),
            Some(looked) if looked.interval.is_zero() => {
                wrong("discovery.interval", "it must be longer than 0");
            }
            Some(looked) => {
                if let Some(Err(text)) = looked.dns.as_deref().map(address) {
                    wrong("discovery.dns", &text);
                }
            }
            None => {}
        }
    }

    /// Reads and checks the options.
    pub(super) fn read(options: &Node) -> Result<Self, Vec<Problem>> {
        let config: Self = options.read()?;
        let mut problems = Vec::new();
        let servers = &*config.servers;
        let mut wrong =
            |option: &str, message: &str| problems.push(options.problem_at(option, message));
        config.check_discovery(&mut wrong);
        if servers.is_empty() {
            if config.discovery.is_none() {
                let text = "a sink needs at least one server: name it here, or say where to look in `discovery`";
                wrong("servers", text);
            }
        } else if !servers
            .iter()
            .any(|server| server.weight > 0 && !server.standby)
        {
            wrong(
                "servers",
                "at least one server must have a weight and be no standby",
            );
        }
        for (place, server) in servers.iter().enumerate() {
            if servers[..place]
                .iter()
                .any(|other| other.address == server.address)
            {
                wrong(
                    &format!("servers.{place}"),
                    "this server is in the list already",
                );
            }
        }
        if config.balance == Balance::All && servers.iter().any(|server| server.standby) {
            let text = "with `all` every server gets everything: none can stand by";
            wrong("balance", text);
        }
        let Heartbeat {
            interval, silence, ..
        } = config.heartbeat;
        if silence.as_duration() < 2 * interval.as_duration() {
            let text = "it must be at least twice the `interval`: one answer may be lost";
            wrong("heartbeat.silence", text);
        }
        for (option, period) in [
            ("heartbeat.interval", interval),
            ("ack_timeout", config.ack_timeout),
            ("retry.first", config.retry.first),
            ("retry.timeout", config.retry.timeout),
        ] {
            if period.is_zero() {
                wrong(option, "it must be longer than 0");
            }
        }
        if config.in_flight.is_zero() {
            wrong(
                "in_flight",
                "it must be more than 0: one chunk goes out at a time then",
            );
        }
        if u32::try_from(config.send_buffer.as_bytes()).is_err() {
            wrong("send_buffer", "it must be below 4GiB");
        }
        if let Some(auth) = &config.auth {
            auth.check(options, &mut problems);
        }
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(problems)
        }
    }
}
