//! The settings at the top of the file, beside the sections. Their doc comments become the reference for users.

use std::num::NonZeroU16;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::machine;
use crate::one_or_many::OneOrMany;
use crate::period::Period;
use crate::secret::Secret;
use crate::size::Size;

/// Settings of the program as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Directory for positions, cursors, channels and rejected records. One process owns it at a time (it is locked).
    /// Other users cannot read it: directories have mode 0700 and files 0600, including those that already exist at a
    /// start.
    #[serde(deserialize_with = "some_path")]
    pub data_dir: PathBuf,
    /// Memory for all queues and batches together. The process needs up to 128 MiB in addition, and up to 96 KiB for
    /// each open connection. Default: a quarter of the memory of the cgroup or the machine.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "above_zero"
    )]
    pub memory_max: Option<Size>,
    /// Number of threads that move data. Default: the CPUs that this process may use, including the cgroup quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<NonZeroU16>,
    /// Value of `host` for records that are written on this machine. Empty: the machine's name.
    pub host: String,
    /// Time zone of strftime fields and of times without a zone, such as `Europe/Berlin` or `+09:00`. Every node can override it.
    pub timezone: String,
    /// Log of the program, written to stderr.
    pub log: Log,
    /// HTTP interface for people and monitoring: dashboard, /metrics, /health.
    pub api: Api,
    /// Rules of `/health` and `/ready`.
    pub health: Health,
    /// Graphite server to which all metrics are sent. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graphite: Option<Graphite>,
    /// Limits on rejected records that no node consumes. They are kept in `data_dir/rejected`.
    pub rejected: RejectedLimits,
}

/// Limits on rejected records that are kept. A node is unhealthy while it uses 80 % of a limit or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RejectedLimits {
    /// Maximum size of the rejected records of a node. Other nodes are not affected when a node reaches its limit.
    #[serde(deserialize_with = "some_room")]
    pub node_max: Size,
    /// Maximum size of the rejected records of each peer of a node.
    #[serde(deserialize_with = "some_room")]
    pub peer_max: Size,
    /// Behaviour when a limit is reached.
    pub full: WhenRejectedFull,
}

/// Behaviour when a node or peer has reached its limit of rejected records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhenRejectedFull {
    /// The connection or sink that rejects records waits until an operator moves files away. Nothing is lost.
    #[default]
    Wait,
    /// The oldest rejected records of the peer or node are removed.
    DropOldest,
}

impl Default for RejectedLimits {
    fn default() -> Self {
        Self {
            node_max: Size::gib(1),
            peer_max: Size::mib(256),
            full: WhenRejectedFull::Wait,
        }
    }
}

/// The log of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Least severe level that is written.
    pub level: LogLevel,
    /// Format of a line.
    pub format: LogFormat,
}

/// Severity of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Something does not work.
    Error,
    /// Something may not work as intended.
    Warn,
    /// Important events, a few lines each.
    #[default]
    Info,
    /// Events in detail.
    Debug,
    /// Every step.
    Trace,
}

/// Format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Text for people; under journald, with priorities.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// HTTP interface for people and monitoring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Api {
    /// Address and port, or a list of them; `[]` turns the interface off.
    pub listen: OneOrMany<String>,
    /// TLS on the addresses that other machines can reach: a name of the top-level `tls`, or a block. With `ca`, clients
    /// may present a certificate (with `client_auth: optional`, clients with a token need no certificate). Loopback addresses
    /// stay without TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub tls: Option<serde_json::Value>,
    /// Tokens for clients on other machines: `Authorization: Bearer TOKEN`, or TOKEN as the password that a browser asks for.
    pub tokens: Vec<ApiToken>,
    /// Client certificates, by name, for clients on other machines.
    pub certificates: Vec<ApiCertificate>,
    /// Role of clients on this machine that present no token. With `admin` or `read`, every user of this machine has this role.
    pub local: LocalRole,
    /// Parts that other machines may request without a token.
    pub open: Vec<ApiEndpoint>,
    /// Further host names under which clients reach the interface, such as that of a load balancer. IP addresses, `localhost`
    /// and the names of this machine are always accepted; any other `Host` header is refused (protection against DNS rebinding).
    pub hosts: Vec<String>,
    /// Fields whose values print as `***` in samples of records, in rejected records, and in log lines and reasons that quote a
    /// record, such as `.password` or `.user.email`.
    pub redact: Vec<String>,
}

/// A token and the role of the clients that present it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiToken {
    /// Name of the token, for the log.
    pub name: String,
    /// The token, at least 16 characters: `openssl rand -hex 32` makes one.
    pub token: Secret,
    /// The rights of its clients.
    #[serde(default)]
    pub role: Role,
}

/// The name in a client certificate and the role of the clients that present it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiCertificate {
    /// The common name, or an alternative name (DNS, mail, URI), of the certificate.
    pub name: String,
    /// The rights of its clients.
    #[serde(default)]
    pub role: Role,
}

/// The rights of a client of the interface.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// See everything, including samples of records, and change nothing.
    #[default]
    Read,
    /// See and change everything.
    Admin,
}

