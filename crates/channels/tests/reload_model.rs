//! A model of the life of nodes: random sequences of reloads, failures, repairs and `--forget` over small graphs with channels that run
//! full and destinations that hang, fail, fail at once, or fail permanently.
//!
//! After each step, every node of the plan runs, waits for its earlier task, or has failed and says why. At the end, the destinations are
//! repaired by one more reload. Then every task ends or runs, every record that was acknowledged into a channel has reached every sink that
//! read the channel at that time and was not given up, and the stop is orderly.
//!
//! `SEED=n cargo test -p millstream-channels --test reload_model` runs one sequence again.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that prints its seed"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use millstream_channels::{disk, memory::MemoryChannel};
use millstream_config::{Node, RejectedLimits};
use millstream_pipeline::{
    channel::Consumer,
    failure::Failure,
    inlet::{Inlet, Item},
    launch::{Launch, launch},
    meters::Meters,
    node::{Build, LocalFuture, Placement, Sink, SinkContext, Source, SourceContext},
    plan::{
        ChannelInput, ChannelPlan, Input, Plan, Route, RunSettings, SinkPlan, SourcePlan, Target,
    },
    promise::{Guarantee, Promise},
    reload::Reloader,
    running::Running,
    supervise::NodeState,
    tags::TagFilter,
};
use millstream_record::{Batch, Encoding, Values};
use tokio::time::{sleep, timeout};

/// A step that takes longer fails.
const PATIENCE: Duration = Duration::from_secs(60);
const STEPS: usize = 14;
const CHANNELS: [&str; 2] = ["c1", "c2"];
const SINKS: [&str; 2] = ["a", "b"];
/// The size of a record: a channel of 8 MiB is full after a hundred.
const RECORD_BYTES: usize = 64 << 10;

/// The behavior of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Mode {
    Works,
    Hangs,
    Fails,
    FailsAtOnce,
    FailsPermanently,
}

impl Mode {
    const ALL: [Self; 5] = [
        Self::Works,
        Self::Hangs,
        Self::Fails,
        Self::FailsAtOnce,
        Self::FailsPermanently,
    ];
}

/// A small random number generator (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % bound
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// The state that the test and its nodes share.
#[derive(Default)]
struct World {
    /// Even while a plan runs, odd during a reload.
    epoch: AtomicUsize,
    /// Acknowledged records, each with the epoch in which it was sent and acknowledged.
    acked: Mutex<Vec<(u64, usize)>>,
    /// By sink: the records that its destination has.
    delivered: Mutex<BTreeMap<&'static str, BTreeSet<u64>>>,
    /// The modes of all sinks that were ever built.
    modes: Mutex<Vec<Arc<AtomicU8>>>,
}

/// Sends numbered records, each until it is acknowledged.
struct Numbers {
    world: Arc<World>,
    next: u64,
    /// Whether its records are noted as acknowledged.
    is_durable: bool,
}

fn batch(number: u64) -> Batch {
    let mut body = format!("{number} ").into_bytes();
    body.resize(RECORD_BYTES - 1, b'x');
    body.push(b'\n');
    Batch {
        tag: "t".into(),
        plain: false,
        encoding: Encoding::Lines,
        body: body.into(),
        count: 1,
        received: Default::default(),
        values: Arc::new(Values::new()),
        origins: Vec::new(),
    }
}

impl Source for Numbers {
    fn bind(&mut self, _: &SourceContext) -> Result<(), Failure> {
        Ok(())
    }

    fn run<'a>(&'a mut self, mut context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let outlet = context.outlet.clone();
            while !context.stop.is_stopped() {
                let epoch = self.world.epoch.load(SeqCst);
                let sent = async { outlet.send(batch(self.next), true).await.await };
                let acked = tokio::select! {
                    acked = sent => acked,
                    () = context.stop.stopped() => return Ok(()),
                };
                let is_same = self.world.epoch.load(SeqCst) == epoch && epoch.is_multiple_of(2);
                if acked.is_ok() {
                    if is_same && self.is_durable {
                        self.world.acked.lock().unwrap().push((self.next, epoch));
                    }
                    self.next += 1;
                }
                sleep(Duration::from_millis(3)).await;
            }
            Ok(())
        })
    }

    fn values(&self) -> &'static [&'static str] {
        &[]
    }

    fn promise(&self, _: bool) -> Promise {
        Promise::new(Guarantee::AtLeastOnce, "")
    }
}

