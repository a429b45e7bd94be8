//! Tables: one number for each of several things of a node (files, servers), shown by `/metrics` with another label, and by `status`.
//!
//! Only the [`ROWS_MAX`] largest rows of a table are shown, so that many files or servers never flood a monitoring system. A table is
//! replaced as a whole and rarely; nothing on the line touches it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The number of rows shown: enough for a page, few enough for every node of a fleet.
pub const ROWS_MAX: usize = 20;

/// (label value, number), the largest first.
pub type Rows = Vec<(String, u64)>;

/// The label and the rows.
#[derive(Clone, Debug)]
struct Content {
    label: &'static str,
    rows: Rows,
}

/// (name of the metric, component).
type Key = (&'static str, Arc<str>);

/// All tables of the process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Tables(Arc<Mutex<BTreeMap<Key, Content>>>);

/// One table. Clones share it.
#[derive(Clone, Debug)]
pub struct Table {
    all: Tables,
    key: Key,
    label: &'static str,
}

impl Tables {
    pub(crate) fn table(&self, name: &'static str, label: &'static str, of: &Arc<str>) -> Table {
        Table {
            all: self.clone(),
            key: (name, of.clone()),
            label,
        }
    }

    fn content(&self) -> MutexGuard<'_, BTreeMap<Key, Content>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// (metric, label, rows) of the tables of a component that have rows.
    pub fn of(&self, component: &str) -> Vec<(&'static str, &'static str, Rows)> {
        let all = self.content();
        let own = all.iter().filter(|((_, of), _)| &**of == component);
        own.map(|((name, _), table)| (*name, table.label, table.rows.clone()))
            .collect()
    }

    /// (metric, component, label, rows) of all, sorted by metric and component.
    pub(crate) fn all(&self) -> Vec<(&'static str, Arc<str>, &'static str, Rows)> {
        let all = self.content();
        let table = |((name, of), table): (&Key, &Content)| {
            (*name, of.clone(), table.label, table.rows.clone())
        };
        all.iter().map(table).collect()
    }
}

impl Table {
    /// Replaces the rows. Rows with equal labels are summed; the largest stay. A table without rows is removed.
    pub fn set(&self, mut rows: Rows) {
        rows.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        rows.dedup_by(|again, first| {
            let same = again.0 == first.0;
            if same {
                first.1 = first.1.saturating_add(again.1);
            }
            same
        });
        // The sort is stable: equal numbers stay ordered by label.
        rows.sort_by_key(|row| std::cmp::Reverse(row.1));
        rows.truncate(ROWS_MAX);
        let label = self.label;
        let mut all = self.all.content();
        match rows.is_empty() {
            true => all.remove(&self.key),
            false => all.insert(self.key.clone(), Content { label, rows }),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[(&str, u64)]) -> Rows {
        rows.iter()
            .map(|(name, n)| ((*name).to_owned(), *n))
            .collect()
    }

    #[test]
    fn the_largest_rows_are_shown_and_those_of_one_name_are_one() {
        let tables = Tables::default();
        let table = tables.table("file_lag_bytes", "path", &"web".into());
        table.set(rows(&[("b", 2), ("a", 2), ("c", 1), ("b", 3)]));
        let shown = [(
            "file_lag_bytes",
            "path",
            rows(&[("b", 5), ("a", 2), ("c", 1)]),
        )];
        assert_eq!(tables.of("web"), shown);
        assert!(tables.of("other").is_empty());
        table.set((0..1000).map(|n| (n.to_string(), n)).collect());
        let shown = tables.of("web").remove(0).2;
        assert_eq!((shown.len(), shown[0].1), (ROWS_MAX, 999));
        table.set(Vec::new());
        assert!(tables.of("web").is_empty());
    }
}
