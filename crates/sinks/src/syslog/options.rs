//! The options of the sink `syslog`.

use millstream_net::{Remote, Tls};
use millstream_wire::template::Template;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::sending::{Batching, Retry};

/// The options of `syslog` in addition to those of the format.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    /// Server: `tcp://HOST:PORT`, `udp://HOST:PORT` (default port 514, with `tls` 6514), `unix:///PATH` (stream) or
    /// `unixgram:///PATH` (datagrams, as `/dev/log`).
    pub(super) url: Remote,
    /// Header of each message.
    #[serde(default)]
    pub(super) protocol: HeaderOption,
    /// How messages are separated on a stream. Datagrams need no framing.
    #[serde(default)]
    pub(super) framing: FramingOption,
    /// Facility of records without a field `facility`: a name such as `local0`, or a number.
    #[serde(default = "user")]
    pub(super) facility: String,
    /// Severity of records without a field `severity`: a name such as `info`, or a number.
    #[serde(default = "notice")]
    pub(super) severity: String,
    /// Host of records without a field `host`.
    #[serde(default = "host")]
    pub(super) host: Template,
    /// App of records without a field `app`.
    #[serde(default = "app")]
    pub(super) app: Template,
    /// TLS to the server: a name of the top-level `tls`, a block, or `true` (the system's root certificates).
    #[serde(default)]
    pub(super) tls: Tls,
    /// How small batches are gathered and sent together.
    #[serde(default)]
    pub(super) batch: Batching,
    /// How a server that fails is retried. `timeout` limits connection attempts; the sink waits without limit for a server
    /// that does not read.
    #[serde(default)]
    pub(super) retry: Retry,
}

/// The header of each message.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum HeaderOption {
    /// RFC 5424: time with microseconds and zone, structured data.
    #[default]
    Rfc5424,
    /// RFC 3164, the older form: no message id, no structured data, times without year and zone.
    Rfc3164,
}

/// How messages are separated on a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum FramingOption {
    /// Octet counting (RFC 6587): each message follows its length.
    #[default]
    Octets,
    /// A newline ends each message; a newline within a message becomes `#012`, as in rsyslog.
    Lines,
}

fn user() -> String {
    "user".to_owned()
}

fn notice() -> String {
    "notice".to_owned()
}

fn host() -> Template {
    Template::parse("{host|-}").expect("a valid template")
}

fn app() -> Template {
    Template::parse("{tag}").expect("a valid template")
}
