//! Changes a pipeline to a new plan: at the start, when nothing runs yet, and at each reload.
//!
//! First, everything that the plan adds is built beside the running nodes. If this fails, nothing has changed. If this succeeds, ports
//! and chains switch to the new plan between two batches, so that no batch is lost, repeated or overtaken. A node stops only if its
//! configuration differs.

mod known;
mod laying;
mod leave;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
    time::Duration,
};

use millstream_record::Position;
use tokio::{sync::oneshot, task::AbortHandle, time::timeout};

use crate::{
    channel::OpenMemory,
    failure::Failure,
    graph::{Graph, Joining},
    node::{Sink, Source},
    outlet::Wires,
    plan::{ChannelPlan, Plan, ProcessorPlan, SinkPlan, filled},
    processor::Processor,
    replay::Replay,
    running::{ConsumerStatus, NodeStatus, Nodes},
    seat::Seat,
    start::{Seated, Starter},
    stop::Stop,
    supervise::NodeState,
};

use known::{Difference, Fate, Known, Section, is_pump};
use laying::{End, Laid, Laying, is_chain_in_front};

/// How long a reload waits for a removed channel to close, if the new configuration has a channel of that name again.
const CLOSING: Duration = Duration::from_secs(5);

/// Reloads a running pipeline.
pub struct Reloader {
    graph: Graph,
    starter: Starter,
    open_memory: OpenMemory,
    nodes: Nodes,
    known: Known,
    channels: HashMap<Arc<str>, ChannelState>,
    sources: HashMap<Arc<str>, Seated<Box<dyn Source>>>,
    sinks: HashMap<Arc<str>, Seated<Arc<dyn Sink>>>,
    /// The processors of the running plan. A reload that keeps a processor may keep its earlier instance in some chains.
    processors: Vec<(Arc<str>, Weak<dyn Processor>)>,
    /// Nodes that have left the plan and have not ended yet.
    leaving: Vec<(Arc<str>, Stop)>,
    /// By channel and sink: the tasks that let a channel forget a sink that has left it.
    forgetting: HashMap<(Arc<str>, Arc<str>), AbortHandle>,
}

/// A durable channel: running, or unusable.
struct ChannelState {
    id: Option<u128>,
    /// Resolves when the channel is closed.
    ended: Stop,
    /// The reason why the channel could not be opened; `None` if it runs.
    unusable: Option<String>,
}

/// The effect of a reload on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its name.
    pub node: Arc<str>,
    /// How it has changed.
    pub outcome: Outcome,
}

/// How a reload changed a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The node was added.
    Added,
    /// The node has other options.
    Replaced,
    /// The node was removed. A source or sink first finishes the work that it has begun.
    Removed,
    /// The channel or sink has another chain in front of it, or the sink has another input.
    Reconnected,
    /// Nothing changed.
    Kept,
}

impl Outcome {
    /// Returns the outcome as a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Replaced => "replaced",
            Self::Removed => "removed",
            Self::Reconnected => "reconnected",
            Self::Kept => "kept",
        }
    }
}

impl Reloader {
    /// Returns a reloader for a pipeline in which no node runs yet.
    pub(crate) fn new(
        graph: Graph,
        starter: Starter,
        open_memory: OpenMemory,
        nodes: Nodes,
    ) -> Self {
        Self {
            graph,
            starter,
            open_memory,
            nodes,
            known: Known::default(),
            channels: HashMap::new(),
            sources: HashMap::new(),
            sinks: HashMap::new(),
            processors: Vec::new(),
            leaving: Vec::new(),
            forgetting: HashMap::new(),
        }
    }

    /// Starts the nodes of a plan. Nodes whose own state cannot be used are left out; returns their failures.
    pub(crate) async fn start(&mut self, mut plan: Plan) -> Result<Vec<Failure>, Failure> {
        let new = self.known_of(&plan);
        let difference = self.difference(&new)?;
        let mut laid = self.lay(&mut plan, &difference, None)?;
        if let Some(why) = self.starter.unusable.clone()
            && laid.sources.is_empty()
        {
            return Err(Failure::disk(&*why).never_again());
        }
        let failures = std::mem::take(&mut laid.failures);
        self.apply(laid, &difference, &plan).await?;
        self.change_processors(&difference, &plan);
        self.known = new;
        Ok(failures)
    }

