//! The task of one server: connects, sends, and reconnects with back-off after a failure.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! ```text
//! asleep -> connecting -> up -> (closed while idle) -> connecting
//!                         up -> (broken)            -> failed -> up
//! ```
//! Each link is a task, so a server that cannot be reached delays no other server. The link promises that it loses no chunk that
//! it was given: at any time the chunk is either acked, or in the link's window, or back at the hub (which holds the chunks
//! without a server). The cluster chooses which chunk goes to which server.

use std::{
    cell::Cell,
    fmt::{self, Write as _},
    rc::Rc,
    time::Duration,
};

use millstream_net::Stream;
use millstream_pipeline::meters::Meter;
use tokio::time::{Instant, sleep};

use super::{
    choice::Candidate,
    chunk::Chunk,
    connection::{Connection, End},
    dial,
    endpoint::{Common, Endpoint},
    flow::{Flow, wish},
    options::Failover,
    server::ServerOptions,
    settings::Settings,
};
use crate::sending::{Backoff, ShortLived};

/// Maximum number of chunks in doubt (sent, but not acked) that one log line names. With chunks of 32 KiB, the default `in_flight`
/// holds this many.
const DOUBT_MAX: usize = 128;

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Idle because the server is not wanted, such as a standby while no other server has failed.
    Asleep,
    /// Connecting; the server has not failed.
    Connecting,
    /// Connected.
    Up,
    /// The connection broke or could not be made; retried with back-off.
    Failed,
    /// Removed from the list of servers, and all its chunks are done.
    Left,
}

/// The link to one server.
pub(super) struct Link {
    pub(super) endpoint: Endpoint,
    weight: Cell<u32>,
    standby: Cell<bool>,
    phase: Cell<Phase>,
    /// The server was removed from the list: the link only finishes its chunks.
    leaving: Cell<bool>,
}

impl Link {
    pub(super) fn new(server: &ServerOptions, common: Rc<Common>) -> Self {
        let wanted = !server.standby && server.weight > 0;
        Self {
            endpoint: Endpoint::new(&server.address, wanted, common),
            weight: Cell::new(server.weight),
            standby: Cell::new(server.standby),
            phase: Cell::new(Phase::Connecting),
            leaving: Cell::new(false),
        }
    }

    pub(super) fn address(&self) -> &str {
        &self.endpoint.address
    }

    fn settings(&self) -> &Settings {
        &self.endpoint.common.settings
    }

    /// Returns the facts from which `choice` decides whether this server gets a chunk of this cost (its approximate memory).
    pub(super) fn candidate(&self, cost: usize) -> Candidate {
        let phase = self.phase.get();
        Candidate {
            weight: if self.leaving.get() {
                0
            } else {
                self.weight.get()
            },
            standby: self.standby.get(),
            failed: phase == Phase::Failed,
            ready: phase == Phase::Up && self.has_room(cost),
        }
    }

    /// Whether a chunk of this cost fits under the limit for bytes in flight to this server.
    pub(super) fn has_room(&self, cost: usize) -> bool {
        let limit = self.settings().in_flight_bytes_max;
        self.endpoint.window.borrow().has_room(cost, limit)
    }

    /// Whether this is one of the servers that get every chunk (`balance: all`).
    pub(super) fn takes_all(&self) -> bool {
        self.weight.get() > 0 && !self.leaving.get()
    }

    /// Whether this server holds a chunk of this flow. A flow is a share of the records that goes to one server, in order
    /// (`balance: hash`).
    pub(super) fn holds(&self, flow: Flow) -> bool {
        self.endpoint.window.borrow().holds(flow)
    }

    /// Returns the server's rendezvous score for a flow: the server with the highest score gets the flow. Returns None while the
    /// server is not wanted or has failed.
    pub(super) fn wish(&self, flow: Flow) -> Option<f64> {
        let takes_part = self.endpoint.is_wanted() && self.phase.get() != Phase::Failed;
        takes_part.then(|| wish(flow, self.address(), self.weight.get()))
    }

    /// Whether the server is connected.
    pub(super) fn is_up(&self) -> bool {
        self.phase.get() == Phase::Up
    }

    /// Keeps the server in the list, with these options.
    pub(super) fn stay(&self, server: &ServerOptions) {
        self.weight.set(server.weight);
        self.standby.set(server.standby);
        self.leaving.set(false);
    }

