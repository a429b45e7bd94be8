//! The runtime with real memory channels and simple nodes: panics, permanent failures, drain, rejected records, threads.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use millstream_channels::memory::MemoryChannel;
use millstream_config::RejectedLimits;
use millstream_pipeline::{
    failure::Failure,
    inlet::{Inlet, Item},
    launch::{Launch, launch},
    meters::Meters,
    node::{LocalFuture, Placement, Sink, SinkContext, Source, SourceContext},
    plan::{Input, Plan, Route, RunSettings, SinkPlan, SourcePlan, Target},
    promise::{Guarantee, Promise},
    running::Running,
    threads,
};
use millstream_record::{Batch, Encoding, Values};

const THREADS: usize = 3;

fn batch(text: &str) -> Batch {
    Batch {
        tag: "t".into(),
        plain: false,
        encoding: Encoding::Lines,
        body: format!("{text}\n").into_bytes().into(),
        count: 1,
        received: Default::default(),
        values: Arc::new(Values::new()),
        origins: Vec::new(),
    }
}

/// Sends numbered lines, resending each until it is settled, and then waits for the stop if `waits`.
struct Numbers {
    count: u32,
    waits: bool,
}

impl Source for Numbers {
    fn bind(&mut self, _: &SourceContext) -> Result<(), Failure> {
        Ok(())
    }

