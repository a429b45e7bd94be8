//! Starts the tasks of sources and sinks.

mod life;
#[cfg(test)]
mod tests;

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Weak},
};

use millstream_record::Pool;
use tokio::sync::mpsc;

use crate::{
    chain::{ChainReader, Swap},
    channel::{self, Channel, Reader},
    ending::{Ending, Event},
    failure::Failure,
    meters::Meters,
    node::{Placement, Sink, SinkContext, Source, SourceContext},
    outlet::{Feed, Outlet},
    probation::{Gate, Path, Probation, Watched},
    readings::Readings,
    report::Reporter,
    seat::Seat,
    started::Started,
    stop::{Stop, Stopper, stop},
    supervise::{self, StateCell},
    tags::TagFilter,
    threads::{Parked, Threads, busy},
};

use life::SinkTask;

/// Starts tasks, and reports to the pipeline how each of them ends.
pub(crate) struct Starter {
    pub(crate) threads: Threads,
    pub(crate) pool: Pool,
    pub(crate) meters: Meters,
    pub(crate) data_dir: PathBuf,
    /// Why `data_dir` cannot be used. Nodes that need it do not run then.
    pub(crate) unusable: Option<Arc<str>>,
    pub(crate) host: Arc<str>,
    pub(crate) once: bool,
    pub(crate) stop_sources: Stopper,
    pub(crate) stop_sinks: Stopper,
    /// Tells the pipeline how each task ends.
    pub(crate) ends: mpsc::Sender<Event>,
    pub(crate) started: Arc<Started>,
    pub(crate) readings: Arc<Readings>,
    pub(crate) probation: Probation,
    /// The number of sources started so far, which spreads them over the data threads.
    pub(crate) sources: usize,
    /// Starts a thread for a task that may block. Tests replace it.
    pub(crate) park: fn(&str) -> io::Result<Parked>,
}

/// A source or sink whose tasks run.
pub(crate) struct Seated<T> {
    /// One for each task.
    pub(crate) seats: Vec<Seat<T>>,
    /// Resolves when the last of its tasks has ended.
    pub(crate) ended: Stop,
}

/// A sink that is connected and does not run yet.
pub(crate) struct LaidSink {
    pub(crate) name: Arc<str>,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) lanes: Vec<Lane>,
    /// Whether the lanes run on the data threads.
    pub(crate) is_on_threads: bool,
    /// The id of the durable channel that the sink reads. `None` behind a memory channel.
    pub(crate) channel: Option<u128>,
    /// The name of this channel.
    pub(crate) input: Option<Arc<str>>,
    /// The memory channel in front of the sink.
    pub(crate) queue: Option<Weak<dyn Channel>>,
    pub(crate) rejects: Outlet,
    /// The node whose rejected records the records are that the path of the sink sets aside, and its port for them. `None` behind a memory
    /// channel.
    pub(crate) aside: Option<(Arc<str>, Outlet)>,
    pub(crate) reporter: Reporter,
}

/// The input of one task of a sink.
pub(crate) struct Lane {
    pub(crate) supply: Supply,
    /// The chain that the lane's reader runs, and the tags that the sink takes. These tags apply only to batches that pass through no
    /// processor. `None` if the reader runs no chain.
    pub(crate) chain: Option<(Arc<Swap>, Option<TagFilter>)>,
    pub(crate) state: StateCell,
    /// The thread of the lane. `None` if the lane runs on a data thread.
    pub(crate) thread: Option<Parked>,
}

/// How a lane obtains its reader.
pub(crate) enum Supply {
    Reader(Box<dyn Reader>),
    /// An earlier task of the sink still has the reader of this consumer. Once that task has ended, the channel makes another one. The
    /// channel stays open until then.
    Channel(Arc<Feed>, channel::Consumer),
    /// The reader was handed over.
    Taken,
}

/// A source that has bound its addresses.
pub(crate) struct BoundSource {
    pub(crate) source: Box<dyn Source>,
    pub(crate) seat: Seat<Box<dyn Source>>,
    pub(crate) context: SourceContext,
    pub(crate) state: StateCell,
}

impl Supply {
    async fn reader(self) -> Result<Box<dyn Reader>, Failure> {
        let ended = || Failure::state("its channel has ended");
        let (feed, consumer) = match self {
            Self::Reader(reader) => return Ok(reader),
            Self::Channel(feed, consumer) => (feed, consumer),
            Self::Taken => return Err(ended()),
        };
        let attached = feed.channel().attach(consumer);
        // Held until the reader exists: then the reader gets everything, even if the channel closes.
        let attached = attached.await.map_err(|_| ended());
        drop(feed);
        Ok(attached?.map_err(Failure::state)?.reader)
    }
}

