//! The connections of a running pipeline: the ports of all nodes, and the chains between them.
//!
//! The start makes the connections and a reload changes them, both in two steps: [`Graph::draft`] builds everything that is missing
//! and may fail; [`Graph::apply`] puts the draft into effect and cannot fail. So a reload that fails changes nothing.
//!
//! The graph holds only weak references to the channels of nodes, so that a source that ends still closes the channels that it sends to.

mod operate;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Weak},
};

use millstream_config::RejectedLimits;
use millstream_record::Pool;

use crate::{
    chain::{ChainChannel, ChainMaker, Next, NodeContext, ProcessorMeters, Swap},
    channel::Entry,
    failure::Failure,
    meters::{Meters, NodeMeters},
    outlet::{Edge, Feed, Link, Outlet, WeakOutlet, Wires},
    plan::{ChainNode, ChainPlan, Plan, Route, RunSettings, Target},
    rejected::{self, Counts, NodeFiles, RejectedStore},
    rejection_log::RejectionLog,
    report::Reporter,
};

/// The counter of rejected records that were kept in files, because no node takes them.
pub(crate) const REJECTED_KEPT: &str = "records_rejected_kept";

/// The ports and chains of a running pipeline.
pub(crate) struct Graph {
    pool: Pool,
    meters: Meters,
    data_dir: PathBuf,
    rejected: RejectedLimits,
    /// The number of data threads.
    threads: usize,
    channels: Vec<Consumer>,
    sinks: Vec<Consumer>,
    ports: HashMap<Port, WeakOutlet>,
    /// Earlier destinations of ports. At the last change of the graph, batches were still on their way to these destinations.
    past: Vec<Weak<Wires>>,
    /// The channels that keep rejected records in files, by the node that rejects the records. A node has such a channel if no node takes
    /// its port `NAME.rejected`.
    stores: HashMap<Arc<str>, Arc<Feed>>,
    /// The files of these channels. Batches may still pass through the chains of a node that has left, so its files stay until nothing
    /// else refers to them.
    files: HashMap<Arc<str>, NodeFiles>,
    reporters: HashMap<Arc<str>, Reporter>,
}

/// A port of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Port {
    node: Arc<str>,
    /// True for the port `NAME.rejected`, false for the port `NAME`.
    is_rejected: bool,
}

/// A channel or sink with the chain in front of it.
pub(crate) struct Consumer {
    name: Arc<str>,
    reporter: Reporter,
    /// The channel into which producers put records for the consumer. `None` for a sink that reads a durable channel.
    feed: Option<Weak<Feed>>,
    /// One for each reader, to replace the reader's chain while it runs. Empty if the chain is in front of `feed`.
    swaps: Vec<Weak<Swap>>,
    chain: Option<Present>,
}

/// A chain that runs.
struct Present {
    plan: Arc<ChainPlan>,
    maker: Weak<ChainMaker>,
    /// The channel that puts batches through the chain, if the chain is in front of `feed`.
    front: Option<Weak<Feed>>,
}

/// Consumers that join a graph. Each replaces the running consumer of the same name, if there is one.
#[derive(Default)]
pub(crate) struct Joining {
    pub(crate) channels: Vec<Consumer>,
    pub(crate) sinks: Vec<Consumer>,
}

/// The parts of a plan that do not run yet.
pub(crate) struct Draft {
    joining: Joining,
    channels: Vec<Drafted>,
    sinks: Vec<Drafted>,
    /// The new destinations of each port. The ports of sources are last, so that everything downstream is connected before the first
    /// batch.
    wires: Vec<(Port, Outlet, Wires)>,
}

/// A consumer of a draft.
struct Drafted {
    name: Arc<str>,
    feed: Option<Arc<Feed>>,
    plan: Option<Arc<ChainPlan>>,
    maker: Option<Arc<ChainMaker>>,
    front: Option<Arc<Feed>>,
    /// The new chain of each reader; empty if the readers keep their chains.
    nexts: Vec<(Arc<Swap>, Next)>,
    is_in_reader: bool,
    /// Whether its chain is replaced.
    is_changed: bool,
    has_ended: bool,
}

/// The failure of a change that would send records to a consumer that has ended.
fn has_ended(name: &str) -> Failure {
    Failure::config(format!("{name} has ended and takes no more records"))
}

