//! Starts a plan: binds everything, then starts sinks and sources.
//!
//! A pipeline ends along the graph: a source that ends drops its outlets, a channel closes when its last outlet is dropped, a closed
//! channel ends its readers, and a sink that ends drops its port for rejected records.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use millstream_record::Pool;
use tokio::sync::mpsc;

use crate::{
    channel::OpenMemory,
    data_dir::DataDir,
    failure::Failure,
    graph::Graph,
    meters::Meters,
    plan::Plan,
    probation::Probation,
    rejected,
    reload::Reloader,
    running::{Nodes, Running},
    start::Starter,
    started::Started,
    stop::stop,
    threads::{Parked, Threads},
};

/// The environment of a launch.
pub struct Launch {
    /// Whether to end once the inputs have ended and everything is settled.
    pub once: bool,
    /// Creates memory channels. This crate cannot import the crate that implements them.
    pub open_memory: OpenMemory,
    /// All meters.
    pub meters: Meters,
}

/// Starts a plan. Everything is bound and recovered before any node runs. The first failure ends the start, with one exception: if
/// a node's own state cannot be used, only this node and the nodes that need it do not run. The [`Reloader`] changes the running
/// pipeline.
pub async fn launch(plan: Plan, launch: Launch) -> Result<(Running, Reloader), Failure> {
    let settings = &plan.settings;
    let data_dir = DataDir::open(&settings.data_dir)?;
    if let Some(why) = data_dir.unusable() {
        tracing::error!("{why}; nodes that need it do not run until Millstream is restarted");
    }
    let threads = start_threads(settings.threads)?;
    let (stop_sources, _) = stop();
    let (stop_sinks, _) = stop();
    let (ends_sender, ends) = mpsc::channel(1024);
    let (pool, meters) = (Pool::new(settings.memory_max), launch.meters);
    let (started, nodes) = (Arc::<Started>::default(), Nodes::default());
    let rejected_place = rejected::directory(&settings.data_dir);
    let graph = Graph::new(&pool, &meters, settings, threads.count());
    let starter = Starter {
        threads: threads.clone(),
        pool: pool.clone(),
        meters: meters.clone(),
        data_dir: settings.data_dir.clone(),
        unusable: data_dir.unusable().map(Into::into),
        host: settings.host.clone(),
        once: launch.once,
        stop_sources: stop_sources.clone(),
        stop_sinks: stop_sinks.clone(),
        ends: ends_sender,
        started: started.clone(),
        readings: Arc::default(),
        probation: Probation::new(&settings.data_dir),
        sources: 0,
        park: Parked::new,
    };
    let mut reloader = Reloader::new(graph, starter, launch.open_memory, nodes.clone());
    let failures = reloader.start(plan).await?;
    let running = Running {
        nodes,
        meters,
        pool,
        ends,
        started,
        channels: Vec::new(),
        closed: Vec::new(),
        dropped_before: 0,
        stop_sources,
        stop_sinks,
        stopping: false,
        once: launch.once,
        failures,
        _threads: threads,
        rejected_place,
        data_dir,
    };
    Ok((running, reloader))
}

fn start_threads(count: usize) -> Result<Threads, Failure> {
    Threads::start(count)
        .map_err(|error| Failure::us(format!("cannot start {count} data threads: {error}")))
}
