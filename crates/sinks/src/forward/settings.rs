//! The settings that all servers of a sink have in common.

use std::sync::Arc;

use millstream_net::ClientTls;

use super::{auth::Auth, heart::Hearts, options::Failover};
use crate::sending::Retry;

/// How servers are reached, fed and retried.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) ack: bool,
    pub(super) ack_timeout: std::time::Duration,
    pub(super) retry: Retry,
    pub(super) failover: Failover,
    pub(super) send_buffer: u32,
    pub(super) in_flight_bytes_max: usize,
    pub(super) tls: Option<Arc<ClientTls>>,
    pub(super) auth: Option<Arc<Auth>>,
    /// Every server gets every chunk.
    pub(super) to_all: bool,
    pub(super) hearts: Hearts,
}

impl Settings {
    /// Whether records may have to wait for one particular server even if all others work.
    pub(super) fn needs_each(&self) -> bool {
        self.to_all || self.failover == Failover::Wait
    }
}
