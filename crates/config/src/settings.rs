//! The settings at the top of the file, beside the sections. Their doc comments are the reference.

use std::num::NonZeroU16;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::machine;
use crate::one_or_many::OneOrMany;
use crate::size::Size;

/// What concerns the program as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The directory of positions, cursors, channels and rejected records. One process owns it at a time (it is locked). Other users
    /// cannot read it: directories have the permissions 0700 and files 0600, also those that a start finds.
    #[serde(deserialize_with = "some_path")]
    pub data_dir: PathBuf,
    /// All queues and batches together; the process needs up to 128 MiB beside them, and up to 96 KiB for each open connection.
    /// Default: a quarter of what the cgroup or the machine allows.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "above_zero"
    )]
    pub memory_max: Option<Size>,
    /// Threads that move data. Default: the CPUs this process may use, cgroup quota included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<NonZeroU16>,
    /// What `host` is for records that are written on this machine. Empty: the machine's name.
    pub host: String,
    /// The time zone of strftime fields and of times that name none, such as `Europe/Berlin`. Any node may set its own.
    pub timezone: String,
    /// The log, which goes to stderr.
    pub log: Log,
    /// The interface for people and monitoring: dashboard, /metrics, /health.
    pub api: Api,
    /// How many rejected records are kept in `data_dir/rejected`, where no node takes them.
    pub rejected: RejectedLimits,
}

/// Bounds on rejected records that are kept. The node is unhealthy from 80 % of a bound on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RejectedLimits {
    /// At most this much of one node. Other nodes are not affected when it is reached.
    #[serde(deserialize_with = "some_room")]
    pub node_max: Size,
    /// At most this much of one peer of a node.
    #[serde(deserialize_with = "some_room")]
    pub peer_max: Size,
    /// What happens when a bound is reached.
    pub full: WhenRejectedFull,
}

/// What happens when a node or peer has rejected more than is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhenRejectedFull {
    /// The connection or sink that rejects waits until an operator moves files away. Nothing is lost.
    #[default]
    Wait,
    /// The oldest rejected records of that peer or node are removed.
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
    /// The least important lines that are written.
    pub level: LogLevel,
    /// How a line looks.
    pub format: LogFormat,
}

/// How important a line of the log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Something does not work.
    Error,
    /// Something may not work as meant.
    Warn,
    /// What happens, a few lines per event of importance.
    #[default]
    Info,
    /// What happens in detail.
    Debug,
    /// Every step.
    Trace,
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people; with priorities under journald.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The interface for people and monitoring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Api {
    /// Address and port, or a list of them; `[]` for no interface at all.
    pub listen: OneOrMany<String>,
    /// What needs no token from outside of this machine.
    pub open: Vec<Open>,
    /// Further host names under which clients reach the interface, such as a load balancer's. It answers to addresses,
    /// `localhost` and the names of this machine without being told; any other `Host` header is refused (DNS rebinding).
    pub hosts: Vec<String>,
}

/// A part of the interface that can be opened to everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Open {
    /// `/health`
    Health,
    /// `/metrics`
    Metrics,
}

/// Where the interface listens if the file says nothing: on this machine only.
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
            rejected: RejectedLimits::default(),
        }
    }
}

impl Default for Api {
    fn default() -> Self {
        Self {
            listen: OneOrMany(vec![API_LISTEN.to_owned()]),
            open: Vec::new(),
            hosts: Vec::new(),
        }
    }
}

impl Settings {
    /// The memory that queues and batches may take together: as set, or a quarter of what this process may use.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory_max
            .map_or_else(|| machine::memory_bytes() / 4, Size::as_bytes)
    }

    /// How many threads move data: as set, or the CPUs that this process may use.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        self.threads
            .map_or_else(machine::cpus, |threads| usize::from(threads.get()))
    }
}

/// A size that leaves room for something to move.
fn above_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Size>, D::Error> {
    let size = Option::<Size>::deserialize(deserializer)?;
    match size.is_some_and(Size::is_zero) {
        true => Err(D::Error::custom("must be above 0: nothing could move")),
        false => Ok(size),
    }
}

/// A size in which something can be kept.
fn some_room<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
    let size = Size::deserialize(deserializer)?;
    match size.is_zero() {
        true => Err(D::Error::custom(
            "must be above 0: rejected records are kept until an operator moves them",
        )),
        false => Ok(size),
    }
}

/// A path with something in it.
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
    fn the_defaults_are_what_an_empty_file_gives() {
        let node = crate::Node::parse("t", "{}").unwrap();
        assert_eq!(node.read::<Settings>(), Ok(Settings::default()));
        assert!(Settings::default().thread_count() >= 1);
        assert!(Settings::default().memory_bytes() > 0);
    }

    #[test]
    fn what_is_set_counts_and_not_the_machine() {
        let node = crate::Node::parse("t", "{ memory_max: 1MiB, threads: 3 }").unwrap();
        let settings: Settings = node.read().unwrap();
        assert_eq!(
            (settings.memory_bytes(), settings.thread_count()),
            (1 << 20, 3)
        );
    }

    #[test]
    fn the_schema_describes_every_setting_and_depends_on_no_machine() {
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
    fn printed_settings_read_back_as_themselves() {
        let text = serde_json::to_string(&Settings::default()).unwrap();
        let node = crate::Node::parse("t", &text).unwrap();
        assert_eq!(node.read::<Settings>(), Ok(Settings::default()));
    }
}
