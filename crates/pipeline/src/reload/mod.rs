//! Changes a pipeline to a new plan: at the start, when nothing runs yet, and at each reload.
//!
//! First, everything that the plan adds is built beside the running nodes: consumers join their channels, threads start and wait. If this
//! fails, nothing has changed. If this succeeds, ports and chains switch to the new plan between two batches, so that no batch is lost,
//! repeated or overtaken; from then on, nothing can fail. A node stops only if its configuration differs.

mod change;
mod channels;
mod join;
mod known;
mod laying;
mod leave;
mod lives;
mod picture;
mod retire;

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use millstream_record::Position;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

#[cfg(test)]
use crate::threads::Parked;
use crate::{
    channel::{Channel, OpenMemory, pump_of},
    ending::Event,
    failure::Failure,
    graph::{Graph, Joining},
    node::{Placement, Sink, Source},
    outlet::Wires,
    plan::{Plan, SinkPlan},
    processor::Processor,
    replay::Replay,
    running::{NodeStatus, Nodes},
    seat::Seat,
    start::Starter,
};

pub use change::{Change, Outcome};

use channels::{ChannelState, Closing, still_closes};
use join::Joined;
use known::{Difference, Fate, Known, Section};

use laying::{End, Laid, Laying, is_chain_in_front};
use leave::Leavers;
use lives::{Life, Lives};
use picture::Picture;
use retire::Removed;

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
    sources: Lives<Box<dyn Source>>,
    sinks: Lives<Arc<dyn Sink>>,
    /// The processors of the running plan. A reload that keeps a processor may keep its earlier instance in some chains.
    processors: Vec<(Arc<str>, Weak<dyn Processor>)>,
    /// Channels that are not in the running plan and are not closed yet.
    closing: Vec<Closing>,
    /// The sinks that have left a channel.
    leavers: Leavers,
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
            sources: Lives::default(),
            sinks: Lives::default(),
            processors: Vec::new(),
            closing: Vec::new(),
            leavers: Leavers::default(),
        }
    }

    /// Replaces how threads are started.
    #[cfg(test)]
    pub(crate) fn starts_threads_with(&mut self, park: fn(&str) -> std::io::Result<Parked>) {
        self.starter.park = park;
    }

    /// Starts the nodes of a plan. Nodes whose own state cannot be used are left out; returns their failures, each with its node.
    pub(crate) async fn start(
        &mut self,
        mut plan: Plan,
    ) -> Result<Vec<(Arc<str>, Failure)>, Failure> {
        let new = self.known_of(&plan);
        let difference = self.difference(&new)?;
        let mut laid = self.lay(&mut plan, &difference, &mut Joined::default(), None)?;
        if let Some(why) = self.starter.unusable.clone()
            && laid.sources.is_empty()
        {
            return Err(Failure::disk(&*why).never_again());
        }
        let failures = std::mem::take(&mut laid.failures);
        let shown = self.apply(laid, &difference, &plan).await;
        self.change_processors(&difference, &plan);
        self.known = new;
        self.show(&plan, shown);
        Ok(failures)
    }

    /// Changes the pipeline to a plan. After a failure the pipeline runs as before.
    ///
    /// A sink that stops reading a channel must have settled everything in it, unless `forget` names the sink. Also ends the sinks in
    /// `forget` that an earlier plan has removed.
    pub async fn reload(
        &mut self,
        mut plan: Plan,
        forget: &[String],
    ) -> Result<Vec<Change>, Failure> {
        let new = self.known_of(&plan);
        self.forget_ended(&new);
        let difference = self.difference(&new)?;
        self.check_forget(&difference, forget)?;
        self.check_leavers(&difference, forget)?;
        self.closed(&plan, &difference).await?;
        let returning = self.leavers.take_back(&new);
        let laid = match self.prepare(&mut plan, &difference, forget).await {
            Ok(laid) => laid,
            Err(failure) => {
                self.undo(&new, returning);
                return Err(failure);
            }
        };
        let reconnected: Vec<_> = laid.draft.changed().cloned().collect();
        let leavers = difference.leavers.iter();
        let leaves = |name: &str| !difference.plans(name);
        let wires = leavers.map(|leaver| self.graph.wires_to(&leaver.channel, leaves));
        let wires = wires.collect();
        let removed = self.removed(&difference);
        let shown = self.apply(laid, &difference, &plan).await;
        self.change_processors(&difference, &plan);
        self.end_removed(&difference);
        self.give_up(forget);
        self.end_leavers(&difference, wires, forget);
        self.retire(removed, forget);
        self.known = new;
        self.show(&plan, shown);
        Ok(change::changes(&self.known, &difference, &reconnected))
    }

    /// Prepares everything that a plan adds.
    async fn prepare(
        &mut self,
        plan: &mut Plan,
        difference: &Difference,
        forget: &[String],
    ) -> Result<Laid, Failure> {
        let running = join::Running {
            channels: &self.channels,
            sinks: &self.sinks,
            graph: &self.graph,
        };
        let mut joined = Joined::join(running.requests(plan, difference)).await?;
        // A sink may have ended while the channels answered.
        let is_over = |name: &&Arc<str>| {
            difference.fate(name) == Fate::Replaced && self.sinks.has_ended(name)
        };
        let over = plan.sinks.iter().map(|it| &it.name).find(is_over);
        let laid = match over {
            Some(name) => Err(Failure::config(format!(
                "{name} has just ended: reload again"
            ))),
            None => self.lay(plan, difference, &mut joined, Some(forget)),
        };
        if laid.is_err() {
            joined.undo().await;
        }
        laid
    }

    /// Undoes a reload that was refused. `returning`: the sinks that would have read a channel again.
    fn undo(&mut self, new: &Known, returning: Vec<leave::Leaver>) {
        for name in new.all() {
            // A node of the running plan keeps everything, and so does one that still ends.
            if !self.known.has(name) && !self.is_leaving(name) {
                self.graph.forget(name);
            }
        }
        returning.into_iter().for_each(|it| self.leavers.add(it));
    }

    /// Whether a node that is not in the running plan has not ended yet.
    fn is_leaving(&self, name: &str) -> bool {
        let is_closing = self.closing.iter().any(|it| *it.name == *name);
        is_closing || self.sources.is_leaving(name) || self.sinks.is_leaving(name)
    }

    fn known_of(&self, plan: &Plan) -> Known {
        let sinks = &plan.sinks;
        Known::of(plan, |at| {
            is_chain_in_front(&sinks[at], at, &plan.processors)
        })
    }

    fn difference(&self, new: &Known) -> Result<Difference, Failure> {
        let has_ended = |name: &str| self.sources.has_ended(name) && self.sinks.has_ended(name);
        self.known.difference(new, has_ended)
    }

    /// Fails if `forget` names a sink that does not end.
    fn check_forget(&self, difference: &Difference, forget: &[String]) -> Result<(), Failure> {
        let ends = |name: &&String| {
            let mut leavers = difference.leavers.iter();
            let leaves = leavers.any(|leaver| *leaver.sink == ***name);
            // It leaves memory, or a channel that is removed, too.
            let stops = difference.stopped.iter().any(|it| **it == ***name);
            let is_moved = difference.fate(name) == Fate::Moved && !stops;
            leaves || is_moved || difference.removes(name) || self.sinks.is_leaving(name)
        };
        match forget.iter().find(|name| !ends(name)) {
            None => Ok(()),
            Some(name) => Err(Failure::config(format!(
                "cannot forget {name}: the configuration does not remove it"
            ))),
        }
    }

    /// Fails if a sink would leave a channel in which it has not settled everything, unless `forget` names the sink.
    fn check_leavers(&self, difference: &Difference, forget: &[String]) -> Result<(), Failure> {
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
        joined: &mut Joined,
        forget: Option<&[String]>,
    ) -> Result<Laid, Failure> {
        let laying = Laying {
            graph: &mut self.graph,
            starter: &self.starter,
            open_memory: self.open_memory,
            difference,
            running: &self.channels,
            joined,
            closing: &mut self.closing,
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

    /// Switches to the prepared plan. Returns all sources of the plan, and the new nodes, as `status` shows them.
    async fn apply(
        &mut self,
        laid: Laid,
        difference: &Difference,
        plan: &Plan,
    ) -> (Vec<End>, Vec<NodeStatus>) {
        let ports = self.graph.apply(laid.draft);
        for (name, state, open) in laid.channels {
            self.closing.retain(|it| it.name != name);
            self.channels.insert(name, state);
            self.starter.started.add_channel(open);
        }
        for sink in &difference.stopped {
            self.sinks.leave(sink);
        }
        self.replace_sinks(difference, plan);
        for sink in laid.sinks {
            let name = sink.name.clone();
            let (input, queue) = (sink.input.clone(), sink.queue.clone());
            let is_on_threads = sink.is_on_threads;
            self.repaired(&name);
            let seated = self.starter.sink(sink, self.sinks.ends(&name)).await;
            let life = Life::new(seated, input, queue, is_on_threads);
            self.sinks.begin(&name, life);
        }
        self.starter.readings.leave(&difference.ending_sources());
        for bound in laid.sources {
            let name = bound.context.name.clone();
            if !self.sources.has_ended(&name) {
                let mut seats = self.sources.seats(&name).iter();
                if let Some(seat) = seats.next() {
                    seat.replace(bound.source);
                }
                continue;
            }
            self.repaired(&name);
            let seated = self.starter.source(bound, self.sources.ends(&name)).await;
            let life = Life::new(seated, None, None, true);
            self.sources.begin(&name, life);
        }
        // From here on, only the nodes themselves keep their downstream channels open.
        drop((ports, laid.ports, laid.feeds));
        (laid.ends, laid.nodes)
    }

    /// Shows the nodes of the running plan in `status`, and those that have left it and have not ended.
    fn show(&self, plan: &Plan, (sources, new): (Vec<End>, Vec<NodeStatus>)) {
        let picture = Picture { plan, sources, new };
        let nodes = picture.nodes(&self.nodes.now(), &self.graph, |name| self.is_leaving(name));
        self.nodes.replace(nodes, plan.running_links());
    }

    /// Puts the sinks of the new plan into the seats of their tasks. Earlier tasks of a sink that has other options, or that comes back,
    /// continue with the new sink, too: its options may repair what keeps them from ending.
    fn replace_sinks(&self, difference: &Difference, plan: &Plan) {
        for SinkPlan { name, sink, .. } in &plan.sinks {
            let may_block = sink.placement() == Placement::OwnThread;
            match difference.fate(name) {
                Fate::Replaced => self.sinks.replace(name, sink, may_block),
                Fate::Moved if difference.changes(name) => {
                    self.sinks.replace(name, sink, may_block);
                }
                Fate::New => self.sinks.replace_earlier(name, sink, may_block),
                Fate::Moved | Fate::Kept => {}
            }
        }
    }

    /// Notes that an earlier failure of a node is over. Called before the node starts: the new node may fail at once, and this
    /// failure must stay.
    fn repaired(&self, name: &Arc<str>) {
        // The pipeline keeps the failure if the queue is full. It then exits with it.
        let _ = self.starter.ends.try_send(Event::Repaired(name.clone()));
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

    /// Returns the channels that `difference` removes, and the memory in front of sinks that it removes or moves.
    fn removed(&self, difference: &Difference) -> Vec<Removed> {
        let removed = difference.removed.iter();
        let channels = removed.filter(|(_, section)| *section == Section::Channel);
        let channels = channels.filter_map(|(name, _)| {
            let state = self.channels.get(name)?;
            Some((name.clone(), state.channel.clone()))
        });
        let sinks = self.known.inputs();
        let sinks = sinks.map(|(name, _)| name);
        let ends =
            |name: &&Arc<str>| difference.removes(name) || difference.fate(name) == Fate::Moved;
        let queues = sinks.filter(ends);
        let queues = queues.filter_map(|name| Some((name.clone(), self.sinks.queue(name)?)));
        let removed = |(name, channel): (Arc<str>, Weak<dyn Channel>)| Removed {
            name,
            channel,
            fillers: Vec::new(),
            is_given_up: false,
        };
        channels.chain(queues).map(removed).collect()
    }

    /// Lets the nodes that have left the plan end. A removed sink first reads everything left in its memory, or in a channel that was
    /// removed with it.
    fn end_removed(&mut self, difference: &Difference) {
        for (name, section) in &difference.removed {
            match section {
                Section::Processor => self.graph.forget(name),
                Section::Channel => {
                    let state = self.channels.remove(name);
                    self.closing.extend(state.map(|state| Closing {
                        name: name.clone(),
                        channel: state.channel,
                        ended: state.ended,
                    }));
                }
                Section::Source => {
                    self.sources.leave(name);
                    self.sources.remove(name);
                }
                Section::Sink => self.sinks.remove(name),
            }
            self.repaired(name);
        }
    }

    /// Ends the tasks of the sinks in `forget` that are not in the plan any more, and the pumps into removed channels that nothing reads
    /// any more. Removed channels forget them, so that they hold nothing if the channel comes back.
    fn give_up(&mut self, forget: &[String]) {
        let mut given_up: Vec<_> = forget.iter().map(|name| Arc::from(&**name)).collect();
        // A pump reads a channel that may have a pump, too.
        while let Some(name) = given_up.pop() {
            self.sinks.give_up(&name);
            for Closing {
                name: closing,
                channel,
                ..
            } in &self.closing
            {
                let tasks = self.sinks.reading_ends(&name, closing);
                if tasks.is_empty() {
                    continue;
                }
                self.leavers.add(leave::Leaver {
                    channel: closing.clone(),
                    sink: name.clone(),
                    place: channel.clone(),
                    tasks,
                    is_given_up: true,
                    wires: Vec::new(),
                    reporter: self.graph.known_reporter(closing),
                });
                if self.sinks.is_given_up(closing) {
                    given_up.push(pump_of(closing));
                }
            }
        }
    }

    /// Lets removed channels and queues end even if they are full.
    fn retire(&mut self, removed: Vec<Removed>, forget: &[String]) {
        for mut removed in removed {
            let name = &removed.name;
            let is_channel = self.closing.iter().any(|it| it.name == *name);
            removed.is_given_up = match is_channel {
                true => self.sinks.is_given_up(name),
                false => forget.iter().any(|it| **it == **name),
            };
            removed.fillers = self.sinks.ends(&pump_of(name));
            let reporter = self.graph.reporter(name);
            tokio::spawn(removed.retire(reporter));
        }
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
            let (sink, channel) = (&leaver.sink, &leaver.channel);
            let Some(feed) = self.graph.channel(channel) else {
                continue;
            };
            let leaver = leave::Leaver {
                channel: channel.clone(),
                sink: sink.clone(),
                place: feed.downgrade(),
                tasks: self.sinks.reading_ends(sink, channel),
                is_given_up: forget.iter().any(|it| **it == **sink),
                wires,
                reporter: self.graph.reporter(channel),
            };
            self.leavers.add(leaver);
        }
    }

    /// Frees the nodes that have left the running plan and have ended by now, unless they are in `new`, too.
    fn forget_ended(&mut self, new: &Known) {
        let closed = self.closing.extract_if(.., |it| it.ended.is_over());
        let mut ended: Vec<_> = closed.map(|it| it.name).collect();
        ended.extend(self.sinks.prune());
        ended.extend(self.sources.prune());
        for name in ended {
            if !self.known.has(&name) && !self.is_leaving(&name) && !new.has(&name) {
                self.graph.forget(&name);
            }
        }
    }

    /// If the plan has a channel with the name of an earlier one that is still closing, waits until the earlier one is closed. Until then,
    /// its directory is locked.
    async fn closed(&self, plan: &Plan, difference: &Difference) -> Result<(), Failure> {
        let new = plan.channels.iter().map(|it| &it.name);
        let deadline = Instant::now() + CLOSING;
        for name in new.filter(|name| difference.fate(name) == Fate::New) {
            let closing = self.closing.iter().filter(|it| it.name == *name);
            let mut ends: Vec<_> = closing.map(|it| it.ended.clone()).collect();
            ends.extend(self.sinks.ends_of_readers(name));
            for mut ended in ends {
                if timeout_at(deadline, ended.stopped()).await.is_err() {
                    let readers = self.sinks.readers(name).map(|(sink, _)| &**sink);
                    let readers: Vec<_> = readers.collect();
                    return Err(still_closes(name, &readers.join(", ")));
                }
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
        let seats = self.sinks.seats(consumer).to_vec();
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
}
