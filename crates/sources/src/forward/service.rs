//! Settings, limits and meters that all connections of the source share.

use std::{sync::Arc, time::Duration};

use millstream_pipeline::{
    meters::{Meter, NodeMeters},
    node::SourceContext,
};

use super::{auth::Auth, config::Config, poison::Poison};
use crate::{connection::Patience, tagging::Tagging};

/// The settings, limits and meters of the source.
pub(super) struct Service {
    pub(super) context: SourceContext,
    pub(super) tag: Tagging,
    /// Whether batches carry origins, by which a channel recognizes chunks that arrive again. Only a durable channel can do this.
    pub(super) durable: bool,
    /// None: all peers may send.
    pub(super) auth: Option<Auth>,
    pub(super) frame_bytes_max: usize,
    pub(super) decompressed_bytes_max: usize,
    pub(super) patience: Patience,
    pub(super) gather: Duration,
    pub(super) poison: Arc<Poison>,
    pub(super) meters: ForwardMeters,
}

impl Service {
    pub(super) fn new(
        config: &Config,
        tag: &Tagging,
        poison: Arc<Poison>,
        context: SourceContext,
    ) -> Self {
        Self {
            tag: tag.clone(),
            durable: context.outlet.is_durable(),
            auth: config.auth.clone(),
            frame_bytes_max: config.limits.frame.as_usize(),
            decompressed_bytes_max: config.limits.decompressed.as_usize(),
            patience: Patience::of(&config.limits),
            gather: config.gather.as_duration(),
            poison,
            meters: ForwardMeters::new(&context.meters),
            context,
        }
    }
}

/// The counters of the source, in addition to those of its outlets.
pub(super) struct ForwardMeters {
    pub(super) bytes_received: Meter,
    pub(super) connections_acked: Meter,
    pub(super) chunks_acked: Meter,
    pub(super) chunks_refused: Meter,
    pub(super) connections_refused: Meter,
    pub(super) unauthenticated: Meter,
    pub(super) frames_cut: Meter,
    pub(super) frames_dropped: Meter,
    pub(super) values_skipped: Meter,
}

impl ForwardMeters {
    fn new(meters: &NodeMeters) -> Self {
        Self {
            bytes_received: meters.counter("bytes_received"),
            connections_acked: meters.gauge("connections_acked"),
            chunks_acked: meters.counter("chunks_acked"),
            chunks_refused: meters.counter("chunks_refused"),
            connections_refused: meters.counter("connections_refused"),
            unauthenticated: meters.counter("connections_unauthenticated"),
            frames_cut: meters.counter("frames_cut"),
            frames_dropped: meters.counter("frames_dropped"),
            values_skipped: meters.counter("values_skipped"),
        }
    }
}
