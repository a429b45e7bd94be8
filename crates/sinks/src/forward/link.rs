//! One server: connect, talk, break, wait, connect again.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! ```text
//! asleep -> trying -> up -> (closed while idle) -> trying
//!                     up -> (broken)            -> failed -> up
//! ```
//! A link is a task of its own, so a server that cannot be reached stops nobody. It promises that a chunk it was given
//! is acked, still in its window, or back at the hub; never lost, never in two places. It leaves to the relay: which
//! chunk goes to which server.

use std::{
    cell::{Cell, RefCell},
    fmt::{self, Write as _},
    io,
    rc::Rc,
    time::Duration,
};

use millstream_net::Stream;
use millstream_pipeline::{
    condition::{Condition, Trouble},
    meters::Meter,
    report::Reporter,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use crate::backoff::Backoff;

use super::{
    choice::Candidate,
    chunk::Chunk,
    connection::{Connection, End},
    dial,
    flow::{Flow, wish},
    heart::Pulse,
    hub::{Hub, LinkMeters, Settings},
    options::Failover,
    server::ServerOptions,
    window::Window,
};

/// So many chunks in doubt are named in the log: as many as are under way with chunks of 32 KiB.
const DOUBT_MAX: usize = 128;

/// How a link stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not wanted: a standby that nobody needs.
    Asleep,
    /// Connecting, with nothing against the server so far.
    Trying,
    /// Connected.
    Up,
    /// Broken or not reached; tried again from time to time.
    Failed,
    /// No longer among the servers, and nothing left to do.
    Left,
}

/// One server and what it was given.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) address: String,
    weight: Cell<u32>,
    standby: Cell<bool>,
    pub(super) settings: Rc<Settings>,
    pub(super) hub: Rc<Hub>,
    pub(super) window: RefCell<Window>,
    pub(super) meters: LinkMeters,
    reporter: Reporter,
    /// Holds while it keeps the sink from delivering.
    failing: Rc<Condition>,
    /// It has failed, and nothing has proven since that it works.
    suspect: Cell<bool>,
    /// It is counted among the hub's working servers.
    works: Cell<bool>,
    state: Cell<State>,
    wanted: Cell<bool>,
    /// It is no longer among the servers: it finishes what it has.
    leaving: Cell<bool>,
    /// Whether it answers heartbeats, and how often it has begun to again.
    pulse: Cell<Pulse>,
    /// It has begun to answer again: the next try need not wait.
    hurry: Cell<bool>,
    wake: Notify,
}

impl Link {
    pub(super) fn new(
        server: &ServerOptions,
        settings: Rc<Settings>,
        hub: Rc<Hub>,
        meters: LinkMeters,
        reporter: Reporter,
    ) -> Self {
        let failing = match settings.needs_each() {
            true => Rc::new(reporter.condition("server")),
            false => hub.failing.clone(),
        };
        Self {
            failing,
            suspect: Cell::new(false),
            works: Cell::new(false),
            wanted: Cell::new(!server.standby && server.weight > 0),
            address: server.address.clone(),
            weight: Cell::new(server.weight),
            standby: Cell::new(server.standby),
            leaving: Cell::new(false),
            pulse: Cell::default(),
            hurry: Cell::new(false),
            settings,
            hub,
            window: RefCell::default(),
            meters,
            reporter,
            state: Cell::new(State::Trying),
            wake: Notify::new(),
        }
    }

    /// What the choice of a server needs to know, for a chunk of this cost.
    pub(super) fn candidate(&self, cost: usize) -> Candidate {
        let state = self.state.get();
        Candidate {
            weight: if self.leaving.get() {
                0
            } else {
                self.weight.get()
            },
            standby: self.standby.get(),
            failed: state == State::Failed,
            ready: state == State::Up
                && self
                    .window
                    .borrow()
                    .has_room(cost, self.settings.in_flight_bytes_max),
        }
    }

    /// Whether it is one of those that get everything (`balance: all`).
    pub(super) fn takes_all(&self) -> bool {
        self.weight.get() > 0 && !self.leaving.get()
    }

    /// Whether a chunk of this flow is with it.
    pub(super) fn holds(&self, flow: Flow) -> bool {
        self.window.borrow().holds(flow)
    }

    /// How much it wants a flow; None while it takes part in nothing.
    pub(super) fn wish(&self, flow: Flow) -> Option<f64> {
        let weight = self.weight.get();
        let takes_part = self.wanted.get() && self.state.get() != State::Failed;
        takes_part.then(|| wish(flow, &self.address, weight))
    }

