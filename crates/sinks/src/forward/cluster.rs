//! The servers of a lane (one of the sink's parallel tasks): a link to each server, the choice of a server for each chunk, and
//! servers that join and leave.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! The cluster promises that a chunk is with exactly one link or at the hub, which holds the chunks that wait for a server. When a
//! server leaves the list, those of its chunks of which no byte was written go to the other servers immediately. Its other chunks
//! wait for its ack, because the server may have received them. With `failover: resend`, these chunks go to other servers if the
//! connection to the server breaks. The links handle sockets and failures.

use std::{ops::Bound, rc::Rc};

use millstream_pipeline::failure::Failure;
use millstream_record::Position;
use tokio::{sync::watch, task::JoinSet};

use super::{
    choice::{Choice, wanted},
    chunk::{Chunk, Key},
    endpoint::Common,
    flow::Flow,
    heart::{Hearts, Pulses},
    lessor::Lessor,
    link::Link,
    server::ServerOptions,
};

/// The servers of a lane.
pub(super) struct Cluster {
    links: Vec<Rc<Link>>,
    choice: Choice,
    common: Rc<Common>,
    lessor: Lessor,
    tasks: JoinSet<()>,
    /// Which links are full in the current call of [`Cluster::deal`] (`balance: all`). This is a field only to reuse its
    /// allocation.
    full: Vec<bool>,
    /// Whether this lane sends the heartbeats. All lanes get the results through `pulses`.
    asks: bool,
    pulses: watch::Receiver<Pulses>,
}

impl Cluster {
    pub(super) fn new(common: Common, lessor: Lessor, lane: usize) -> Self {
        Self {
            asks: lane == 0,
            pulses: common.settings.hearts.subscribe(),
            links: Vec::new(),
            choice: Choice::new(0),
            common: Rc::new(common),
            lessor,
            tasks: JoinSet::new(),
            full: Vec::new(),
        }
    }

