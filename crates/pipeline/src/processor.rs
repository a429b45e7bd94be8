//! The contract of processors, and what the chain gives them.
//!
//! `read -> decode -> send -> [process] -> keep -> read back -> [process] -> encode -> write -> settle`
//!
//! A processor stands between sources, channels and sinks, and keeps nothing across a restart. Its output depends only on the
//! sequence of records: never on the wall clock, on timing, or on the boundaries of batches. So a replay yields the same records.

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

    /// The reason why a replay could yield different records, for `check` and `explain`; `Ok` if it cannot.
    fn repeatable(&self) -> Result<(), String> {
        Ok(())
    }

    /// Whether a record may leave with another tag than it entered with. Behind such a processor, `tags` filters every batch anew.
    fn changes_tags(&self) -> bool {
        false
    }

    /// Whether its output depends on [`Out::place`]. The chain then gives its tasks one record at a time.
    fn uses_places(&self) -> bool {
        false
    }

    /// Whether its tasks wait for something outside of Millstream, such as another program. Then each task gets a thread.
    fn blocking(&self) -> bool {
        false
    }

    /// The text of the file that its options name. A reload replaces the processor when the text has changed.
    fn text_of_file(&self) -> &str {
        ""
    }

    /// Warnings about its options, for `check` and the start.
    fn warnings(&self) -> &[Problem] {
        &[]
    }

    /// Makes a task. Called at the start, and again after a failure or a panic.
    fn task(&self) -> Result<Box<dyn Task>, Failure>;
}

/// The work of a processor in one chain. It must not block, unless the processor is [`Processor::blocking`].
pub trait Task: Send {
    /// Processes a batch: passes on, replaces, filters or rejects each record through `out`. A failure stops the consumer behind
    /// the chain, which then restarts at its last checkpoint.
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure>;
}

/// The index of the port `NAME` of a processor that has no others.
pub const MAIN: usize = 0;