/// The role of clients on this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LocalRole {
    /// Like clients on other machines: they need a token.
    None,
    /// They see everything.
    Read,
    /// They see and change everything.
    #[default]
    Admin,
}

/// A part of the interface that can be opened to other machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApiEndpoint {
    /// `/health`, `/ready` and `/live`
    Health,
    /// `/metrics`
    Metrics,
}

/// Rules of `/health` and `/ready`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Health {
    /// Time after which a node counts as unhealthy, even if it reports no problem: records wait for the node, and it makes no progress.
    /// For a sink, the time that it may take to settle records (such as a publishing interval) is added. 0 turns this rule off.
    pub stalled: Period,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            stalled: Period::secs(60),
        }
    }
}

/// Graphite server to which all metrics are sent, as plaintext over TCP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Graphite {
    /// Host and port of carbon's plaintext receiver, such as `graphite.example:2003`.
    pub endpoint: String,
    /// Beginning of every metric's path. Give each instance its own prefix, such as `millstream.${HOSTNAME}`.
    #[serde(default = "graphite_prefix")]
    pub prefix: String,
    /// Time between two reports; at least 1 s. Carbon's retention should have the same step.
    #[serde(default = "graphite_interval")]
    pub interval: Period,
}

fn graphite_prefix() -> String {
    "millstream".to_owned()
}

fn graphite_interval() -> Period {
    Period::secs(10)
}

/// The default address of the interface, which only this machine can reach.
const API_LISTEN: &str = "127.0.0.1:8687";

impl Default for Settings {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("/var/lib/millstream"),
            memory_max: None,
            threads: None,
            host: String::new(),
            timezone: "UTC".to_owned(),
            log: Log::default(),
            api: Api::default(),
            health: Health::default(),
            graphite: None,
            rejected: RejectedLimits::default(),
        }
    }
}

impl Default for Api {
    fn default() -> Self {
        Self {
            listen: OneOrMany(vec![API_LISTEN.to_owned()]),
            tls: None,
            tokens: Vec::new(),
            certificates: Vec::new(),
            local: LocalRole::default(),
            open: Vec::new(),
            hosts: Vec::new(),
            redact: Vec::new(),
        }
    }
}

impl Settings {
    /// The memory for queues and batches: the setting, or a quarter of what this process may use.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory_max
            .map_or_else(|| machine::memory_bytes() / 4, Size::as_bytes)
    }

    /// The number of threads that move data: the setting, or the CPUs that this process may use.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        self.threads
            .map_or_else(machine::cpus, |threads| usize::from(threads.get()))
    }
}

/// Reads a size above 0: with 0 no data could move.
fn above_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Size>, D::Error> {
    let size = Option::<Size>::deserialize(deserializer)?;
    match size.is_some_and(Size::is_zero) {
        true => Err(D::Error::custom("must be above 0")),
        false => Ok(size),
    }
}

/// Reads a size above 0: with 0 no rejected record could be kept.
fn some_room<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
    let size = Size::deserialize(deserializer)?;
    match size.is_zero() {
        true => Err(D::Error::custom(
            "must be above 0: rejected records are kept until an operator moves them",
        )),
        false => Ok(size),
    }
}

/// Reads a path that is not empty.
fn some_path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    match path.as_os_str().is_empty() {
        true => Err(D::Error::custom("must name a directory")),
        false => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_gives_the_defaults() {
        let node = crate::Node::parse("t", "{}").unwrap();
        assert_eq!(node.read::<Settings>(), Ok(Settings::default()));
        assert!(Settings::default().thread_count() >= 1);
        assert!(Settings::default().memory_bytes() > 0);
    }

    #[test]
    fn a_setting_overrides_the_machine() {
        let node = crate::Node::parse("t", "{ memory_max: 1MiB, threads: 3 }").unwrap();
        let settings: Settings = node.read().unwrap();
        assert_eq!(
            (settings.memory_bytes(), settings.thread_count()),
            (1 << 20, 3)
        );
    }

    #[test]
    fn the_schema_describes_every_setting_and_is_the_same_on_every_machine() {
        let schema = serde_json::to_value(schemars::schema_for!(Settings)).unwrap();
        let properties = schema["properties"].as_object().unwrap();
        assert_eq!(properties.len(), crate::fields::<Settings>().len());
        for (name, property) in properties {
            assert!(property["description"].is_string(), "{name}");
        }
        assert!(
            properties["threads"]
                .get("default")
                .is_none_or(serde_json::Value::is_null)
        );
    }

    #[test]
    fn graphite_needs_only_its_address() {
        let node = crate::Node::parse("t", "{ graphite: { endpoint: 'g:2003' } }").unwrap();
        let graphite = node.read::<Settings>().unwrap().graphite.unwrap();
        assert_eq!(
            (graphite.endpoint.as_str(), graphite.prefix.as_str()),
            ("g:2003", "millstream")
        );
        assert_eq!(graphite.interval, Period::secs(10));
    }

    #[test]
    fn printed_settings_read_back_as_themselves() {
        let text = serde_json::to_string(&Settings::default()).unwrap();
        let node = crate::Node::parse("t", &text).unwrap();
        assert_eq!(node.read::<Settings>(), Ok(Settings::default()));
    }
}
