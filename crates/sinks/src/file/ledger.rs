//! What is committed: the table of outputs and the journal that makes it durable.
//!
//! `encode -> [write] -> [settle]`
//!
//! A change is visible in the table at once and durable after the next [`Ledger::note`].

use millstream_pipeline::failure::Failure;

use super::{
    journal::Journal,
    output::Output,
    table::{Change, Table},
};

/// The table of outputs and its journal.
pub(super) struct Ledger {
    table: Table,
    journal: Journal,
    /// Encoded changes that are not in the journal yet.
    changes: Vec<u8>,
}

impl Ledger {
    /// The ledger of `table`, which is in `journal`.
    pub(super) fn new(table: Table, journal: Journal) -> Self {
        Self {
            table,
            journal,
            changes: Vec::new(),
        }
    }

    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    /// Makes a change.
    pub(super) fn change(&mut self, change: Change) {
        self.table.apply(&change);
        change.encode(&mut self.changes);
    }

    /// Adds output `id`, unless it is in the table already.
    pub(super) fn enter(&mut self, id: u32, output: &mut Output) {
        if !output.entered {
            output.entered = true;
            self.change(Change::Enter(id, output.row()));
        }
    }

    /// Appends the changes to the journal, as one record.
    pub(super) fn note(&mut self) -> Result<(), Failure> {
        if self.changes.is_empty() {
            return Ok(());
        }
        self.journal.append(&self.changes, || self.table.encode())?;
        self.changes.clear();
        Ok(())
    }
}
