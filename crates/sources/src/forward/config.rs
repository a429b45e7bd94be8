//! The options of the source `forward`.

use millstream_config::{OneOrMany, Period};
use millstream_net::{Limits, Listen, SocketAccess, Tls};
use schemars::JsonSchema;
use serde::Deserialize;

use super::auth::Auth;

/// Options of the source `forward`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    /// Addresses to listen on, one or a list: `tcp://ADDRESS:PORT` (default port 24224; UDP heartbeats are answered on the same
    /// port) or `unix:///PATH`.
    pub(super) listen: OneOrMany<Listen>,
    /// Access to the unix sockets in `listen`.
    #[serde(default)]
    pub(super) socket: SocketAccess,
    /// Tag of the records: a text, or a template of `{tag}` (the sender's), `{host}` and `{peer}` (both the sender's address). Default:
    /// the sender's tag.
    #[serde(default)]
    pub(super) tag: Option<String>,
    /// Limits for each peer.
    #[serde(default)]
    pub(super) limits: Limits,
    /// TLS on every stream socket: a name of the top-level `tls`, or a block.
    #[serde(default)]
    pub(super) tls: Tls,
    /// Authentication of senders: a shared key, and optionally users (Fluentd: `<security>`). Default: everyone who can connect
    /// may send.
    #[serde(default)]
    pub(super) auth: Option<Auth>,
    /// Maximum wait before the next read of a connection that sends many small messages without requesting acks. It saves
    /// wake-ups and delays a record by at most this time; an idle stream is never delayed. Default: 1 ms. 0: never waits.
    #[serde(default = "default_gather")]
    pub(super) gather: Period,
    /// Number of times that a chunk (identified by its id) is refused if it is complete but cannot be decoded to its end. After
    /// that its good records are kept, the rest leaves by the port `rejected`, and the chunk is acked. Default: 3.
    #[serde(default = "default_poison_after")]
    pub(super) poison_after: u32,
}

/// One millisecond: a usual interval at which network cards moderate interrupts.
fn default_gather() -> Period {
    Period::millis(1)
}

fn default_poison_after() -> u32 {
    3
}
