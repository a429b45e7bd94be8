//! A running pipeline: its nodes as `status` shows them, and its stop. At a stop, the sources drain and end first, then the sinks, then
//! the channels.

#[cfg(test)]
mod tests;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use arc_swap::ArcSwap;
use millstream_record::Pool;
use tokio::sync::mpsc;

use crate::{
    channel::Channel,
    data_dir::DataDir,
    ending::Event,
    failure::Failure,
    graph::REJECTED_KEPT,
    meters::Meters,
    plan::Link,
    report::Reporter,
    started::{Open, Started},
    stop::{Stop, Stopper},
    supervise::{NodeState, StateCell},
    threads::Threads,
};

/// A node as `status` shows it.
#[derive(Clone)]
pub struct NodeStatus {
    /// The name in the configuration.
    pub name: Arc<str>,
    /// `source`, `processor`, `channel` or `sink`.
    pub section: &'static str,
    /// The type.
    pub kind: &'static str,
    /// The state of each of its supervised tasks. Empty for a node without such tasks, for example a processor.
    pub states: Vec<StateCell>,
    /// The reporter, which holds its conditions.
    pub reporter: Reporter,
    /// The durable channels that it fills. While one of them is blocked, the node counts as blocked.
    pub fills: Vec<Arc<str>>,
    /// The channels and sinks in front of which a processor runs. Empty for other nodes.
    pub feeds: Vec<Arc<str>>,
    /// Set only for a sink.
    pub consumer: Option<ConsumerStatus>,
    /// The node is no longer in the configuration and is ending.
    pub is_leaving: bool,
}

/// The input of a sink, and how long the sink may take to settle a batch.
#[derive(Clone, Default)]
pub struct ConsumerStatus {
    /// The memory channel in front of the sink, if the sink does not read a durable channel.
    pub queue: Option<Weak<dyn Channel>>,
    /// The longest time from taking a batch to settling it while the destination works. `None`: the time depends on the destination.
    pub settles_within: Option<Duration>,
}

impl ConsumerStatus {
    /// (used, limit) of the memory channel in front of the sink, in bytes. `None` if the sink reads a durable channel.
    pub fn fill(&self) -> Option<(u64, u64)> {
        self.queue.as_ref()?.upgrade()?.fill()
    }
}

impl NodeStatus {
    /// Returns the worst state of the node's tasks.
    pub fn state(&self) -> NodeState {
        let states: Vec<_> = self.states.iter().map(StateCell::get).collect();
        let rank = |state: &NodeState| match state {
            NodeState::Failed(_) => 3,
            NodeState::Planned => 2,
            NodeState::Running => 1,
            NodeState::Ended => 0,
        };
        states
            .into_iter()
            .max_by_key(rank)
            .unwrap_or(NodeState::Running)
    }
}

/// All nodes and the connections between them. Clones share them; a reload changes them.
#[derive(Clone, Default)]
pub struct Nodes(Arc<ArcSwap<Picture>>);

/// The nodes and connections as of the last reload.
#[derive(Default)]
struct Picture {
    nodes: Arc<Vec<NodeStatus>>,
    links: Arc<Vec<Link>>,
}

impl Nodes {
    /// Returns the current nodes, without removed nodes that have ended.
    pub fn now(&self) -> Arc<Vec<NodeStatus>> {
        let nodes = self.0.load().nodes.clone();
        let has_left = |node: &NodeStatus| node.is_leaving && node.state() == NodeState::Ended;
        if !nodes.iter().any(has_left) {
            return nodes;
        }
        let left = nodes.iter().filter(|node| !has_left(node));
        Arc::new(left.cloned().collect())
    }

    /// Returns the current connections as they run: with a pump in front of each channel that reads another channel.
    pub fn links(&self) -> Arc<Vec<Link>> {
        self.0.load().links.clone()
    }

    pub(crate) fn replace(&self, all: Vec<NodeStatus>, links: Vec<Link>) {
        self.0.store(Arc::new(Picture {
            nodes: Arc::new(all),
            links: Arc::new(links),
        }));
    }
}

/// A running pipeline.
pub struct Running {
    /// All nodes.
    pub nodes: Nodes,
    /// All meters.
    pub meters: Meters,
    /// The memory of all batches.
    pub pool: Pool,
    pub(crate) ends: mpsc::Receiver<Event>,
    pub(crate) started: Arc<Started>,
    pub(crate) channels: Vec<Open>,
    /// The channels that have closed at the end, for [`Running::left`].
    pub(crate) closed: Vec<Open>,
    /// The result of [`Running::dropped`] when the stop began.
    pub(crate) dropped_before: u64,
    pub(crate) stop_sources: Stopper,
    pub(crate) stop_sinks: Stopper,
    pub(crate) stopping: bool,
    /// Whether the process ends when all nodes have ended, even if one has failed.
    pub(crate) once: bool,
    /// The failures, each with its node. The name is empty if no reload can repair the failure.
    pub(crate) failures: Vec<(Arc<str>, Failure)>,
    pub(crate) _threads: Threads,
    /// The directory of rejected records that no node takes.
    pub(crate) rejected_place: PathBuf,
    pub(crate) data_dir: DataDir,
}

impl Running {
    /// Asks all nodes to drain and end.
    pub fn stop(&mut self) {
        if !self.stopping {
            self.dropped_before = self.dropped();
        }
        self.stopping = true;
        self.watch_channels();
        self.stop_sources.stop();
        self.let_sinks_stop();
    }

    /// Adds a failure that is not of a node. [`Running::ended`] returns it, too.
    pub fn fail(&mut self, failure: Failure) {
        self.failures.push(("".into(), failure));
    }

