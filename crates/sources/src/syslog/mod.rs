//! The source `syslog`: what rsyslog, syslog-ng, `logger`, libraries and network devices send.
//!
//! `[read] -> [decode] -> [send] -> keep -> take -> process -> encode -> write -> settle`
//!
//! It promises: every message that was read becomes a record, whatever it looks like, the last one without its end too; a
//! message of RELP is answered only when it is kept (durable channel) or settled (memory); while the outlet has no room
//! nothing is read, and nothing is dropped here. One task a connection or datagram socket; no lock and no allocation per
//! record. It leaves to others: the formats (`wire::syslog`, `wire::relp`), listening and TLS (`net`).

mod datagrams;
mod flow;
mod relp;
mod stream;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use millstream_config::{Node, OneOrMany, Period, Size};
use millstream_net::{Connection, Limits, Listen, Scheme, Server, Takes, Tls};
use millstream_pipeline::{
    failure::Failure,
    meters::{Meter, NodeMeters},
    node::{Build, Checked, Component, LocalFuture, Source, SourceContext},
    promise::{Guarantee, Promise},
};
use millstream_wire::syslog::{self as wire, TimeZone};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    connection::Patience,
    framing::{LINE_MAX, LINE_MAX_LARGEST, TooLong},
    tagging::{PEER_VALUES, Tagging},
};

/// The entry in the list of sources.
pub const COMPONENT: Component = Component {
    name: "syslog",
    summary: "Takes syslog over UDP, TCP, TLS, unix sockets and RELP: RFC 3164, RFC 5424, and what devices make of them.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Source(build),
};

/// What may stand in `listen`, and the ports that are registered for it. RELP has none.
const TAKES: Takes = &[
    (Scheme::Udp, Some(514)),
    (Scheme::Tcp, Some(514)),
    (Scheme::Unix, None),
    (Scheme::Unixgram, None),
    (Scheme::Relp, None),
];

/// A datagram of UDP has at most so many bytes, which a burst fills with a few thousand messages before one is read.
const RECEIVE_BUFFER: Size = Size::mib(8);

/// Options of the source `syslog`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Where it listens: `udp://ADDRESS:PORT`, `tcp://ADDRESS:PORT` (both port 514 if left out), `relp://ADDRESS:PORT`,
    /// `unix:///PATH` (stream) and `unixgram:///PATH` (datagrams, as `/dev/log`); one or a list.
    listen: OneOrMany<Listen>,
    /// The tag: a text, or a template of `{host}` and `{peer}` (both the sender's address). Default: the node's name, also
    /// where datagrams of many senders make a batch.
    #[serde(default)]
    tag: Option<String>,
    /// How messages of a stream are told apart.
    #[serde(default)]
    framing: Framing,
    /// The longest message.
    #[serde(default = "line_max")]
    line_max: Size,
    /// What becomes of a longer one. Pieces of a message have its header each.
    #[serde(default)]
    too_long: TooLong,
    /// What becomes of a line that has no header of syslog.
    #[serde(default)]
    unparsed: Unparsed,
    /// The zone of times that name none (RFC 3164): a name such as `Europe/Berlin`, or `local` for that of this machine.
    /// Default: what the top of the file says.
    #[serde(default = "timezone")]
    timezone: String,
    /// How long to wait before reading again a socket on which single messages come without pause; it saves wake-ups and
    /// delays a record by at most this. An idle stream is never delayed, nor is RELP. 0: never wait.
    #[serde(default = "gather")]
    gather: Period,
    /// Room that the system keeps for datagrams of one socket that were not read yet; without the right to go beyond
    /// `net.core.rmem_max` it is that.
    #[serde(default = "receive_buffer")]
    receive_buffer: Size,
    /// Bounds on what peers may ask for; `line_max` stands for `frame`. An idle connection without RELP is closed only
    /// amid a message, or if it never sent any: a sender that is not answered would lose the next one.
    #[serde(default)]
    limits: Limits,
    /// TLS on every stream socket: a name of the top-level `tls`, or a block.
    #[serde(default)]
    tls: Tls,
}

/// How messages of a stream are told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Framing {
    /// Each by what it begins with: a count and a space, or not.
    #[default]
    Auto,
    /// Octet counting.
    Octets,
    /// At newlines.
    Lines,
}

/// What becomes of a line that has no header of syslog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Unparsed {
    /// It is a record: the whole line as `message`, with the time it was received.
    #[default]
    Keep,
    /// It leaves by the port `NAME.rejected`.
    Reject,
}

fn line_max() -> Size {
    LINE_MAX
}

fn timezone() -> String {
    "UTC".to_owned()
}

/// One tick of the clock, as network cards moderate their interrupts.
fn gather() -> Period {
    Period::millis(1)
}

fn receive_buffer() -> Size {
    RECEIVE_BUFFER
}

fn build(_name: &str, options: &Node) -> Checked<Box<dyn Source>> {
    Ok(Box::new(Syslog::new(options)?))
}

/// The source, checked; with its sockets once it is bound.
struct Syslog {
    config: Config,
    zone: TimeZone,
    tag: Tagging,
    server: Server,
}