impl Consumer {
    /// Returns a consumer whose chain will be in front of `feed`.
    pub(crate) fn behind_chain(name: &Arc<str>, reporter: &Reporter, feed: &Arc<Feed>) -> Self {
        Self::reading(name, reporter, Some(feed), &[])
    }

    /// Returns a consumer whose readers will run its chain. `feed` is the memory in front of the readers, if there is any.
    pub(crate) fn reading(
        name: &Arc<str>,
        reporter: &Reporter,
        feed: Option<&Arc<Feed>>,
        swaps: &[Arc<Swap>],
    ) -> Self {
        Self {
            name: name.clone(),
            reporter: reporter.clone(),
            feed: feed.map(Arc::downgrade),
            swaps: swaps.iter().map(Arc::downgrade).collect(),
            chain: None,
        }
    }

    /// Returns a draft in which the consumer has no chain.
    fn drafted(&self) -> Drafted {
        let feed = self.feed.as_ref().and_then(Weak::upgrade);
        let has_ended = self.feed.is_some() && feed.is_none();
        Drafted {
            name: self.name.clone(),
            feed,
            plan: None,
            maker: None,
            front: None,
            nexts: Vec::new(),
            is_in_reader: !self.swaps.is_empty(),
            is_changed: false,
            has_ended,
        }
    }

    /// Returns a draft in which the consumer keeps its current chain. Returns `None` if `plan` differs from the plan of this chain, or if
    /// the chain has ended.
    fn kept(&self, plan: Option<&Arc<ChainPlan>>) -> Option<Drafted> {
        let drafted = self.drafted();
        match (&self.chain, plan) {
            (None, None) => Some(drafted),
            (Some(present), Some(plan)) if *present.plan == **plan => Some(Drafted {
                plan: Some(present.plan.clone()),
                maker: Some(present.maker.upgrade()?),
                front: match &present.front {
                    Some(front) => Some(front.upgrade()?),
                    None => None,
                },
                ..drafted
            }),
            _ => None,
        }
    }
}

impl Drafted {
    /// Returns the edge to the consumer; `None` if the consumer has no `feed`, because no node sends to it directly. If `is_back` is true,
    /// the edge begins in the chain in front of this same consumer. Records that pass no processor skip a chain in front of `feed`, because
    /// in that chain they would wait for the processors of other records.
    fn edge(&self, route: &Route, is_back: bool) -> Result<Option<Edge>, Failure> {
        if self.has_ended {
            return Err(has_ended(&self.name));
        }
        let chain = self.maker.clone().filter(|_| self.is_in_reader);
        let plan = self.plan.as_ref();
        let is_direct = plan.is_some_and(|plan| plan.is_direct(route.entry));
        let front = self.front.as_ref().filter(|_| !is_direct);
        let feed = front.or(self.feed.as_ref());
        Ok(feed.map(|feed| Edge {
            tags: route.tags.clone(),
            link: match is_back {
                true => Link::Back(Arc::downgrade(feed)),
                false => Link::Open(feed.clone()),
            },
            entry: Entry {
                number: route.entry,
                chain: chain.map(|maker| maker as _),
            },
        }))
    }
}

impl Draft {
    /// Returns the edges along `routes`. For the rejected records of a processor, `reporter` is the consumer whose chain reports them.
    /// Otherwise it is `None`.
    fn edges(&self, routes: &[Route], reporter: Option<&Arc<str>>) -> Result<Vec<Edge>, Failure> {
        let edge = |route: &Route| {
            let consumer = match route.to {
                Target::Channel(index) => &self.channels[index],
                Target::Sink(index) => &self.sinks[index],
            };
            let is_back = reporter.is_some_and(|reporter| *reporter == consumer.name);
            if is_back && consumer.is_in_reader {
                let why = "would take records that processors in front of it reject";
                let failure = format!("{} {why}: this needs a restart", consumer.name);
                return Some(Err(Failure::config(failure)));
            }
            consumer.edge(route, is_back).transpose()
        };
        routes.iter().filter_map(edge).collect()
    }

    /// Finds a running source whose durability the draft would change. A source is durable if all its batches go to durable channels.
    /// `runs` returns whether a node runs.
    pub(crate) fn changes_durability(&self, runs: impl Fn(&str) -> bool) -> Option<&str> {
        let ports = self.wires.iter();
        let mut sources = ports.filter(|(port, ..)| !port.is_rejected && runs(&port.node));
        let changes = sources.find(|(_, outlet, wires)| outlet.is_durable() != wires.is_durable());
        changes.map(|(port, ..)| &*port.node)
    }

