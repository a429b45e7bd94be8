//! The settings that apply to all servers of a sink.

use std::sync::Arc;

use millstream_net::ClientTls;

use super::{auth::Auth, heart::Hearts, options::Failover};
use crate::sending::Retry;

/// How the sink connects to servers, sends to them and retries.
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
    /// Whether every server gets every chunk (`balance: all`).
    pub(super) to_all: bool,
    pub(super) hearts: Hearts,
}

impl Settings {
    /// Whether records may have to wait for one particular server even if all others work.
    pub(super) fn needs_each(&self) -> bool {
        self.to_all || self.failover == Failover::Wait
    }
}
