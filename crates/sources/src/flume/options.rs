//! The options of the source `flume`.

use millstream_config::OneOrMany;
use millstream_net::{Limits, Listen, SocketAccess, Tls};
use schemars::JsonSchema;
use serde::Deserialize;

/// Options of the source `flume`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    /// Addresses to listen on: `tcp://ADDRESS:PORT` or `unix:///PATH`; one or a list.
    pub(super) listen: OneOrMany<Listen>,
    /// Access to the unix sockets in `listen`.
    #[serde(default)]
    pub(super) socket: SocketAccess,
    /// Limits for each peer.
    #[serde(default)]
    pub(super) limits: Limits,
    /// TLS on all stream sockets: a name from the top-level `tls`, or a block.
    #[serde(default)]
    pub(super) tls: Tls,
    /// Compression, as in the `compression-type` of the agents: `none` or `deflate`.
    #[serde(default)]
    pub(super) compression: Compression,
    /// Tag of the records: a text, or a template of `{host}` and `{peer}` (both the address of the agent). Default: the name of
    /// the node.
    #[serde(default)]
    pub(super) tag: Option<String>,
}

/// Compression of both directions of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Compression {
    #[default]
    None,
    Deflate,
}
