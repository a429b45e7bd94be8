//! Meters: counters and gauges of every node, read by `/metrics`, `status` and tests.
//!
//! A meter is an atomic that is touched once per batch. Names follow `millstream_<noun>_<unit>_total` (counters) or
//! `millstream_<noun>_<unit>` (gauges). The label `component` is the node's name in the configuration. Numbers that need
//! another label are in `tables`.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::tables::{Table, Tables};

/// One number. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<AtomicU64>);

impl Meter {
    /// Adds to it.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Subtracts from it (gauges).
    pub fn sub(&self, amount: u64) {
        self.0.fetch_sub(amount, Ordering::Relaxed);
    }

    /// Sets it (gauges).
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Counter,
    Gauge,
}

/// (name of the metric, component): unique.
type Key = (&'static str, Arc<str>);

/// All meters of the process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Meters {
    single: Arc<Mutex<BTreeMap<Key, (Kind, Meter)>>>,
    tables: Tables,
}

impl Meters {
    /// The meters of one node.
    pub fn of(&self, component: &str) -> NodeMeters {
        NodeMeters {
            all: self.clone(),
            component: component.into(),
        }
    }

    /// (component, metric, value) of all, sorted by metric and component.
    pub fn snapshot(&self) -> Vec<(Arc<str>, &'static str, u64)> {
        let all = self.single.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter()
            .map(|((name, component), (_, meter))| (component.clone(), *name, meter.get()))
            .collect()
    }

    /// The value of one metric of one component, 0 if there is none.
    pub fn value(&self, component: &str, name: &str) -> u64 {
        let found = self
            .snapshot()
            .into_iter()
            .find(|(c, n, _)| &**c == component && *n == name);
        found.map_or(0, |(_, _, value)| value)
    }

    /// All of them in the Prometheus text format, version 0.0.4.
    pub fn prometheus(&self) -> String {
        let all = self.single.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        let mut last = "";
        for ((name, component), (kind, meter)) in all.iter() {
            let (suffix, kind) = match kind {
                Kind::Counter => ("_total", "counter"),
                Kind::Gauge => ("", "gauge"),
            };
            if *name != last {
                let _ = writeln!(text, "# TYPE millstream_{name}{suffix} {kind}");
                last = name;
            }
            let _ = writeln!(
                text,
                "millstream_{name}{suffix}{{component=\"{component}\"}} {}",
                meter.get()
            );
        }
        drop(all);
        self.tables.prometheus(&mut text);
        text
    }

    /// Removes the meters of a node that exists no more.
    pub(crate) fn forget(&self, component: &str) {
        let mut all = self.single.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, of), _| **of != *component);
    }

    /// The numbers that have another label.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }
}

/// The meters of one node. Clones share them.
#[derive(Clone, Debug)]
pub struct NodeMeters {
    all: Meters,
    component: Arc<str>,
}

impl NodeMeters {
    /// The meters of another node: a channel measures how far each of its consumers is behind.
    pub fn beside(&self, component: &str) -> NodeMeters {
        self.all.of(component)
    }

    /// The counter `millstream_<name>_total`; the same one for the same name.
    pub fn counter(&self, name: &'static str) -> Meter {
        self.meter(name, Kind::Counter)
    }

    /// The gauge `millstream_<name>`.
    pub fn gauge(&self, name: &'static str) -> Meter {
        self.meter(name, Kind::Gauge)
    }

    /// A table of gauges: `millstream_<name>` with the label `label` beside `component`.
    pub fn table(&self, name: &'static str, label: &'static str) -> Table {
        self.all.tables.table(name, label, &self.component)
    }

    fn meter(&self, name: &'static str, kind: Kind) -> Meter {
        let mut all = self
            .all
            .single
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.entry((name, self.component.clone()))
            .or_insert_with(|| (kind, Meter::default()))
            .1
            .clone()
    }
}