    fn run<'a>(&'a mut self, mut context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            for n in 0..self.count {
                while context
                    .outlet
                    .send(batch(&n.to_string()), true)
                    .await
                    .await
                    .is_err()
                {
                    tokio::task::yield_now().await;
                }
            }
            if self.waits {
                context.stop.stopped().await;
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

/// Decides how the sink treats its nth batch, counted over all its runs.
type Act = fn(u32) -> Then;

enum Then {
    Accept,
    Reject,
    Panic,
    Fail(Failure),
}

struct Keeper {
    placement: Placement,
    act: Act,
    seen: AtomicU32,
    kept: Mutex<Vec<String>>,
    lanes: Mutex<BTreeSet<usize>>,
}

impl Keeper {
    fn new(placement: Placement, act: Act) -> Arc<Self> {
        Arc::new(Self {
            placement,
            act,
            seen: AtomicU32::new(0),
            kept: Mutex::default(),
            lanes: Mutex::default(),
        })
    }

    fn kept(&self) -> Vec<String> {
        let mut kept = self.kept.lock().unwrap().clone();
        kept.dedup();
        kept
    }
}

impl Sink for Keeper {
    fn placement(&self) -> Placement {
        self.placement
    }

    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        _: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            inlet.resume(None)?;
            while let Some(item) = inlet.next().await? {
                match item {
                    Item::Checkpoint(checkpoint) => inlet.settle(checkpoint).await?,
                    Item::Batch(batch, _) => {
                        self.lanes.lock().unwrap().insert(threads::lane());
                        match (self.act)(self.seen.fetch_add(1, Ordering::Relaxed)) {
                            Then::Accept => {
                                self.kept
                                    .lock()
                                    .unwrap()
                                    .push(String::from_utf8_lossy(&batch.body).trim().to_owned());
                            }
                            Then::Reject => {
                                inlet.reject(&batch, [&batch.body[..]], "not wanted").await
                            }
                            Then::Panic => panic!("made up"),
                            Then::Fail(failure) => return Err(failure),
                        }
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

async fn start(directory: &Path, sources: Vec<Numbers>, sink: Arc<Keeper>) -> Running {
    let source = |(at, source): (usize, Numbers)| SourcePlan {
        options: "".into(),
        name: format!("source-{at}").into(),
        kind: "numbers",
        source: Box::new(source),
        routes: vec![Route {
            to: Target::Sink(0),
            entry: 0,
            tags: None,
        }],
        rejects: Vec::new(),
    };
    let plan = Plan {
        processors: Vec::new(),
        links: Vec::new(),
        sources: sources.into_iter().enumerate().map(source).collect(),
        channels: Vec::new(),
        sinks: vec![SinkPlan {
            options: "".into(),
            chain: None,
            name: "sink".into(),
            kind: "keeper",
            sink,
            input: Input::Memory {
                queue_bytes: 1000,
                tasks: Default::default(),
            },
            rejects: Vec::new(),
        }],
        settings: RunSettings {
            data_dir: directory.join("data"),
            memory_max: 1 << 20,
            threads: THREADS,
            host: "here".into(),
            rejected: RejectedLimits::default(),
        },
    };
    let start = Launch {
        once: true,
        open_memory: MemoryChannel::open,
        meters: Meters::default(),
    };
    launch(plan, start).await.unwrap().0
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

fn numbers(count: u32) -> Vec<String> {
    (0..count).map(|n| n.to_string()).collect()
}

#[test]
fn a_sink_that_panics_is_restarted_and_no_unacknowledged_batch_is_lost() {
    for placement in [Placement::OwnThread, Placement::DataThreads] {
        let directory = tempfile::tempdir().unwrap();
        let sink = Keeper::new(
            placement,
            |n| if n == 3 { Then::Panic } else { Then::Accept },
        );
        run(async {
            let mut running = start(
                directory.path(),
                vec![Numbers {
                    count: 20,
                    waits: false,
                }],
                sink.clone(),
            )
            .await;
            assert!(running.ended().await.is_empty());
            assert_eq!(running.pending_records(), 0);
        });
        assert_eq!(sink.kept(), numbers(20));
    }
}

#[test]
fn a_permanent_failure_ends_the_run_and_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let sink = Keeper::new(Placement::OwnThread, |_| {
        Then::Fail(Failure::config("the disk is a teapot"))
    });
    run(async {
        let mut running = start(
            directory.path(),
            vec![
                Numbers {
                    count: 0,
                    waits: true,
                },
                Numbers {
                    count: 1,
                    waits: true,
                },
            ],
            sink,
        )
        .await;
        // The second source waits for an acknowledgement that never arrives, and does not notice the stop.
        let ended = tokio::time::timeout(std::time::Duration::from_secs(2), running.ended()).await;
        let nodes = running.nodes.now();
        let node = nodes.iter().find(|node| &*node.name == "sink").unwrap();
        assert!(
            format!("{:?}", node.state()).contains("teapot"),
            "{:?} {ended:?}",
            node.state()
        );
    });
}

#[test]
fn a_stop_delivers_everything_in_flight() {
    let directory = tempfile::tempdir().unwrap();
    let sink = Keeper::new(Placement::OwnThread, |_| Then::Accept);
    run(async {
        let mut running = start(
            directory.path(),
            vec![Numbers {
                count: 50,
                waits: true,
            }],
            sink.clone(),
        )
        .await;
        while sink.kept().len() < 10 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        running.stop();
        assert!(running.ended().await.is_empty());
    });
    assert_eq!(sink.kept(), numbers(50));
}

#[test]
fn rejected_records_without_a_consumer_go_to_the_data_dir() {
    let directory = tempfile::tempdir().unwrap();
    let sink = Keeper::new(Placement::OwnThread, |n| {
        if n == 1 { Then::Reject } else { Then::Accept }
    });
    run(async {
        let mut running = start(
            directory.path(),
            vec![Numbers {
                count: 3,
                waits: false,
            }],
            sink.clone(),
        )
        .await;
        assert!(running.ended().await.is_empty());
        assert_eq!(running.meters.value("sink", "records_rejected"), 1);
    });
    assert_eq!(sink.kept(), ["0", "2"]);
    let kept = std::fs::read(directory.path().join("data/rejected/sink.msgpack")).unwrap();
    let text = String::from_utf8_lossy(&kept).into_owned();
    assert!(
        text.contains("not wanted") && text.contains("1\n"),
        "{text:?}"
    );
}

#[test]
fn sources_and_sinks_use_every_data_thread() {
    let directory = tempfile::tempdir().unwrap();
    let sink = Keeper::new(Placement::DataThreads, |_| Then::Accept);
    run(async {
        let sources = (0..THREADS)
            .map(|_| Numbers {
                count: 5,
                waits: false,
            })
            .collect();
        assert!(
            start(directory.path(), sources, sink.clone())
                .await
                .ended()
                .await
                .is_empty()
        );
    });
    assert_eq!(*sink.lanes.lock().unwrap(), (0..THREADS).collect());
}
