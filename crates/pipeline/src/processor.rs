//! The contract of processors, and what the chain gives them.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> decode -> send -> [process] -> keep -> read back -> [process] -> encode -> write -> settle`
//!
//! A processor stands between sources, channels and sinks, and keeps nothing across a restart. Its output depends only on the
//! sequence of records: never on the wall clock, on timing, or on the boundaries of batches. Therefore a replay yields the same
//! records. A processor for which this is not true returns the reason from [`Processor::repeatable`].

use std::sync::Arc;

use millstream_config::Problem;
use millstream_record::Batch;

use crate::{failure::Failure, output::Out};

/// A processor. It holds the checked configuration; each chain that leads through it has separate tasks.
pub trait Processor: Send + Sync {
    /// The names of its ports beside `NAME.rejected`; an empty name is `NAME` itself. [`Out`] refers to a port by its index in this
    /// list.
    fn ports(&self) -> Vec<Arc<str>> {
        vec!["".into()]
    }

    /// Returns `Ok` if a replay always yields the same records; otherwise the reason why it may not, for `check` and `explain`.
    fn repeatable(&self) -> Result<(), String> {
        Ok(())
    }

    /// Whether it can change the tags of records. After such a processor, the option `tags` filters every batch again.
    fn changes_tags(&self) -> bool {
        false
    }

    /// Whether its output depends on [`Out::place`]. The chain then gives its tasks one record at a time.
    fn uses_places(&self) -> bool {
        false
    }

    /// Whether its tasks wait for something outside of Millstream, such as another program. If true, each task runs on its own thread.
    fn blocking(&self) -> bool {
        false
    }

    /// The text of the file that its options name; empty if they name none. A reload replaces the processor when the text has changed.
    fn text_of_file(&self) -> &str {
        ""
    }

    /// Warnings about its options, for `check` and the start.
    fn warnings(&self) -> &[Problem] {
        &[]
    }

    /// Called when a reload has replaced or removed the processor. Its tasks may still hold batches. A task that may need long for its batch
    /// should fail soon, so that the batch passes through the processors of the new configuration; or, unless [`Out::comes_again`], reject
    /// its records.
    fn retire(&self) {}

    /// Makes a task. Called at the start, and again after a failure or a panic.
    fn task(&self) -> Result<Box<dyn Task>, Failure>;
}

/// The work of a processor in one chain. It must not block, unless the processor is [`Processor::blocking`].
pub trait Task: Send {
    /// Processes a batch: passes on, replaces, filters or rejects each record through `out`. After a failure the records are processed
    /// again: a sink restarts at its last checkpoint, or the source sends the batch to the channel again.
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure>;
}

/// The index of the port `NAME` of a processor that has no other port for records.
pub const MAIN: usize = 0;
