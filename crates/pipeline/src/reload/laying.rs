//! Prepares the nodes of a plan beside the running ones: opens channels, connects sinks, binds sources. All steps that can fail
//! happen here, before anything changes.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
};

use super::{
    channels::{ChannelState, Closing},
    join::Joined,
    known::{Difference, Fate},
};
use crate::{
    chain::Swap,
    channel::{Channel, OpenMemory, Reader},
    exchange::Exchange,
    failure::{Failure, Who},
    graph::{Consumer, Draft, Graph, Joining},
    inlet::CHECKPOINT_AGE,
    node::{ChannelContext, Placement},
    outlet::{Edge, Feed, Outlet},
    partition::Partition,
    plan::{
        ChainNode, ChannelInput, ChannelPlan, Input, Plan, ProcessorPlan, SinkPlan, SourcePlan,
        Target, filled,
    },
    promise::Guarantee,
    pump::Pump,
    running::{ConsumerStatus, NodeStatus},
    start::{BoundSource, LaidSink, Lane, Starter, Supply},
    started::Open,
    supervise::StateCell,
    tags::TagFilter,
    threads::Parked,
    unopened::Unopened,
};

/// The type of a pump as `status` shows it.
const PUMP: &str = "pump";

/// The prepared nodes of a plan: new ones, and those that replace others. Dropping this undoes everything.
pub(super) struct Laid {
    pub(super) draft: Draft,
    /// Ports of nodes that do not run yet.
    pub(super) ports: Vec<Outlet>,
    /// Keeps all new channels and queues open until everything is connected.
    pub(super) feeds: Vec<Arc<Feed>>,
    pub(super) channels: Vec<(Arc<str>, ChannelState, Open)>,
    /// In the order in which they start.
    pub(super) sinks: Vec<LaidSink>,
    pub(super) sources: Vec<BoundSource>,
    /// All sources of the plan.
    pub(super) ends: Vec<End>,
    /// The new nodes, as `status` shows them.
    pub(super) nodes: Vec<NodeStatus>,
    /// The failures of nodes whose state cannot be used, each with its node.
    pub(super) failures: Vec<(Arc<str>, Failure)>,
}

/// A source as `status` shows it.
pub(super) struct End {
    pub(super) name: Arc<str>,
    pub(super) kind: &'static str,
    pub(super) fills: Vec<Arc<str>>,
}

/// Prepares a plan.
pub(super) struct Laying<'a> {
    pub(super) graph: &'a mut Graph,
    pub(super) starter: &'a Starter,
    pub(super) open_memory: OpenMemory,
    pub(super) difference: &'a Difference,
    /// The channels that run.
    pub(super) running: &'a HashMap<Arc<str>, ChannelState>,
    /// The consumers that have joined running channels.
    pub(super) joined: &'a mut Joined,
    /// Gets each channel that is opened, with the signal for its end. If the reload is refused, the channel closes later.
    pub(super) closing: &'a mut Vec<Closing>,
    /// Whether this is the start of the process. A start leaves out a node whose own state cannot be used; a reload fails
    /// instead and changes nothing.
    pub(super) is_start: bool,
    pub(super) opened: Vec<(Arc<str>, ChannelState, Open)>,
    pub(super) feeds: HashMap<Arc<str>, Arc<Feed>>,
    pub(super) queues: Vec<Arc<Feed>>,
    /// The readers of each new channel, in the order of its consumers.
    pub(super) readers: HashMap<Arc<str>, VecDeque<Box<dyn Reader>>>,
    pub(super) joining: Joining,
    pub(super) sinks: Vec<LaidSink>,
    pub(super) nodes: Vec<NodeStatus>,
    pub(super) failures: Vec<(Arc<str>, Failure)>,
}