    /// Whether the server is connected.
    pub(super) fn is_up(&self) -> bool {
        self.state.get() == State::Up
    }

    /// It is among the servers, with this weight.
    pub(super) fn stay(&self, server: &ServerOptions) {
        self.weight.set(server.weight);
        self.standby.set(server.standby);
        self.leaving.set(false);
    }

    /// It is no longer among the servers: others send what it has not begun, and it ends when the rest is acked.
    pub(super) fn leave(&self) {
        if !self.leaving.replace(true) {
            let chunks = self.window.borrow_mut().take_unbegun();
            self.hub.take_back(chunks);
            self.wanted.set(false);
            self.wake.notify_one();
        }
    }

    /// Whether it has left for good.
    pub(super) fn has_left(&self) -> bool {
        self.state.get() == State::Left
    }

    /// Whether it may take part from now on.
    pub(super) fn want(&self, wanted: bool) {
        if self.wanted.replace(wanted) != wanted {
            self.wake.notify_one();
        }
    }

    /// Whether it may take part.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.get()
    }

    /// What is known by heartbeats.
    pub(super) fn feel(&self, pulse: Pulse) {
        let before = self.pulse.replace(pulse);
        if before != pulse {
            // Whatever else is heard before the link looks: it has come back.
            self.hurry
                .set(self.hurry.get() || pulse.returns != before.returns);
            self.wake.notify_one();
        }
    }

    /// Whether it has answered heartbeats and does not any more.
    pub(super) fn is_silent(&self) -> bool {
        self.pulse.get().silent
    }

    /// Gives it a chunk to send.
    pub(super) fn give(&self, chunk: Chunk) {
        self.window.borrow_mut().push(chunk);
        self.wake.notify_one();
    }

    /// Leases up to this number are durable: their chunks may go out.
    pub(super) fn leased(&self, serial: u64) {
        self.window.borrow_mut().leased(serial);
        self.wake.notify_one();
    }

    /// Returns when there is a new chunk or a new wish.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// The life of the link. It ends when the server is no longer one and nothing is left to do.
    pub(super) async fn run(self: Rc<Self>) {
        let seed = self
            .address
            .bytes()
            .fold(std::process::id().into(), |hash: u64, byte| {
                hash.wrapping_mul(31).wrapping_add(byte.into())
            });
        let mut backoff = Backoff::new(self.settings.retry_first, self.settings.retry_max, seed);
        loop {
            let leaves = self.leaving.get();
            if (leaves || !self.wanted.get()) && self.window.borrow().is_empty() {
                if leaves {
                    self.set(State::Left);
                    return;
                }
                self.set(State::Asleep);
                self.woken().await;
                continue;
            }
            if self.is_silent() {
                if self.state.get() != State::Failed {
                    self.fail(format_args!("does not answer heartbeats"), None);
                }
                self.woken().await;
                continue;
            }
            if self.state.get() == State::Asleep {
                self.set(State::Trying);
            }
            let connected = tokio::select! {
                biased;
                // A try that began while nobody was there waits for the kernel's next SYN, up to a minute: begin anew.
                () = self.called_off() => continue,
                connected = self.connect() => connected,
            };
            match connected {
                Ok(stream) => self.talk(stream, &mut backoff).await,
                Err(error) => {
                    self.meters.connections_failed.add(1);
                    let wait = backoff.failed();
                    self.fail(format_args!("cannot be reached ({error})"), Some(wait));
                    self.rest(wait).await;
                }
            }
        }
    }

    async fn talk(&self, stream: Stream, backoff: &mut Backoff) {
        self.set(State::Up);
        // The server has answered with the shared key; without one only an ack proves that it takes records.
        if self.settings.auth.is_some() {
            self.proven();
        }
        self.meters.connections_open.add(1);
        let open = Open(&self.meters.connections_open);
        let since = Instant::now();
        let (end, progress) = Connection::new(stream, self).run().await;
        drop(open);
        let lasted = since.elapsed() >= self.settings.retry_first;
        // Without acks, writing proves nothing: whoever accepts and closes at once would swallow all there is.
        let worked = progress && (self.settings.ack || lasted);
        if worked {
            backoff.reset();
        }
        let idle = self.window.borrow().is_empty();
        match end {
            End::Retired => {}
            // Peers close what idles for long; that says nothing against them.
            End::Closed if idle && (worked || lasted) => self.set(State::Trying),
            end => {
                let wait = if worked {
                    Duration::ZERO
                } else {
                    backoff.failed()
                };
                let next = (!self.is_silent()).then_some(wait);
                self.fail(format_args!("is disconnected: {end}"), next);
                self.rest(wait).await;
            }
        }
    }

    /// The server has answered in a way that only a receiver which takes records does.
    pub(super) fn proven(&self) {
        if self.suspect.replace(false) {
            let address = &self.address;
            self.reporter.info(
                "connected",
                format_args!("server {address} is connected again"),
            );
            self.count();
        }
        self.failing.clear();
    }

    /// The connection has lasted for `retry.first`, without acks or with nothing to be acked.
    pub(super) fn lasted(&self) {
        if self.settings.ack {
            // Nothing waits for it, so nothing is kept from its way; only an ack proves more.
            self.failing.clear();
        } else {
            self.proven();
        }
    }

    /// Waits before the next try, unless there is nothing left to try for, or it has begun to answer.
    async fn rest(&self, wait: Duration) {
        tokio::select! {
            () = sleep(wait) => {}
            () = self.called_off() => {}
        }
    }

    /// Returns when it has begun to answer, or there is nothing left to connect for.
    async fn called_off(&self) {
        while !(self.hurry.take() || self.leaving.get() && self.window.borrow().is_empty()) {
            self.woken().await;
        }
    }

    /// A connection to the server, ready for chunks.
    pub(super) async fn connect(&self) -> io::Result<Stream> {
        dial::connect(&self.address, &self.settings, &self.reporter).await
    }

    /// Says what happened and hands back what others may send. The next try comes after `wait`, or when it answers again.
    fn fail(&self, what: fmt::Arguments<'_>, wait: Option<Duration>) {
        let chunks = self.release();
        let resend = match chunks.len() {
            0 => String::new(),
            1 => "; 1 chunk goes out again".to_owned(),
            count => format!("; {count} chunks go out again"),
        };
        let doubt = doubt(&chunks);
        let next = match wait.map(|wait| wait.as_secs_f64()) {
            None => "when it answers".to_owned(),
            Some(0.0) => "at once".to_owned(),
            Some(seconds) => format!("in {seconds:.1} s"),
        };
        self.hub.take_back(chunks);
        self.suspect.set(true);
        self.set(State::Failed);
        let address = &self.address;
        let text = format_args!("server {address} {what}{resend}{doubt}; next try {next}");
        // Another server delivers.
        if !self.settings.needs_each() && self.hub.working.get() > 0 {
            return self.reporter.warn("server", text);
        }
        self.failing.raise(Trouble::Retrying, text);
    }

    /// What others may send now that the connection is gone.
    fn release(&self) -> Vec<Chunk> {
        let released = match self.settings.failover {
            Failover::Resend => self.window.borrow_mut().release(|_| true),
            // What was begun may be there already: it waits for its server.
            Failover::Wait => self.window.borrow_mut().release(|chunk| !chunk.begun),
        };
        self.expire();
        released
    }

    /// Hands over to be given up what still waits for this server although the operator's time for it is over. Others never
    /// get it: the server may have it.
    fn expire(&self) {
        let overdue = |chunk: &Chunk| chunk.is_overdue(self.settings.give_up);
        if self.window.borrow().any(overdue) {
            let chunks = self.window.borrow_mut().release(overdue);
            self.hub.overdue.borrow_mut().extend(chunks);
            // It may have stayed for these alone.
            self.wake.notify_one();
        }
    }

    /// [`Link::expire`], unless a connection is at work, whose end sees to it. A server that is gone for good breaks nothing
    /// more, and while it is silent nobody tries to connect.
    pub(super) fn expire_unless_up(&self) {
        if self.state.get() != State::Up {
            self.expire();
        }
    }

    /// Keeps the hub's count of working servers right.
    fn count(&self) {
        let works = self.state.get() == State::Up && !self.suspect.get();
        let before = self.works.replace(works);
        let working = self.hub.working.get() + usize::from(works);
        self.hub.working.set(working - usize::from(before));
    }

    fn set(&self, state: State) {
        self.state.set(state);
        if matches!(state, State::Asleep | State::Left) && self.settings.needs_each() {
            self.failing.clear();
        }
        self.count();
        self.hub.changed.notify_one();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let working = self.hub.working.get();
        self.hub
            .working
            .set(working - usize::from(self.works.get()));
    }
}

/// Names the chunks that a server may have although others get them now: what may come twice, and nothing else.
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

/// Counts a connection while it lives, also when its task is dropped.
struct Open<'a>(&'a Meter);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.sub(1);
    }
}
