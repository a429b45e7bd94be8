//! Starts a plan: binds everything, then starts sinks and sources.
//!
//! The end propagates along the graph: a source that ends drops its outlets, the last outlet of a channel closes it, a closed
//! channel ends its readers, and a sink that ends drops its port for rejected records.

use std::sync::{Arc, Weak};

use millstream_record::Pool;
use tokio::sync::mpsc;

use crate::{
    chain::{ChainReader, Swap},
    channel::{BoxFuture, Channel, Reader},
    data_dir::DataDir,
    exchange::Exchange,
    failure::{Failure, Who},
    graph::{Consumer, Graph},
    inlet::{CHECKPOINT_AGE, Inlet},
    meters::Meters,
    node::{ChannelContext, Placement, SinkContext, SourceContext},
    outlet::{Edge, Feed, Outlet},
    partition::Partition,
    plan::{
        ChainNode, ChannelInput, ChannelPlan, Input, Plan, ProcessorPlan, Route, RunSettings,
        SinkPlan, SourcePlan, Target, filled,
    },
    promise::Guarantee,
    pump::Pump,
    rejected,
    reload::{Known, Reloader},
    report::Reporter,
    running::{ConsumerStatus, NodeStatus, Nodes, Running},
    stop::{Stop, stop},
    supervise::{self, End, StateCell},
    tags::TagFilter,
    threads::{Threads, busy, own_thread},
    unopened::Unopened,
};

/// The type of a pump in `status`.
const PUMP: &str = "pump";

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
/// whose own state cannot be used: then only this node and the nodes that need it do not run. The [`Reloader`] changes the pipeline
/// while it runs.
pub async fn launch(mut plan: Plan, launch: Launch) -> Result<(Running, Reloader), Failure> {
    let data_dir = DataDir::open(&plan.settings.data_dir)?;
    let (stop_sources, source_stop) = stop();
    let (stop_sinks, sink_stop) = stop();
    let (ends_sender, ends) = mpsc::channel(1024);
    let once = launch.once;
    let mut wiring = Wiring::new(
        &plan.settings,
        launch,
        (source_stop, sink_stop),
        ends_sender,
    )?;
    let channels = wiring.open_channels(&plan.channels)?;
    let pumps = wiring.connect_channels(&plan.channels);
    wiring.create_queues(&plan);
    let ports = wiring.connect(&plan)?;
    let known = Known::of(&plan);
    let sinks = wiring.lay_sinks(std::mem::take(&mut plan.sinks));
    let sources = wiring.bind_sources(std::mem::take(&mut plan.sources))?;
    // From here on only the nodes keep what is behind them open.
    wiring.feeds.clear();
    drop(ports);
    let (sources_left, mut sinks_left) = (sources.len(), 0);
    for sink in pumps.into_iter().chain(sinks) {
        sinks_left += wiring.start_sink(sink).await?;
    }
    for (index, source) in sources.into_iter().enumerate() {
        wiring.start_source(index, source).await;
    }
    let nodes = Nodes::new(wiring.nodes, plan.running_links());
    let reloader = Reloader::new(wiring.graph, nodes.clone(), known);
    let running = Running {
        nodes,
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
        once,
        failures: wiring.failures,
        _threads: wiring.threads,
        rejected_place: rejected::directory(&wiring.data_dir),
        _data_dir: data_dir,
    };
    Ok((running, reloader))
}

fn start_threads(count: usize) -> Result<Threads, Failure> {
    Threads::start(count)
        .map_err(|error| Failure::us(format!("cannot start {count} data threads: {error}")))
}

/// Whether the processors of a sink run in front of the memory before it.
fn is_chain_in_front(plan: &SinkPlan, index: usize, processors: &[ProcessorPlan]) -> bool {
    // They make the key by which its records are dealt.
    let comes_back = |node: &ChainNode| {
        let mut routes = processors[node.index].rejects.iter();
        node.reports && routes.any(|route| route.to == Target::Sink(index))
    };
    let nodes = plan.chain.iter().flat_map(|chain| &chain.nodes);
    // A reader that waits until its own full memory takes a record would wait forever.
    deals(plan) || nodes.into_iter().any(comes_back)
}