impl Syslog {
    fn new(options: &Node) -> Checked<Self> {
        let config: Config = options.read()?;
        let (listen, limits) = (&config.listen, &config.limits);
        let mut problems = Vec::new();
        let server = Server::check(options, listen, TAKES, limits, &config.tls);
        let server = server.map_err(|found| problems.extend(found)).ok();
        if config.line_max.is_zero() || config.line_max > LINE_MAX_LARGEST {
            let text = "`line_max` must be between 1B and 1GiB";
            problems.push(options.problem_at("line_max", text));
        }
        let tag = Tagging::of(config.tag.as_deref(), PEER_VALUES, options);
        let tag = tag.map_err(|problem| problems.push(problem));
        let zone = match &*config.timezone {
            "local" => Ok(TimeZone::system()),
            name => TimeZone::get(name),
        };
        let zone = zone.map_err(|_| {
            let text = format!(
                "`{}` is no time zone: write a name such as Europe/Berlin, UTC or local",
                config.timezone
            );
            problems.push(options.problem_at("timezone", text));
        });
        match (server, zone, tag) {
            (Some(server), Ok(zone), Ok(tag)) if problems.is_empty() => Ok(Self {
                config,
                zone,
                tag,
                server,
            }),
            _ => Err(problems),
        }
    }
}

impl Source for Syslog {
    fn bind(&mut self, context: &SourceContext) -> Result<(), Failure> {
        self.server.bind(&context.reporter)?;
        for socket in self.server.datagrams()? {
            let bytes = self.config.receive_buffer.as_usize();
            datagrams::prepare(&socket, bytes, &context.reporter);
        }
        Ok(())
    }

    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let shared = Arc::new(Shared::new(
                &self.config,
                &self.zone,
                &self.tag,
                context.clone(),
            ));
            let datagrams = datagrams::read_all(self.server.datagrams()?, shared.clone());
            let each = move |connection: Connection| {
                let shared = shared.clone();
                async move {
                    match connection.scheme {
                        Scheme::Relp => relp::serve(connection, shared).await,
                        _ => stream::serve(connection, shared).await,
                    }
                }
            };
            let (served, read) = tokio::join!(self.server.serve(&context, each), datagrams);
            served.and(read)
        })
    }

    fn values(&self) -> &'static [&'static str] {
        PEER_VALUES
    }

    fn promise(&self, durable: bool) -> Promise {
        let until = if durable { "kept" } else { "settled" };
        let relp = |listen: &Listen| listen.scheme() == Scheme::Relp;
        if self.config.listen.iter().all(relp) {
            let text = "for RELP: what was not answered when a session broke comes again, and cannot be told from new";
            Promise::new(Guarantee::AtLeastOnce, text)
        } else if self.config.listen.iter().any(relp) {
            let text =
                format!("until it is {until}, for there are no answers; by RELP at least once");
            Promise::new(Guarantee::AtMostOnce, text)
        } else {
            let text = format!("until it is {until}: these protocols have no answers");
            Promise::new(Guarantee::AtMostOnce, text)
        }
    }
}

/// What all connections of the source share.
struct Shared {
    context: SourceContext,
    tag: Tagging,
    settings: wire::Settings,
    patience: Patience,
    gather: std::time::Duration,
    meters: SyslogMeters,
}

impl Shared {
    fn new(config: &Config, zone: &TimeZone, tag: &Tagging, context: SourceContext) -> Self {
        let settings = wire::Settings {
            framing: match config.framing {
                Framing::Auto => wire::Framing::Auto,
                Framing::Octets => wire::Framing::Octets,
                Framing::Lines => wire::Framing::Lines,
            },
            bytes_max: config.line_max.as_usize(),
            too_long: match config.too_long {
                TooLong::Split => wire::TooLong::Split,
                TooLong::Truncate => wire::TooLong::Truncate,
                TooLong::Reject => wire::TooLong::Reject,
            },
            strict: config.unparsed == Unparsed::Reject,
            zone: zone.clone(),
        };
        Self {
            tag: tag.clone(),
            settings,
            patience: Patience::of(&config.limits),
            gather: config.gather.as_duration(),
            meters: SyslogMeters::new(&context.meters),
            context,
        }
    }
}

/// What the source counts beside what its outlets count.
struct SyslogMeters {
    bytes_received: Meter,
    datagrams_received: Meter,
    /// By the system, before they could be read.
    datagrams_dropped: Meter,
    datagrams_cut: Meter,
    messages_without_header: Meter,
    messages_too_long: Meter,
    messages_cut: Meter,
    messages_answered: Meter,
    bytes_dropped: Meter,
    connections_refused: Meter,
}

impl SyslogMeters {
    fn new(meters: &NodeMeters) -> Self {
        Self {
            bytes_received: meters.counter("bytes_received"),
            datagrams_received: meters.counter("datagrams_received"),
            datagrams_dropped: meters.counter("datagrams_dropped"),
            datagrams_cut: meters.counter("datagrams_cut"),
            messages_without_header: meters.counter("messages_without_header"),
            messages_too_long: meters.counter("messages_too_long"),
            messages_cut: meters.counter("messages_cut"),
            messages_answered: meters.counter("messages_answered"),
            bytes_dropped: meters.counter("bytes_dropped"),
            connections_refused: meters.counter("connections_refused"),
        }
    }
}
