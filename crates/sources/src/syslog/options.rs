//! The options of the source `syslog`.

use millstream_config::{OneOrMany, Period, Size};
use millstream_net::{Limits, Listen, SocketAccess, Tls};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::framing::{LINE_MAX, TooLong};

/// Large enough for a burst of a few thousand datagrams.
const RECEIVE_BUFFER: Size = Size::mib(8);

/// Options of the source `syslog`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    /// Addresses to listen on: `udp://ADDRESS:PORT`, `tcp://ADDRESS:PORT` (default port of both: 514), `relp://ADDRESS:PORT`,
    /// `unix:///PATH` (stream) and `unixgram:///PATH` (datagrams, such as `/dev/log`); one or a list.
    pub(super) listen: OneOrMany<Listen>,
    /// Access to the unix sockets in `listen`.
    #[serde(default)]
    pub(super) socket: SocketAccess,
    /// Tag of the records: a text, or a template of `{host}` and `{peer}` (both the address of the sender). Default: the name
    /// of the node. For UDP, the default also replaces a template, because a batch may have datagrams of several senders.
    #[serde(default)]
    pub(super) tag: Option<String>,
    /// Separation of the messages of a stream.
    #[serde(default)]
    pub(super) framing: Framing,
    /// Longest message in bytes.
    #[serde(default = "line_max")]
    pub(super) line_max: Size,
    /// Policy for messages longer than `line_max`. Each piece of a split message repeats the header.
    #[serde(default)]
    pub(super) too_long: TooLong,
    /// Treatment of lines without a syslog header.
    #[serde(default)]
    pub(super) unparsed: Unparsed,
    /// Time zone of timestamps without one (RFC 3164): a name such as `Europe/Berlin`, an offset such as `+09:00`, or `local` for
    /// the zone of this machine. Default: the top-level `timezone`.
    #[serde(default = "timezone")]
    pub(super) timezone: String,
    /// Pause before the next read of a busy socket that delivers few messages per read. It saves wake-ups and delays a record
    /// by at most this time. Idle streams and RELP are never delayed. 0: no pause.
    #[serde(default = "gather")]
    pub(super) gather: Period,
    /// Size of the kernel's receive buffer of each datagram socket. It is at most `net.core.rmem_max`, unless the process has
    /// CAP_NET_ADMIN.
    #[serde(default = "receive_buffer")]
    pub(super) receive_buffer: Size,
    /// Limits for each peer; `line_max` applies instead of `frame`. Without RELP, an idle connection is closed only within a
    /// message, or before its first message. Its sender gets no answers, so a close between messages would lose the next one.
    #[serde(default)]
    pub(super) limits: Limits,
    /// TLS on all stream sockets: a name from the top-level `tls`, or a block.
    #[serde(default)]
    pub(super) tls: Tls,
}

/// Separation of the messages of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Framing {
    /// A message that begins with a number and a space has an octet count; any other message ends at a newline.
    #[default]
    Auto,
    /// Every message begins with its octet count.
    Octets,
    /// Every message ends at a newline.
    Lines,
}

/// Treatment of lines without a syslog header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Unparsed {
    /// The line becomes a record: the whole line as `message`, with the receive time.
    #[default]
    Keep,
    /// The line leaves by the port `NAME.rejected`.
    Reject,
}

fn line_max() -> Size {
    LINE_MAX
}

fn timezone() -> String {
    "UTC".to_owned()
}

/// One millisecond: a usual interval at which network cards moderate interrupts.
fn gather() -> Period {
    Period::millis(1)
}

fn receive_buffer() -> Size {
    RECEIVE_BUFFER
}