    /// Changes the pipeline to a plan. After a failure the pipeline runs as before.
    ///
    /// A sink that stops reading a channel must have settled everything in it, unless `forget` names the sink.
    pub async fn reload(
        &mut self,
        mut plan: Plan,
        forget: &[String],
    ) -> Result<Vec<Change>, Failure> {
        self.forget_ended(&plan);
        let new = self.known_of(&plan);
        let difference = self.difference(&new)?;
        self.check_leavers(&difference, forget)?;
        self.closed(&plan, &difference).await?;
        let laid = match self.lay(&mut plan, &difference, Some(forget)) {
            Ok(laid) => laid,
            Err(failure) => {
                let names = new
                    .names()
                    .into_iter()
                    .filter(|name| difference.fate(name) == Fate::New);
                names.for_each(|name| self.graph.forget(name));
                return Err(failure);
            }
        };
        let reconnected: Vec<_> = laid.draft.changed().cloned().collect();
        let leavers = difference.leavers.iter();
        let leaves = |name: &str| !difference.plans(name);
        let wires = leavers.map(|leaver| self.graph.wires_to(&leaver.channel, leaves));
        let wires = wires.collect();
        self.keep_consumers(&new);
        self.apply(laid, &difference, &plan).await?;
        self.change_processors(&difference, &plan);
        self.end_removed(&difference, forget);
        self.end_leavers(&difference, wires, forget);
        self.known = new;
        Ok(changes(&self.known, &difference, &reconnected))
    }

    fn known_of(&self, plan: &Plan) -> Known {
        let sinks = &plan.sinks;
        Known::of(plan, |at| {
            is_chain_in_front(&sinks[at], at, &plan.processors)
        })
    }

    fn difference(&self, new: &Known) -> Result<Difference, Failure> {
        let source = |name: &str| self.sources.get(name).map(|it| &it.ended);
        let sink = |name: &str| self.sinks.get(name).map(|it| &it.ended);
        let ended = |name: &str| source(name).or_else(|| sink(name));
        let has_ended = |name: &str| ended(name).is_some_and(Stop::is_over);
        self.known.difference(new, has_ended)
    }

    /// Fails if a sink would leave a channel in which it has not settled everything, unless `forget` names the sink.
    fn check_leavers(&self, difference: &Difference, forget: &[String]) -> Result<(), Failure> {
        let is_removed = |name: &&String| {
            let mut leavers = difference.leavers.iter();
            let leaves = leavers.any(|leaver| *leaver.sink == ***name);
            leaves || difference.removed.iter().any(|(node, _)| **node == ***name)
        };
        if let Some(name) = forget.iter().find(|name| !is_removed(name)) {
            return Err(Failure::config(format!(
                "cannot forget {name}: the configuration does not remove it"
            )));
        }
        for leaver in &difference.leavers {
            let (sink, channel) = (&leaver.sink, &leaver.channel);
            let feed = self.graph.channel(channel);
            let bytes = feed.map_or(0, |feed| feed.channel().unsettled_bytes(sink));
            if bytes > 0 && !forget.iter().any(|name| **name == **sink) {
                return Err(Failure::config(format!(
                    "{channel} keeps {bytes} bytes that {sink} has not settled, and {sink} would no longer read them: wait until it has, or give them up with \
                     `millstream reload --forget {sink}`"
                )));
            }
        }
        Ok(())
    }

    /// Prepares everything that a plan adds. `forget` is `None` at the start.
    fn lay(
        &mut self,
        plan: &mut Plan,
        difference: &Difference,
        forget: Option<&[String]>,
    ) -> Result<Laid, Failure> {
        let laying = Laying {
            graph: &mut self.graph,
            starter: &self.starter,
            open_memory: self.open_memory,
            difference,
            running: &self.channels,
            is_start: forget.is_none(),
            opened: Vec::new(),
            feeds: HashMap::new(),
            queues: Vec::new(),
            readers: HashMap::new(),
            joining: Joining::default(),
            sinks: Vec::new(),
            nodes: Vec::new(),
            failures: Vec::new(),
        };
        let laid = laying.lay(plan)?;
        let runs = |name: &str| difference.fate(name) != Fate::New;
        if let Some(source) = laid.draft.changes_durability(runs) {
            return Err(Failure::config(format!(
                "the records of {source} would not be kept by the same kinds of channels: this needs a restart"
            )));
        }
        // Records may have arrived since the first check.
        self.check_leavers(difference, forget.unwrap_or_default())?;
        // Either all channels change their options, or none does.
        let replaced = plan.channels.iter();
        let replaced = replaced.filter(|it| difference.fate(&it.name) == Fate::Replaced);
        let changes = replaced.map(|channel| {
            let name = &channel.name;
            let feed = self.graph.channel(name);
            let change = feed.and_then(|feed| feed.channel().change(channel.config.options()));
            change.ok_or_else(|| {
                let why =
                    format!("{name} cannot change its options while it runs: this needs a restart");
                Failure::config(why)
            })
        });
        let changes = changes.collect::<Result<Vec<_>, _>>()?;
        changes.into_iter().for_each(|apply| apply());
        Ok(laid)
    }

