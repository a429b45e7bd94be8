//! The nodes as `status` shows them after a reload.

use std::sync::Arc;

use super::laying::End;
use crate::{
    graph::Graph,
    plan::{ChannelPlan, Plan, ProcessorPlan, SinkPlan, filled},
    running::{ConsumerStatus, NodeStatus},
};

/// The parts of the picture that `status` shows after a reload.
pub(super) struct Picture<'a> {
    pub(super) plan: &'a Plan,
    /// All sources of the plan. Their places in `plan` are empty by now.
    pub(super) sources: Vec<End>,
    /// The nodes that the reload has started.
    pub(super) new: Vec<NodeStatus>,
}

impl Picture<'_> {
    /// Returns the nodes of the plan: channels, processors, sinks and sources, then removed nodes that have not ended yet. `old` are the
    /// nodes that were shown before.
    pub(super) fn nodes(
        self,
        old: &[NodeStatus],
        graph: &Graph,
        is_leaving: impl Fn(&str) -> bool,
    ) -> Vec<NodeStatus> {
        let Self { plan, sources, new } = self;
        let channels: Vec<_> = plan.channels.iter().map(|it| it.name.clone()).collect();
        let find = |name: &Arc<str>| {
            let node = new.iter().chain(old).find(|it| it.name == *name);
            node.cloned()
        };
        let pumps = plan.channels.iter().filter(|it| it.input.is_some());
        let all = plan.channels.iter().map(|it| it.name.clone());
        let mut all: Vec<_> = all
            .chain(pumps.map(ChannelPlan::pump))
            .filter_map(|name| find(&name))
            .collect();
        let processor = |it: &ProcessorPlan| NodeStatus {
            name: it.name.clone(),
            section: "processor",
            kind: it.kind,
            states: Vec::new(),
            reporter: graph.known_reporter(&it.name),
            fills: filled(&it.rejects, &channels),
            feeds: it.consumers.clone(),
            consumer: None,
            is_leaving: false,
        };
        all.extend(plan.processors.iter().map(processor));
        let sink = |it: &SinkPlan| {
            let node = find(&it.name)?;
            let settles_within = it.sink.settles_within();
            let consumer = node.consumer.map(|consumer| ConsumerStatus {
                settles_within,
                ..consumer
            });
            Some(NodeStatus {
                kind: it.kind,
                fills: filled(&it.rejects, &channels),
                consumer,
                ..node
            })
        };
        all.extend(plan.sinks.iter().filter_map(sink));
        let source = |End { name, kind, fills }: End| {
            let node = find(&name)?;
            Some(NodeStatus {
                kind,
                fills,
                ..node
            })
        };
        all.extend(sources.into_iter().filter_map(source));
        let has_left = |node: &&NodeStatus| {
            let is_gone = all.iter().all(|it| it.name != node.name);
            is_gone && is_leaving(&node.name)
        };
        let leaving = old.iter().filter(has_left).map(|node| NodeStatus {
            is_leaving: true,
            fills: Vec::new(),
            ..node.clone()
        });
        let leaving: Vec<_> = leaving.collect();
        all.extend(leaving);
        all
    }
}
