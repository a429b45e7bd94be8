//! Starts a plan: binds everything, then starts sinks and sources.
//!
//! The end propagates along the graph: a source that ends drops its outlets, the last outlet of a channel closes it, a closed
//! channel ends its readers, and a sink that ends drops its port for rejected records.

use std::sync::Arc;

use millstream_config::RejectedLimits;
use millstream_record::Pool;
use tokio::sync::mpsc;

use crate::{
    chain::{ChainChannel, ChainReader, NodeContext, ProcessorMeters},
    channel::{BoxFuture, Channel, Reader},
    data_dir::DataDir,
    failure::{Failure, Who},
    inlet::Inlet,
    meters::Meters,
    node::{ChannelContext, Placement, SinkContext, SourceContext},
    outlet::{Edge, Feed, Outlet},
    plan::{
        ChainNode, ChainPlan, ChannelPlan, Input, Plan, ProcessorPlan, Route, SinkPlan, SourcePlan,
        Target,
    },
    promise::Guarantee,
    rejected::{self, Counts, RejectedStore},
    rejection_log::RejectionLog,
    report::Reporter,
    running::{NodeStatus, REJECTED_KEPT, Running},
    stop::{Stop, stop},
    supervise::{self, End, StateCell},
    threads::{Threads, own_thread},
    unopened::Unopened,
};

/// Creates the queues in front of a sink: number of lanes and bytes of each -> the channel and its readers.
pub type OpenMemory = fn(usize, usize) -> (Arc<dyn Channel>, Vec<Box<dyn Reader>>);

/// The environment of a launch.
pub struct Launch {
    /// Whether to end when the inputs have ended and everything is settled.
    pub once: bool,
    /// Creates memory channels, which are in a crate above this one.
    pub open_memory: OpenMemory,
    /// All meters.
    pub meters: Meters,
}

/// Starts a plan. Everything is bound and recovered before anything runs. The first failure ends the start, except for a node
/// whose own state cannot be used: then only this node and the nodes that need it do not run.
pub async fn launch(plan: Plan, launch: Launch) -> Result<Running, Failure> {
    let settings = plan.settings;
    let data_dir = DataDir::open(&settings.data_dir)?;
    let (stop_sources, source_stop) = stop();
    let (stop_sinks, sink_stop) = stop();
    let threads = start_threads(settings.threads)?;
    let (ends_sender, ends) = mpsc::channel(1024);
    let mut wiring = Wiring {
        pool: Pool::new(settings.memory_max),
        data_dir: settings.data_dir,
        host: settings.host,
        rejected: settings.rejected,
        once: launch.once,
        meters: launch.meters,
        threads,
        source_stop,
        sink_stop,
        feeds: Vec::new(),
        queues: Vec::new(),
        processors: Vec::new(),
        chained: Vec::new(),
        channel_feeds: Vec::new(),
        gates: Vec::new(),
        unanswering: Vec::new(),
        channel_ids: Vec::new(),
        channel_names: Vec::new(),
        readers: Vec::new(),
        unusable: Vec::new(),
        failures: Vec::new(),
        nodes: Vec::new(),
        ends: ends_sender,
        open_memory: launch.open_memory,
    };
    let channels = wiring.open_channels(plan.channels)?;
    wiring.create_queues(&plan.sinks);
    wiring.connect_processors(&plan.processors)?;
    let sinks = wiring.lay_sinks(plan.sinks)?;
    let sources = wiring.bind_sources(plan.sources)?;
    let (sources_left, mut sinks_left) = (sources.len(), 0);
    for sink in sinks {
        sinks_left += wiring.start_sink(sink).await?;
    }
    for (index, source) in sources.into_iter().enumerate() {
        wiring.start_source(index, source).await;
    }
    Ok(Running {
        nodes: Arc::new(wiring.nodes),
        meters: wiring.meters,
        pool: wiring.pool,
        ends,
        sources_left,
        sinks_left,
        channels,
        gates: wiring.gates,
        unanswering: wiring.unanswering,
        dropped_before: 0,
        stop_sources,
        stop_sinks,
        stopping: false,
        once: launch.once,
        failures: wiring.failures,
        _threads: wiring.threads,
        rejected_place: rejected::directory(&wiring.data_dir),
        _data_dir: data_dir,
    })
}

