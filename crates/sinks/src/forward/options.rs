//! The options of the sink `forward`.

use std::path::PathBuf;

use millstream_config::{Node, OneOrMany, Period, Problem, Size};
use millstream_net::Tls;
use millstream_wire::{format::Add, template::Template};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{batching::Batching, retry::Retry};

use super::{
    auth::Auth,
    discovery::{Discovery, Place},
    server::{ServerOptions, address},
};

/// The options of `forward`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    /// Where the records go: `"host[:24224]"` or `{ address, weight, standby }`, one or a list. Chunks are dealt to them
    /// round robin by weight; when one fails the others take over, standbys last.
    #[serde(default)]
    pub(super) servers: OneOrMany<ServerOptions>,
    /// Where servers are looked up, beside those that `servers` names; they join and leave while it runs.
    #[serde(default)]
    pub(super) discovery: Option<DiscoveryOptions>,
    /// How chunks are dealt to the servers.
    #[serde(default)]
    pub(super) balance: Balance,
    /// What listens there: `any` forward receiver (lines become records, only `add` is written beside them), or another
    /// `millstream` (lines stay lines; the values of a batch and its receive time travel along).
    #[serde(default)]
    pub(super) peer: Peer,
    /// Whether chunks are acked. Without: at most once for what is in flight when a connection breaks.
    #[serde(default = "ack")]
    pub(super) ack: bool,
    /// A connection on which nothing moves for this long although an ack is due is given up.
    #[serde(default = "ack_timeout")]
    pub(super) ack_timeout: Period,
    /// How payloads are compressed.
    #[serde(default)]
    pub(super) compression: Compression,
    /// How event times are written: `event` (nanoseconds), or `integer` seconds for receivers that know nothing else.
    #[serde(default)]
    pub(super) time: TimeForm,
    /// The metadata that newer Fluent Bits write beside the time, `[[time, {...}], record]`: `keep` it for
    /// receivers that store such records (Fluent Bit, Millstream), or `drop` it, because fluentd up to 1.19.3 acks such records
    /// and loses them. Default: `keep` with `peer: millstream`, else `drop`; dropped metadata is counted and logged.
    #[serde(default)]
    pub(super) metadata: Option<Metadata>,
    /// New fields and their templates; a field that a record has is never overwritten.
    #[serde(default)]
    pub(super) add: Option<Add>,
    /// When small batches leave together (behind memory; behind a durable channel each frame is a chunk).
    #[serde(default)]
    pub(super) batch: Batching,
    /// TLS towards the servers: a name of the top-level `tls`, a block, or `true` (the roots of the system). A certificate
    /// must have the name or the address by which a server is written here, or `server_name`.
    #[serde(default)]
    pub(super) tls: Tls,
    /// A key, and a user where one is asked for, for servers that want them.
    #[serde(default)]
    pub(super) auth: Option<Auth>,
    /// Bytes under way to each server without an ack.
    #[serde(default = "in_flight")]
    pub(super) in_flight: Size,
    /// Bytes that the kernel holds for each connection (SO_SNDBUF); 0 leaves it to the kernel, for long distances.
    #[serde(default = "send_buffer")]
    pub(super) send_buffer: Size,
    /// How servers that fail are tried again.
    #[serde(default)]
    pub(super) retry: Retry,
    /// How it is found out that a server does not answer, before records wait for it.
    #[serde(default)]
    pub(super) heartbeat: Heartbeat,
    /// What happens to chunks that a server may have, but has not acked, when it fails: `resend` them to another (at
    /// least once), or `wait` until it is back.
    #[serde(default)]
    pub(super) failover: Failover,
}

fn ack() -> bool {
    true
}

/// As long as fluentd waits: receivers that ack late are made for it.
fn ack_timeout() -> Period {
    Period::secs(190)
}

/// Enough for a chunk being written, one being kept and some being acked; little enough to stay in the cache.
fn in_flight() -> Size {
    Size::mib(4)
}

/// On a local network more only moves the sender's work into the receiver's time (reference/hot-paths.md, section 1).
fn send_buffer() -> Size {
    Size::kib(128)
}

/// Where servers are looked up.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DiscoveryOptions {
    /// A YAML file with a list as `servers` has it; it is read again when it changes.
    pub(super) file: Option<PathBuf>,
    /// `host[:24224]`: every address of this name is a server.
    pub(super) dns: Option<String>,
    /// How often it is looked at.
    #[serde(default = "look_interval")]
    pub(super) interval: Period,
}

/// Often enough that a server which is added carries its share within two seconds; a small file or a cached name.
fn look_interval() -> Period {
    Period::secs(1)
}

/// How chunks are dealt to servers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Balance {
    /// Round robin by weight, to whoever has room.
    #[default]
    RoundRobin,
    /// What this template says of a record (`"{tag}"`, `"{.user}"`) decides: records for which it says the same go to one
    /// server, in their order, as long as that works.
    Hash(Template),
    /// Every server gets everything; a batch is settled when all of them have it. The slowest sets the pace.
    All,
}

/// What becomes of the metadata of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Metadata {
    /// It travels along.
    Keep,
    /// It is left out.
    Drop,
}

/// How servers are asked whether they are there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Beat {
    /// A connection with all its handshakes, closed again at once.
    #[default]
    Transport,
    /// A datagram to the same port, answered by a datagram: it also notices a server that hangs. Where none is ever answered (a
    /// firewall), nobody is judged by it.
    Udp,
    /// Not at all.
    None,
}

/// Heartbeats.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Heartbeat {
    /// How a server is asked.
    pub(super) by: Beat,
    /// How often.
    pub(super) interval: Period,
    /// A server that has answered before, and then not for so long, gets nothing until it answers again.
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

/// What listens at the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Peer {
    /// Any receiver of the forward protocol.
    #[default]
    Any,
    /// Another Millstream.
    Millstream,
}

/// How payloads are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Compression {
    /// Not at all.
    #[default]
    None,
    /// gzip: every receiver of the last years knows it.
    Gzip,
    /// zstd: faster and smaller; fluentd since 1.19, and Millstream.
    Zstd,
}

/// How event times are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum TimeForm {
    /// EventTime, with nanoseconds.
    #[default]
    Event,
    /// Whole seconds.
    Integer,
}

/// What happens to chunks in doubt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Failover {
    /// They go to another server at once.
    #[default]
    Resend,
    /// They wait for their server.
    Wait,
}

impl DiscoveryOptions {
    /// Where to look; a relative path starts at the file it is written in. To be called when all is checked.
    fn place(self, options: &Node) -> Option<Place> {
        let written = options.find("discovery.file").unwrap_or(options);
        let file = self
            .file
            .map(|path| Place::File(written.place.resolve(path)));
        file.or_else(|| Some(Place::Dns(address(&self.dns?).ok()?)))
    }
}

impl Config {
    /// Whether metadata is sent: every receiver stores records without it.
    pub(super) fn metadata(&self) -> Metadata {
        self.metadata.unwrap_or(match self.peer {
            Peer::Millstream => Metadata::Keep,
            Peer::Any => Metadata::Drop,
        })
    }

    /// Where the servers are known from.
    pub(super) fn take_discovery(&mut self, options: &Node) -> Discovery {
        let looked = self.discovery.take();
        Discovery {
            servers: std::mem::take(&mut self.servers.0),
            place: looked.and_then(|looked| {
                let interval = looked.interval.as_duration();
                Some((looked.place(options)?, interval))
            }),
        }
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

    /// Reads the options, or says everything that is wrong with them.
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
