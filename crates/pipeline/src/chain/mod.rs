//! The chain of a consumer: all processors on the way to it.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> decode -> send -> [process] -> keep -> read back -> [process] -> encode -> write -> settle`
//!
//! Every channel and sink owns the processors that lead to it, so no consumer waits for another one. A batch passes through the chain as a
//! whole. Each processor comes after the processors that feed it. In front of a durable channel the chain runs where the batch is put
//! ([`put::ChainChannel`]); in front of a sink it runs where the sink reads ([`read::ChainReader`]).

mod cpu;
mod maker;
mod merge;
mod passage;
mod portion;
mod put;
mod read;
mod task;
#[cfg(test)]
mod tests;
mod workers;

use std::{borrow::Cow, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use millstream_record::{Batch, Charge, Pool};
use tokio::time::timeout;

pub(crate) use maker::ChainMaker;
pub(crate) use put::ChainChannel;
pub(crate) use read::{ChainReader, Next, Swap};

use self::{
    merge::{Piece, merge, ways_meet},
    task::GuardedTask,
    workers::{Workers, deal},
};
use crate::{
    condition::{Condition, Trouble},
    failure::Failure,
    meters::{Meter, NodeMeters},
    outlet::Outlet,
    output::{Made, Use},
    partition::Dealer,
    plan::{ChainNode, ChainPlan, ChainPort, Hop, Step},
    replay,
    report::Reporter,
    taps::{self, Point},
};

/// The time after which a chain reports that its batch waits for the threads of a processor.
const SLOW: Duration = Duration::from_secs(3);

/// A chain with its tasks. One thread uses it at a time.
pub(crate) struct Chain {
    plan: Arc<ChainPlan>,
    nodes: Vec<Node>,
    /// For each node, the batches that wait for it.
    waiting: Vec<Vec<Piece>>,
    /// Whether records carry numbers, by which they are sorted where branches meet.
    is_numbered: bool,
    /// Whether tasks get whole batches instead of parts of them.
    is_whole: bool,
    /// Whether the present batch is given to a chain again if a processor fails.
    comes_again: bool,
    pool: Pool,
}

/// The result of a chain for a batch.
pub(crate) struct Fed {
    /// The batches for the consumer.
    pub(crate) batches: Vec<Batch>,
    /// The batches of rejected records, each with the port by which it leaves.
    pub(crate) rejected: Vec<(Outlet, Batch)>,
    /// Counts the memory of `batches`; `None` if there are only a few.
    pub(crate) charge: Option<Charge>,
}

/// The memory of a batch in bytes, without its body.
const BATCH_BYTES: usize = 512;
/// Up to this number, the batches that a chain makes are not charged to the pool: large bodies are in buffers of the pool, and the rest is
/// small.
const UNCHARGED_MAX: usize = 64;

/// Charges many batches to the pool. Bodies that are in buffers of the pool are counted twice.
fn charge(pool: &Pool, batches: &[Batch]) -> Option<Charge> {
    let bytes = || batches.iter().map(|batch| BATCH_BYTES + batch.len()).sum();
    (batches.len() > UNCHARGED_MAX).then(|| pool.hold(bytes()))
}

/// The outlet and the meters of a node in a chain.
#[derive(Clone)]
pub(crate) struct NodeContext {
    /// The node's port for rejected records. `None` if this chain drops them, because the chain of another consumer reports them.
    pub(crate) rejects: Option<Outlet>,
    pub(crate) meters: ProcessorMeters,
    reporter: Reporter,
    /// Raised when the processor fails, and cleared when it has processed a batch. The chains of a consumer share the condition, because
    /// after a failure a new chain replaces the old one.
    failing: Arc<Condition>,
}

impl NodeContext {
    /// The context of a processor.
    pub(crate) fn new(
        rejects: Option<Outlet>,
        meters: ProcessorMeters,
        reporter: &Reporter,
    ) -> Self {
        Self {
            rejects,
            meters,
            reporter: reporter.clone(),
            failing: Arc::new(reporter.condition("processor")),
        }
    }

    /// Returns the context for the chains of one consumer. If `reports` is false, these chains drop rejected records, because the chains of
    /// another consumer report them.
    pub(crate) fn reporting(&self, reports: bool) -> Self {
        let rejects = self.rejects.clone().filter(|_| reports);
        Self::new(rejects, self.meters.clone(), &self.reporter)
    }
}

/// The meters of a processor. If several chains contain the processor, one of them counts records, and all count its time.
#[derive(Clone)]
pub(crate) struct ProcessorMeters {
    received: Meter,
    received_bytes: Meter,
    batches: Meter,
    sent: Meter,
    filtered: Meter,
    failed: Meter,
    busy: Meter,
    cpu: Meter,
    tap: Point,
    node: NodeMeters,
}

impl ProcessorMeters {
    pub(crate) fn new(meters: &NodeMeters) -> Self {
        Self {
            received: meters.counter("records_received"),
            received_bytes: meters.counter("bytes_received"),
            batches: meters.counter("batches_received"),
            sent: meters.counter("records_sent"),
            filtered: meters.counter("records_filtered"),
            failed: meters.counter("records_failed"),
            busy: meters.counter("busy_microseconds"),
            cpu: meters.counter("cpu_microseconds"),
            tap: meters.tap(),
            node: meters.clone(),
        }
    }

    fn count(&self, batch: &Batch, all: &[Made]) {
        self.received.add(u64::from(batch.count));
        self.received_bytes.add(batch.len() as u64);
        self.batches.add(1);
        for made in all {
            self.sent.add(made.counts.sent);
            self.filtered.add(made.counts.filtered);
            self.failed.add(made.counts.failed);
        }
    }
}

struct Node {
    work: Work,
    context: NodeContext,
    /// Raised while a batch of this chain waits for the threads of the processor.
    slow: Condition,
    uses: Arc<[Use]>,
}

/// Where the tasks of a node run.
enum Work {
    /// One task, on the thread that runs the chain.
    Here(GuardedTask),
    /// Tasks on separate threads. The dealer distributes the batches of this chain to them.
    Workers(Arc<Workers>, Dealer),
}

impl Chain {
    /// Returns a chain with new tasks. `contexts` and `workers` have one item for each node.
    fn new(
        plan: Arc<ChainPlan>,
        contexts: &[NodeContext],
        workers: Vec<Option<Arc<Workers>>>,
        pool: &Pool,
    ) -> Result<Self, Failure> {
        let nodes = plan.nodes.iter().zip(contexts).zip(workers);
        let nodes = nodes.map(|((node, context), workers)| Node::new(node, context, workers, pool));
        let nodes = nodes.collect::<Result<Vec<_>, Failure>>()?;
        let uses_places = plan.nodes.iter().any(|node| node.processor.uses_places());
        Ok(Self {
            waiting: nodes.iter().map(|_| Vec::new()).collect(),
            is_numbered: ways_meet(&plan) || uses_places,
            is_whole: false,
            comes_again: true,
            pool: pool.clone(),
            plan,
            nodes,
        })
    }

    /// Whether the chain was made from this plan.
    pub(crate) fn is_of(&self, plan: &Arc<ChainPlan>) -> bool {
        Arc::ptr_eq(&self.plan, plan)
    }

    /// From now on, gives whole batches to tasks instead of parts of batches. A reader calls this, because it keeps all tasks busy with
    /// several batches in flight, each in its own chain.
    pub(crate) fn deal_whole(&mut self) {
        self.is_whole = true;
    }

    /// Sets whether the next batch is given to a chain again if a processor fails: by its source, or by a durable channel.
    pub(crate) fn set_comes_again(&mut self, comes_again: bool) {
        self.comes_again = comes_again;
    }

    /// Returns the largest number of threads of one processor; 0 if no processor has threads.
    pub(crate) fn threads(&self) -> usize {
        let threads = |node: &Node| match &node.work {
            Work::Workers(workers, _) => workers.count(),
            Work::Here(_) => 0,
        };
        self.nodes.iter().map(threads).max().unwrap_or(0)
    }

    /// Passes a batch through the chain, beginning at the entry with the index `entry`. An entry is a port of another node that leads
    /// into the chain. If the batch is a portion of a larger one, `first` is the number of its first record there. After a failure, or if
    /// the future is dropped early, the chain must not be used again.
    ///
    /// # Errors
    /// The failure or the panic of a processor.
    pub(crate) async fn feed(
        &mut self,
        entry: usize,
        batch: &Batch,
        first: u32,
    ) -> Result<Fed, Failure> {
        let (mut rejected, mut ends) = (Vec::new(), Vec::new());
        let plan = self.plan.clone();
        let numbers = match self.is_numbered {
            true => (first..first.saturating_add(batch.count)).collect(),
            false => [].into(),
        };
        let (batch, hops) = match replay::address(batch) {
            None => (batch.clone(), Cow::Borrowed(&plan.entries[entry][..])),
            Some(node) => {
                let hops = plan.input_of(node).into_iter().collect::<Vec<_>>();
                (replay::unaddressed(batch.clone()), Cow::Owned(hops))
            }
        };
        self.pass(&hops, Piece { batch, numbers }, &mut ends);
        for (at, node) in plan.nodes.iter().enumerate() {
            let waiting = std::mem::take(&mut self.waiting[at]);
            for piece in self.in_order(waiting) {
                let processing = self.nodes[at].process(&piece, self.is_whole, self.comes_again);
                let mut all = processing.await?;
                let outlet = &self.nodes[at].context.rejects;
                if let Some(outlet) = outlet {
                    let batches = all.iter_mut().filter_map(|made| made.rejected.take());
                    rejected.extend(batches.map(|batch| (outlet.clone(), batch)));
                }
                for (number, port) in node.ports.iter().enumerate() {
                    for made in &mut all {
                        for piece in pieces(made, number) {
                            show(&plan, at, number, &self.nodes[at], &piece.batch);
                            self.pass(&port.hops, piece, &mut ends);
                        }
                    }
                }
            }
        }
        let batches = self.in_order(ends).into_iter().map(|piece| piece.batch);
        let batches: Vec<_> = batches.collect();
        Ok(Fed {
            charge: charge(&self.pool, &batches),
            batches,
            rejected,
        })
    }

    fn in_order(&self, pieces: Vec<Piece>) -> Vec<Piece> {
        match self.is_numbered {
            true => merge(pieces),
            false => pieces,
        }
    }

    /// Passes a batch to the next steps that take its tag.
    fn pass(&mut self, hops: &[Hop], piece: Piece, ends: &mut Vec<Piece>) {
        let tag = piece.batch.tag.as_str();
        let takes = |hop: &&Hop| hop.tags.as_ref().is_none_or(|tags| tags.takes(tag));
        for hop in hops.iter().filter(takes) {
            match hop.to {
                Step::Node(at) => self.waiting[at].push(piece.clone()),
                Step::End => ends.push(piece.clone()),
            }
        }
    }
}

impl Node {
    fn new(
        plan: &ChainNode,
        context: &NodeContext,
        workers: Option<Arc<Workers>>,
        pool: &Pool,
    ) -> Result<Self, Failure> {
        let used = |(number, port): (usize, &ChainPort)| match port.is_taken {
            _ if !port.hops.is_empty() => Use::Here(plan.joined(number)),
            true => Use::Elsewhere,
            false => Use::None,
        };
        Ok(Self {
            work: match workers {
                Some(workers) => {
                    let dealer = workers.dealer();
                    Work::Workers(workers, dealer)
                }
                None => Work::Here(GuardedTask::new(plan, pool, &context.meters)?),
            },
            context: context.clone(),
            slow: context.reporter.condition("processor"),
            uses: plan.ports.iter().enumerate().map(used).collect(),
        })
    }

    /// Processes a batch; returns the output of its parts in order.
    async fn process(
        &mut self,
        piece: &Piece,
        is_whole: bool,
        comes_again: bool,
    ) -> Result<Vec<Made>, Failure> {
        let uses = &self.uses;
        let made = match &mut self.work {
            Work::Here(task) => task
                .process(piece, uses, comes_again)
                .map(|made| vec![made]),
            Work::Workers(workers, dealer) => {
                let parts = deal(dealer, piece, is_whole);
                let mut made = pin!(workers.process(parts, uses, comes_again));
                match timeout(SLOW, made.as_mut()).await {
                    Ok(made) => made,
                    Err(_) => {
                        report_slow(&self.slow);
                        let made = made.await;
                        self.slow.clear();
                        made
                    }
                }
            }
        };
        let made = match made {
            Ok(made) => made,
            Err(failure) => {
                let failing = &self.context.failing;
                failing.raise(Trouble::Retrying, &failure.message);
                return Err(failure);
            }
        };
        self.context.failing.clear();
        if self.context.rejects.is_some() {
            self.context.meters.count(&piece.batch, &made);
        }
        Ok(made)
    }
}

/// Reports that a batch waits for the threads of a processor.
fn report_slow(slow: &Condition) {
    let time = SLOW.as_secs();
    let text = format_args!(
        "no answer to a batch for {time} s: if a program hangs, it is ended after `timeout`"
    );
    slow.raise(Trouble::Blocked, text);
}

/// Shows a batch to the taps of the processor (users who watch its records). If several chains process copies of the same records,
/// a tap shows the batches of only one chain. The address of the plan identifies the chain.
#[inline]
fn show(plan: &Arc<ChainPlan>, at: usize, port: usize, node: &Node, batch: &Batch) {
    let tap = &node.context.meters.tap;
    if tap.is_watched() {
        let plan_node = &plan.nodes[at];
        let names = plan_node.processor.ports();
        let names = names.iter().enumerate().map(|(number, name)| {
            let is_here = plan_node.joined(number) == port;
            is_here.then_some(match &**name {
                "" => taps::OUT,
                name => name,
            })
        });
        let names: Vec<_> = names.flatten().collect();
        tap.show(&names.join("+"), Arc::as_ptr(plan).addr(), batch);
    }
}

/// Takes the batches that left by a port.
fn pieces(made: &mut Made, port: usize) -> impl Iterator<Item = Piece> {
    let batches = std::mem::take(&mut made.ports[port]);
    let numbers = std::mem::take(&mut made.numbers[port]);
    let both = batches.into_iter().zip(numbers);
    both.map(|(batch, numbers)| Piece { batch, numbers })
}

/// Returns the batch without its records. This empty batch is delivered if all records were filtered, so that the position is settled.
pub(crate) fn emptied(batch: Batch) -> Batch {
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