fn start_threads(count: usize) -> Result<Threads, Failure> {
    Threads::start(count)
        .map_err(|error| Failure::us(format!("cannot start {count} data threads: {error}")))
}

/// A sink with its inlets, connected but not started.
struct LaidSink {
    plan: SinkPlan,
    inlets: Vec<Inlet>,
    states: Vec<StateCell>,
    reporter: Reporter,
}

/// The parts that connect the nodes.
struct Wiring {
    pool: Pool,
    data_dir: std::path::PathBuf,
    host: Arc<str>,
    rejected: RejectedLimits,
    once: bool,
    meters: Meters,
    threads: Threads,
    source_stop: Stop,
    sink_stop: Stop,
    /// The memory in front of each sink; `None` behind a channel. Taken when everything is connected.
    feeds: Vec<Option<Arc<Feed>>>,
    /// The readers of the memory in front of each sink.
    queues: Vec<Vec<Box<dyn Reader>>>,
    /// The port for rejected records and the meters of each processor.
    processors: Vec<NodeContext>,
    /// The channels with processors in front of them.
    chained: Vec<(Arc<ChainChannel>, Arc<ChainPlan>)>,
    channel_feeds: Vec<Arc<Feed>>,
    /// Weak references to the channels, to end them.
    gates: Vec<Arc<dyn Channel>>,
    /// Sources whose senders cannot send again.
    unanswering: Vec<Arc<str>>,
    channel_ids: Vec<Option<u128>>,
    channel_names: Vec<Arc<str>>,
    /// Readers of each channel, in the order of its consumers.
    readers: Vec<std::collections::VecDeque<Box<dyn Reader>>>,
    /// For each channel the reason why it could not be opened, if so.
    unusable: Vec<Option<String>>,
    /// The failures of nodes whose state cannot be used.
    failures: Vec<Failure>,
    nodes: Vec<NodeStatus>,
    ends: mpsc::Sender<(bool, End)>,
    open_memory: OpenMemory,
}

