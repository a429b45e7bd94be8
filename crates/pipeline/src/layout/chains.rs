//! Folds processors into the chains of their consumers, so that only endpoints (sources, channels and sinks) are left.
//!
//! Every channel and sink owns all processors on the way to it. A processor in front of two sinks is in two chains.

use std::collections::BTreeSet;

use super::{Built, Port, Taker, Takers};
use crate::tags::TagFilter;

/// The graph of endpoints (sources, channels and sinks), and the chains between them.
pub(super) struct Chained {
    /// The consumers of the endpoints' ports, and of all ports for rejected records. Each consumer has the index of the entry (in the
    /// consumer's chain) that the port leads to.
    pub(super) takers: Takers,
    /// For each node its chain; `None` for a node that has no chain.
    pub(super) chains: Vec<Option<ChainLayout>>,
}

/// The chain of one consumer. Nodes are given by their indexes in the list of all nodes.
pub(super) struct ChainLayout {
    /// The processors, ordered so that each one comes after the processors that feed it.
    pub(super) nodes: Vec<usize>,
    /// The ports (of other nodes) that lead into the chain.
    pub(super) entries: Vec<Port>,
}

impl ChainLayout {
    /// Returns the steps from `port` that belong to the chain of `consumer`: processors of the chain, or the consumer itself.
    pub(super) fn steps<'a>(
        &'a self,
        port: Port,
        consumer: usize,
        takers: &'a Takers,
    ) -> impl Iterator<Item = &'a Taker> {
        let all = takers.get(&port).into_iter().flatten();
        all.filter(move |taker| taker.node == consumer || self.nodes.contains(&taker.node))
    }
}

/// Folds processors into chains. The graph has no cycle.
pub(super) fn fold(takers: &Takers, built: &[Option<Built>]) -> Chained {
    let is_processor = |at: usize| matches!(built[at], Some(Built::Processor(_)));
    let mut chained = Chained {
        takers: Takers::new(),
        chains: (0..built.len()).map(|_| None).collect(),
    };
    for consumer in (0..built.len()).filter(|at| !is_processor(*at)) {
        let nodes = upstream(consumer, takers, &is_processor);
        let leads_here = |taker: &&Taker| taker.node == consumer || nodes.contains(&taker.node);
        let mut entries: Vec<Port> = (takers.iter())
            .filter(|((node, exit), _)| !is_processor(*node) || exit.is_rejected())
            .filter(|(_, all)| all.iter().any(|taker| leads_here(&taker)))
            .map(|(port, _)| *port)
            .collect();
        entries.sort_unstable();
        for (entry, port) in entries.iter().enumerate() {
            let hops: Vec<_> = takers[port].iter().filter(leads_here).collect();
            chained.takers.entry(*port).or_default().push(Taker {
                node: consumer,
                tags: common_tags(&hops),
                entry: if nodes.is_empty() { 0 } else { entry },
            });
        }
        if !nodes.is_empty() {
            chained.chains[consumer] = Some(ChainLayout { nodes, entries });
        }
    }
    chained
}

/// Returns the processors that lead to a consumer. Each one comes after the processors that feed it. Apart from this, they are in the order
/// of the configuration file.
fn upstream(consumer: usize, takers: &Takers, is_processor: &impl Fn(usize) -> bool) -> Vec<usize> {
    let feeders = |of: usize| -> BTreeSet<usize> {
        let feeds = |((node, exit), all): (&Port, &Vec<Taker>)| {
            let feeds = is_processor(*node)
                && !exit.is_rejected()
                && all.iter().any(|taker| taker.node == of);
            feeds.then_some(*node)
        };
        takers.iter().filter_map(feeds).collect()
    };
    let (mut open, mut found) = (vec![consumer], BTreeSet::new());
    while let Some(at) = open.pop() {
        open.extend(feeders(at).into_iter().filter(|node| found.insert(*node)));
    }
    let mut ordered: Vec<usize> = Vec::new();
    while let Some(next) = (found.iter())
        .find(|node| {
            feeders(**node)
                .iter()
                .all(|feeder| ordered.contains(feeder))
        })
        .copied()
    {
        found.remove(&next);
        ordered.push(next);
    }
    ordered
}

/// Returns the tags that the consumer takes from a port, if a single step follows the port. `None` for several steps:
/// each of them has its own filter.
fn common_tags(hops: &[&Taker]) -> Option<TagFilter> {
    match hops {
        [hop] => hop.tags.clone(),
        _ => None,
    }
}