struct Destination {
    world: Arc<World>,
    name: &'static str,
    placement: Placement,
    mode: Arc<AtomicU8>,
}

impl Destination {
    fn mode(&self) -> Mode {
        Mode::ALL[usize::from(self.mode.load(SeqCst))]
    }
}

impl Sink for Destination {
    fn placement(&self) -> Placement {
        self.placement
    }

    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        _: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            match self.mode() {
                Mode::FailsAtOnce => return Err(Failure::peer("it fails at once")),
                Mode::FailsPermanently => return Err(Failure::state("it fails permanently")),
                Mode::Works | Mode::Hangs | Mode::Fails => {}
            }
            inlet.resume(None)?;
            while let Some(item) = inlet.next().await? {
                match item {
                    Item::Checkpoint(checkpoint) => inlet.settle(checkpoint).await?,
                    Item::Batch(batch, _) => {
                        while self.mode() == Mode::Hangs {
                            sleep(Duration::from_millis(20)).await;
                        }
                        if self.mode() != Mode::Works {
                            return Err(Failure::peer("it fails"));
                        }
                        let text = String::from_utf8_lossy(&batch.body);
                        let number = text.split(' ').next().unwrap().parse().unwrap();
                        let mut delivered = self.world.delivered.lock().unwrap();
                        delivered.entry(self.name).or_default().insert(number);
                    }
                }
            }
            Ok(())
        })
    }

    fn promise(&self, _: bool) -> Promise {
        Promise::new(Guarantee::AtLeastOnce, "")
    }
}

/// The input of a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    Memory,
    Channel(&'static str),
}

#[derive(Clone, Debug, PartialEq)]
struct SinkModel {
    reads: Reads,
    version: usize,
    mode: Mode,
    /// Whether it has the option `tags`, which takes all records of this test.
    has_tags: bool,
    /// Whether it has a thread. Differs between the sinks, so that both kinds are tested.
    blocks: bool,
}

/// A plan as the test describes it.
#[derive(Clone, Debug, PartialEq)]
struct Model {
    channels: Vec<&'static str>,
    sinks: BTreeMap<&'static str, SinkModel>,
}

impl Model {
    fn random(random: &mut Random, before: &Self, version: usize) -> Self {
        let mut channels = CHANNELS.to_vec();
        if random.one_in(2) {
            channels.remove(random.below(2));
        }
        let mut sinks = BTreeMap::new();
        for name in SINKS {
            let old = before.sinks.get(name).filter(|_| random.one_in(2));
            let is_possible = |old: &&SinkModel| match old.reads {
                Reads::Channel(channel) => channels.contains(&channel),
                Reads::Memory => true,
            };
            if let Some(old) = old.filter(is_possible) {
                sinks.insert(name, old.clone());
                continue;
            }
            let reads = match random.below(4) {
                0 => continue,
                1 => Reads::Memory,
                _ => Reads::Channel(channels[random.below(channels.len())]),
            };
            let sink = SinkModel {
                reads,
                version,
                mode: Mode::ALL[random.below(Mode::ALL.len())],
                has_tags: random.one_in(2),
                blocks: name == "a",
            };
            sinks.insert(name, sink);
        }
        Self { channels, sinks }
    }

    /// The same graph with other options, so that each destination works.
    fn repaired(&self, version: usize) -> Self {
        let mut repaired = self.clone();
        for name in SINKS {
            let sink = repaired.sinks.entry(name).or_insert(SinkModel {
                reads: Reads::Memory,
                version,
                mode: Mode::Works,
                has_tags: false,
                blocks: name == "a",
            });
            (sink.version, sink.mode) = (version, Mode::Works);
        }
        repaired
    }

