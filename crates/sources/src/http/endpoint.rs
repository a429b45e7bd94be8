//! State shared by all connections of one source, and their clients.

use std::{sync::Arc, time::Duration};

use millstream_config::Secret;
use millstream_pipeline::{
    meters::{Meter, NodeMeters},
    node::SourceContext,
};
use millstream_record::Values;
use sha2::{Digest, Sha256};

use super::{options::Config, paths::Paths};
use crate::{connection::Patience, tagging::Tagging};

/// State shared by all connections of one source.
pub(super) struct Endpoint {
    pub(super) context: SourceContext,
    /// Whether batches carry origins, by which a channel recognizes repeated requests. Only a durable channel can do this.
    pub(super) durable: bool,
    pub(super) frame_bytes_max: usize,
    pub(super) decompressed_bytes_max: usize,
    pub(super) patience: Patience,
    pub(super) wait: Duration,
    /// SHA-256 of the token. Comparing hashes takes the same time for tokens of any length.
    pub(super) bearer: Option<[u8; 32]>,
    pub(super) paths: Paths,
    pub(super) tag: Tagging,
    pub(super) meters: HttpMeters,
}

impl Endpoint {
    pub(super) fn new(
        config: &Config,
        paths: &Paths,
        tag: &Tagging,
        context: SourceContext,
    ) -> Self {
        let hash = |secret: &Secret| Sha256::digest(secret.expose()).into();
        Self {
            durable: context.outlet.is_durable(),
            frame_bytes_max: config.limits.frame.as_usize(),
            decompressed_bytes_max: config.limits.decompressed.as_usize(),
            patience: Patience::of(&config.limits),
            wait: config.wait.as_duration(),
            bearer: config.auth.bearer.as_ref().map(hash),
            paths: paths.clone(),
            tag: tag.clone(),
            meters: HttpMeters::new(&context.meters),
            context,
        }
    }
}

/// The metrics of the source, in addition to those of its outlets.
pub(super) struct HttpMeters {
    pub(super) bytes_received: Meter,
    pub(super) requests_kept: Meter,
    pub(super) requests_refused: Meter,
    pub(super) requests_put_off: Meter,
}

impl HttpMeters {
    fn new(meters: &NodeMeters) -> Self {
        Self {
            bytes_received: meters.counter("bytes_received"),
            requests_kept: meters.counter("requests_kept"),
            requests_refused: meters.counter("requests_refused"),
            requests_put_off: meters.counter("requests_put_off"),
        }
    }
}

/// The peer of one connection.
pub(super) struct Client {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) peer: Arc<str>,
    /// The values that all records of the peer share.
    pub(super) values: Arc<Values>,
}
