//! Tables. A table holds one number for each of several things of a node, such as files or servers. `/metrics` shows these numbers with an
//! additional label, and `status` shows them as well.
//!
//! Only the [`ROWS_MAX`] largest rows of a table are shown, so that many files or servers never flood a monitoring system. A node
//! replaces a table rarely and as a whole; the data path never touches it. Two kinds of tables change continuously instead. In a table of
//! tasks, each task counts in a separate row until it ends. A [`Census`] counts the members of groups, such as the open connections of
//! each peer.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

/// The maximum number of rows shown: enough for a page, and few enough for a monitoring system that stores them for a whole fleet.
pub const ROWS_MAX: usize = 20;

/// (label value, number), the largest first.
pub type Rows = Vec<(String, u64)>;

/// The label of tasks.
const TASK: &str = "task";

/// The content of a table.
#[derive(Clone, Debug)]
enum Content {
    /// The label and the rows.
    Rows(&'static str, Rows),
    /// The counter of each task, by the task's index. A new task gets the index of a task that has ended, if there is one.
    Tasks(Vec<Weak<AtomicU64>>),
    /// The label and the groups. The groups are dropped with the last handle of the census.
    Census(&'static str, Weak<Groups>),
}

/// The number of members of each group that is not empty.
type Groups = Mutex<HashMap<Arc<str>, u64>>;

impl Content {
    fn label(&self) -> &'static str {
        match self {
            Self::Rows(label, _) | Self::Census(label, _) => label,
            Self::Tasks(_) => TASK,
        }
    }

    /// Returns the rows. A table of tasks has no rows while there is only one task, because the node's own metric shows the same number.
    fn rows(&self) -> Rows {
        let tasks = match self {
            Self::Rows(_, rows) => return rows.clone(),
            Self::Census(_, groups) => return groups.upgrade().map(sizes).unwrap_or_default(),
            Self::Tasks(tasks) => tasks.iter().enumerate(),
        };
        let row = |(number, task): (usize, &Weak<AtomicU64>)| {
            let value = task.upgrade()?.load(Ordering::Relaxed);
            Some((number.to_string(), value))
        };
        let mut rows: Rows = tasks.filter_map(row).collect();
        if rows.len() < 2 {
            return Vec::new();
        }
        largest(&mut rows);
        rows
    }
}

fn sizes(groups: Arc<Groups>) -> Rows {
    let groups = locked(&groups);
    let mut sizes: Vec<_> = groups.iter().collect();
    // There may be many more peers than rows, so only the names of the largest groups are copied.
    sizes.sort_unstable_by_key(|&(name, size)| (std::cmp::Reverse(*size), name));
    sizes.truncate(ROWS_MAX);
    let row = |(name, size): (&Arc<str>, &u64)| (name.to_string(), *size);
    sizes.into_iter().map(row).collect()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the largest rows, the largest first. Rows with equal numbers keep their order.
fn largest(rows: &mut Rows) {
    rows.sort_by_key(|row| std::cmp::Reverse(row.1));
    rows.truncate(ROWS_MAX);
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
        locked(&self.0)
    }

    /// The census of a component. It lives until its last handle and its last member are dropped.
    pub(crate) fn census(&self, name: &'static str, label: &'static str, of: &Arc<str>) -> Census {
        let mut all = self.content();
        let key = (name, of.clone());
        if let Some(Content::Census(_, groups)) = all.get(&key)
            && let Some(groups) = groups.upgrade()
        {
            return Census(groups);
        }
        let groups = Arc::<Groups>::default();
        all.insert(key, Content::Census(label, Arc::downgrade(&groups)));
        Census(groups)
    }

    /// Returns the counter of one more task of a component. The row disappears when the counter is dropped.
    pub(crate) fn task(&self, name: &'static str, of: &Arc<str>) -> Arc<AtomicU64> {
        let number = Arc::new(AtomicU64::new(0));
        let mut all = self.content();
        let table = all.entry((name, of.clone()));
        if let Content::Tasks(tasks) = table.or_insert(Content::Tasks(Vec::new())) {
            let weak = Arc::downgrade(&number);
            match tasks.iter_mut().find(|task| task.strong_count() == 0) {
                Some(free) => *free = weak,
                None => tasks.push(weak),
            }
        }
        number
    }

    /// Returns (metric, label, rows) for each table of a component, without the tables that have no rows.
    pub fn of(&self, component: &str) -> Vec<(&'static str, &'static str, Rows)> {
        let all = self.content();
        let own = all.iter().filter(|((_, of), _)| &**of == component);
        own.map(|((name, _), table)| (*name, table.label(), table.rows()))
            .filter(|(.., rows)| !rows.is_empty())
            .collect()
    }

    /// Returns (metric, component, label, rows) for each table, sorted by metric and component, without the tables that have no rows.
    pub(crate) fn all(&self) -> Vec<(&'static str, Arc<str>, &'static str, Rows)> {
        let all = self.content();
        let table = |((name, of), table): (&Key, &Content)| {
            (*name, of.clone(), table.label(), table.rows())
        };
        let tables = all.iter().map(table);
        tables.filter(|(.., rows)| !rows.is_empty()).collect()
    }
}

impl Table {
    /// Replaces the rows. Rows with equal labels are summed, and only the largest rows remain. A table without rows is removed.
    pub fn set(&self, mut rows: Rows) {
        rows.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        rows.dedup_by(|again, first| {
            let same = again.0 == first.0;
            if same {
                first.1 = first.1.saturating_add(again.1);
            }
            same
        });
        largest(&mut rows);
        let label = self.label;
        let mut all = self.all.content();
        match rows.is_empty() {
            true => all.remove(&self.key),
            false => all.insert(self.key.clone(), Content::Rows(label, rows)),
        };
    }
}

/// Counts the members of groups that come and go, such as the open connections of each peer. Clones share the counts. At a reload, a node
/// and its replacement share them, too.
#[derive(Clone, Debug)]
pub struct Census(Arc<Groups>);

/// One member of a group. It counts until it is dropped, even if a panic drops it.
#[derive(Debug)]
pub struct Member {
    census: Census,
    group: Arc<str>,
}

impl Census {
    /// Adds a member to a group.
    #[must_use]
    pub fn join(&self, group: Arc<str>) -> Member {
        *locked(&self.0).entry(group.clone()).or_default() += 1;
        Member {
            census: self.clone(),
            group,
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut groups = locked(&self.census.0);
        if let Some(size) = groups.get_mut(&self.group) {
            *size -= 1;
            if *size == 0 {
                groups.remove(&self.group);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_census_shows_its_largest_groups_and_forgets_empty_ones() {
        let tables = Tables::default();
        let census = || tables.census("peer_connections", "peer", &"in".into());
        let first = census();
        let mut members = vec![first.join("a".into()), first.join("b".into())];
        // A node that replaces this one continues its counts.
        members.push(census().join("b".into()));
        let shown = |expected: &[(&str, u64)]| {
            let shown = tables.of("in");
            let only = ("peer_connections", "peer", rows(expected));
            assert_eq!(shown, [only]);
        };
        shown(&[("b", 2), ("a", 1)]);
        drop(members.drain(..2));
        shown(&[("b", 1)]);
        let many: Vec<_> = (0..100).map(|n| first.join(n.to_string().into())).collect();
        assert_eq!(tables.of("in")[0].2.len(), ROWS_MAX);
        drop((many, members));
        assert!(tables.of("in").is_empty());
        assert!(
            locked(&first.0).is_empty(),
            "an empty group takes no memory"
        );
    }

    fn rows(rows: &[(&str, u64)]) -> Rows {
        rows.iter()
            .map(|(name, n)| ((*name).to_owned(), *n))
            .collect()
    }

    #[test]
    fn the_largest_rows_are_shown_and_rows_with_equal_labels_are_summed() {
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

    #[test]
    fn each_of_several_tasks_has_a_row_until_it_ends() {
        let tables = Tables::default();
        let task = || tables.task("task_records", &"parse".into());
        let first = task();
        first.fetch_add(5, Ordering::Relaxed);
        // A single task has no row.
        assert!(tables.of("parse").is_empty());
        let second = task();
        second.fetch_add(7, Ordering::Relaxed);
        let shown = [("task_records", "task", rows(&[("1", 7), ("0", 5)]))];
        assert_eq!(tables.of("parse"), shown);
        drop(first);
        assert!(tables.of("parse").is_empty());
        let third = task();
        third.fetch_add(1, Ordering::Relaxed);
        assert_eq!(
            tables.of("parse")[0].2,
            rows(&[("1", 7), ("0", 1)]),
            "the number of the first is free"
        );
    }
}
