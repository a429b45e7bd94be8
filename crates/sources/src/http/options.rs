//! The options of the source `http`.

use millstream_config::{OneOrMany, Period, Secret};
use millstream_net::{Limits, Listen, SocketAccess, Tls};
use schemars::JsonSchema;
use serde::Deserialize;

/// Options of the source `http`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    /// Addresses to listen on: `tcp://ADDRESS:PORT` or `unix:///PATH`; one or a list.
    pub(super) listen: OneOrMany<Listen>,
    /// Access to the unix sockets in `listen`.
    #[serde(default)]
    pub(super) socket: SocketAccess,
    /// Limits for each peer: `frame` applies to the body of a request as received, `decompressed` to the decompressed body and
    /// to its records. A request that is not complete within `idle` is rejected.
    #[serde(default)]
    pub(super) limits: Limits,
    /// TLS on all stream sockets: a name from the top-level `tls`, or a block.
    #[serde(default)]
    pub(super) tls: Tls,
    /// Authentication that requests need.
    #[serde(default)]
    pub(super) auth: Auth,
    /// Paths that accept JSON lines, one or a list: exact, or with a `*` at the end for any text (`/app/*`; `/*`: any path). Other
    /// paths are answered with 404. `/v1/logs` always accepts OTLP; so does each of these paths that ends in it
    /// (`/otlp/v1/logs`). Default: `/`.
    #[serde(default)]
    pub(super) path: Option<OneOrMany<String>>,
    /// Tag of the records: a text in which `*` stands for the path of the request with dots instead of slashes, or a template
    /// of `{host}` and `{peer}` (both the address of the client). Default: the name of the node.
    #[serde(default)]
    pub(super) tag: Option<String>,
    /// Time that a request waits for memory and for space in the next channel. Then it is answered with 429 or 503 and
    /// `Retry-After`.
    #[serde(default = "default_wait")]
    pub(super) wait: Period,
}

/// Authentication that requests need.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Auth {
    /// Token that requests send as `Authorization: Bearer TOKEN`. Default: none is required.
    #[serde(default)]
    pub(super) bearer: Option<Secret>,
}

/// Five seconds: less than the 10 s for which OpenTelemetry exporters wait for an answer.
fn default_wait() -> Period {
    Period::secs(5)
}