    /// Sets the list of servers. New servers join; servers that are not in the list any more leave after they have finished the
    /// chunks that they may have received.
    pub(super) fn set_servers(&mut self, servers: &[ServerOptions]) {
        self.tidy();
        for link in &self.links {
            match servers
                .iter()
                .find(|server| server.address == link.address())
            {
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
        let link = Rc::new(Link::new(server, self.common.clone()));
        link.endpoint.leased(self.lessor.durable());
        let hearts = self.common.settings.hearts.clone();
        match self.asks && hearts.is_on() {
            true => self.tasks.spawn_local(run_asked(link.clone(), hearts)),
            false => self.tasks.spawn_local(link.clone().run()),
        };
        self.links.push(link);
        self.hear();
        self.links.len() - 1
    }

    fn find(&self, address: &str) -> Option<usize> {
        let here = |link: &Rc<Link>| link.address() == address && !link.has_left();
        self.links.iter().position(here)
    }

    /// Drops the links that have ended.
    fn tidy(&mut self) {
        self.links.retain(|link| !link.has_left());
        self.choice = Choice::new(self.links.len());
    }

    /// Whether any server is connected.
    pub(super) fn is_up(&self) -> bool {
        self.links.iter().any(|link| link.is_up())
    }

    /// Whether a server may have received a chunk that waits, because an earlier run has leased the chunk to it.
    pub(super) fn is_in_doubt(&self, chunk: &Chunk) -> bool {
        self.lessor.holder(chunk).is_some()
    }

    /// Gives waiting chunks to servers, and wakes or dismisses standbys.
    pub(super) fn deal(&mut self) {
        if self.common.settings.to_all {
            return self.deal_to_all();
        }
        loop {
            let pending = self.common.hub.pending.borrow();
            let first = pending.first_key_value();
            let cost = first.map_or(0, |(_, chunk)| chunk.cost());
            let candidates: Vec<_> = self.links.iter().map(|link| link.candidate(cost)).collect();
            for (link, wanted) in self.links.iter().zip(wanted(&candidates)) {
                link.endpoint.want(wanted);
            }
            let Some((key, chunk)) = first else { break };
            let (key, flow, holder) = (*key, chunk.flow, self.lessor.holder(chunk));
            drop(pending);
            let place = match (holder, flow) {
                (Some(address), _) => {
                    let place = self.holder(address);
                    self.links[place].has_room(cost).then_some(place)
                }
                (None, Some(flow)) => self.home_of(flow).filter(|place| candidates[*place].ready),
                (None, None) => self.choice.next(&candidates),
            };
            let Some(place) = place else { break };
            self.give(key, place);
        }
        self.lessor.begin_sync();
    }

    /// Gives every server its copies of the waiting chunks, in order. While there are no servers, the chunks wait.
    fn deal_to_all(&mut self) {
        for link in &self.links {
            link.endpoint.want(link.takes_all());
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
                // The server has left the list, so its copy is not needed.
                None => {
                    self.common.hub.pending.borrow_mut().remove(&key);
                    self.common.hub.finish(key.0);
                }
            }
        }
    }

    /// Returns the first waiting chunk beyond `after`: its key, the server that gets it (None if it is not a copy), and its cost.
    fn next_copy(&self, after: Bound<Key>) -> Option<(Key, Option<Rc<str>>, usize)> {
        let pending = self.common.hub.pending.borrow();
        let (key, chunk) = pending.range((after, Bound::Unbounded)).next()?;
        let server = chunk.copy.as_ref().map(|(_, server)| server.clone());
        Some((*key, server, chunk.cost()))
    }

    /// Replaces each waiting chunk that is not a copy by one copy for each server.
    fn copy_out(&mut self) {
        let mut pending = self.common.hub.pending.borrow_mut();
        if pending.values().all(|chunk| chunk.copy.is_some()) {
            return;
        }
        let takers = self.links.iter().filter(|link| link.takes_all());
        let takers: Vec<Rc<str>> = takers.map(|link| link.address().into()).collect();
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
            self.common
                .hub
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

    /// Returns the index of the link to a server that may have received chunks before the sink started. A server that is no longer
    /// in the list gets a link that takes only these chunks.
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
        let Some(mut chunk) = self.common.hub.pending.borrow_mut().remove(&key) else {
            return;
        };
        let link = &self.links[place];
        self.lessor.lease(&mut chunk, link.address());
        link.endpoint.give(chunk);
    }

    /// Takes the chunks that are older than `retry.give_up` away from servers without a connection. These chunks go to the hub's
    /// list of overdue chunks.
    pub(super) fn expire(&self) {
        for link in &self.links {
            link.expire_unless_up();
        }
    }

    /// Forgets the leases (durable notes of which server may have received which chunk) of everything up to and including
    /// `position`, which is settled.
    pub(super) fn settled(&mut self, position: Position) {
        self.lessor.settled(position);
    }

    /// Returns when leases have become durable, a server has left, or a heartbeat has changed a server's state. Safe to drop and
    /// call again.
    pub(super) async fn changed(&mut self) -> Result<(), Failure> {
        tokio::select! {
            synced = self.lessor.synced() => {
                let durable = synced?;
                for link in &self.links {
                    link.endpoint.leased(durable);
                }
            }
            Some(end) = self.tasks.join_next() => {
                end.map_err(|panic| Failure::us(format!("a task of the sink panicked: {panic}")))?;
                self.tidy();
            }
            Ok(()) = self.pulses.changed() => self.hear(),
        }
        Ok(())
    }

    /// Passes the pulses (results of heartbeats) on to the links.
    fn hear(&mut self) {
        let pulses = self.pulses.borrow_and_update();
        for link in &self.links {
            let pulse = pulses.get(link.address()).copied().unwrap_or_default();
            link.endpoint.note_pulse(pulse);
        }
    }

    /// Returns the index of the server of a flow (records that `balance: hash` sends to one server, in order). This is the server
    /// that holds chunks of the flow; if there is none, it is the server with the highest score. Returns None if no server takes
    /// part. So a flow moves to another server only when none of its chunks is in flight, and keeps its order.
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

/// Runs a link and sends heartbeats to its server until the link ends.
async fn run_asked(link: Rc<Link>, hearts: Hearts) {
    let unanswered = link.endpoint.common.meters.heartbeats_unanswered.clone();
    let asking = async {
        let connect = async || link.connect().await.map(drop);
        hearts.ask(link.address(), &unanswered, connect).await;
    };
    tokio::select! {
        () = link.clone().run() => {}
        () = asking => {}
    }
}
