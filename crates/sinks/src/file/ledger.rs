//! The committed state: the table of outputs, and the journal that makes it durable.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `encode -> [write] -> [settle]`
//!
//! A change is visible in the table immediately. It is durable after the next [`Ledger::note`].

use millstream_pipeline::failure::Failure;
use millstream_state::Alternating;

use super::{
    output::Output,
    table::{Change, Table},
};

/// The table of outputs and its journal.
pub(super) struct Ledger {
    table: Table,
    journal: Alternating,
    /// Encoded changes that are not in the journal yet.
    changes: Vec<u8>,
}

impl Ledger {
    /// Creates the ledger of `table`, which `journal` already contains.
    pub(super) fn new(table: Table, journal: Alternating) -> Self {
        Self {
            table,
            journal,
            changes: Vec::new(),
        }
    }

    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    /// Applies a change to the table. It is not durable yet.
    pub(super) fn change(&mut self, change: Change) {
        self.table.apply(&change);
        change.encode(&mut self.changes);
    }

    /// Adds output `id` to the table, unless the table has it already.
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use millstream_state::Begun;
    use millstream_testkit::SimulatedDisk;

    use super::*;
    use crate::file::journal;

    #[test]
    fn a_change_is_visible_immediately_and_durable_after_note() {
        let disk = SimulatedDisk::new(1);
        let open = || journal::open(&disk, Path::new("/state"), true).unwrap();
        let (mut journal, _) = open();
        journal.begin(&Table::default().encode()).unwrap();
        let mut ledger = Ledger::new(Table::default(), journal);
        ledger.change(Change::Number(7));
        assert_eq!(ledger.table().number, 7);
        ledger.note().unwrap();
        ledger.change(Change::Number(8));
        drop(ledger);
        let (_, Begun::Records(records)) = open() else {
            panic!("a journal was written")
        };
        assert_eq!(Table::decode(&records).0.number, 7);
    }
}
