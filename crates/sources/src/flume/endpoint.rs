//! State shared by all connections of one source.

use millstream_pipeline::{
    meters::{Meter, NodeMeters},
    node::SourceContext,
};

use super::options::{Compression, Config};
use crate::{connection::Patience, tagging::Tagging};

/// State shared by all connections of one source.
pub(super) struct Endpoint {
    pub(super) context: SourceContext,
    pub(super) tag: Tagging,
    pub(super) frame_bytes_max: usize,
    pub(super) decompressed_bytes_max: usize,
    pub(super) patience: Patience,
    pub(super) deflate: bool,
    pub(super) meters: FlumeMeters,
}

impl Endpoint {
    pub(super) fn new(config: &Config, tag: &Tagging, context: SourceContext) -> Self {
        Self {
            tag: tag.clone(),
            frame_bytes_max: config.limits.frame.as_usize(),
            decompressed_bytes_max: config.limits.decompressed.as_usize(),
            patience: Patience::of(&config.limits),
            deflate: config.compression == Compression::Deflate,
            meters: FlumeMeters::new(&context.meters),
            context,
        }
    }
}

/// The metrics of the source, in addition to those of its outlets.
pub(super) struct FlumeMeters {
    pub(super) bytes_received: Meter,
    pub(super) calls_answered: Meter,
    pub(super) calls_refused: Meter,
    pub(super) calls_cut: Meter,
    pub(super) connections_refused: Meter,
}

impl FlumeMeters {
    fn new(meters: &NodeMeters) -> Self {
        Self {
            bytes_received: meters.counter("bytes_received"),
            calls_answered: meters.counter("calls_answered"),
            calls_refused: meters.counter("calls_refused"),
            calls_cut: meters.counter("calls_cut"),
            connections_refused: meters.counter("connections_refused"),
        }
    }
}
