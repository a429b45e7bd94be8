//! Requests of operators to a running graph: replay rejected records through the input of the node that rejected them, and forget
//! or move a consumer of a channel.

use std::sync::{Arc, Weak};

use millstream_record::Position;
use tokio::sync::oneshot;

use super::{Consumer, Graph, Present, has_ended};
use crate::{
    channel::{Entry, pump_of},
    meters::Meters,
    outlet::{Edge, Feed, Outlet},
    replay::{self, Replay},
};

/// Returns an edge that leads to a channel and skips the chain in front of it.
fn edge(feed: Option<Arc<Feed>>, name: &str) -> Result<Edge, String> {
    let feed = feed.ok_or_else(|| has_ended(name).message)?;
    Ok(Edge::to(feed))
}

impl Consumer {
    /// Returns whether the consumer's chain contains the processor `node`.
    fn leads_through(&self, node: &str) -> bool {
        let nodes = self.chain.iter().flat_map(|present| &present.plan.nodes);
        nodes.into_iter().any(|it| *it.name == *node)
    }

    fn past_chain(&self) -> Result<Edge, String> {
        edge(self.feed.as_ref().and_then(Weak::upgrade), &self.name)
    }

    /// Returns an edge to the start of the consumer's chain, for a consumer that does not read a durable channel.
    fn at_chain(&self) -> Result<Edge, String> {
        if let Some(front) = self.chain.iter().find_map(|present| present.front.as_ref()) {
            return edge(front.upgrade(), &self.name);
        }
        let maker = |present: &Present| present.maker.upgrade();
        let edge = self.past_chain()?;
        Ok(Edge {
            entry: Entry {
                number: 0,
                chain: self.chain.as_ref().and_then(maker).map(|maker| maker as _),
            },
            ..edge
        })
    }
}

impl Graph {
    /// Prepares a replay of the records that `node` rejected. `inputs` has all sinks and pumps, each with the durable channel that it
    /// reads, or `None` if it reads from memory.
    pub(crate) fn replay<'a>(
        &mut self,
        node: &Arc<str>,
        inputs: impl Iterator<Item = (&'a Arc<str>, Option<&'a Arc<str>>)> + Clone,
    ) -> Result<Replay, String> {
        let (mut edges, mut channels, mut is_addressed) = (Vec::new(), Vec::new(), true);
        let mut leading = Vec::new();
        let pumped = self.channels.iter().map(|it| (it, pump_of(&it.name)));
        let sinks = self.sinks.iter().map(|it| (it, it.name.clone()));
        for (consumer, reader) in pumped.chain(sinks) {
            let is_own = consumer.name == *node;
            if !is_own && !consumer.leads_through(node) {
                continue;
            }
            let mut inputs = inputs.clone();
            let input = inputs.find(|(sink, _)| **sink == reader);
            let channel = input.and_then(|(_, channel)| channel);
            if channel.is_some() && !is_own {
                leading.push(reader);
            }
            match channel {
                // One edge is enough: all sinks that read the channel see the batch.
                Some(channel) if channels.contains(&channel) => {}
                Some(channel) => channels.push(channel),
                None if is_own => {
                    is_addressed = false;
                    edges.push(consumer.past_chain()?);
                }
                None => edges.push(consumer.at_chain()?),
            }
        }
        for channel in channels {
            let found = self.channels.iter().find(|it| it.name == *channel);
            let found = found.ok_or_else(|| has_ended(channel).message)?;
            edges.push(found.past_chain()?);
        }
        if edges.is_empty() {
            return Err(format!(
                "{node} has no input: it is a source, or not in the running configuration; `millstream rejected cat --node {node}` shows its records"
            ));
        }
        let files = self.files_of(node);
        // These meters are shown nowhere: the node itself counts the records when they arrive.
        let outlet = Outlet::new(edges, &Meters::default().of(node), false);
        let address = is_addressed.then(|| replay::address_of(node, &leading));
        Ok(Replay::new(node, outlet, address, files))
    }

    /// Asks a durable channel to forget a consumer; `None` if no channel of that name runs.
    pub(crate) fn forget_consumer(
        &self,
        channel: &str,
        consumer: &str,
    ) -> Option<oneshot::Receiver<Result<(), String>>> {
        Some(self.channel(channel)?.channel().forget(consumer))
    }

    /// Asks a durable channel to move a consumer past everything up to a position. `None` if no channel with this name and id runs.
    pub(crate) fn skip(
        &self,
        (channel, id): (&str, u128),
        consumer: &str,
        to: Position,
    ) -> Option<oneshot::Receiver<Result<u64, String>>> {
        let feed = self.channel(channel)?;
        let channel = feed.channel();
        (channel.id() == Some(id)).then(|| channel.skip(consumer, to))
    }
}