    /// Switches to the prepared plan.
    async fn apply(
        &mut self,
        laid: Laid,
        difference: &Difference,
        plan: &Plan,
    ) -> Result<(), Failure> {
        let ports = self.graph.apply(laid.draft);
        let readers = self.known.inputs().filter_map(|(sink, channel)| {
            let channel = channel.filter(|it| difference.removes(it))?;
            let ended = self.sinks.get(sink)?.ended.clone();
            Some((channel.clone(), ended))
        });
        let readers: Vec<_> = readers.collect();
        self.leaving.extend(readers);
        for (name, state, open) in laid.channels {
            self.channels.insert(name, state);
            self.starter.started.add_channel(open);
        }
        for sink in &difference.stopped {
            let seats = self.sinks.get(sink).into_iter().flat_map(|it| &it.seats);
            seats.for_each(Seat::leave);
        }
        for sink in laid.sinks {
            let name = sink.name.clone();
            let before = self.before(&name, self.sinks.get(&name).map(|it| it.ended.clone()));
            let seated = self.starter.sink(sink, before).await?;
            let before = self.sinks.insert(name.clone(), seated);
            self.leaving
                .extend(before.map(|before| (name, before.ended)));
        }
        for sink in &plan.sinks {
            if difference.fate(&sink.name) == Fate::Replaced {
                let seats = self
                    .sinks
                    .get(&sink.name)
                    .into_iter()
                    .flat_map(|it| &it.seats);
                seats.for_each(|seat| seat.replace(sink.sink.clone()));
            }
        }
        self.starter.readings.leave(&difference.ending_sources());
        for bound in laid.sources {
            let name = bound.context.name.clone();
            if let Some(seated) = self.sources.get(&name)
                && !seated.ended.is_over()
            {
                let mut seats = seated.seats.iter();
                if let Some(seat) = seats.next() {
                    seat.replace(bound.source);
                }
                continue;
            }
            let before = self.before(&name, None);
            let seated = self.starter.source(bound, before).await;
            self.sources.insert(name, seated);
        }
        // From here on, only the nodes themselves keep their downstream channels open.
        drop((ports, laid.ports, laid.feeds));
        self.show(plan, laid.ends, laid.nodes);
        Ok(())
    }

    /// Returns the signal for which a new node must wait: the end of the running node of the same name, or of an earlier one that is
    /// still ending. `None` if there is no such node.
    fn before(&self, name: &str, running: Option<Stop>) -> Option<Stop> {
        let leaving = self.leaving.iter().rfind(|(node, _)| **node == *name);
        running.or_else(|| leaving.map(|(_, ended)| ended.clone()))
    }

    /// Notes the processors of the new plan, and retires those that it replaces or removes.
    fn change_processors(&mut self, difference: &Difference, plan: &Plan) {
        self.processors.retain(|(name, processor)| {
            let Some(processor) = processor.upgrade() else {
                return false;
            };
            let is_kept = difference.fate(name) == Fate::Kept;
            if !is_kept {
                processor.retire();
            }
            is_kept
        });
        let new = plan.processors.iter();
        let new = new.map(|it| (it.name.clone(), Arc::downgrade(&it.processor)));
        self.processors.extend(new);
    }

    /// Lets the nodes that have left the plan end.
    fn end_removed(&mut self, difference: &Difference, forget: &[String]) {
        for (name, section) in &difference.removed {
            match section {
                Section::Processor => self.graph.forget(name),
                Section::Channel => {
                    let state = self.channels.remove(name);
                    let ended = state.map(|state| (name.clone(), state.ended));
                    self.leaving.extend(ended);
                }
                Section::Source => {
                    if let Some(Seated { seats, ended }) = self.sources.remove(name) {
                        seats.iter().for_each(Seat::leave);
                        self.leaving.push((name.clone(), ended));
                    }
                }
                Section::Sink => {
                    // A removed sink first reads everything left in its memory, or in a channel that was removed with it.
                    if let Some(Seated { seats, ended }) = self.sinks.remove(name) {
                        if forget.iter().any(|it| **it == **name) {
                            seats.iter().for_each(Seat::leave);
                        }
                        self.leaving.push((name.clone(), ended));
                    }
                }
            }
        }
    }