/// Whether the processors of a sink run in front of the sink's memory channel, before batches enter it. Otherwise the readers of the sink
/// run them.
pub(super) fn is_chain_in_front(
    plan: &SinkPlan,
    index: usize,
    processors: &[ProcessorPlan],
) -> bool {
    let comes_back = |node: &ChainNode| {
        let mut routes = processors[node.index].rejects.iter();
        node.reports && routes.any(|route| route.to == Target::Sink(index))
    };
    let nodes = plan.chain.iter().flat_map(|chain| &chain.nodes);
    // The chain must be in front in two cases. First, the key by which records are distributed may be a field that the processors set.
    // Second, if a processor rejects records into its own sink, the reader that runs the processor would wait forever for space in the
    // memory channel that the reader itself must empty.
    deals(plan) || nodes.into_iter().any(comes_back)
}

/// Whether the option `partition` distributes the records of a sink among its lanes.
fn deals(plan: &SinkPlan) -> bool {
    matches!(&plan.input, Input::Memory { tasks, .. } if tasks.partition != Partition::Same)
}

impl Laying<'_> {
    /// Prepares all nodes that are new, moved or replaced.
    pub(super) fn lay(mut self, plan: &mut Plan) -> Result<Laid, Failure> {
        for channel in &plan.channels {
            if self.difference.starts(&channel.name) {
                self.channel(channel)?;
            }
        }
        for channel in &plan.channels {
            if self.difference.starts(&channel.name) {
                self.connect(channel, &plan.channels)?;
            }
        }
        for (index, sink) in plan.sinks.iter().enumerate() {
            if self.difference.starts(&sink.name) {
                let in_front = is_chain_in_front(sink, index, &plan.processors);
                self.sink(sink, in_front, &plan.channels)?;
            }
        }
        let difference = self.difference;
        let ports = self.graph.open_ports(plan, |name| difference.starts(name));
        let draft = self.graph.draft(plan, std::mem::take(&mut self.joining))?;
        let channels: Vec<_> = plan.channels.iter().map(|it| it.name.clone()).collect();
        let end = |it: &SourcePlan| End {
            name: it.name.clone(),
            kind: it.kind,
            fills: filled(&it.routes, &channels),
        };
        let ends = plan.sources.iter().map(end).collect();
        let mut sources = Vec::new();
        for source in std::mem::take(&mut plan.sources) {
            sources.extend(self.source(source, &channels)?);
        }
        let feeds = self.feeds.into_values().chain(self.queues);
        Ok(Laid {
            draft,
            ports,
            feeds: feeds.collect(),
            channels: self.opened,
            sinks: self.sinks,
            sources,
            ends,
            nodes: self.nodes,
            failures: self.failures,
        })
    }

    /// Opens a new channel.
    fn channel(&mut self, plan: &ChannelPlan) -> Result<(), Failure> {
        let reporter = self.graph.reporter(&plan.name);
        let meters = self.starter.meters.of(&plan.name);
        let context = ChannelContext {
            name: plan.name.clone(),
            pool: self.starter.pool.clone(),
            meters: meters.clone(),
            reporter: reporter.clone(),
            directory: self.starter.data_dir.join("channels").join(&*plan.name),
        };
        let opened = match &self.starter.unusable {
            Some(why) => Err(Failure::state(&**why)),
            None => plan.config.open(context, &plan.consumers),
        };
        let opened = match opened {
            Err(failure) if self.is_start && failure.who == Who::State => {
                self.leave_out_channel(plan, failure);
                return Ok(());
            }
            opened => opened?,
        };
        let state_cell = StateCell::new();
        let shown = (state_cell.clone(), reporter);
        let open = Open::new(opened.channel.clone(), opened.finished, shown);
        let state = ChannelState {
            id: opened.channel.id(),
            channel: Arc::downgrade(&opened.channel),
            ended: open.ended.clone(),
            unusable: None,
        };
        self.closing.push(Closing {
            name: plan.name.clone(),
            channel: state.channel.clone(),
            ended: open.ended.clone(),
        });
        self.opened.push((plan.name.clone(), state, open));
        let feed = Feed::tapped(opened.channel, meters.tap());
        self.feeds.insert(plan.name.clone(), feed);
        self.readers
            .insert(plan.name.clone(), opened.readers.into());
        self.node((&plan.name, "channel", plan.kind), vec![state_cell]);
        Ok(())
    }

    /// Connects a new channel. If it reads another channel, prepares its pump.
    fn connect(&mut self, plan: &ChannelPlan, channels: &[ChannelPlan]) -> Result<(), Failure> {
        let reporter = self.graph.reporter(&plan.name);
        let Some(feed) = self.feeds.get(&plan.name).cloned() else {
            return Ok(());
        };
        let Some(input) = &plan.input else {
            let channel = Consumer::behind_chain(&plan.name, &reporter, &feed);
            self.joining.channels.push(channel);
            return Ok(());
        };
        let swap = Arc::new(Swap::default());
        let swaps = std::slice::from_ref(&swap);
        let channel = Consumer::reading(&plan.name, &reporter, Some(&feed), swaps);
        self.joining.channels.push(channel);
        let (name, before) = (plan.pump(), &channels[input.channel]);
        let both = [&before.name, &plan.name].map(|channel| self.missing(channel));
        if let Some(why) = both.into_iter().flatten().next() {
            return self.leave_out((&name, "channel", PUMP), &why);
        }
        let state = StateCell::new();
        let node = self.node((&name, "channel", PUMP), vec![state.clone()]);
        node.fills.push(plan.name.clone());
        node.consumer = Some(ConsumerStatus {
            queue: None,
            settles_within: Some(CHECKPOINT_AGE),
        });
        let meters = self.starter.meters.of(&name);
        let supply = self.supply(&name, before)?;
        let pump = Pump::new(Outlet::new(vec![Edge::to(feed)], &meters, false));
        let aside = self.graph.aside(&plan.name, &meters);
        let laid = LaidSink {
            rejects: self.graph.outlet(&name, true),
            aside: Some((plan.name.clone(), aside)),
            reporter: self.graph.reporter(&name),
            channel: self.id(&before.name),
            sink: pump,
            is_on_threads: false,
            input: Some(before.name.clone()),
            queue: None,
            lanes: vec![Lane {
                supply,
                chain: Some((swap, input.tags.clone())),
                state,
                thread: Some(self.thread(&name)?),
            }],
            name,
        };
        self.sinks.push(laid);
        Ok(())
    }

    /// Starts a thread that waits for a task.
    fn thread(&self, name: &str) -> Result<Parked, Failure> {
        let started = (self.starter.park)(name);
        started.map_err(|error| Failure::us(format!("cannot start a thread for {name}: {error}")))
    }

    /// Returns how a consumer of a channel obtains its reader.
    fn supply(&mut self, consumer: &Arc<str>, channel: &ChannelPlan) -> Result<Supply, Failure> {
        let readers = self.readers.get_mut(&channel.name);
        let reader = readers.and_then(VecDeque::pop_front);
        let reader = reader.or_else(|| self.joined.reader(&channel.name, consumer));
        if let Some(reader) = reader {
            return Ok(Supply::Reader(reader));
        }
        let feed = self.graph.channel(&channel.name);
        let feed = feed.ok_or_else(|| {
            Failure::config(format!(
                "{consumer} cannot read {}: the channel has ended",
                channel.name
            ))
        })?;
        Ok(Supply::Channel(feed, channel.consumer(consumer)))
    }

    /// Prepares a sink that is new or gets another input.
    fn sink(
        &mut self,
        plan: &SinkPlan,
        in_front: bool,
        channels: &[ChannelPlan],
    ) -> Result<(), Failure> {
        let (mut feed, mut queue, mut channel, mut tags) = (None, None, None, None);
        let supplies: Vec<_> = match &plan.input {
            Input::Memory { queue_bytes, tasks } => {
                let threads = self.starter.threads.count();
                let lanes = match plan.sink.placement() {
                    Placement::DataThreads => tasks.count.unwrap_or(threads),
                    Placement::OwnThread => 1,
                };
                let (mut memory, readers) = (self.open_memory)(lanes, *queue_bytes);
                queue = Some(Arc::downgrade(&memory));
                if deals(plan) {
                    let (partition, pool) = (&tasks.partition, &self.starter.pool);
                    memory = Arc::new(Exchange::new(memory, partition, lanes, threads, pool));
                }
                feed = Some(Feed::new(memory));
                readers.into_iter().map(Supply::Reader).collect()
            }
            Input::Channel(ChannelInput {
                channel: at,
                tags: of,
            }) => {
                let before = &channels[*at];
                if let Some(why) = self.missing(&before.name) {
                    self.join_sink(plan, None, &[]);
                    return self.leave_out((&plan.name, "sink", plan.kind), &why);
                }
                (channel, tags) = (self.id(&before.name), of.clone());
                vec![self.supply(&plan.name, before)?]
            }
        };
        self.lay_sink(
            plan,
            supplies,
            (feed, queue),
            (channel, tags),
            in_front,
            channels,
        )
    }

    /// Prepares a sink with one task for each of `supplies`, which provide the readers of the tasks. The readers run the sink's chain,
    /// unless the chain is `in_front` of the memory channel.
    fn lay_sink(
        &mut self,
        plan: &SinkPlan,
        supplies: Vec<Supply>,
        (feed, queue): (Option<Arc<Feed>>, Option<Weak<dyn Channel>>),
        (channel, tags): (Option<u128>, Option<TagFilter>),
        in_front: bool,
        channels: &[ChannelPlan],
    ) -> Result<(), Failure> {
        let mut swaps = Vec::new();
        let is_behind_memory = matches!(plan.input, Input::Memory { .. });
        let is_on_threads = LaidSink::is_on_threads(&*plan.sink, is_behind_memory);
        let lane = |supply| {
            Ok(Lane {
                supply,
                chain: (!in_front).then(|| {
                    let swap = Arc::new(Swap::default());
                    swaps.push(swap.clone());
                    (swap, tags.clone())
                }),
                state: StateCell::new(),
                thread: match is_on_threads {
                    true => None,
                    false => Some(self.thread(&plan.name)?),
                },
            })
        };
        let lanes = supplies.into_iter().map(lane);
        let lanes = lanes.collect::<Result<Vec<_>, Failure>>()?;
        self.join_sink(plan, feed.as_ref(), &swaps);
        self.queues.extend(feed);
        let states = lanes.iter().map(|lane| lane.state.clone()).collect();
        let node = self.node((&plan.name, "sink", plan.kind), states);
        node.consumer = Some(ConsumerStatus {
            queue: queue.clone(),
            settles_within: plan.sink.settles_within(),
        });
        let meters = self.starter.meters.of(&plan.name);
        let aside = (!is_behind_memory).then(|| {
            let aside = self.graph.aside(&plan.name, &meters);
            (plan.name.clone(), aside)
        });
        let laid = LaidSink {
            name: plan.name.clone(),
            is_on_threads,
            input: match &plan.input {
                Input::Channel(input) => Some(channels[input.channel].name.clone()),
                Input::Memory { .. } => None,
            },
            queue,
            sink: plan.sink.clone(),
            lanes,
            channel,
            rejects: self.graph.outlet(&plan.name, true),
            aside,
            reporter: self.graph.reporter(&plan.name),
        };
        self.sinks.push(laid);
        Ok(())
    }

    fn join_sink(&mut self, plan: &SinkPlan, feed: Option<&Arc<Feed>>, swaps: &[Arc<Swap>]) {
        let reporter = self.graph.reporter(&plan.name);
        let sink = Consumer::reading(&plan.name, &reporter, feed, swaps);
        self.joining.sinks.push(sink);
    }

    /// Binds a source that is new or replaces another one. `channels` are the channels of the plan.
    fn source(
        &mut self,
        mut plan: SourcePlan,
        channels: &[Arc<str>],
    ) -> Result<Option<BoundSource>, Failure> {
        if self.difference.fate(&plan.name) == Fate::Kept {
            return Ok(None);
        }
        let named = (&plan.name, "source", plan.kind);
        let fills = filled(&plan.routes, channels);
        if let Some(why) = fills.iter().find_map(|channel| self.missing(channel)) {
            // The source sends to a channel that does not run, so nothing could keep its records.
            self.leave_out(named, &why)?;
            return Ok(None);
        }
        let reporter = self.graph.reporter(&plan.name);
        let ports = [false, true].map(|is_rejected| self.graph.outlet(&plan.name, is_rejected));
        let follows = self.difference.ending_sources();
        let (seat, context) =
            self.starter
                .source_context(&plan.name, follows, &reporter, ports.into());
        if let Err(failure) = plan.source.bind(&context) {
            let is_state = failure.who == Who::State
                || failure.who == Who::Disk && self.starter.unusable.is_some();
            if !self.is_start || !is_state {
                return Err(failure);
            }
            self.leave_out(named, &failure.message)?;
            self.failures.push((plan.name.clone(), failure));
            return Ok(None);
        }
        let promise = plan.source.promise(context.outlet.is_durable());
        if promise.guarantee == Guarantee::AtMostOnce {
            self.starter.started.add_unanswering(&plan.name);
        }
        let state = StateCell::new();
        if self.difference.starts(&plan.name) {
            self.node(named, vec![state.clone()]);
        }
        Ok(Some(BoundSource {
            source: plan.source,
            seat,
            context,
            state,
        }))
    }

    /// Continues without a channel that could not be opened. A stand-in that accepts nothing takes its place, so nodes that reject
    /// records into the channel wait.
    fn leave_out_channel(&mut self, plan: &ChannelPlan, failure: Failure) {
        let channel: Arc<dyn Channel> = Arc::new(Unopened::default());
        let shown = (StateCell::new(), self.graph.reporter(&plan.name));
        let open = Open::new(channel.clone(), Box::pin(async { Ok(()) }), shown);
        let state = ChannelState {
            id: None,
            channel: Arc::downgrade(&channel),
            ended: open.ended.clone(),
            unusable: Some(failure.message.clone()),
        };
        self.opened.push((plan.name.clone(), state, open));
        self.feeds.insert(plan.name.clone(), Feed::new(channel));
        self.show_left_out((&plan.name, "channel", plan.kind), &failure.message);
        // No reload can repair this failure.
        self.failures.push(("".into(), failure));
    }

    /// Leaves out a node if this is the start of the process; otherwise fails.
    fn leave_out(
        &mut self,
        named: (&Arc<str>, &'static str, &'static str),
        why: &str,
    ) -> Result<(), Failure> {
        if !self.is_start {
            return Err(Failure::config(format!("{} cannot run: {why}", named.0)));
        }
        self.show_left_out(named, why);
        Ok(())
    }

    /// Shows in `status` and in the log that a node does not run, and why.
    fn show_left_out(&mut self, named: (&Arc<str>, &'static str, &'static str), why: &str) {
        let (name, section, _) = named;
        self.graph.reporter(name).error(
            "failed",
            format_args!("{why}; this {section} does not run until Millstream is restarted"),
        );
        self.node(named, vec![StateCell::failed(why)]);
    }

    /// Returns the reason why a node that needs this channel cannot run; `None` if the channel runs.
    fn missing(&self, channel: &str) -> Option<String> {
        let why = self.state(channel)?.unusable.as_ref()?;
        Some(format!("the channel {channel} does not run: {why}"))
    }

    fn id(&self, channel: &str) -> Option<u128> {
        self.state(channel)?.id
    }

    fn state(&self, channel: &str) -> Option<&ChannelState> {
        let mut opened = self.opened.iter();
        let new = opened.find(|(name, ..)| **name == *channel);
        let new = new.map(|(_, state, _)| state);
        new.or_else(|| self.running.get(channel))
    }

    fn node(
        &mut self,
        (name, section, kind): (&Arc<str>, &'static str, &'static str),
        states: Vec<StateCell>,
    ) -> &mut NodeStatus {
        let node = NodeStatus {
            name: name.clone(),
            section,
            kind,
            states,
            reporter: self.graph.reporter(name),
            fills: Vec::new(),
            feeds: Vec::new(),
            consumer: None,
            is_leaving: false,
        };
        self.nodes.push(node);
        let last = self.nodes.len() - 1;
        &mut self.nodes[last]
    }
}
