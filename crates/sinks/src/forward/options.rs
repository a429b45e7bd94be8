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
    /// Servers: one or a list of `"host[:24224]"` or `{ address, weight, standby }`. Chunks are dealt round robin by weight; when a
    /// server fails, the other servers get its share, and as many standbys take part as are needed to replace its weight.
    #[serde(default)]
    pub(super) servers: OneOrMany<ServerOptions>,
    /// Where to look up servers in addition to those in `servers`; servers join and leave while the sink runs.
    #[serde(default)]
    pub(super) discovery: Option<DiscoveryOptions>,
    /// How chunks are dealt to the servers.
    #[serde(default)]
    pub(super) balance: Balance,
    /// Kind of receiver: `any` for any forward receiver (lines become records; values of a batch are sent only as fields of `add`),
    /// `millstream` for another Millstream (lines stay lines; the values of a batch and its receive time are sent, too).
    #[serde(default)]
    pub(super) peer: Peer,
    /// Whether the sink asks for acks. Without acks, a chunk counts as delivered when the system of the server has acknowledged its
    /// bytes; it may be lost when a connection breaks.
    #[serde(default = "ack")]
    pub(super) ack: bool,
    /// Time after which a connection is closed if an ack is due, no ack arrives and no byte can be written.
    #[serde(default = "ack_timeout")]
    pub(super) ack_timeout: Period,
    /// Compression of payloads.
    #[serde(default)]
    pub(super) compression: Compression,
    /// Format of event times: `event` (nanoseconds), or `integer` (whole seconds) for old receivers.
    #[serde(default)]
    pub(super) time: TimeForm,
    /// Metadata that newer versions of Fluent Bit write beside the time, `[[time, {...}], record]`: `keep` it for receivers that
    /// store such records (Fluent Bit, Millstream), or `drop` it, because fluentd up to 1.19.3 acks such records and loses them.
    /// Default: `keep` with `peer: millstream`, otherwise `drop`; dropped metadata is counted and logged.
    #[serde(default)]
    pub(super) metadata: Option<Metadata>,
    /// Fields to add and their templates; a field that the record already has is not overwritten.
    #[serde(default)]
    pub(super) add: Option<Add>,
    /// When small batches are sent together as one chunk. Applies only behind a memory channel; behind a durable channel each batch
    /// is sent separately.
    #[serde(default)]
    pub(super) batch: Batching,
    /// TLS to the servers: a name of the top-level `tls`, a block, or `true` (the system's root certificates). A server's
    /// certificate must contain the name or address from `servers`, or `server_name`.
    #[serde(default)]
    pub(super) tls: Tls,
    /// Shared key, and a user, for servers that ask for them.
    #[serde(default)]
    pub(super) auth: Option<Auth>,
    /// Maximum bytes in flight (sent, but not acked) to each server.
    #[serde(default = "in_flight")]
    pub(super) in_flight: Size,
    /// Size of the kernel's send buffer of each connection (SO_SNDBUF); 0 lets the kernel decide, which is faster over long
    /// distances.
    #[serde(default = "send_buffer")]
    pub(super) send_buffer: Size,
    /// How servers that fail are retried.
    #[serde(default)]
    pub(super) retry: Retry,
    /// How the sink notices a server that does not answer, even before any record waits for that server.
    #[serde(default)]
    pub(super) heartbeat: Heartbeat,
    /// Treatment of chunks in doubt (sent, but not acked) when their server fails: `resend` them to another server (at least once),
    /// or `wait` until the failed server is back.
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

/// Enough for a chunk that is being written, one that is being stored and some that wait for an ack; small enough for the CPU
/// cache.
fn in_flight() -> Size {
    Size::mib(4)
}

/// On a local network a larger buffer is no faster: sender and receiver then compete for the CPU cache.
fn send_buffer() -> Size {
    Size::kib(128)
}

/// Where servers are looked up.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DiscoveryOptions {
    /// YAML file with a list as in `servers`; the file is read again after each `interval`.
    pub(super) file: Option<PathBuf>,
    /// DNS name, `host[:24224]`: every address of the name is a server.
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
    /// Round robin by weight among the servers that have room for the chunk (`in_flight`).
    #[default]
    RoundRobin,
    /// By the value of this template (`"{tag}"`, `"{.user}"`): records with the same value go to one server, in order, as long as
    /// that server works.
    Hash(Template),
    /// Every server gets every chunk; a batch is settled when all servers have acked it. The slowest server sets the pace.
    All,
}

/// Treatment of the metadata of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Metadata {
    /// Sends the metadata.
    Keep,
    /// Removes the metadata.
    Drop,
}

/// How heartbeats are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Beat {
    /// A connection that does all handshakes and is then closed.
    #[default]
    Transport,
    /// A datagram to the server's port. The server answers with a datagram, so this also notices a server that hangs. A server that
    /// has never answered a datagram (a firewall may drop them) gets chunks as usual.
    Udp,
    /// No heartbeats.
    None,
}

/// How heartbeats are sent, and when a server counts as silent.
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
    /// zstd: faster and smaller than gzip; supported by fluentd since 1.19 and by Millstream.
    Zstd,
}

/// Format of event times.
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
    /// Chunks in doubt go to another server immediately.
    #[default]
    Resend,
    /// Chunks in doubt wait for their server.
    Wait,
}

impl Config {
    /// Returns whether metadata is sent. By default, it is sent only to peers that store it.
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
                "it must be more than 0; with 1B, one chunk goes out at a time",
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