    fn plan(&self, directory: &Path, world: &Arc<World>) -> Plan {
        let consumers = |channel: &str| {
            let sinks = self.sinks.iter();
            let reads = sinks.filter(|(_, sink)| sink.reads == Reads::Channel(leak(channel)));
            reads.map(|(name, _)| Consumer::from(*name)).collect()
        };
        let channel = |name: &&'static str| ChannelPlan {
            name: (*name).into(),
            kind: "disk",
            config: disk_channel(),
            options: "".into(),
            input: None,
            chain: None,
            consumers: consumers(name),
        };
        let route = |to| Route {
            to,
            entry: 0,
            tags: None,
        };
        let source = |name: &str, routes: Vec<Route>, is_durable| SourcePlan {
            name: name.into(),
            kind: "numbers",
            source: Box::new(Numbers {
                world: world.clone(),
                next: 0,
                is_durable,
            }),
            options: "".into(),
            routes,
            rejects: Vec::new(),
        };
        let durable = (0..self.channels.len()).map(|at| route(Target::Channel(at)));
        let in_memory = self.sinks.values().enumerate();
        let in_memory = in_memory.filter(|(_, sink)| sink.reads == Reads::Memory);
        let in_memory = in_memory.map(|(at, _)| route(Target::Sink(at)));
        Plan {
            sources: vec![
                source("durable", durable.collect(), true),
                source("fast", in_memory.collect(), false),
            ],
            processors: Vec::new(),
            channels: self.channels.iter().map(channel).collect(),
            sinks: self
                .sinks
                .iter()
                .map(|(name, sink)| self.sink(name, sink, world))
                .collect(),
            links: Vec::new(),
            settings: RunSettings {
                data_dir: directory.to_owned(),
                memory_max: 256 << 20,
                threads: 1,
                host: "here".into(),
                rejected: RejectedLimits::default(),
            },
        }
    }

    fn sink(&self, name: &'static str, sink: &SinkModel, world: &Arc<World>) -> SinkPlan {
        let mode = Arc::new(AtomicU8::new(sink.mode as u8));
        world.modes.lock().unwrap().push(mode.clone());
        let placement = match sink.blocks {
            true => Placement::OwnThread,
            false => Placement::DataThreads,
        };
        let input = match sink.reads {
            Reads::Memory => Input::Memory {
                queue_bytes: 4 * RECORD_BYTES,
                tasks: Default::default(),
            },
            Reads::Channel(channel) => Input::Channel(ChannelInput {
                channel: self.channels.iter().position(|it| *it == channel).unwrap(),
                tags: sink.has_tags.then(|| TagFilter::new(["t"]).unwrap()),
            }),
        };
        SinkPlan {
            name: name.into(),
            kind: "destination",
            sink: Arc::new(Destination {
                world: world.clone(),
                name,
                placement,
                mode,
            }),
            options: format!("{} {}", sink.version, sink.blocks).into(),
            input,
            chain: None,
            rejects: Vec::new(),
        }
    }
}

fn leak(name: &str) -> &'static str {
    CHANNELS.into_iter().find(|it| *it == name).unwrap()
}

fn disk_channel() -> Box<dyn millstream_pipeline::node::ChannelConfig> {
    let options = "{ size_max: 8MiB, queue: 128KiB, sync: never }";
    let Build::Channel(build) = disk::COMPONENT.build else {
        panic!("a channel");
    };
    build("c", &Node::parse("t", options).unwrap()).unwrap()
}

/// A running pipeline and what is expected of it.
struct Run {
    seed: u64,
    world: Arc<World>,
    running: Running,
    reloader: Reloader,
    model: Model,
    /// The plan of each epoch.
    epochs: BTreeMap<usize, Model>,
    /// By sink: the last epoch whose records were given up.
    given_up: BTreeMap<&'static str, usize>,
    told: Vec<String>,
}

