//! The checked options of the sink, and the encoder of a lane (parallel task).

use std::sync::Arc;

use millstream_config::Node;
use millstream_net::{ClientTls, Scheme, Tls};
use millstream_pipeline::node::Checked;
use millstream_wire::{
    format::Format,
    syslog::{Defaults, Encoder, Header, facility, severity},
};

use super::{
    messages::{Framing, Messages},
    options::{Config, FramingOption, HeaderOption},
    target::Target,
};
use crate::{
    format::{Default as FormatDefault, Formatting},
    sending::{Batching, Retry},
};

/// The checked sink.
pub(super) struct Syslog {
    formatting: Formatting,
    pub(super) target: Target,
    header: Header,
    framing: Framing,
    defaults: Defaults,
    pub(super) batch: Batching,
    pub(super) retry: Retry,
}

impl Syslog {
    /// Reads and checks the options.
    pub(super) fn new(options: &Node) -> Checked<Self> {
        let (formatting, config) =
            Formatting::with_default::<Config>(options, FormatDefault::Bare(Format::Raw))?;
        let mut problems = Vec::new();
        let mut wrong = |option: &str, text: &str| problems.push(options.problem_at(option, text));
        if config.url.scheme() == Scheme::Relp {
            wrong(
                "url",
                "this sink does not support RELP; it supports tcp, udp, unix and unixgram",
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
                "not a facility; expected a name such as `user` or `local0`, or a number up to 23",
            );
        }
        let severity = severity(&config.severity);
        if severity.is_none() {
            wrong(
                "severity",
                "not a severity; expected a name such as `info` or `err`, or a number up to 7",
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
        let (Some(facility), Some(severity), true) = (facility, severity, problems.is_empty())
        else {
            return Err(problems);
        };
        Ok(Self {
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
            target: Target {
                tls: tls?.map(Arc::new),
                url: config.url,
                timeout: config.retry.timeout.as_duration(),
            },
            batch: config.batch,
            retry: config.retry,
        })
    }

    /// The encoder of a lane.
    pub(super) fn messages(&self) -> Messages {
        let zone = self.formatting.zone();
        let heads = Encoder::new(self.header, &zone, &self.defaults);
        Messages::new(self.formatting.encoder(), heads, self.framing)
    }
}
