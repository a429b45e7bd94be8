//! One server as a lane (one of the sink's parallel tasks) sees it: the chunks that it was given, whether the cluster wants
//! it, and the result of its heartbeats.
//!
//! The cluster, the link and the connection of a server share this state.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use millstream_pipeline::{
    meters::{Meter, NodeMeters},
    report::Reporter,
};
use tokio::sync::Notify;

use super::{
    chunk::Chunk,
    heart::Pulse,
    hub::Hub,
    settings::Settings,
    standing::{Standing, Working},
    window::Window,
};

/// The meters of all servers.
#[derive(Clone, Debug)]
pub(super) struct ServerMeters {
    pub(super) chunks_sent: Meter,
    pub(super) chunks_acked: Meter,
    pub(super) chunks_resent: Meter,
    pub(super) connections_open: Meter,
    pub(super) connections_failed: Meter,
    pub(super) heartbeats_unanswered: Meter,
}

impl ServerMeters {
    pub(super) fn new(meters: &NodeMeters) -> Self {
        Self {
            chunks_sent: meters.counter("chunks_sent"),
            chunks_acked: meters.counter("chunks_acked"),
            chunks_resent: meters.counter("chunks_resent"),
            connections_open: meters.gauge("connections_open"),
            connections_failed: meters.counter("connections_failed"),
            heartbeats_unanswered: meters.counter("heartbeats_unanswered"),
        }
    }
}

/// State that all servers of a lane share.
pub(super) struct Common {
    pub(super) settings: Settings,
    pub(super) hub: Rc<Hub>,
    pub(super) working: Rc<Working>,
    pub(super) meters: ServerMeters,
    pub(super) reporter: Reporter,
}

/// The state of one server.
pub(super) struct Endpoint {
    pub(super) address: String,
    pub(super) common: Rc<Common>,
    pub(super) window: RefCell<Window>,
    pub(super) standing: Standing,
    wanted: Cell<bool>,
    pulse: Cell<Pulse>,
    /// The server has begun to answer heartbeats again, so the next connection attempt skips the back-off.
    hurry: Cell<bool>,
    wake: Notify,
}

impl Endpoint {
    pub(super) fn new(address: &str, wanted: bool, common: Rc<Common>) -> Self {
        let needed = common.settings.needs_each();
        let (working, reporter) = (common.working.clone(), common.reporter.clone());
        Self {
            address: address.to_owned(),
            window: RefCell::default(),
            standing: Standing::new(address, needed, working, reporter),
            common,
            wanted: Cell::new(wanted),
            pulse: Cell::default(),
            hurry: Cell::new(false),
            wake: Notify::new(),
        }
    }

    /// Sets whether the cluster wants to send chunks to the server. A standby is wanted only while other servers have failed.
    pub(super) fn want(&self, wanted: bool) {
        if self.wanted.replace(wanted) != wanted {
            self.wake();
        }
    }

    /// Whether the cluster wants to send chunks to the server.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.get()
    }

    /// Gives the server a chunk.
    pub(super) fn give(&self, chunk: Chunk) {
        self.window.borrow_mut().push(chunk);
        self.wake();
    }

    /// Notes that the leases (notes of which server may have received which chunk) up to `serial` are durable, so that their
    /// chunks may go out.
    pub(super) fn leased(&self, serial: u64) {
        self.window.borrow_mut().leased(serial);
        self.wake();
    }

    /// Notes a new pulse (the result of heartbeats).
    pub(super) fn note_pulse(&self, pulse: Pulse) {
        let before = self.pulse.replace(pulse);
        if before != pulse {
            // A return counts even if the server has fallen silent again before the link checks.
            self.hurry
                .set(self.hurry.get() || pulse.returns != before.returns);
            self.wake();
        }
    }

    /// Whether the server has answered heartbeats before and does not answer any more.
    pub(super) fn is_silent(&self) -> bool {
        self.pulse.get().silent
    }

    /// Returns whether the server has begun to answer again since the last call of this function.
    pub(super) fn take_hurry(&self) -> bool {
        self.hurry.take()
    }

    /// Wakes the link.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Waits for [`Endpoint::wake`]. Returns immediately if `wake` was called since the last return of this function.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Notes that a chunk is finished.
    pub(super) fn finish(&self, chunk: &Chunk) {
        self.common.hub.finish(chunk.number);
    }
}