    /// Returns the channels and sinks whose chains the draft replaces.
    pub(crate) fn changed(&self) -> impl Iterator<Item = &Arc<str>> {
        let all = self.channels.iter().chain(&self.sinks);
        all.filter(|drafted| drafted.is_changed)
            .map(|drafted| &drafted.name)
    }
}

impl Graph {
    /// Returns a graph without nodes, for `threads` data threads.
    pub(crate) fn new(
        pool: &Pool,
        meters: &Meters,
        settings: &RunSettings,
        threads: usize,
    ) -> Self {
        Self {
            pool: pool.clone(),
            meters: meters.clone(),
            data_dir: settings.data_dir.clone(),
            rejected: settings.rejected,
            threads,
            channels: Vec::new(),
            sinks: Vec::new(),
            ports: HashMap::new(),
            past: Vec::new(),
            stores: HashMap::new(),
            files: HashMap::new(),
            reporters: HashMap::new(),
        }
    }

    /// Opens the ports of the nodes that start; new ports have no destinations yet. The caller must hold the ports until the nodes hold
    /// them: a node whose port was dropped counts as ended.
    pub(crate) fn open_ports(
        &mut self,
        plan: &Plan,
        starts: impl Fn(&Arc<str>) -> bool + Copy,
    ) -> Vec<Outlet> {
        let sources = plan.sources.iter().map(|source| &source.name);
        let sources = sources.filter(|name| starts(name));
        let sinks = plan.sinks.iter().map(|sink| &sink.name);
        let sinks = sinks.filter(|name| starts(name));
        let mut all: Vec<_> = sources
            .clone()
            .map(|name| self.outlet(name, false))
            .collect();
        all.extend(sources.chain(sinks).map(|name| self.outlet(name, true)));
        all
    }

    /// Builds the parts of `plan` that do not run yet. Each channel and sink of `plan` must be in the graph or in `joining`.
    pub(crate) fn draft(&mut self, plan: &Plan, joining: Joining) -> Result<Draft, Failure> {
        let mut contexts = Vec::new();
        for processor in &plan.processors {
            let rejects = self.outlet(&processor.name, true);
            let meters = ProcessorMeters::new(&self.meters.of(&processor.name));
            let reporter = self.reporter(&processor.name);
            contexts.push(NodeContext::new(Some(rejects), meters, &reporter));
        }
        let channels = plan.channels.iter();
        let channels = channels.map(|channel| (&channel.name, &channel.chain));
        let sinks = plan.sinks.iter().map(|sink| (&sink.name, &sink.chain));
        let mut draft = Draft {
            channels: self.chains((&joining.channels, &self.channels), channels, &contexts)?,
            sinks: self.chains((&joining.sinks, &self.sinks), sinks, &contexts)?,
            joining,
            wires: Vec::new(),
        };
        let sources = plan.sources.iter();
        let sinks = plan.sinks.iter().map(|it| (&it.name, &it.rejects, None));
        let rejecting = sources
            .map(|it| (&it.name, &it.rejects, None))
            .chain(plan.processors.iter().map(|it| {
                let reporter = it.consumers.first();
                (&it.name, &it.rejects, reporter)
            }))
            .chain(sinks);
        for (node, routes, reporter) in rejecting {
            if let Some((port, outlet)) = self.open(node, true) {
                let wires = self.reject_wires(node, draft.edges(routes, reporter)?);
                draft.wires.push((port, outlet, wires));
            }
        }
        for source in &plan.sources {
            if let Some((port, outlet)) = self.open(&source.name, false) {
                let edges = draft.edges(&source.routes, None)?;
                draft.wires.push((port, outlet, Wires { edges, log: None }));
            }
        }
        Ok(draft)
    }