    /// Removes the server from the list: chunks of which no byte was written go back to the hub. The link ends when it has no
    /// chunks left.
    pub(super) fn leave(&self) {
        if !self.leaving.replace(true) {
            let chunks = self.endpoint.window.borrow_mut().remove_unbegun();
            self.endpoint.common.hub.take_back(chunks);
            self.endpoint.want(false);
            self.endpoint.wake();
        }
    }

    /// Whether the link has ended.
    pub(super) fn has_left(&self) -> bool {
        self.phase.get() == Phase::Left
    }

    /// Opens a connection to the server, ready for chunks.
    pub(super) async fn connect(&self) -> std::io::Result<Stream> {
        let reporter = &self.endpoint.common.reporter;
        dial::connect(self.address(), self.settings(), reporter).await
    }

    /// Runs the link until the server has left the list and all its chunks are done.
    pub(super) async fn run(self: Rc<Self>) {
        let mut backoff = Backoff::new(&self.settings().retry);
        let mut short_lived = ShortLived::default();
        loop {
            let leaves = self.leaving.get();
            let idle = self.endpoint.window.borrow().is_empty();
            if (leaves || !self.endpoint.is_wanted()) && idle {
                if leaves {
                    self.set(Phase::Left);
                    return;
                }
                self.set(Phase::Asleep);
                self.endpoint.woken().await;
                continue;
            }
            if self.endpoint.is_silent() {
                if self.phase.get() != Phase::Failed {
                    self.fail(format_args!("does not answer heartbeats"), None);
                }
                self.endpoint.woken().await;
                continue;
            }
            if self.phase.get() == Phase::Asleep {
                self.set(Phase::Connecting);
            }
            let connected = tokio::select! {
                biased;
                // If the server answers heartbeats again, a new attempt is faster: an attempt that began while the server was down
                // may wait up to a minute for the kernel's next SYN.
                () = self.called_off() => continue,
                connected = self.connect() => connected,
            };
            match connected {
                Ok(stream) => self.converse(stream, &mut backoff, &mut short_lived).await,
                Err(error) => {
                    self.endpoint.common.meters.connections_failed.add(1);
                    let wait = backoff.failed();
                    self.fail(format_args!("cannot be reached ({error})"), Some(wait));
                    self.pause(wait).await;
                }
            }
        }
    }

    /// Sends over a connection until the connection ends, then waits if the server has failed.
    async fn converse(&self, stream: Stream, backoff: &mut Backoff, short_lived: &mut ShortLived) {
        let (settings, meters) = (self.settings(), &self.endpoint.common.meters);
        self.set(Phase::Up);
        // The handshake has proven that the server has the shared key. Without `auth`, only an ack proves that the server works.
        if settings.auth.is_some() {
            self.endpoint.standing.proven();
        }
        let counted = CountedConnection::new(&meters.connections_open);
        let since = Instant::now();
        let (end, progress) = Connection::new(stream, &self.endpoint, *short_lived)
            .run()
            .await;
        drop(counted);
        let lasted = since.elapsed() >= settings.retry.first.as_duration();
        let idle = self.endpoint.window.borrow().is_empty();
        match end {
            End::Retired => {}
            // The next attempt looks the name up.
            End::Moved => self.set(Phase::Connecting),
            // Peers and firewalls close or reset idle connections; this is not a failure. Without acks, a reset may have lost chunks.
            End::Closed | End::Failed(_)
                if idle
                    && (progress && settings.ack
                        || lasted && (settings.ack || matches!(end, End::Closed))) =>
            {
                if progress {
                    backoff.reset();
                }
                self.set(Phase::Connecting);
            }
            end => {
                // Without acks the connection must also last long. Otherwise the back-off from a peer that accepts connections and
                // closes them soon would not grow.
                let long = short_lived.failed(since.elapsed());
                let worked = progress && (settings.ack || long);
                if worked {
                    backoff.reset();
                }
                let wait = if worked {
                    Duration::ZERO
                } else {
                    backoff.failed()
                };
                let next = (!self.endpoint.is_silent()).then_some(wait);
                self.fail(format_args!("is disconnected: {end}"), next);
                self.pause(wait).await;
            }
        }
    }

    /// Waits before the next attempt, at most until [`Link::called_off`] returns.
    async fn pause(&self, wait: Duration) {
        tokio::select! {
            () = sleep(wait) => {}
            () = self.called_off() => {}
        }
    }

