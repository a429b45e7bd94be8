//! The servers of a lane: a link each, who gets the next chunk, and who joins and leaves while it runs.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! It promises that a chunk is with one link or at the hub, and that a server that leaves the list finishes what it was
//! given: what it has not begun goes to the others at once, what it may have is acked there (or, with `failover: resend`,
//! goes out again when it breaks). It leaves to the links: sockets and failures.

use std::{ops::Bound, rc::Rc, sync::Arc};

use millstream_pipeline::{failure::Failure, report::Reporter};
use millstream_record::Position;
use millstream_sys::disk::File;
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet, spawn_blocking},
};

use super::{
    choice::{Choice, wanted},
    chunk::{Chunk, Key},
    flow::Flow,
    heart::Pulses,
    hub::{Hub, LinkMeters, Settings},
    leases::Leases,
    link::Link,
    server::ServerOptions,
};

/// A sync of leases on a thread where blocking does no harm; it gives the file that goes on.
type Syncing = JoinHandle<Result<Arc<dyn File>, Failure>>;

/// The servers of a lane.
pub(super) struct Cluster {
    links: Vec<Rc<Link>>,
    choice: Choice,
    hub: Rc<Hub>,
    /// Who may have what, where that is remembered.
    leases: Option<Leases>,
    /// The sync of leases that is under way, and its number.
    sync: Option<(u64, Syncing)>,
    /// Leases are durable up to this number.
    serial: u64,
    settings: Rc<Settings>,
    meters: LinkMeters,
    reporter: Reporter,
    tasks: JoinSet<()>,
    /// Which links take no more in this deal (`balance: all`); kept for its memory.
    full: Vec<bool>,
    /// This lane asks the servers whether they are there; the others hear of it.
    asks: bool,
    pulses: watch::Receiver<Pulses>,
}

impl Cluster {
    pub(super) fn new(
        hub: Rc<Hub>,
        leases: Option<Leases>,
        settings: Settings,
        meters: LinkMeters,
        reporter: Reporter,
        lane: usize,
    ) -> Self {
        Self {
            asks: lane == 0,
            pulses: settings.hearts.heard(),
            links: Vec::new(),
            choice: Choice::new(0),
            hub,
            leases,
            sync: None,
            serial: 0,
            settings: Rc::new(settings),
            meters,
            reporter,
            tasks: JoinSet::new(),
            full: Vec::new(),
        }
    }

    /// From now on these are the servers: new ones join, those that are missing finish what they have and leave.
    pub(super) fn set_servers(&mut self, servers: &[ServerOptions]) {
        self.tidy();
        for link in &self.links {
            match servers.iter().find(|server| server.address == link.address) {
                Some(server) => link.stay(server),
                None => link.leave(),
            }
        }
        for server in servers {
            if self.find(&server.address).is_none() {
                self.join(server);
            }
        }
        self.choice = Choice::new(self.links.len());
    }

    fn join(&mut self, server: &ServerOptions) -> usize {
        let link = Rc::new(Link::new(
            server,
            self.settings.clone(),
            self.hub.clone(),
            self.meters.clone(),
            self.reporter.clone(),
        ));
        link.leased(self.serial);
        let hearts = self.settings.hearts.clone();
        match self.asks && hearts.beats() {
            true => self.tasks.spawn_local(hearts.accompany(link.clone())),
            false => self.tasks.spawn_local(link.clone().run()),
        };
        self.links.push(link);
        self.feel();
        self.links.len() - 1
    }

    fn find(&self, address: &str) -> Option<usize> {
        let here = |link: &Rc<Link>| link.address == address && !link.has_left();
        self.links.iter().position(here)
    }

    /// Lets go of the links that have ended.
    fn tidy(&mut self) {
        self.links.retain(|link| !link.has_left());
        self.choice = Choice::new(self.links.len());
    }

    /// Whether any server is connected.
    pub(super) fn is_up(&self) -> bool {
        self.links.iter().any(|link| link.is_up())
    }

    /// Gives waiting chunks to servers, and wakes or dismisses standbys.
    pub(super) fn deal(&mut self) {
        if self.settings.to_all {
            return self.deal_to_all();
        }
        loop {
            let pending = self.hub.pending.borrow();
            let first = pending.first_key_value();
            let cost = first.map_or(0, |(_, chunk)| chunk.cost());
            let candidates: Vec<_> = self.links.iter().map(|link| link.candidate(cost)).collect();
            for (link, wanted) in self.links.iter().zip(wanted(&candidates)) {
                link.want(wanted);
            }
            let Some((key, chunk)) = first else { break };
            let (key, flow, in_doubt) = (*key, chunk.flow, self.in_doubt(chunk));
            drop(pending);
            let place = match (in_doubt, flow) {
                (Some(address), _) => Some(self.holder(address)),
                (None, Some(flow)) => self.home_of(flow).filter(|place| candidates[*place].ready),
                (None, None) => self.choice.next(&candidates),
            };
            let Some(place) = place else { break };
            self.give(key, place);
        }
        self.begin_sync();
    }

    /// Gives every server its copy of the waiting chunks, to each in their order. Without a server they wait.
    fn deal_to_all(&mut self) {
        for link in &self.links {
            link.want(link.takes_all());
        }
        self.copy_out();
        self.full.clear();
        self.full.resize(self.links.len(), false);
        let mut after = Bound::Unbounded;
        while let Some((key, server, cost)) = self.next_copy(after) {
            after = Bound::Excluded(key);
            let Some(address) = server else { continue };
            let place = self
                .find(&address)
                .filter(|place| self.links[*place].takes_all());
            match place {
                Some(place) if !self.full[place] && self.links[place].candidate(cost).ready => {
                    self.give(key, place);
                }
                Some(place) => self.full[place] = true,
                // It is no longer a server: nobody waits for it.
                None => {
                    self.hub.pending.borrow_mut().remove(&key);
                    self.hub.done.borrow_mut().push(key.0);
                    self.hub.changed.notify_one();
                }
            }
        }
    }