    /// Each task in `forgetting` lets a channel forget a sink once the sink has ended. If this sink reads the channel again in the plan
    /// `new`, stops the task. Otherwise the channel could forget the sink before the sink's new reader is attached, and the sink would read
    /// everything in the channel again.
    fn keep_consumers(&mut self, new: &Known) {
        self.forgetting.retain(|(channel, sink), task| {
            let mut inputs = new.inputs();
            let is_back = inputs.any(|(name, input)| name == sink && input == Some(channel));
            if is_back {
                task.abort();
            }
            !is_back && !task.is_finished()
        });
    }

    /// Lets channels forget the sinks that have left them. For each of these sinks, `wires` has the destinations, before the reload, of the
    /// ports that led to the channel.
    fn end_leavers(
        &mut self,
        difference: &Difference,
        wires: Vec<Vec<Weak<Wires>>>,
        forget: &[String],
    ) {
        for (leaver, wires) in difference.leavers.iter().zip(wires) {
            let leaving = self.leaving.iter().rfind(|(name, _)| *name == leaver.sink);
            let ended = leaving.map(|(_, ended)| ended.clone());
            let feed = self.graph.channel(&leaver.channel);
            let Some((ended, feed)) = ended.zip(feed) else {
                continue;
            };
            let given_up = forget.iter().any(|it| **it == *leaver.sink);
            let feed = Arc::downgrade(&feed);
            let leave = leave::leave(feed, leaver.sink.clone(), ended, given_up, wires);
            let reporter = self.graph.reporter(&leaver.channel);
            let task = tokio::spawn(async move {
                if let Err(why) = leave.await {
                    reporter.warn("forget", why);
                }
            });
            let key = (leaver.channel.clone(), leaver.sink.clone());
            self.forgetting.insert(key, task.abort_handle());
        }
    }

    /// Frees the removed nodes that have ended by now.
    fn forget_ended(&mut self, plan: &Plan) {
        let leaving = std::mem::take(&mut self.leaving).into_iter();
        let (ended, leaving): (Vec<_>, _) = leaving.partition(|(_, ended)| ended.is_over());
        self.leaving = leaving;
        let channels = plan.channels.iter().map(|it| &it.name);
        let sinks = plan.sinks.iter().map(|it| &it.name);
        let sources = plan.sources.iter().map(|it| &it.name);
        let processors = plan.processors.iter().map(|it| &it.name);
        let mut present: HashSet<_> = channels.chain(sinks).collect();
        present.extend(sources.chain(processors));
        present.extend(self.leaving.iter().map(|(name, _)| name));
        for (name, _) in ended.iter().filter(|(name, _)| !present.contains(name)) {
            self.graph.forget(name);
        }
    }

    /// If the plan has a channel with the name of an earlier one that is still closing, waits until the earlier one is closed. Until then,
    /// its directory is locked.
    async fn closed(&self, plan: &Plan, difference: &Difference) -> Result<(), Failure> {
        let new = plan.channels.iter().map(|it| &it.name);
        let is_new = |name: &Arc<str>| difference.fate(name) == Fate::New;
        for name in new.filter(|name| is_new(name)) {
            for (_, ended) in self.leaving.iter().filter(|(node, _)| node == name) {
                let mut ended = ended.clone();
                let closed = timeout(CLOSING, ended.stopped());
                closed.await.map_err(|_| {
                    Failure::config(format!(
                        "{name} still closes: its sinks read what is left in it; reload again when they have ended"
                    ))
                })?;
            }
        }
        Ok(())
    }

    /// Prepares a replay of the records that a node rejected. The error is the reason why no replay is possible.
    pub fn replay(&mut self, node: &str) -> Result<Replay, String> {
        self.graph.replay(&node.into(), self.known.inputs())
    }

