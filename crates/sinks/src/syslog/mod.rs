//! The sink `syslog`: messages of RFC 5424 or RFC 3164 by TCP, TLS, UDP and unix sockets.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! ```text
//! inlet -> lane -> messages -> link -> server
//!            '------- doubt <---'
//! ```
//! - `lane`: takes batches, writes, connects again, settles. One task a lane.
//! - `messages`: batches to framed messages, each with the record that it is of.
//! - `link`: the connection, whatever it is.
//! - `doubt`: what a connection that breaks may have lost.
//!
//! It promises that a record is settled only after the system has taken all of its message, that none is sent twice once
//! it has, and that a connection that breaks is told with the number of records that it may have lost: syslog has no
//! acknowledgements, so nobody knows more.

use std::{sync::Arc, time::Duration};

use millstream_config::Node;
use millstream_net::{ClientTls, Remote, Scheme, Tls};
use millstream_pipeline::{
    failure::Failure,
    inlet::Inlet,
    node::{Build, Checked, Component, LocalFuture, Placement, Sink, SinkContext},
    promise::{Guarantee, Promise},
    report::Reporter,
};
use millstream_wire::{
    format::Format,
    syslog::{Defaults, Header, facility, severity},
    template::Template,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod doubt;
mod lane;
mod link;
mod messages;

#[cfg(test)]
mod tests;

use crate::{
    batching::Batching,
    format::{Default as FormatDefault, Formatting, schema_with_default},
    probe,
    retry::Retry,
};
use lane::Lane;
use link::Link;
use messages::{Framing, Messages};

/// The entry in the list of sinks.
pub const COMPONENT: Component = Component {
    name: "syslog",
    summary: "Syslog by TCP, TLS, UDP and unix sockets; RFC 5424 and 3164.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schema_with_default::<Config>("raw"),
    build: Build::Sink(build),
};

/// The options of `syslog` beside those of the format.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Where the messages go: `tcp://HOST:PORT`, `udp://HOST:PORT` (both port 514 if left out, 6514 with `tls`),
    /// `unix:///PATH` (stream) or `unixgram:///PATH` (datagrams, as `/dev/log`).
    url: Remote,
    /// The header of each message.
    #[serde(default)]
    protocol: HeaderOption,
    /// How messages of a stream are told apart. Datagrams have none.
    #[serde(default)]
    framing: FramingOption,
    /// The facility of records that have no field `facility`: a name such as `local0`, or a number.
    #[serde(default = "user")]
    facility: String,
    /// The severity of records that have no field `severity`: a name such as `info`, or a number.
    #[serde(default = "notice")]
    severity: String,
    /// The host of records that have no field `host`.
    #[serde(default = "host")]
    host: Template,
    /// The app of records that have no field `app`.
    #[serde(default = "app")]
    app: Template,
    /// TLS towards the server: a name of the top-level `tls`, a block, or `true` (the roots of the system).
    #[serde(default)]
    tls: Tls,
    /// When small batches leave together.
    #[serde(default)]
    batch: Batching,
    /// How a server that fails is tried again. `timeout` is for connecting; a server that does not read is waited for.
    #[serde(default)]
    retry: Retry,
}

/// The header of each message.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum HeaderOption {
    /// RFC 5424: time with microseconds and zone, structured data.
    #[default]
    Rfc5424,
    /// RFC 3164: the older form; no message id, no structured data, times without year and zone.
    Rfc3164,
}

/// How messages of a stream are told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum FramingOption {
    /// Octet counting (RFC 6587): each with its length in front.
    #[default]
    Octets,
    /// A newline behind each; one within a message is written `#012`, as rsyslog does.
    Lines,
}

fn user() -> String {
    "user".to_owned()
}

fn notice() -> String {
    "notice".to_owned()
}

fn host() -> Template {
    Template::parse("{host|-}").expect("a template that can be read")
}

fn app() -> Template {
    Template::parse("{tag}").expect("a template that can be read")
}

