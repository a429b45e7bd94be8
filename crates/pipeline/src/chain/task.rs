//! Runs one task of a processor: catches its panics and measures its time.

use std::{sync::Arc, time::Instant};

use millstream_record::{Batch, Pool};
use millstream_wire::record::records;

use super::{ProcessorMeters, cpu::CpuTime, merge::Piece, named};
use crate::{
    failure::Failure,
    guard,
    meters::{Meter, NodeMeters, TimeMeter},
    output::{Made, Out, Use},
    plan::ChainNode,
    processor::{Processor, Task},
};

/// A task of a processor. After a failure or a panic, the next batch gets a new task.
pub(super) struct GuardedTask {
    node: Arc<str>,
    processor: Arc<dyn Processor>,
    task: Option<Box<dyn Task>>,
    /// The pool for output buffers.
    pool: Pool,
    busy: TimeMeter,
    cpu: CpuTime,
    /// The meters of this task alone. `None` if the task runs on the thread of its chain.
    own: Option<TaskMeters>,
}

/// The meters of one task that runs on a separate thread.
pub(super) struct TaskMeters {
    records: Meter,
    busy: Meter,
}

impl TaskMeters {
    /// Registers the meters of one more task of the node.
    pub(super) fn new(meters: &NodeMeters) -> Self {
        Self {
            records: meters.task("task_records"),
            busy: meters.task("task_busy_microseconds"),
        }
    }
}

impl GuardedTask {
    /// Creates a task of `node` immediately, so that a processor that cannot run is found at the start.
    pub(super) fn new(
        node: &ChainNode,
        pool: &Pool,
        meters: &ProcessorMeters,
    ) -> Result<Self, Failure> {
        let mut guarded = Self {
            node: node.name.clone(),
            processor: node.processor.clone(),
            task: None,
            pool: pool.clone(),
            busy: TimeMeter::new(meters.busy.clone()),
            cpu: CpuTime::new(meters.cpu.clone()),
            own: None,
        };
        guarded.task = Some(guarded.create()?);
        Ok(guarded)
    }

    /// Returns the task with its own meters, in addition to those of its node.
    pub(super) fn measured(self, own: TaskMeters) -> Self {
        let own = Some(own);
        Self { own, ..self }
    }

    fn create(&self) -> Result<Box<dyn Task>, Failure> {
        let created = self.processor.task();
        created.map_err(|failure| named(&self.node, failure))
    }

    /// Processes a batch. `uses` has one item for each port; `comes_again` is [`Out::comes_again`].
    ///
    /// # Errors
    /// The failure of the processor, or its panic.
    pub(super) fn process(
        &mut self,
        piece: &Piece,
        uses: &[Use],
        comes_again: bool,
    ) -> Result<Made, Failure> {
        let started = Instant::now();
        let measured = self.cpu.begin();
        let batch = &piece.batch;
        let mut task = match self.task.take() {
            Some(task) => task,
            None => self.create()?,
        };
        let mut out = Out::new(&self.node, batch, &self.pool, uses.iter().copied());
        out.set_comes_again(comes_again);
        let processed = guard::attempt(|| match piece.numbers.is_empty() {
            true => task.process(batch, &mut out),
            false => process_each(&mut *task, piece, &mut out),
        });
        match processed {
            Ok(processed) => processed.map_err(|failure| named(&self.node, failure))?,
            Err(panic) => {
                return Err(Failure::us(format!(
                    "the processor {} panicked ({}): this is a fault of Millstream, please report it",
                    self.node, panic.0
                )));
            }
        }
        let made = out.finish();
        self.task = Some(task);
        if let Some(began) = measured {
            self.cpu.end(began);
        }
        let nanos = u64::try_from(started.elapsed().as_nanos()).unwrap_or(0);
        let micros = self.busy.add(nanos);
        if let Some(own) = &self.own {
            own.records.add(u64::from(batch.count));
            own.busy.add(micros);
        }
        Ok(made)
    }
}

/// Gives a task one record at a time, so that the number of each output record is known.
fn process_each(task: &mut dyn Task, piece: &Piece, out: &mut Out<'_>) -> Result<(), Failure> {
    // A batch may have as many origins as records, and a processor does not need them: without them, each copy takes the same time.
    let batch = Batch {
        origins: Vec::new(),
        ..piece.batch.clone()
    };
    for (number, (range, _)) in piece.numbers.iter().zip(records(&batch)) {
        out.turn_to(range.clone(), 1, *number);
        let alone = Batch {
            body: batch.body.slice(range),
            count: 1,
            ..batch.clone()
        };
        task.process(&alone, out)?;
    }
    Ok(())
}