    /// Asks a durable channel to forget a consumer that no sink uses any more. `None` if no channel of this name runs.
    pub fn forget_consumer(
        &self,
        channel: &str,
        consumer: &str,
    ) -> Option<oneshot::Receiver<Result<(), String>>> {
        self.graph.forget_consumer(channel, consumer)
    }

    /// Asks a durable channel to move a consumer past everything up to a position, and restarts its sink, which may already have
    /// taken some of those records. The answer has the number of records that the consumer had not settled. `None` if no channel
    /// with this name and id runs.
    pub fn skip(
        &self,
        channel: (&str, u128),
        consumer: &str,
        to: Position,
    ) -> Option<oneshot::Receiver<Result<u64, String>>> {
        let done = self.graph.skip(channel, consumer, to)?;
        let sink = self.sinks.get(consumer);
        let seats = sink.map(|it| it.seats.clone()).unwrap_or_default();
        let (answer, receiver) = oneshot::channel();
        tokio::spawn(async move {
            let Ok(skipped) = done.await else { return };
            if skipped.is_ok() {
                seats.iter().for_each(Seat::restart);
            }
            let _ = answer.send(skipped);
        });
        Some(receiver)
    }

    /// Shows the nodes of the plan in `status`: channels, processors, sinks and sources, then removed nodes that have not ended yet.
    fn show(&self, plan: &Plan, sources: Vec<End>, new: Vec<NodeStatus>) {
        let old = self.nodes.now();
        let channels: Vec<_> = plan.channels.iter().map(|it| it.name.clone()).collect();
        let find = |name: &Arc<str>| {
            let node = new.iter().chain(&*old).find(|it| it.name == *name);
            node.cloned()
        };
        let pumps = plan.channels.iter().filter(|it| it.input.is_some());
        let all = plan.channels.iter().map(|it| it.name.clone());
        let mut all: Vec<_> = all
            .chain(pumps.map(ChannelPlan::pump))
            .filter_map(|name| find(&name))
            .collect();
        let processor = |it: &ProcessorPlan| NodeStatus {
            name: it.name.clone(),
            section: "processor",
            kind: it.kind,
            states: Vec::new(),
            reporter: self.graph.known_reporter(&it.name),
            fills: filled(&it.rejects, &channels),
            feeds: it.consumers.clone(),
            consumer: None,
            is_leaving: false,
        };
        all.extend(plan.processors.iter().map(processor));
        let sink = |it: &SinkPlan| {
            let node = find(&it.name)?;
            let settles_within = it.sink.settles_within();
            let consumer = node.consumer.map(|consumer| ConsumerStatus {
                settles_within,
                ..consumer
            });
            Some(NodeStatus {
                kind: it.kind,
                fills: filled(&it.rejects, &channels),
                consumer,
                ..node
            })
        };
        all.extend(plan.sinks.iter().filter_map(sink));
        let source = |End { name, kind, fills }: End| {
            let node = find(&name)?;
            Some(NodeStatus {
                kind,
                fills,
                ..node
            })
        };
        all.extend(sources.into_iter().filter_map(source));
        let has_left = |node: &&NodeStatus| {
            let is_gone = all.iter().all(|it| it.name != node.name);
            is_gone && !node.states.is_empty() && node.state() != NodeState::Ended
        };
        let leaving = old.iter().filter(has_left).map(|node| NodeStatus {
            is_leaving: true,
            fills: Vec::new(),
            ..node.clone()
        });
        let leaving: Vec<_> = leaving.collect();
        all.extend(leaving);
        self.nodes.replace(all, plan.running_links());
    }
}

/// Returns the changes of all nodes of the plan `known`, and of those that were removed.
fn changes(known: &Known, difference: &Difference, reconnected: &[Arc<str>]) -> Vec<Change> {
    let present = known.names().into_iter().map(|name| {
        let outcome = match difference.fate(name) {
            Fate::New => Outcome::Added,
            Fate::Replaced => Outcome::Replaced,
            Fate::Moved => Outcome::Reconnected,
            Fate::Kept if reconnected.contains(name) => Outcome::Reconnected,
            Fate::Kept => Outcome::Kept,
        };
        (name, outcome)
    });
    let removed = difference.removed.iter();
    let removed = removed.filter(|(name, _)| !is_pump(name));
    let removed = removed.map(|(name, _)| (name, Outcome::Removed));
    let change = |(node, outcome): (&Arc<str>, Outcome)| Change {
        node: node.clone(),
        outcome,
    };
    present.chain(removed).map(change).collect()
}
