//! The chain of a consumer: all processors on the way to it.
//!
//! `read -> decode -> send -> [process] -> keep -> read back -> [process] -> encode -> write -> settle`
//!
//! Every channel and sink owns the processors that lead to it, so no consumer waits for another one. A batch passes through the chain as a
//! whole, processor by processor, in the order in which they depend on each other. In front of a durable channel the chain runs where
//! the batch is put ([`put::ChainChannel`]); in front of a sink it runs where the sink reads ([`read::ChainReader`]).

mod put;
mod read;
#[cfg(test)]
mod tests;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Instant,
};

use bytes::Bytes;
use millstream_record::Batch;

pub(crate) use put::ChainChannel;
pub(crate) use read::ChainReader;

use crate::{
    failure::Failure,
    guard,
    meters::{Meter, NodeMeters},
    outlet::Outlet,
    output::{Made, Out, Use},
    plan::{ChainNode, ChainPlan, Hop, Step},
    processor::Task,
};

/// A chain with its tasks. It belongs to one thread at a time.
pub(crate) struct Chain {
    plan: Arc<ChainPlan>,
    nodes: Vec<Node>,
    /// The batches that wait in front of each node.
    waiting: Vec<Vec<Batch>>,
}

/// The result of a chain for a batch.
#[derive(Default)]
pub(crate) struct Fed {
    /// The batches for the consumer.
    pub(crate) batches: Vec<Batch>,
    /// Rejected records, each with the port that they leave by.
    pub(crate) rejected: Vec<(Outlet, Batch)>,
}

/// The surroundings of a node of a chain.
#[derive(Clone)]
pub(crate) struct NodeContext {
    /// Its port for rejected records; `None` if the chain of another consumer reports them.
    pub(crate) rejects: Option<Outlet>,
    pub(crate) meters: ProcessorMeters,
}

/// The meters of a processor. Of several chains only one counts records; all count the time.
#[derive(Clone)]
pub(crate) struct ProcessorMeters {
    received: Meter,
    received_bytes: Meter,
    sent: Meter,
    filtered: Meter,
    failed: Meter,
    busy: Meter,
}

impl ProcessorMeters {
    pub(crate) fn new(meters: &NodeMeters) -> Self {
        Self {
            received: meters.counter("records_received"),
            received_bytes: meters.counter("bytes_received"),
            sent: meters.counter("records_sent"),
            filtered: meters.counter("records_filtered"),
            failed: meters.counter("records_failed"),
            busy: meters.counter("busy_microseconds"),
        }
    }
}

struct Node {
    name: Arc<str>,
    task: Box<dyn Task>,
    context: NodeContext,
    /// Time that is not in the meter yet, in nanoseconds.
    busy: u64,
}

impl Chain {
    /// A chain with new tasks; `contexts` has one entry for each of its nodes.
    pub(crate) fn new(plan: Arc<ChainPlan>, contexts: &[NodeContext]) -> Result<Self, Failure> {
        let node = |(node, context): (&ChainNode, &NodeContext)| {
            Ok(Node {
                name: node.name.clone(),
                task: node
                    .processor
                    .task()
                    .map_err(|failure| named(&node.name, failure))?,
                context: context.clone(),
                busy: 0,
            })
        };
        let nodes = plan.nodes.iter().zip(contexts).map(node);
        let nodes = nodes.collect::<Result<Vec<_>, Failure>>()?;
        Ok(Self {
            waiting: nodes.iter().map(|_| Vec::new()).collect(),
            plan,
            nodes,
        })
    }

    /// Feeds a batch that came in by `entry`, and returns what it becomes. A panic of a processor is a failure. After a failure the
    /// chain is used no more.
    pub(crate) fn feed(&mut self, entry: usize, batch: &Batch) -> Result<Fed, Failure> {
        let mut fed = Fed::default();
        let plan = self.plan.clone();
        pass(&plan.entries[entry], batch, &mut self.waiting, &mut fed);
        for at in 0..self.nodes.len() {
            for batch in std::mem::take(&mut self.waiting[at]) {
                let made = self.nodes[at].run(&batch, &plan.nodes[at])?;
                let outlet = &self.nodes[at].context.rejects;
                fed.rejected.extend(outlet.clone().zip(made.rejected));
                for (hops, batches) in plan.nodes[at].ports.iter().zip(made.ports) {
                    for batch in batches {
                        pass(&hops.hops, &batch, &mut self.waiting, &mut fed);
                    }
                }
            }
        }
        Ok(fed)
    }
}

impl Node {
    fn run(&mut self, batch: &Batch, plan: &ChainNode) -> Result<Made, Failure> {
        let started = Instant::now();
        let uses = plan.ports.iter().map(|port| match port.is_taken {
            _ if !port.hops.is_empty() => Use::Here,
            true => Use::Elsewhere,
            false => Use::None,
        });
        let mut out = Out::new(&self.name, batch, uses);
        let task = &mut self.task;
        let processed = catch_unwind(AssertUnwindSafe(|| task.process(batch, &mut out)));
        match processed {
            Ok(processed) => processed.map_err(|failure| named(&self.name, failure))?,
            Err(panic) => {
                let why = guard::message(&*panic);
                return Err(Failure::us(format!(
                    "the processor {} panicked ({why}): this is a fault of Millstream, please report it",
                    self.name
                )));
            }
        }
        let made = out.finish();
        self.busy += u64::try_from(started.elapsed().as_nanos()).unwrap_or(0);
        let meters = &self.context.meters;
        meters.busy.add(self.busy / 1000);
        self.busy %= 1000;
        if self.context.rejects.is_some() {
            meters.received.add(u64::from(batch.count));
            meters.received_bytes.add(batch.len() as u64);
            meters.sent.add(made.counts.sent);
            meters.filtered.add(made.counts.filtered);
            meters.failed.add(made.counts.failed);
        }
        Ok(made)
    }
}

/// Passes a batch on to the next steps.
fn pass(hops: &[Hop], batch: &Batch, waiting: &mut [Vec<Batch>], fed: &mut Fed) {
    for hop in hops {
        if hop
            .tags
            .as_ref()
            .is_some_and(|tags| !tags.takes(batch.tag.as_str()))
        {
            continue;
        }
        match hop.to {
            Step::Node(at) => waiting[at].push(batch.clone()),
            Step::End => fed.batches.push(batch.clone()),
        }
    }
}

/// A batch without records in the place of one of which nothing is left.
fn emptied(batch: Batch) -> Batch {
    Batch {
        body: Bytes::new(),
        count: 0,
        origins: Vec::new(),
        ..batch
    }
}

fn named(node: &str, mut failure: Failure) -> Failure {
    failure.message = format!("the processor {node}: {}", failure.message);
    failure
}
