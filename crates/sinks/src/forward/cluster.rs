//! The servers of a lane: a link each, who gets the next chunk, and who joins and leaves while it runs.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! It promises that a chunk is with one link or at the hub, and that a server that leaves the list finishes what it was
//! given: what it has not begun goes to the others at once, what it may have is acked there (or, with `failover: resend`,
//! goes out again when it breaks). It leaves to the links: sockets and failures.

use std::rc::Rc;

use millstream_pipeline::report::Reporter;
use tokio::task::{JoinError, JoinSet};

use super::{
    choice::{Choice, wanted},
    flow::Flow,
    hub::{Hub, LinkMeters, Settings},
    link::Link,
    server::ServerOptions,
};

/// The servers of a lane.
pub(super) struct Cluster {
    links: Vec<Rc<Link>>,
    choice: Choice,
    hub: Rc<Hub>,
    settings: Rc<Settings>,
    meters: LinkMeters,
    reporter: Reporter,
    tasks: JoinSet<()>,
}

impl Cluster {
    pub(super) fn new(
        hub: Rc<Hub>,
        settings: Settings,
        meters: LinkMeters,
        reporter: Reporter,
    ) -> Self {
        Self {
            links: Vec::new(),
            choice: Choice::new(0),
            hub,
            settings: Rc::new(settings),
            meters,
            reporter,
            tasks: JoinSet::new(),
        }
    }

    /// From now on these are the servers: new ones join, those that are missing finish what they have and leave.
    pub(super) fn set_servers(&mut self, servers: &[ServerOptions]) {
        for link in &self.links {
            match servers.iter().find(|server| server.address == link.address) {
                Some(server) => link.stay(server),
                None => link.leave(),
            }
        }
        for server in servers {
            if !self.links.iter().any(|link| link.address == server.address) {
                let link = Rc::new(Link::new(
                    server,
                    self.settings.clone(),
                    self.hub.clone(),
                    self.meters.clone(),
                    self.reporter.clone(),
                ));
                self.tasks.spawn_local(link.clone().run());
                self.links.push(link);
            }
        }
        self.choice = Choice::new(self.links.len());
    }

    /// Returns when a link has ended: an error if it panicked. Waits for ever while there is none.
    pub(super) async fn ended(&mut self) -> Result<(), JoinError> {
        match self.tasks.join_next().await {
            Some(end) => end,
            None => std::future::pending().await,
        }
    }

    /// Lets go of the links that have ended.
    pub(super) fn tidy(&mut self) {
        self.links.retain(|link| !link.has_left());
        self.choice = Choice::new(self.links.len());
    }

    /// Whether any server is connected.
    pub(super) fn is_up(&self) -> bool {
        self.links.iter().any(|link| link.is_up())
    }

    /// Gives waiting chunks to servers, and wakes or dismisses standbys.
    pub(super) fn deal(&mut self) {
        loop {
            let mut pending = self.hub.pending.borrow_mut();
            let first = pending.first_entry();
            let cost = first.as_ref().map_or(0, |first| first.get().cost());
            let candidates: Vec<_> = self.links.iter().map(|link| link.candidate(cost)).collect();
            for (link, wanted) in self.links.iter().zip(wanted(&candidates)) {
                link.want(wanted);
            }
            let Some(first) = first else { return };
            let place = match first.get().flow {
                None => self.choice.next(&candidates),
                Some(flow) => self.home_of(flow).filter(|place| candidates[*place].ready),
            };
            let Some(place) = place else { return };
            self.links[place].give(first.remove());
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
