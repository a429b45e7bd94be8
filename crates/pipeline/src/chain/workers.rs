//! The tasks of a processor that run on separate threads, because there are several or they block.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> decode -> send -> [process] -> keep -> read back -> [process] -> encode -> write -> settle`
//!
//! In front of a channel, a batch is divided among the tasks. When all parts are done, their outputs continue in the order of the parts.
//! In front of a sink, where several batches are in flight, each task gets whole batches, unless a key divides them. With the partitions
//! `same` and `shuffle`, the output is the same for any number of tasks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use millstream_record::{Batch, Pool};
use tokio::sync::{
    mpsc::{Receiver, Sender, channel},
    oneshot,
};

use super::{
    ProcessorMeters,
    merge::Piece,
    task::{GuardedTask, TaskMeters},
};
use crate::{
    failure::Failure,
    guard::attempt,
    output::{Made, Use},
    partition::{Dealer, Partition},
    plan::ChainNode,
};

/// The capacity of a task's queue: enough for a part from each data thread that feeds the chain, and for parts of abandoned batches.
const QUEUE: usize = 16;

/// The tasks of one processor of a chain. After this is dropped, each thread finishes its current part and ends.
pub(crate) struct Workers {
    jobs: Vec<Sender<Job>>,
    partition: Partition,
    pool: Pool,
    /// The number of dealers made so far. A dealer assigns the batches of one chain, or their parts, to the tasks. The next dealer begins
    /// with the task of this number, modulo the number of tasks.
    dealers: AtomicUsize,
}

/// A part of a batch for one of the tasks.
struct Job {
    part: Piece,
    uses: Arc<[Use]>,
    comes_again: bool,
    made: oneshot::Sender<Result<Made, Failure>>,
}

impl Workers {
    /// Starts the tasks of a processor that has several tasks or blocks. Returns `None` for any other processor, whose task runs on
    /// the thread of the chain.
    pub(crate) fn start(
        node: &ChainNode,
        meters: &ProcessorMeters,
        pool: &Pool,
    ) -> Result<Option<Arc<Self>>, Failure> {
        let count = node.tasks.count.unwrap_or(1);
        if count == 1 && !node.processor.blocking() {
            return Ok(None);
        }
        let start = |number| {
            let (sender, receiver) = channel(QUEUE);
            let task = GuardedTask::new(node, pool, meters)?;
            let task = task.measured(TaskMeters::new(&meters.node));
            let name = format!("{}/{number}", node.name);
            thread::Builder::new()
                // Linux shows 15 bytes of a thread's name.
                .name(name.chars().take(15).collect())
                .spawn(move || run(task, receiver))
                .map_err(|error| {
                    Failure::us(format!(
                        "cannot start a thread for the processor {}: {error}",
                        node.name
                    ))
                })?;
            Ok(sender)
        };
        Ok(Some(Arc::new(Self {
            jobs: (0..count).map(start).collect::<Result<_, Failure>>()?,
            partition: node.tasks.partition.clone(),
            pool: pool.clone(),
            dealers: AtomicUsize::new(0),
        })))
    }

    /// The number of tasks.
    pub(super) fn count(&self) -> usize {
        self.jobs.len()
    }

    /// Returns a dealer for the batches of one chain.
    pub(super) fn dealer(&self) -> Dealer {
        let number = self.dealers.fetch_add(1, Ordering::Relaxed);
        Dealer::new(&self.partition, self.jobs.len(), &self.pool).beginning_with(number)
    }

    /// Processes the parts of a batch, each with its task; returns their outputs, in order.
    pub(super) async fn process(
        &self,
        parts: Vec<(usize, Piece)>,
        uses: &Arc<[Use]>,
        comes_again: bool,
    ) -> Result<Vec<Made>, Failure> {
        let mut all = Vec::new();
        for (task, part) in parts {
            let (made, waits) = oneshot::channel();
            let job = Job {
                part,
                uses: uses.clone(),
                comes_again,
                made,
            };
            // Sending cannot fail: a thread ends only with its `Workers`.
            let _ = self.jobs[task].send(job).await;
            all.push(waits);
        }
        let mut outputs = Vec::with_capacity(all.len());
        for waits in all {
            let made = waits.await;
            outputs.push(made.map_err(|_| Failure::us("a thread of a processor has panicked: this is a fault of Millstream, please report it"))??);
        }
        Ok(outputs)
    }
}

/// Returns the parts of a batch, each with its task. If `is_whole` is true, only a key divides the batch.
pub(super) fn deal(dealer: &mut Dealer, piece: &Piece, is_whole: bool) -> Vec<(usize, Piece)> {
    let batch = piece.batch.clone();
    let parts = match is_whole {
        true => dealer.whole(batch),
        false => dealer.parts(batch),
    };
    let mut first = 0;
    let numbered = |(task, batch): (usize, Batch)| {
        let count = batch.count as usize;
        let numbers = match &piece.numbers {
            none if none.is_empty() => none.clone(),
            all if count == all.len() => all.clone(),
            all => match dealer.members(task) {
                Some(members) => members.map(|member| all[member]).collect(),
                None => {
                    let start = first;
                    first += count;
                    all[start..first].into()
                }
            },
        };
        (task, Piece { batch, numbers })
    };
    parts.into_iter().map(numbered).collect()
}

/// Processes parts until the queue is closed. A panic that the task does not catch itself, such as one while it drops what the processor
/// held, fails the part and not the thread.
fn run(mut task: GuardedTask, mut jobs: Receiver<Job>) {
    while let Some(job) = jobs.blocking_recv() {
        let work = || {
            // If the receiver is gone, the chain was stopped, and its batch will be processed again.
            if !job.made.is_closed() {
                let made = task.process(&job.part, &job.uses, job.comes_again);
                let _ = job.made.send(made);
            }
        };
        // The hook of panics has logged the text.
        let _ = attempt(work);
    }
}