impl Wiring {
    fn open_channels(
        &mut self,
        plans: Vec<ChannelPlan>,
    ) -> Result<Vec<BoxFuture<'static, Result<(), Failure>>>, Failure> {
        let mut finished = Vec::new();
        for plan in plans {
            let reporter = Reporter::new(&plan.name);
            let context = ChannelContext {
                name: plan.name.clone(),
                pool: self.pool.clone(),
                meters: self.meters.of(&plan.name),
                reporter: reporter.clone(),
                directory: self.data_dir.join("channels").join(&*plan.name),
            };
            let opened = match plan.config.open(context, &plan.consumers) {
                Err(failure) if failure.who == Who::State => {
                    self.leave_out_channel(&plan, &reporter, failure);
                    continue;
                }
                opened => opened?,
            };
            self.unusable.push(None);
            self.channel_ids.push(opened.channel.id());
            self.gates.push(opened.channel.clone());
            let feed = match &plan.chain {
                None => opened.channel,
                Some(chain) => self.behind_chain(opened.channel, chain, &reporter),
            };
            self.channel_feeds.push(Feed::new(feed));
            self.readers.push(opened.readers.into());
            finished.push(opened.finished);
            self.channel_names.push(plan.name.clone());
            self.node(&reporter, &plan.name, "channel", plan.kind, 0, &[]);
        }
        Ok(finished)
    }

    /// The channel behind its processors.
    fn behind_chain(
        &mut self,
        channel: Arc<dyn Channel>,
        chain: &Arc<ChainPlan>,
        reporter: &Reporter,
    ) -> Arc<dyn Channel> {
        let lanes = self.threads.count();
        let chained = ChainChannel::new(channel, chain.clone(), lanes, reporter.clone());
        let chained = Arc::new(chained);
        self.chained.push((chained.clone(), chain.clone()));
        chained
    }

    /// Continues without a channel that could not be opened. Nothing is accepted for it: nodes that reject into it wait.
    fn leave_out_channel(&mut self, plan: &ChannelPlan, reporter: &Reporter, failure: Failure) {
        let channel = Arc::new(Unopened::default());
        self.channel_ids.push(None);
        self.gates.push(channel.clone());
        self.channel_feeds.push(Feed::new(channel));
        self.readers.push(std::collections::VecDeque::new());
        self.channel_names.push(plan.name.clone());
        self.unusable.push(Some(failure.message.clone()));
        self.leave_out(
            reporter,
            (&plan.name, "channel", plan.kind),
            &failure.message,
        );
        self.failures.push(failure);
    }

    /// Records that a node does not run, with the reason.
    fn leave_out(
        &mut self,
        reporter: &Reporter,
        (name, section, kind): (&Arc<str>, &'static str, &'static str),
        why: &str,
    ) {
        reporter.error(
            "failed",
            format_args!("{why}; this {section} does not run until Millstream is restarted"),
        );
        self.nodes.push(NodeStatus {
            name: name.clone(),
            section,
            kind,
            states: vec![StateCell::failed(why)],
            reporter: reporter.clone(),
            fills: Vec::new(),
        });
    }

    /// The reason why a node that needs this channel cannot run, if so.
    fn is_missing(&self, channel: usize) -> Option<String> {
        let why = self.unusable[channel].as_ref()?;
        let name = &self.channel_names[channel];
        Some(format!("the channel {name} does not run: {why}"))
    }

    fn node(
        &mut self,
        reporter: &Reporter,
        name: &Arc<str>,
        section: &'static str,
        kind: &'static str,
        tasks: usize,
        routes: &[Route],
    ) -> Vec<StateCell> {
        let states: Vec<_> = (0..tasks).map(|_| StateCell::new()).collect();
        self.nodes.push(NodeStatus {
            name: name.clone(),
            section,
            kind,
            states: states.clone(),
            reporter: reporter.clone(),
            fills: self.fills(routes),
        });
        states
    }

    /// The names of the durable channels behind these routes.
    fn fills(&self, routes: &[Route]) -> Vec<Arc<str>> {
        let channel = |route: &Route| match route.to {
            Target::Channel(index) => self.channel_names.get(index).cloned(),
            Target::Sink(_) => None,
        };
        routes.iter().filter_map(channel).collect()
    }

    /// Creates the memory in front of every sink first, because nodes send each other rejected records.
    fn create_queues(&mut self, plans: &[SinkPlan]) {
        for plan in plans {
            let readers = match &plan.input {
                Input::Memory { queue_bytes } => {
                    let lanes = match plan.sink.placement() {
                        Placement::DataThreads => self.threads.count(),
                        Placement::OwnThread => 1,
                    };
                    let (channel, readers) = (self.open_memory)(lanes, *queue_bytes);
                    self.feeds.push(Some(Feed::new(channel)));
                    readers
                }
                Input::Channel { channel, .. } => {
                    self.feeds.push(None);
                    self.readers[*channel].pop_front().into_iter().collect()
                }
            };
            self.queues.push(readers);
        }
    }

    /// Creates the ports for rejected records of the processors, and connects those in front of channels.
    fn connect_processors(&mut self, plans: &[ProcessorPlan]) -> Result<(), Failure> {
        for plan in plans {
            let reporter = Reporter::new(&plan.name);
            let context = NodeContext {
                rejects: Some(self.rejects(&plan.name, &plan.rejects, &reporter)),
                meters: ProcessorMeters::new(&self.meters.of(&plan.name)),
            };
            self.processors.push(context);
            self.node(
                &reporter,
                &plan.name,
                "processor",
                plan.kind,
                0,
                &plan.rejects,
            );
        }
        for (channel, chain) in std::mem::take(&mut self.chained) {
            channel.connect(self.contexts(&chain))?;
        }
        Ok(())
    }

    /// The surroundings of the processors of a chain.
    fn contexts(&self, chain: &ChainPlan) -> Vec<NodeContext> {
        let context = |node: &ChainNode| {
            let mut context = self.processors[node.index].clone();
            context.rejects = context.rejects.filter(|_| node.reports);
            context
        };
        chain.nodes.iter().map(context).collect()
    }

    fn lay_sinks(&mut self, plans: Vec<SinkPlan>) -> Result<Vec<LaidSink>, Failure> {
        let readers = std::mem::take(&mut self.queues);
        plans
            .into_iter()
            .zip(readers)
            .map(|(plan, readers)| self.lay_sink(plan, readers))
            .collect()
    }

    /// The reader of a sink behind its processors.
    fn through_chain(
        &self,
        plan: &SinkPlan,
        reader: Box<dyn Reader>,
    ) -> Result<Box<dyn Reader>, Failure> {
        let Some(chain) = &plan.chain else {
            return Ok(reader);
        };
        let contexts = self.contexts(chain);
        Ok(Box::new(ChainReader::new(reader, chain.clone(), contexts)?))
    }

    fn lay_sink(
        &mut self,
        plan: SinkPlan,
        readers: Vec<Box<dyn Reader>>,
    ) -> Result<LaidSink, Failure> {
        let meters = self.meters.of(&plan.name);
        let (channel, tags) = match &plan.input {
            Input::Memory { .. } => (None, None),
            Input::Channel { channel, tags } => (self.channel_ids[*channel], tags.clone()),
        };
        let reporter = Reporter::new(&plan.name);
        if let Input::Channel { channel, .. } = &plan.input
            && let Some(why) = self.is_missing(*channel)
        {
            self.leave_out(&reporter, (&plan.name, "sink", plan.kind), &why);
            return Ok(LaidSink {
                plan,
                inlets: Vec::new(),
                states: Vec::new(),
                reporter,
            });
        }
        let rejects = self.rejects(&plan.name, &plan.rejects, &reporter);
        let states = self.node(
            &reporter,
            &plan.name,
            "sink",
            plan.kind,
            readers.len(),
            &plan.rejects,
        );
        let inlet = |reader| {
            let inlet = Inlet::new(
                &plan.name,
                reader,
                channel,
                rejects.clone(),
                self.sink_stop.clone(),
                &meters,
            );
            inlet.with_tags(tags.clone())
        };
        let readers = readers.into_iter();
        let inlets = readers.map(|reader| Ok(inlet(self.through_chain(&plan, reader)?)));
        let inlets = inlets.collect::<Result<_, Failure>>()?;
        Ok(LaidSink {
            plan,
            inlets,
            states,
            reporter,
        })
    }

    fn edges(&self, routes: &[Route]) -> Vec<Edge> {
        let edge = |route: &Route| {
            let feed = match route.to {
                Target::Channel(index) => Some(&self.channel_feeds[index]),
                Target::Sink(index) => self.feeds[index].as_ref(),
            };
            feed.map(|feed| Edge {
                tags: route.tags.clone(),
                feed: feed.clone(),
                entry: route.entry,
            })
        };
        routes.iter().filter_map(edge).collect()
    }

    /// The port `NAME.rejected` of a node: to the nodes that take it, otherwise into a file.
    fn rejects(&self, node: &str, routes: &[Route], reporter: &Reporter) -> Outlet {
        let (mut edges, meters) = (self.edges(routes), self.meters.of(node));
        let mut to = format!("by the port {node}.rejected");
        if edges.is_empty() {
            let directory = rejected::directory(&self.data_dir);
            to = format!("and kept in {}/{node}.*", directory.display());
            let counts = Counts {
                kept: meters.counter(REJECTED_KEPT),
                dropped: meters.counter("bytes_rejected_dropped"),
            };
            let store =
                RejectedStore::open(directory, node, self.rejected, reporter.clone(), counts);
            edges.push(Edge {
                tags: None,
                feed: Feed::new(store),
                entry: 0,
            });
        }
        Outlet::of_rejects(edges, &meters, RejectionLog::new(node, to))
    }

    fn bind_sources(
        &mut self,
        plans: Vec<SourcePlan>,
    ) -> Result<Vec<(SourcePlan, SourceContext, StateCell)>, Failure> {
        let mut bound = Vec::new();
        for mut plan in plans {
            let meters = self.meters.of(&plan.name);
            let reporter = Reporter::new(&plan.name);
            let named = (&plan.name, "source", plan.kind);
            let channels = plan.routes.iter().filter_map(|route| match route.to {
                Target::Channel(index) => Some(index),
                Target::Sink(_) => None,
            });
            let missing = channels
                .filter_map(|channel| self.is_missing(channel))
                .next();
            if let Some(why) = missing {
                // Without it the channel could not keep what it accepts.
                self.leave_out(&reporter, named, &why);
                continue;
            }
            let context = SourceContext {
                name: plan.name.clone(),
                outlet: Outlet::new(self.edges(&plan.routes), &meters, false),
                rejects: self.rejects(&plan.name, &plan.rejects, &reporter),
                threads: self.threads.clone(),
                stop: self.source_stop.clone(),
                once: self.once,
                pool: self.pool.clone(),
                meters,
                reporter,
                host: self.host.clone(),
                directory: self.data_dir.join("sources").join(&*plan.name),
            };
            if let Err(failure) = plan.source.bind(&context) {
                if failure.who != Who::State {
                    return Err(failure);
                }
                self.leave_out(&context.reporter, named, &failure.message);
                self.failures.push(failure);
                continue;
            }
            let promise = plan.source.promise(context.outlet.is_durable());
            if promise.guarantee == Guarantee::AtMostOnce {
                self.unanswering.push(plan.name.clone());
            }
            let state = self
                .node(
                    &context.reporter,
                    &plan.name,
                    "source",
                    plan.kind,
                    1,
                    &plan.routes,
                )
                .remove(0);
            bound.push((plan, context, state));
        }
        // From here on only the outlets keep the channels open.
        self.feeds.clear();
        self.channel_feeds.clear();
        self.processors.clear();
        Ok(bound)
    }

    /// Starts a sink's tasks; returns how many.
    async fn start_sink(&mut self, laid: LaidSink) -> Result<usize, Failure> {
        let LaidSink {
            plan,
            inlets,
            states,
            reporter: own_reporter,
        } = laid;
        let tasks = inlets.len();
        let in_lanes = matches!(plan.input, Input::Memory { .. })
            && plan.sink.placement() == Placement::DataThreads;
        for (lane, (mut inlet, state)) in inlets.into_iter().zip(states).enumerate() {
            let context = SinkContext {
                name: plan.name.clone(),
                stop: self.sink_stop.clone(),
                pool: self.pool.clone(),
                meters: self.meters.of(&plan.name),
                reporter: own_reporter.clone(),
                directory: self.data_dir.join("sinks").join(&*plan.name),
                lane,
            };
            let (reporter, sink, ends) = (
                context.reporter.clone(),
                plan.sink.clone(),
                self.ends.clone(),
            );
            let mut stop = self.source_stop.clone();
            let run = async move || {
                let end = supervise::sink(sink, &mut inlet, context, state).await;
                let has_failed = end.is_err();
                let _ = ends.send((false, end)).await;
                if has_failed {
                    // Keeping the inlet makes sources wait until the stop; without it the memory would accept and drop.
                    stop.stopped().await;
                }
            };
            if in_lanes {
                self.threads.spawn_on(lane, &reporter, run).await;
            } else {
                let name = &*plan.name;
                own_thread(name, run).map_err(|error| {
                    Failure::us(format!("cannot start a thread for {name}: {error}"))
                })?;
            }
        }
        Ok(tasks)
    }

    async fn start_source(
        &mut self,
        index: usize,
        (plan, context, state): (SourcePlan, SourceContext, StateCell),
    ) {
        let (reporter, ends) = (context.reporter.clone(), self.ends.clone());
        let run = async move || {
            let end = supervise::source(plan.source, context, state).await;
            let _ = ends.send((true, end)).await;
        };
        self.threads
            .spawn_on(index % self.threads.count(), &reporter, run)
            .await;
    }
}