/// Whether the records of a sink are dealt to its lanes.
fn deals(plan: &SinkPlan) -> bool {
    matches!(&plan.input, Input::Memory { tasks, .. } if tasks.partition != Partition::Same)
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
    graph: Graph,
    once: bool,
    meters: Meters,
    threads: Threads,
    source_stop: Stop,
    sink_stop: Stop,
    /// Keep all channels and queues open until everything is connected.
    feeds: Vec<Arc<Feed>>,
    /// The readers of each sink.
    queues: Vec<Vec<Box<dyn Reader>>>,
    /// The memory in front of each sink.
    memories: Vec<Option<Weak<dyn Channel>>>,
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
    /// Nothing is connected yet. `stops` are those of sources and of sinks.
    fn new(
        settings: &RunSettings,
        launch: Launch,
        (source_stop, sink_stop): (Stop, Stop),
        ends: mpsc::Sender<(bool, End)>,
    ) -> Result<Self, Failure> {
        let threads = start_threads(settings.threads)?;
        let pool = Pool::new(settings.memory_max);
        let graph = Graph::new(&pool, &launch.meters, settings, threads.count());
        Ok(Self {
            pool,
            data_dir: settings.data_dir.clone(),
            host: settings.host.clone(),
            graph,
            once: launch.once,
            meters: launch.meters,
            threads,
            source_stop,
            sink_stop,
            feeds: Vec::new(),
            queues: Vec::new(),
            memories: Vec::new(),
            gates: Vec::new(),
            unanswering: Vec::new(),
            channel_ids: Vec::new(),
            channel_names: Vec::new(),
            readers: Vec::new(),
            unusable: Vec::new(),
            failures: Vec::new(),
            nodes: Vec::new(),
            ends,
            open_memory: launch.open_memory,
        })
    }

    fn open_channels(
        &mut self,
        plans: &[ChannelPlan],
    ) -> Result<Vec<BoxFuture<'static, Result<(), Failure>>>, Failure> {
        let mut finished = Vec::new();
        for plan in plans {
            let reporter = self.graph.reporter(&plan.name);
            let context = ChannelContext {
                name: plan.name.clone(),
                pool: self.pool.clone(),
                meters: self.meters.of(&plan.name),
                reporter: reporter.clone(),
                directory: self.data_dir.join("channels").join(&*plan.name),
            };
            let opened = match plan.config.open(context, &plan.consumers) {
                Err(failure) if failure.who == Who::State => {
                    self.leave_out_channel(plan, &reporter, failure);
                    continue;
                }
                opened => opened?,
            };
            self.unusable.push(None);
            self.channel_ids.push(opened.channel.id());
            self.gates.push(opened.channel.clone());
            let tap = self.meters.of(&plan.name).tap();
            self.feeds.push(Feed::tapped(opened.channel, tap));
            self.readers.push(opened.readers.into());
            finished.push(opened.finished);
            self.channel_names.push(plan.name.clone());
            self.node(&reporter, &plan.name, "channel", plan.kind, 0, &[]);
        }
        Ok(finished)
    }

    /// Adds the channels to the graph. Returns the pumps of those that read another channel.
    fn connect_channels(&mut self, plans: &[ChannelPlan]) -> Vec<LaidSink> {
        let mut pumps = Vec::new();
        for (index, plan) in plans.iter().enumerate() {
            let reporter = self.graph.reporter(&plan.name);
            let feed = self.feeds[index].clone();
            let Some(input) = &plan.input else {
                let channel = Consumer::behind_chain(&plan.name, &reporter, &feed);
                self.graph.add_channel(channel);
                continue;
            };
            let swap = Arc::new(Swap::default());
            let swaps = std::slice::from_ref(&swap);
            let channel = Consumer::reading(&plan.name, &reporter, Some(&feed), swaps);
            self.graph.add_channel(channel);
            let missing = [input.channel, index].map(|channel| self.is_missing(channel));
            pumps.push(match missing.into_iter().flatten().next() {
                None => self.lay_pump(plan, input, feed, swap),
                Some(why) => {
                    let name = plan.pump();
                    let reporter = self.graph.reporter(&name);
                    self.leave_out(&reporter, (&name, "channel", PUMP), &why);
                    continue;
                }
            });
        }
        pumps
    }

    /// The pump of a channel, which runs as a sink does.
    fn lay_pump(
        &mut self,
        plan: &ChannelPlan,
        input: &ChannelInput,
        feed: Arc<Feed>,
        swap: Arc<Swap>,
    ) -> LaidSink {
        let name = plan.pump();
        let meters = self.meters.of(&name);
        let reporter = self.graph.reporter(&name);
        let reader = self.readers[input.channel].pop_front();
        let inlet = |reader| {
            Inlet::new(
                &name,
                Box::new(ChainReader::new(reader, input.tags.clone(), swap)),
                self.channel_ids[input.channel],
                self.graph.outlet(&name, true),
                self.sink_stop.clone(),
                &meters,
            )
        };
        let inlets = reader.map(inlet).into_iter().collect();
        let states = self.node(&reporter, &name, "channel", PUMP, 1, &[]);
        if let Some(node) = self.nodes.last_mut() {
            node.fills.push(plan.name.clone());
            node.consumer = Some(ConsumerStatus {
                queue: None,
                settles_within: Some(CHECKPOINT_AGE),
            });
        }
        let outlet = Outlet::new(vec![Edge::to(feed)], &meters, false);
        LaidSink {
            plan: SinkPlan {
                name,
                kind: PUMP,
                sink: Pump::new(outlet),
                input: Input::Channel(input.clone()),
                chain: None,
                rejects: Vec::new(),
            },
            inlets,
            states,
            reporter,
        }
    }

    /// Continues without a channel that could not be opened. Nothing is accepted for it: nodes that reject into it wait.
    fn leave_out_channel(&mut self, plan: &ChannelPlan, reporter: &Reporter, failure: Failure) {
        let channel = Arc::new(Unopened::default());
        self.channel_ids.push(None);
        self.gates.push(channel.clone());
        self.feeds.push(Feed::new(channel));
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
            consumer: None,
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
            fills: filled(routes, &self.channel_names),
            consumer: None,
        });
        states
    }

    /// Creates the memory in front of every sink first, because nodes send each other rejected records.
    fn create_queues(&mut self, plan: &Plan) {
        for (index, sink) in plan.sinks.iter().enumerate() {
            let in_front = is_chain_in_front(sink, index, &plan.processors);
            let plan = sink;
            let (feed, tags, readers) = match &plan.input {
                Input::Memory { queue_bytes, tasks } => {
                    let threads = self.threads.count();
                    let lanes = match plan.sink.placement() {
                        Placement::DataThreads => tasks.count.unwrap_or(threads),
                        Placement::OwnThread => 1,
                    };
                    let (mut channel, readers) = (self.open_memory)(lanes, *queue_bytes);
                    self.memories.push(Some(Arc::downgrade(&channel)));
                    if deals(plan) {
                        let partition = &tasks.partition;
                        let dealt = Exchange::new(channel, partition, lanes, threads, &self.pool);
                        channel = Arc::new(dealt);
                    }
                    (Some(Feed::new(channel)), None, readers)
                }
                Input::Channel(ChannelInput { channel, tags }) => {
                    let reader = self.readers[*channel].pop_front();
                    self.memories.push(None);
                    (None, tags.clone(), reader.into_iter().collect())
                }
            };
            self.add_sink(plan, feed, (readers, tags), in_front);
        }
    }

    /// Adds a sink with its readers and the tags that it takes from them. They run its chain, unless that is `in_front` of the memory.
    fn add_sink(
        &mut self,
        plan: &SinkPlan,
        feed: Option<Arc<Feed>>,
        (readers, tags): (Vec<Box<dyn Reader>>, Option<TagFilter>),
        in_front: bool,
    ) {
        let mut swaps = Vec::new();
        let through = |reader| -> Box<dyn Reader> {
            if in_front {
                return reader;
            }
            let swap = Arc::new(Swap::default());
            swaps.push(swap.clone());
            let reader = ChainReader::new(reader, tags.clone(), swap);
            Box::new(reader.of_sink(&plan.name))
        };
        self.queues.push(readers.into_iter().map(through).collect());
        let reporter = self.graph.reporter(&plan.name);
        let sink = Consumer::reading(&plan.name, &reporter, feed.as_ref(), &swaps);
        self.graph.add_sink(sink);
        self.feeds.extend(feed);
    }

    /// Connects all nodes. Returns their ports, which close unless the nodes take them.
    fn connect(&mut self, plan: &Plan) -> Result<Vec<Outlet>, Failure> {
        let mut ports = self.graph.open_ports(plan);
        let draft = self.graph.draft(plan)?;
        ports.extend(self.graph.apply(draft, plan));
        for plan in &plan.processors {
            let reporter = self.graph.reporter(&plan.name);
            self.node(
                &reporter,
                &plan.name,
                "processor",
                plan.kind,
                0,
                &plan.rejects,
            );
        }
        Ok(ports)
    }

    fn lay_sinks(&mut self, plans: Vec<SinkPlan>) -> Vec<LaidSink> {
        let readers = std::mem::take(&mut self.queues);
        let memories = std::mem::take(&mut self.memories);
        let all = plans.into_iter().zip(readers).zip(memories);
        all.map(|((plan, readers), queue)| self.lay_sink(plan, readers, queue))
            .collect()
    }

    fn lay_sink(
        &mut self,
        plan: SinkPlan,
        readers: Vec<Box<dyn Reader>>,
        queue: Option<Weak<dyn Channel>>,
    ) -> LaidSink {
        let meters = self.meters.of(&plan.name);
        let channel = match &plan.input {
            Input::Memory { .. } => None,
            Input::Channel(input) => self.channel_ids[input.channel],
        };
        let reporter = self.graph.reporter(&plan.name);
        if let Input::Channel(input) = &plan.input
            && let Some(why) = self.is_missing(input.channel)
        {
            self.leave_out(&reporter, (&plan.name, "sink", plan.kind), &why);
            return LaidSink {
                plan,
                inlets: Vec::new(),
                states: Vec::new(),
                reporter,
            };
        }
        let rejects = self.graph.outlet(&plan.name, true);
        let states = self.node(
            &reporter,
            &plan.name,
            "sink",
            plan.kind,
            readers.len(),
            &plan.rejects,
        );
        if let Some(node) = self.nodes.last_mut() {
            node.consumer = Some(ConsumerStatus {
                queue,
                settles_within: plan.sink.settles_within(),
            });
        }
        let inlet = |reader| {
            Inlet::new(
                &plan.name,
                reader,
                channel,
                rejects.clone(),
                self.sink_stop.clone(),
                &meters,
            )
        };
        let inlets = readers.into_iter().map(inlet).collect();
        LaidSink {
            plan,
            inlets,
            states,
            reporter,
        }
    }

    fn bind_sources(
        &mut self,
        plans: Vec<SourcePlan>,
    ) -> Result<Vec<(SourcePlan, SourceContext, StateCell)>, Failure> {
        let mut bound = Vec::new();
        for mut plan in plans {
            let meters = self.meters.of(&plan.name);
            let reporter = self.graph.reporter(&plan.name);
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
                outlet: self.graph.outlet(&plan.name, false),
                rejects: self.graph.outlet(&plan.name, true),
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
                let thread = lane % self.threads.count();
                self.threads.spawn_on(thread, &reporter, run).await;
            } else {
                let name = &*plan.name;
                let meter = reporter.busy().clone();
                own_thread(name, move || busy(meter, run())).map_err(|error| {
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