    /// The next chunk that waits: its key, whose copy it is, and what it costs.
    fn next_copy(&self, after: Bound<Key>) -> Option<(Key, Option<Rc<str>>, usize)> {
        let pending = self.hub.pending.borrow();
        let (key, chunk) = pending.range((after, Bound::Unbounded)).next()?;
        let server = chunk.copy.as_ref().map(|(_, server)| server.clone());
        Some((*key, server, chunk.cost()))
    }

    /// Makes a copy for each server of the waiting chunks that have none.
    fn copy_out(&mut self) {
        let mut pending = self.hub.pending.borrow_mut();
        if pending.values().all(|chunk| chunk.copy.is_some()) {
            return;
        }
        let takers = self.links.iter().filter(|link| link.takes_all());
        let takers: Vec<Rc<str>> = takers.map(|link| link.address.as_str().into()).collect();
        if takers.is_empty() {
            return;
        }
        let mut after = Bound::Unbounded;
        loop {
            let mut waiting = pending.range((after, Bound::Unbounded));
            let whole = waiting.find(|(_, chunk)| chunk.copy.is_none());
            let Some(key) = whole.map(|(key, _)| *key) else {
                return;
            };
            after = Bound::Excluded(key);
            let Some(chunk) = pending.remove(&key) else {
                return;
            };
            self.hub
                .copies
                .borrow_mut()
                .insert(chunk.number, takers.len());
            for (copy, address) in takers.iter().enumerate() {
                let mut chunk = chunk.clone();
                chunk.copy = Some((copy, address.clone()));
                pending.insert(chunk.key(), chunk);
            }
        }
    }

    /// The server that may have a chunk since before this start, or before the sink began anew.
    fn in_doubt(&self, chunk: &Chunk) -> Option<String> {
        // Leased by this run and back at the hub: it was not begun, so nobody has it.
        let leases = self.leases.as_ref().filter(|_| chunk.lease == 0)?;
        leases.holder(chunk.place?).map(str::to_owned)
    }

    /// The link to a server that may have chunks; if it is no longer one of the servers, it gets these and no more.
    fn holder(&mut self, address: String) -> usize {
        self.find(&address).unwrap_or_else(|| {
            let server = ServerOptions {
                address,
                weight: 0,
                standby: false,
            };
            let place = self.join(&server);
            self.links[place].leave();
            self.choice = Choice::new(self.links.len());
            place
        })
    }

    fn give(&mut self, key: Key, place: usize) {
        let Some(mut chunk) = self.hub.pending.borrow_mut().remove(&key) else {
            return;
        };
        let link = &self.links[place];
        if let (Some(leases), Some(frame)) = (&mut self.leases, chunk.place) {
            if chunk.lease == 0 && leases.holder(frame).is_some() {
                chunk.begun = true;
            } else {
                chunk.lease = leases.lease(frame, &link.address);
            }
        }
        link.give(chunk);
    }

    /// Hands over what has waited too long for a server that is not there.
    pub(super) fn expire(&self) {
        for link in &self.links {
            link.expire_unless_up();
        }
    }

    /// Everything up to and with `position` is settled.
    pub(super) fn settled(&mut self, position: Position) {
        if let Some(leases) = &mut self.leases {
            leases.settle(position);
        }
    }

    /// Has new leases made durable, unless that is under way.
    fn begin_sync(&mut self) {
        if self.sync.is_none()
            && let Some(sync) = self.leases.as_mut().and_then(Leases::sync)
        {
            self.sync = Some((sync.serial, spawn_blocking(move || sync.run())));
        }
    }

    /// Returns when leases became durable or a server has left; waits for ever while there is none of these. Can be
    /// dropped and called again.
    pub(super) async fn changed(&mut self) -> Result<(), Failure> {
        let panicked = |died| Failure::us(format!("a task of the sink panicked: {died}"));
        tokio::select! {
            done = async { (&mut self.sync.as_mut().expect("polled only if there is one").1).await }, if self.sync.is_some() => {
                let file = done.map_err(panicked)??;
                if let Some((serial, _)) = self.sync.take() {
                    self.leased(serial, file);
                }
            }
            Some(end) = self.tasks.join_next() => {
                end.map_err(panicked)?;
                self.tidy();
            }
            Ok(()) = self.pulses.changed() => {
                self.feel();
            }
            else => std::future::pending().await,
        }
        Ok(())
    }

    /// Tells every link what is known of its server.
    fn feel(&mut self) {
        let pulses = self.pulses.borrow_and_update();
        for link in &self.links {
            link.feel(pulses.get(&link.address).copied().unwrap_or_default());
        }
    }

    /// Leases up to this number are durable: their chunks go out.
    fn leased(&mut self, serial: u64, file: Arc<dyn File>) {
        if let Some(leases) = &mut self.leases {
            leases.synced(file);
        }
        self.serial = serial;
        for link in &self.links {
            link.leased(serial);
        }
    }

    /// The server of a flow: the one that has chunks of it, else the one that wants it most. So a flow moves only when
    /// nothing of it is under way, and keeps its order.
    fn home_of(&self, flow: Flow) -> Option<usize> {
        let holds = self.links.iter().position(|link| link.holds(flow));
        holds.or_else(|| {
            let wishes = self.links.iter().enumerate();
            let wishes = wishes.filter_map(|(place, link)| Some((place, link.wish(flow)?)));
            let most = wishes.max_by(|a, b| a.1.total_cmp(&b.1));
            most.map(|(place, _)| place)
        })
    }
}