    /// Drafts all consumers, given by their names and chains.
    fn chains<'a>(
        &self,
        (joining, running): (&[Consumer], &[Consumer]),
        all: impl Iterator<Item = (&'a Arc<str>, &'a Option<Arc<ChainPlan>>)>,
        contexts: &[NodeContext],
    ) -> Result<Vec<Drafted>, Failure> {
        let drafted = |(name, plan): (&Arc<str>, &Option<Arc<ChainPlan>>)| {
            let mut known = joining.iter().chain(running);
            let consumer = known.find(|consumer| consumer.name == *name);
            let consumer = consumer.ok_or_else(|| has_ended(name))?;
            match consumer.kept(plan.as_ref()) {
                // The consumer has ended and receives no more batches, so its chain does not matter.
                _ if consumer.drafted().has_ended => Ok(consumer.drafted()),
                Some(kept) => Ok(kept),
                None => self.chain(consumer, plan.clone(), contexts),
            }
        };
        all.map(drafted).collect()
    }

    /// Drafts a consumer with a new chain. Makes the first tasks now, and fails if a processor cannot run.
    fn chain(
        &self,
        consumer: &Consumer,
        plan: Option<Arc<ChainPlan>>,
        contexts: &[NodeContext],
    ) -> Result<Drafted, Failure> {
        let maker = plan.as_ref().map(|plan| {
            let context = |node: &ChainNode| contexts[node.index].reporting(node.reports);
            let contexts = plan.nodes.iter().map(context).collect();
            ChainMaker::new(plan.clone(), contexts, &self.pool)
        });
        let mut drafted = consumer.drafted();
        if let (Some(maker), Some(feed), false) = (&maker, &drafted.feed, drafted.is_in_reader) {
            let reporter = consumer.reporter.clone();
            let front = ChainChannel::new(feed.clone(), maker.clone(), self.threads, reporter)?;
            drafted.front = Some(Feed::new(Arc::new(front)));
        }
        for swap in consumer.swaps.iter().filter_map(Weak::upgrade) {
            drafted.nexts.push((swap, Next::new(maker.clone())?));
        }
        Ok(Drafted {
            plan,
            maker,
            is_changed: true,
            ..drafted
        })
    }

    /// Returns a port that is open; `None` if the port's node has ended.
    fn open(&self, node: &Arc<str>, is_rejected: bool) -> Option<(Port, Outlet)> {
        let port = Port {
            node: node.clone(),
            is_rejected,
        };
        let outlet = self.ports.get(&port).and_then(WeakOutlet::upgrade)?;
        Some((port, outlet))
    }

    /// Returns the port of a node. If it is not open yet, opens it without a destination.
    pub(crate) fn outlet(&mut self, node: &Arc<str>, is_rejected: bool) -> Outlet {
        if let Some((_, outlet)) = self.open(node, is_rejected) {
            return outlet;
        }
        let outlet = Outlet::new(Vec::new(), &self.meters.of(node), is_rejected);
        let port = Port {
            node: node.clone(),
            is_rejected,
        };
        self.ports.insert(port, outlet.downgrade());
        outlet
    }

    /// The reporter of a node.
    pub(crate) fn reporter(&mut self, node: &Arc<str>) -> Reporter {
        let new = || {
            let busy = self.meters.of(node).counter("busy_microseconds");
            Reporter::new(node).measuring(busy)
        };
        let reporter = self.reporters.entry(node.clone()).or_insert_with(new);
        reporter.clone()
    }

    /// Returns the reporter of a node. For an unknown node, returns a new reporter that the graph does not store.
    pub(crate) fn known_reporter(&self, node: &Arc<str>) -> Reporter {
        let known = self.reporters.get(node);
        known.cloned().unwrap_or_else(|| Reporter::new(node))
    }

    /// Returns the destinations of `NAME.rejected`: the nodes that take the port, or files if no node does.
    fn reject_wires(&mut self, node: &Arc<str>, mut edges: Vec<Edge>) -> Wires {
        let mut to = format!("by the port {node}.rejected");
        if edges.is_empty() {
            let directory = rejected::directory(&self.data_dir);
            to = format!("and kept in {}/{node}.*", directory.display());
            edges.push(Edge::to(self.store(node)));
        }
        Wires {
            edges,
            log: Some(RejectionLog::new(node, to)),
        }
    }

    /// Returns a port by which records leave that are set aside (`probation`). They are kept in the files of `node`, even if another node
    /// takes the records that `node` rejects: they could end the process there, too. `meters` are those of the consumer.
    pub(crate) fn aside(&mut self, node: &Arc<str>, meters: &NodeMeters) -> Outlet {
        let outlet = Outlet::new(Vec::new(), meters, true);
        outlet.rewire(self.reject_wires(node, Vec::new()));
        outlet
    }

    /// The files of the records that a node rejects.
    fn files_of(&mut self, node: &Arc<str>) -> NodeFiles {
        let new = || NodeFiles::new(rejected::directory(&self.data_dir), node, &self.rejected);
        self.files.entry(node.clone()).or_insert_with(new).clone()
    }

    fn store(&mut self, node: &Arc<str>) -> Arc<Feed> {
        if let Some(store) = self.stores.get(node) {
            return store.clone();
        }
        let meters = self.meters.of(node);
        let counts = Counts {
            kept: meters.counter(REJECTED_KEPT),
            dropped: meters.counter("bytes_rejected_dropped"),
        };
        let reporter = self.reporter(node);
        let files = self.files_of(node);
        let store = RejectedStore::open(files, node, &self.rejected, reporter, counts);
        let store = Feed::new(store);
        self.stores.insert(node.clone(), store.clone());
        store
    }

    /// Puts a draft into effect. The returned ports close when they are dropped, unless their nodes hold them.
    pub(crate) fn apply(&mut self, draft: Draft) -> Vec<Outlet> {
        let connect = |(_, outlet, wires): (Port, Outlet, Wires)| {
            self.past.push(outlet.rewire(wires));
            outlet
        };
        let ports = draft.wires.into_iter().map(connect).collect();
        self.past.retain(|wires| wires.strong_count() > 0);
        let Joining { channels, sinks } = draft.joining;
        join(&mut self.channels, channels);
        join(&mut self.sinks, sinks);
        turn(&mut self.channels, draft.channels);
        turn(&mut self.sinks, draft.sinks);
        ports
    }

    /// Returns the [`Wires`] that lead to a durable channel: the present ones of all ports, and earlier ones through which batches are
    /// still on their way. After the next change of the graph, each of these `Wires` exists only until the batches that were sent through
    /// it have arrived, or until its source has ended. `leaves` returns whether that change removes a node.
    pub(crate) fn wires_to(
        &self,
        channel: &str,
        leaves: impl Fn(&str) -> bool,
    ) -> Vec<Weak<Wires>> {
        let id = self.channel(channel).and_then(|feed| feed.channel().id());
        // A removed processor keeps the destinations of its rejected records until the positions that pass through its old chain are
        // settled. This may take hours, so the ports for rejected records of the nodes that leave are not included.
        let is_included = |port: &Port| !port.is_rejected || !leaves(&port.node);
        let ports = self.ports.iter().filter(|(port, _)| is_included(port));
        let present = ports.filter_map(|(_, outlet)| Some(outlet.upgrade()?.wires()));
        let all = present.chain(self.past.iter().filter_map(Weak::upgrade));
        let leading = all.filter(|wires| id.is_some_and(|id| wires.leads_to(id)));
        leading.map(|wires| Arc::downgrade(&wires)).collect()
    }

    /// Forgets a node that has left the graph.
    pub(crate) fn forget(&mut self, node: &Arc<str>) {
        self.ports.retain(|port, _| port.node != *node);
        self.stores.remove(node);
        self.files.retain(|_, files| files.is_shared());
        self.reporters.remove(node);
        self.meters.forget(node);
    }

    /// The feed of a running channel; `None` if it has ended.
    pub(crate) fn channel(&self, name: &str) -> Option<Arc<Feed>> {
        let mut channels = self.channels.iter();
        let found = channels.find(|it| *it.name == *name)?;
        found.feed.as_ref().and_then(Weak::upgrade)
    }
}

/// Adds consumers. Each replaces the consumer of the same name.
fn join(consumers: &mut Vec<Consumer>, joining: Vec<Consumer>) {
    consumers.retain(|it| joining.iter().all(|other| other.name != it.name));
    consumers.extend(joining);
}

/// Gives consumers the chains of their drafts, and removes the consumers that have no draft.
fn turn(consumers: &mut Vec<Consumer>, drafts: Vec<Drafted>) {
    consumers.retain(|it| drafts.iter().any(|draft| draft.name == it.name));
    for drafted in drafts {
        let found = consumers.iter_mut().find(|it| it.name == drafted.name);
        let Some(consumer) = found else {
            continue;
        };
        for (swap, next) in drafted.nexts {
            swap.post(next);
        }
        let present = drafted.plan.zip(drafted.maker);
        consumer.chain = present.map(|(plan, maker)| Present {
            plan,
            maker: Arc::downgrade(&maker),
            front: drafted.front.as_ref().map(Arc::downgrade),
        });
    }
}
