//! Starts the tasks of sources and sinks.

#[cfg(test)]
mod tests;

use std::{
    path::PathBuf,
    sync::{Arc, Weak},
};

use millstream_record::Pool;
use tokio::sync::mpsc;

use crate::{
    chain::{ChainReader, Swap},
    channel::{self, Reader},
    ending::Ending,
    failure::Failure,
    inlet::Inlet,
    meters::Meters,
    node::{Placement, Sink, SinkContext, Source, SourceContext},
    outlet::{Feed, Outlet},
    probation::{Gate, Path, Probation, Watched},
    readings::Readings,
    report::Reporter,
    seat::Seat,
    started::Started,
    stop::{Stop, Stopper, stop},
    supervise::{self, End, StateCell},
    tags::TagFilter,
    threads::{Threads, busy, own_thread_observed},
};

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
    /// For each task that ends: whether it was a source, and how it ended.
    pub(crate) ends: mpsc::Sender<(bool, End)>,
    pub(crate) started: Arc<Started>,
    pub(crate) readings: Arc<Readings>,
    pub(crate) probation: Probation,
    /// The number of sources started so far, which spreads them over the data threads.
    pub(crate) sources: usize,
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
}

/// How a lane obtains its reader.
pub(crate) enum Supply {
    Reader(Box<dyn Reader>),
    /// The reader comes from a running durable channel, which creates it for this consumer.
    Channel(Weak<Feed>, channel::Consumer),
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
        let (feed, consumer) = match self {
            Self::Reader(reader) => return Ok(reader),
            Self::Channel(feed, consumer) => (feed, consumer),
        };
        let ended = || Failure::state("its channel has ended");
        let attached = feed.upgrade().map(|feed| feed.channel().attach(consumer));
        let attached = attached.ok_or_else(ended)?.await;
        attached.map_err(|_| ended())?.map_err(Failure::state)
    }
}

impl Lane {
    /// Obtains the reader, with the chain in front of the sink. `path` puts its positions in probation after an unclean end.
    async fn reader(
        self,
        sink: &Arc<str>,
        path: Option<Arc<Path>>,
    ) -> Result<Box<dyn Reader>, Failure> {
        let reader = self.supply.reader().await?;
        let Some((swap, tags)) = self.chain else {
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
        before: Option<Stop>,
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
        let ending = Ending::new(&self.ends, true, &state, &reporter);
        let readings = self.readings.clone();
        let run = async move || {
            let _running = running;
            if let Some(mut before) = before {
                before.stopped().await;
            }
            let end = supervise::source(source, seat, context, state, readings).await;
            ending.report(end).await;
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

    /// Starts the tasks of a sink once the tasks of the earlier sink of its name have ended (`before`).
    pub(crate) async fn sink(
        &mut self,
        laid: LaidSink,
        before: Option<Stop>,
    ) -> Result<Seated<Arc<dyn Sink>>, Failure> {
        let LaidSink {
            name,
            sink,
            lanes,
            is_on_threads,
            channel,
            rejects,
            aside,
            reporter,
        } = laid;
        let (running, ended) = stop();
        let mut seats = Vec::with_capacity(lanes.len());
        for (number, lane) in lanes.into_iter().enumerate() {
            let (seat, stop) = Seat::new(&self.stop_sinks);
            seats.push(seat.clone());
            let context = self.sink_context(&name, stop, &reporter, number);
            let (sink, rejects) = (sink.clone(), rejects.clone());
            let ending = Ending::new(&self.ends, false, &lane.state, &reporter);
            let (running, before) = (running.clone(), before.clone());
            let mut stop_sources = self.stop_sources.watch();
            let aside = channel.zip(aside.clone());
            let entrance = self.probation.entrance(&name, aside, &reporter);
            let observed = entrance.clone();
            let run = async move || {
                let _running = running;
                if let Some(mut before) = before {
                    before.stopped().await;
                }
                let (name, state) = (context.name.clone(), lane.state.clone());
                let mut inlet = match lane.reader(&name, entrance.open()).await {
                    Ok(reader) => {
                        let stop = context.stop.clone();
                        Inlet::new(&name, reader, channel, rejects, stop, &context.meters)
                    }
                    Err(failure) => {
                        let text = format_args!("{failure}; it does not run");
                        context.reporter.error("failed", text);
                        state.fail(&failure);
                        ending.report(Err(failure)).await;
                        return;
                    }
                };
                let end = supervise::sink(sink, seat, &mut inlet, context, state).await;
                // The inlet of a failed sink is kept until the stop, so that sources wait. If it were dropped, the memory channel would accept
                // batches and drop them. Otherwise it is dropped before the end is reported, because the process may exit then.
                let inlet = end.is_err().then_some(inlet);
                ending.report(end).await;
                if inlet.is_some() {
                    stop_sources.stopped().await;
                }
            };
            self.started.begin(false);
            if is_on_threads {
                let thread = number % self.threads.count();
                self.threads.spawn_on(thread, &reporter, run).await;
            } else {
                let meter = reporter.busy().clone();
                let observe = move |is_parked| observed.observe(is_parked);
                let run = move || busy(meter, run());
                own_thread_observed(&name, observe, run).map_err(|error| {
                    Failure::us(format!("cannot start a thread for {name}: {error}"))
                })?;
            }
        }
        Ok(Seated { seats, ended })
    }
}

impl LaidSink {
    /// Whether the lanes of a sink run on the data threads. Only a sink that reads from memory can run there.
    pub(crate) fn is_on_threads(sink: &dyn Sink, is_behind_memory: bool) -> bool {
        is_behind_memory && sink.placement() == Placement::DataThreads
    }
}