impl Run {
    async fn start(seed: u64, directory: &Path) -> Self {
        let world = Arc::<World>::default();
        let works = |reads, blocks| SinkModel {
            reads,
            version: 0,
            mode: Mode::Works,
            has_tags: false,
            blocks,
        };
        let model = Model {
            channels: CHANNELS.to_vec(),
            sinks: [
                ("a", works(Reads::Channel("c1"), true)),
                ("b", works(Reads::Channel("c2"), false)),
            ]
            .into(),
        };
        let environment = Launch {
            once: false,
            open_memory: MemoryChannel::open,
            meters: Meters::default(),
        };
        let started = launch(model.plan(directory, &world), environment).await;
        let (running, reloader) = started.unwrap();
        Self {
            seed,
            epochs: [(0, model.clone())].into(),
            world,
            running,
            reloader,
            model,
            given_up: BTreeMap::new(),
            told: Vec::new(),
        }
    }

    /// Reloads. Returns the reason if the reload was refused.
    async fn reload(
        &mut self,
        model: Model,
        forget: &[String],
        directory: &Path,
    ) -> Option<String> {
        let before = self.shown();
        let epoch = self.world.epoch.fetch_add(1, SeqCst);
        let plan = model.plan(directory, &self.world);
        let reloaded = timeout(PATIENCE, self.reloader.reload(plan, forget)).await;
        let reloaded = reloaded.unwrap_or_else(|_| panic!("the reload hangs: {}", self.story()));
        let refused = reloaded.err().map(|failure| failure.message);
        let outcome = refused.as_deref().unwrap_or("applied");
        self.told
            .push(format!("{model:?} forget {forget:?}: {outcome}"));
        match &refused {
            Some(_) => {
                let kept = self.shown();
                let is_there = |name: &String| kept.contains(name);
                // A leaving node may have ended in the meantime.
                let planned = before.iter().filter(|name| self.plans(name));
                assert!({ planned }.all(is_there), "{}", self.story());
            }
            None => {
                for name in SINKS
                    .into_iter()
                    .filter(|it| forget.iter().any(|f| f == it))
                {
                    self.given_up.insert(name, epoch);
                }
                self.model = model;
            }
        }
        let now = self.world.epoch.fetch_add(1, SeqCst) + 1;
        self.epochs.insert(now, self.model.clone());
        refused
    }

    fn shown(&self) -> Vec<String> {
        let nodes = self.running.nodes.now();
        nodes.iter().map(|node| node.name.to_string()).collect()
    }

    fn plans(&self, name: &str) -> bool {
        let is_source = ["durable", "fast"].contains(&name);
        is_source || self.model.channels.contains(&name) || self.model.sinks.contains_key(name)
    }

    /// Every node of the plan is shown, and runs, waits and says for what, or has failed and says why.
    fn check(&self) {
        let nodes = self.running.nodes.now();
        let sinks = self.model.sinks.keys();
        for name in self.model.channels.iter().chain(sinks) {
            let Some(node) = nodes.iter().find(|node| *node.name == **name) else {
                panic!("{name} is not shown: {}", self.story());
            };
            let is_named = match node.state() {
                NodeState::Running => true,
                NodeState::Planned => {
                    let mut conditions = node.reporter.conditions().into_iter();
                    let says = conditions.any(|held| held.why.contains("earlier task"));
                    // It may have begun since.
                    says || node.state() != NodeState::Planned
                }
                NodeState::Failed(why) => !why.is_empty(),
                NodeState::Ended => false,
            };
            assert!(is_named, "{name} {:?}: {}", node.state(), self.story());
        }
    }

