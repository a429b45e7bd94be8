//! State shared by all connections and sockets of one source.

use std::time::Duration;

use millstream_pipeline::{
    meters::{Meter, NodeMeters},
    node::SourceContext,
};
use millstream_wire::syslog::{self as wire, TimeZone};

use super::options::{Config, Framing, Unparsed};
use crate::{connection::Patience, framing::TooLong, tagging::Tagging};

/// The maximum number of bytes of a message in addition to its text: the digits of a count, the space after them, CR and LF.
pub(super) const BESIDE_BYTES: usize = 16;

/// State shared by all connections and sockets of one source.
pub(super) struct Endpoint {
    pub(super) context: SourceContext,
    pub(super) tag: Tagging,
    pub(super) settings: wire::Settings,
    pub(super) patience: Patience,
    pub(super) gather: Duration,
    pub(super) meters: SyslogMeters,
}

impl Endpoint {
    pub(super) fn new(
        config: &Config,
        zone: &TimeZone,
        tag: &Tagging,
        context: SourceContext,
    ) -> Self {
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

/// The metrics of the source, in addition to those of its outlets.
pub(super) struct SyslogMeters {
    pub(super) bytes_received: Meter,
    pub(super) datagrams_received: Meter,
    /// Datagrams that the kernel dropped before they could be read.
    pub(super) datagrams_dropped: Meter,
    pub(super) datagrams_cut: Meter,
    pub(super) messages_without_header: Meter,
    pub(super) messages_too_long: Meter,
    pub(super) messages_cut: Meter,
    pub(super) messages_answered: Meter,
    pub(super) bytes_dropped: Meter,
    pub(super) connections_refused: Meter,
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