    /// Stops the sinks once all sources have ended. A durable channel keeps unread batches for the next start.
    fn let_sinks_stop(&self) {
        if self.stopping && self.started.sources() == 0 {
            self.stop_sinks.stop();
        }
    }

    /// Returns when all nodes have ended: because all inputs ended, after [`Running::stop`], or because a node failed permanently and no reload repaired it.
    /// Returns the failures. A node whose own state cannot be used ([`crate::failure::Who::State`]) does not make the others end, because a restart of
    /// the process would find the same state. After such a failure, the method returns only after [`Running::stop`] or with `--once`.
    /// Cancel safe: the future can be dropped and the method called again.
    pub async fn ended(&mut self) -> Vec<Failure> {
        if self.once {
            // The channels close as soon as the inputs have ended.
            self.watch_channels();
        }
        while self.started.all() > 0 || self.waits_for_operator() {
            let Some(told) = self.ends.recv().await else {
                break;
            };
            let is_last = matches!(told, Event::Ended { is_source: true });
            self.note(told);
            if is_last && self.started.sources() == 0 && !self.once && !self.stopping {
                tracing::info!(
                    "all sources have ended: the process ends when the sinks have delivered everything"
                );
            }
            self.let_sinks_stop();
        }
        if self.waits_for_operator() {
            std::future::pending::<()>().await;
        }
        self.see_channels();
        while let Some(channel) = self.channels.last_mut() {
            let finished = channel.finished().await;
            self.closed.extend(self.channels.pop());
            let failed = finished.err().map(|failure| ("".into(), failure));
            self.failures.extend(failed);
        }
        let failures = std::mem::take(&mut self.failures);
        failures.into_iter().map(|(_, failure)| failure).collect()
    }

    /// The failures that no reload has repaired.
    #[cfg(test)]
    pub(crate) fn failures_now(&self) -> &[(Arc<str>, Failure)] {
        &self.failures
    }

    /// Whether all tasks have ended, but some failed. The process then waits for a reload or a stop.
    fn waits_for_operator(&self) -> bool {
        !self.failures.is_empty() && !self.once && !self.stopping
    }

    fn note(&mut self, told: Event) {
        match told {
            Event::Ended { is_source } => self.started.end(is_source),
            Event::Failed {
                is_source,
                node,
                failure,
                stops,
            } => {
                self.started.end(is_source);
                if stops {
                    self.stop();
                }
                self.failures.push((node, failure));
            }
            Event::Repaired(node) => self.failures.retain(|(failed, _)| *failed != node),
        }
    }

    /// Called when the drain deadline has passed. Every durable channel keeps as much as it has space for, drops the rest, and closes.
    /// Sources then no longer wait for space, and [`Running::ended`] can return.
    pub fn give_up_waiting(&mut self) {
        self.see_channels();
        self.channels.iter().for_each(Open::give_up_waiting);
    }

    fn see_channels(&mut self) {
        self.channels.extend(self.started.take_channels());
    }

    fn watch_channels(&mut self) {
        self.see_channels();
        self.channels.iter_mut().for_each(Open::watch);
    }

    /// After the end: the durable channels that hold records for the next start, and how many bytes the slowest consumer of each has not
    /// settled.
    pub fn left(&self) -> Vec<(&str, u64)> {
        let all = self.channels.iter().chain(&self.closed).map(Open::left);
        let mut all: Vec<_> = all.filter(|(_, bytes)| *bytes > 0).collect();
        all.sort_unstable();
        all
    }

    /// Called if [`Running::ended`] has not returned in time. Returns whether all durable channels are closed and hold everything that
    /// was accepted; returns `false` if there are no durable channels. If true, nothing is lost when the process exits, even if some nodes
    /// hang.
    pub async fn is_all_kept(&mut self) -> bool {
        self.see_channels();
        let has_channels = !self.channels.is_empty();
        while let Some(channel) = self.channels.last_mut() {
            match channel.is_finished().await {
                Some(Ok(())) => self.closed.extend(self.channels.pop()),
                _ => return false,
            }
        }
        has_channels && self.pending_records() == 0 && self.failures.is_empty()
    }

    /// Returns the number of records that were read and then dropped since the stop, and whose senders cannot send them again.
    pub fn lost_records(&self) -> u64 {
        self.dropped().saturating_sub(self.dropped_before)
    }

    fn dropped(&self) -> u64 {
        let meters = self.meters.snapshot();
        let lost = meters.iter().filter(|(node, name, _)| {
            *name == "records_dropped" && self.started.is_unanswering(node)
        });
        lost.map(|(_, _, records)| records).sum()
    }

    /// Why `data_dir` cannot be used; `None` if it can.
    pub fn unusable_data_dir(&self) -> Option<&str> {
        self.data_dir.unusable()
    }

    /// The directory of rejected records that no node takes.
    pub fn rejected_place(&self) -> &Path {
        &self.rejected_place
    }

    /// Returns a handle that resolves when the sources are stopped.
    pub fn stopping(&self) -> Stop {
        self.stop_sources.watch()
    }

    /// Returns the nodes whose rejected records went to files because no node takes them, with the number of these records.
    pub fn rejected_records(&self) -> Vec<(Arc<str>, u64)> {
        let meters = self.meters.snapshot().into_iter();
        meters
            .filter(|(_, name, count)| *name == REJECTED_KEPT && *count > 0)
            .map(|(node, _, count)| (node, count))
            .collect()
    }

    /// Returns the number of records that were accepted into memory and are neither settled nor dropped.
    pub fn pending_records(&self) -> u64 {
        self.meters
            .snapshot()
            .iter()
            .filter(|(_, name, _)| *name == "pending_records")
            .map(|(_, _, n)| n)
            .sum()
    }
}
