//! The server to which messages are sent.

use std::{sync::Arc, time::Duration};

use millstream_net::{ClientTls, Remote};

/// Where a connection goes, and how it is made.
pub(super) struct Target {
    pub(super) url: Remote,
    pub(super) tls: Option<Arc<ClientTls>>,
    /// The time limit for a connection attempt.
    pub(super) timeout: Duration,
}

impl Target {
    /// `host:port`; `None` for a path.
    pub(super) fn address(&self) -> Option<String> {
        self.url.address(match self.tls {
            Some(_) => 6514,
            None => 514,
        })
    }
}