    /// Returns when the server has begun to answer heartbeats again, or when it is leaving and has no chunks left.
    async fn called_off(&self) {
        let done = || self.leaving.get() && self.endpoint.window.borrow().is_empty();
        while !(self.endpoint.take_hurry() || done()) {
            self.endpoint.woken().await;
        }
    }

    /// Reports a failure and hands back the chunks that other servers may get. The next attempt follows after `wait`. If `wait` is
    /// None, it follows when the server answers heartbeats again.
    fn fail(&self, what: fmt::Arguments<'_>, wait: Option<Duration>) {
        let chunks = self.release();
        let resend = match chunks.len() {
            0 => String::new(),
            1 => "; 1 chunk is sent again".to_owned(),
            count => format!("; {count} chunks are sent again"),
        };
        let doubt = doubt(&chunks);
        let next = match wait.map(|wait| wait.as_secs_f64()) {
            None => "when it answers".to_owned(),
            Some(0.0) => "now".to_owned(),
            Some(seconds) => format!("in {seconds:.1} s"),
        };
        self.endpoint.common.hub.take_back(chunks);
        self.phase.set(Phase::Failed);
        let address = self.address();
        let text = format_args!("server {address} {what}{resend}{doubt}; retrying {next}");
        self.endpoint.standing.failed(text);
        self.endpoint.common.hub.changed.notify_one();
    }

    /// Removes and returns the chunks that other servers may get, now that the connection is closed.
    fn release(&self) -> Vec<Chunk> {
        let mut window = self.endpoint.window.borrow_mut();
        let released = match self.settings().failover {
            Failover::Resend => window.release(|_| true),
            // A chunk of which bytes were written may have arrived, so it waits for this server.
            Failover::Wait => window.release(|chunk| !chunk.begun),
        };
        drop(window);
        self.expire();
        released
    }

    /// Moves the chunks older than `retry.give_up` to the hub's list of overdue chunks. Other servers never get them, because this
    /// server may have stored them.
    fn expire(&self) {
        let limit = self.settings().retry.give_up.0;
        let overdue = |chunk: &Chunk| chunk.is_overdue(limit);
        if self.endpoint.window.borrow().any(overdue) {
            let chunks = self.endpoint.window.borrow_mut().release(overdue);
            self.endpoint.common.hub.overdue.borrow_mut().extend(chunks);
            // If the server is leaving, the link may have no chunks left and can end.
            self.endpoint.wake();
        }
    }

    /// Calls [`Link::expire`] if no connection is open. (If a connection is open, its end calls `expire`.) The link opens no
    /// connection to a silent server, which is one that does not answer heartbeats. So only this function lets the chunks of a
    /// silent server expire.
    pub(super) fn expire_unless_up(&self) {
        if !self.is_up() {
            self.expire();
        }
    }

    fn set(&self, phase: Phase) {
        self.phase.set(phase);
        if matches!(phase, Phase::Asleep | Phase::Left) {
            self.endpoint.standing.excuse();
        }
        self.endpoint.standing.set_connected(phase == Phase::Up);
        self.endpoint.common.hub.changed.notify_one();
    }
}

/// Lists those of the released chunks that are in doubt: this server may have stored them, and other servers get them now. Only
/// these chunks can be stored twice.
fn doubt(chunks: &[Chunk]) -> String {
    let begun: Vec<&Chunk> = chunks.iter().filter(|chunk| chunk.begun).collect();
    if begun.is_empty() {
        return String::new();
    }
    let mut text = format!(", {} of them in doubt", begun.len());
    let places = begun.iter().filter_map(|chunk| chunk.place);
    for (count, (position, part)) in places.take(DOUBT_MAX).enumerate() {
        let before = if count == 0 { ':' } else { ',' };
        let (epoch, seq) = (position.epoch, position.seq);
        let _ = write!(text, "{before} {epoch}.{seq}.{part}");
    }
    if begun.len() > DOUBT_MAX {
        text.push_str(" ...");
    }
    text
}

/// Counts a connection as open until dropped, even if its task is cancelled.
struct CountedConnection<'a>(&'a Meter);

impl<'a> CountedConnection<'a> {
    fn new(meter: &'a Meter) -> Self {
        meter.add(1);
        Self(meter)
    }
}

impl Drop for CountedConnection<'_> {
    fn drop(&mut self) {
        self.0.sub(1);
    }
}
