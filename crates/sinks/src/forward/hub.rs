//! What the relay and the links of a lane share: settings, meters, and the chunks that are with nobody.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use millstream_net::ClientTls;
use millstream_pipeline::{
    condition::Condition,
    meters::{Meter, NodeMeters},
    report::Reporter,
};
use tokio::sync::Notify;

use super::{
    auth::Auth,
    chunk::{Chunk, Key},
    heart::Hearts,
    options::Failover,
    server::ServerOptions,
};

/// What all links of a sink have in common.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) ack: bool,
    pub(super) ack_timeout: Duration,
    pub(super) retry_first: Duration,
    pub(super) retry_max: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) give_up: Option<Duration>,
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
    /// Whether records may have to wait for one certain server, however well the others work.
    pub(super) fn needs_each(&self) -> bool {
        self.to_all || self.failover == Failover::Wait
    }
}

/// What links and the relay share: chunks that wait for a server, and what became of the others.
#[derive(Debug)]
pub(super) struct Hub {
    /// Chunks without a server, by number, so that they go out in order however often they came back.
    pub(super) pending: RefCell<BTreeMap<Key, Chunk>>,
    /// Chunks that waited too long for a server that may have them (`failover: wait`): they go to no other.
    pub(super) overdue: RefCell<Vec<Chunk>>,
    /// Numbers of chunks that are done.
    pub(super) done: RefCell<Vec<u64>>,
    /// Of which chunks there are copies, one for each server, and how many are not done.
    pub(super) copies: RefCell<BTreeMap<u64, usize>>,
    /// The servers there are now, until the relay has heard of it.
    pub(super) servers: RefCell<Option<Vec<ServerOptions>>>,
    /// Something above or the state of a link has changed.
    pub(super) changed: Notify,
    /// How many servers are connected with nothing against them since they failed last.
    pub(super) working: Cell<usize>,
    /// Holds while no server works, where any other server would do.
    pub(super) failing: Rc<Condition>,
}

impl Hub {
    pub(super) fn new(reporter: &Reporter) -> Self {
        Self {
            pending: RefCell::default(),
            overdue: RefCell::default(),
            done: RefCell::default(),
            copies: RefCell::default(),
            servers: RefCell::default(),
            changed: Notify::new(),
            working: Cell::new(0),
            failing: Rc::new(reporter.condition("server")),
        }
    }

    /// A chunk, or one of its copies, is done: whether that was the last.
    pub(super) fn is_last(&self, number: u64) -> bool {
        let mut copies = self.copies.borrow_mut();
        match copies.get_mut(&number) {
            Some(left) if *left > 1 => {
                *left -= 1;
                false
            }
            Some(_) => copies.remove(&number).is_some(),
            None => true,
        }
    }

    /// Takes back chunks that others may send.
    pub(super) fn take_back(&self, chunks: Vec<Chunk>) {
        let chunks = chunks.into_iter().map(|chunk| (chunk.key(), chunk));
        self.pending.borrow_mut().extend(chunks);
    }
}

/// The meters of a link.
#[derive(Clone, Debug)]
pub(super) struct LinkMeters {
    pub(super) chunks_sent: Meter,
    pub(super) chunks_acked: Meter,
    pub(super) chunks_resent: Meter,
    pub(super) connections_open: Meter,
    pub(super) connections_failed: Meter,
    pub(super) heartbeats_unanswered: Meter,
}

impl LinkMeters {
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