/// The checked sink.
struct Syslog {
    formatting: Formatting,
    url: Remote,
    header: Header,
    framing: Framing,
    defaults: Defaults,
    tls: Option<Arc<ClientTls>>,
    batch: Batching,
    retry: Retry,
}

fn build(_name: &str, options: &Node) -> Checked<Arc<dyn Sink>> {
    let (formatting, config) =
        Formatting::with_default::<Config>(options, FormatDefault::Bare(Format::Raw))?;
    let mut problems = Vec::new();
    let mut wrong = |option: &str, text: &str| problems.push(options.problem_at(option, text));
    if config.url.scheme() == Scheme::Relp {
        wrong(
            "url",
            "this sink does not speak RELP: possible are tcp, udp, unix and unixgram",
        );
    }
    if config.retry.first.is_zero() {
        wrong("retry.first", "it must be longer than 0");
    }
    if config.retry.timeout.is_zero() {
        wrong("retry.timeout", "it must be longer than 0");
    }
    let facility = facility(&config.facility);
    if facility.is_none() {
        wrong(
            "facility",
            "no facility: a name such as `user` or `local0`, or a number up to 23",
        );
    }
    let severity = severity(&config.severity);
    if severity.is_none() {
        wrong(
            "severity",
            "no severity: a name such as `info` or `err`, or a number up to 7",
        );
    }
    let is_stream = matches!(config.url.scheme(), Scheme::Tcp | Scheme::Unix);
    if !is_stream && !matches!(config.tls, Tls::Off) {
        wrong("tls", "TLS is for streams: `tcp://` or `unix://`");
    }
    let tls = ClientTls::check(&config.tls, options);
    if let Err(more) = &tls {
        problems.extend(more.iter().cloned());
    }
    let (Some(facility), Some(severity), true) = (facility, severity, problems.is_empty()) else {
        return Err(problems);
    };
    Ok(Arc::new(Syslog {
        formatting,
        header: match config.protocol {
            HeaderOption::Rfc5424 => Header::Rfc5424,
            HeaderOption::Rfc3164 => Header::Rfc3164,
        },
        framing: match (is_stream, config.framing) {
            (false, _) => Framing::Datagrams,
            (true, FramingOption::Octets) => Framing::Octets,
            (true, FramingOption::Lines) => Framing::Lines,
        },
        defaults: Defaults {
            facility,
            severity,
            host: config.host,
            app: config.app,
        },
        tls: tls?.map(Arc::new),
        url: config.url,
        batch: config.batch,
        retry: config.retry,
    }))
}

impl Syslog {
    /// The encoder of a task.
    fn messages(&self) -> Messages {
        let zone = self.formatting.zone();
        let heads = millstream_wire::syslog::Encoder::new(self.header, &zone, &self.defaults);
        Messages::new(self.formatting.encoder(), heads, self.framing)
    }

    /// The port where the URL names none.
    fn port(&self) -> u16 {
        match self.tls {
            Some(_) => 6514,
            None => 514,
        }
    }
}

impl Sink for Syslog {
    fn placement(&self) -> Placement {
        Placement::DataThreads
    }

    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        context: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move { Lane::new(self, inlet, context).run().await })
    }

    fn promise(&self, _durable: bool) -> Promise {
        Promise::new(
            Guarantee::AtMostOnce,
            "syslog has no acknowledgements: what a connection that breaks may have lost is counted and logged",
        )
    }

    fn settles_within(&self) -> Option<Duration> {
        // When the server has taken it.
        None
    }

    fn probe(&self) -> Option<Result<String, Failure>> {
        match self.url.scheme() {
            // A datagram is not answered.
            Scheme::Udp => None,
            _ => {
                let reporter = Reporter::new("check");
                let probe = async |_: &str| Link::probe(self, &reporter).await;
                Some(probe::servers(&[self.url.to_string()], probe))
            }
        }
    }
}