impl Lane {
    /// Obtains the reader, with the chain in front of the sink. `path` puts its positions in probation after an unclean end.
    async fn reader(
        &mut self,
        sink: &Arc<str>,
        path: Option<Arc<Path>>,
    ) -> Result<Box<dyn Reader>, Failure> {
        let supply = std::mem::replace(&mut self.supply, Supply::Taken);
        let reader = supply.reader().await?;
        let Some((swap, tags)) = self.chain.take() else {
            return Ok(reader);
        };
        let chain = |reader| ChainReader::new(reader, tags, swap).of_sink(sink);
        Ok(match path {
            None => Box::new(chain(reader)),
            Some(path) => {
                let gate = Gate::new(reader, path.clone());
                Box::new(Watched::new(chain(Box::new(gate)), path))
            }
        })
    }
}

impl Starter {
    /// Returns a new seat, and the context of the source that will sit in it.
    pub(crate) fn source_context(
        &self,
        name: &Arc<str>,
        follows: Arc<[Arc<str>]>,
        reporter: &Reporter,
        (outlet, rejects): (Outlet, Outlet),
    ) -> (Seat<Box<dyn Source>>, SourceContext) {
        let (seat, stop) = Seat::new(&self.stop_sources);
        let context = SourceContext {
            name: name.clone(),
            follows,
            outlet,
            rejects,
            threads: self.threads.clone(),
            stop,
            once: self.once,
            pool: self.pool.clone(),
            meters: self.meters.of(name),
            reporter: reporter.clone(),
            host: self.host.clone(),
            directory: self.data_dir.join("sources").join(&**name),
        };
        (seat, context)
    }

    /// Starts a source once the earlier source of its name has ended (`before`).
    pub(crate) async fn source(
        &mut self,
        bound: BoundSource,
        before: Vec<Stop>,
    ) -> Seated<Box<dyn Source>> {
        let BoundSource {
            source,
            seat,
            context,
            state,
        } = bound;
        let (running, ended) = stop();
        let seated = Seated {
            seats: vec![seat.clone()],
            ended,
        };
        let reporter = context.reporter.clone();
        let ending = Ending::new(&self.ends, true, &context.name, &state, &reporter);
        let readings = self.readings.clone();
        let run = async move || {
            let _running = running;
            for mut earlier in before {
                earlier.stopped().await;
            }
            let asked = seat.clone();
            let (stop, once, told) = (context.stop.clone(), context.once, context.reporter.clone());
            let end = supervise::source(source, seat, context, state, readings).await;
            if end.is_ok() && !once && !stop.is_stopped() {
                told.info("ended", "the source has no more input and has ended");
            }
            ending.report(end, !asked.is_removed()).await;
        };
        let thread = self.sources % self.threads.count();
        self.sources += 1;
        self.started.begin(true);
        self.threads.spawn_on(thread, &reporter, run).await;
        seated
    }

    fn sink_context(
        &self,
        name: &Arc<str>,
        stop: Stop,
        reporter: &Reporter,
        lane: usize,
    ) -> SinkContext {
        SinkContext {
            name: name.clone(),
            stop,
            pool: self.pool.clone(),
            meters: self.meters.of(name),
            reporter: reporter.clone(),
            directory: self.data_dir.join("sinks").join(&**name),
            lane,
        }
    }

    /// Starts the tasks of a sink once the earlier tasks of its name have ended (`before`).
    pub(crate) async fn sink(
        &mut self,
        laid: LaidSink,
        before: Vec<Stop>,
    ) -> Seated<Arc<dyn Sink>> {
        let (running, ended) = stop();
        let mut seats = Vec::with_capacity(laid.lanes.len());
        for (number, mut lane) in laid.lanes.into_iter().enumerate() {
            let (seat, stop) = Seat::new(&self.stop_sinks);
            seats.push(seat.clone());
            let (name, reporter) = (&laid.name, &laid.reporter);
            let context = self.sink_context(name, stop, reporter, number);
            let (thread, state) = (lane.thread.take(), lane.state.clone());
            let aside = laid.channel.zip(laid.aside.clone());
            let entrance = self.probation.entrance(name, aside, reporter);
            let observed = entrance.clone();
            let task = SinkTask {
                sink: laid.sink.clone(),
                seat,
                context,
                lane,
                entrance,
                channel: laid.channel,
                rejects: laid.rejects.clone(),
                before: before.clone(),
                stop_sources: self.stop_sources.watch(),
                ending: Some(Ending::new(&self.ends, false, name, &state, reporter)),
                ends: self.ends.clone(),
                started: self.started.clone(),
            };
            let running = running.clone();
            let run = async move || {
                // Dropped last, when the reader and the chain of the task are gone.
                let _running = running;
                task.live().await;
            };
            self.started.begin(false);
            match thread {
                Some(thread) => {
                    let meter = reporter.busy().clone();
                    let observe = move |is_parked| observed.observe(is_parked);
                    thread.run(observe, move || busy(meter, run()));
                }
                None => {
                    let thread = number % self.threads.count();
                    self.threads.spawn_on(thread, reporter, run).await;
                }
            }
        }
        Seated { seats, ended }
    }
}

impl LaidSink {
    /// Whether the lanes of a sink run on the data threads. Only a sink that reads from memory can run there.
    pub(crate) fn is_on_threads(sink: &dyn Sink, is_behind_memory: bool) -> bool {
        is_behind_memory && sink.placement() == Placement::DataThreads
    }
}