    /// Waits until all earlier tasks have ended and all present ones run.
    async fn settle(&self) {
        let began = Instant::now();
        loop {
            let nodes = self.running.nodes.now();
            let waits = |node: &&millstream_pipeline::running::NodeStatus| {
                node.is_leaving || node.state() != NodeState::Running
            };
            let left: Vec<_> = nodes.iter().filter(waits).collect();
            if left.is_empty() {
                return;
            }
            let show = |node: &&millstream_pipeline::running::NodeStatus| {
                format!(
                    "{} {:?} {:?}",
                    node.name,
                    node.state(),
                    node.reporter.conditions()
                )
            };
            let left: Vec<_> = left.iter().map(show).collect();
            assert!(began.elapsed() < PATIENCE, "{left:?}: {}", self.story());
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// The records that sinks must have and do not have.
    fn missing(&self) -> Vec<(&'static str, u64, usize)> {
        let (acked, delivered) = (self.world.acked.lock().unwrap(), &self.world.delivered);
        let delivered = delivered.lock().unwrap();
        let mut missing = Vec::new();
        for (record, epoch) in acked.iter() {
            let Some(model) = self.epochs.get(epoch) else {
                continue;
            };
            for (name, sink) in &model.sinks {
                let is_given_up = self.given_up.get(name).is_some_and(|end| epoch <= end);
                let has = delivered.get(name).is_some_and(|it| it.contains(record));
                if sink.reads != Reads::Memory && !is_given_up && !has {
                    missing.push((*name, *record, *epoch));
                }
            }
        }
        missing
    }

    fn story(&self) -> String {
        format!("seed {}:\n{}", self.seed, self.told.join("\n"))
    }

    async fn finish(mut self, directory: &Path) {
        for mode in self.world.modes.lock().unwrap().iter() {
            mode.store(Mode::Works as u8, SeqCst);
        }
        let repaired = self.model.repaired(1000);
        let refused = self.reload(repaired, &[], directory).await;
        assert_eq!(refused, None, "{}", self.story());
        self.settle().await;
        let began = Instant::now();
        while !self.missing().is_empty() {
            let (missing, all) = (self.missing(), self.world.acked.lock().unwrap().len());
            let some = &missing[..missing.len().min(5)];
            let is_late = began.elapsed() >= PATIENCE;
            assert!(
                !is_late,
                "{} of {all} {some:?}: {}",
                missing.len(),
                self.story()
            );
            sleep(Duration::from_millis(50)).await;
        }
        self.running.stop();
        let ended = timeout(PATIENCE, self.running.ended()).await;
        let ended = ended.unwrap_or_else(|_| panic!("the stop hangs: {}", self.story()));
        assert_eq!(ended, [], "{}", self.story());
    }
}

async fn sequence(seed: u64) {
    let directory = tempfile::tempdir().unwrap();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut run = Run::start(seed, directory.path()).await;
    for step in 1..=STEPS {
        if random.one_in(4) {
            let modes = run.world.modes.lock().unwrap();
            let mode = Mode::ALL[random.below(3)];
            modes.iter().for_each(|it| it.store(mode as u8, SeqCst));
            run.told.push(format!("all destinations: {mode:?}"));
        }
        let model = Model::random(&mut random, &run.model, step);
        let forget = SINKS.into_iter().filter(|_| random.one_in(3));
        let forget: Vec<_> = forget.map(str::to_owned).collect();
        if run
            .reload(model.clone(), &forget, directory.path())
            .await
            .is_some()
            && !forget.is_empty()
        {
            run.reload(model, &[], directory.path()).await;
        }
        run.check();
        let wait = [0, 30, 300, 900][random.below(4)];
        sleep(Duration::from_millis(wait)).await;
    }
    run.finish(directory.path()).await;
}

fn run(seeds: &[u64]) {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    let one = std::env::var("SEED")
        .ok()
        .map(|seed| vec![seed.parse().unwrap()]);
    for seed in one.as_deref().unwrap_or(seeds) {
        println!("SEED={seed}");
        runtime.block_on(sequence(*seed));
    }
}

/// The seed of a sequence that no run had before.
fn new_seed() -> u64 {
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_nanos() % 1_000_000_007).unwrap()
}

#[test]
fn every_node_ends_is_replaced_or_is_named_in_a_known_sequence() {
    run(&[1]);
}

#[test]
fn every_node_ends_is_replaced_or_is_named_in_another_known_sequence() {
    run(&[4]);
}

#[test]
fn every_node_ends_is_replaced_or_is_named_in_a_new_sequence() {
    run(&[new_seed()]);
}
