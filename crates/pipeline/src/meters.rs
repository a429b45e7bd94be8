//! Meters: counters, gauges, ages and histograms of every node, read by `/metrics`, `status` and tests.
//!
//! A meter is an atomic that is touched once per batch. Names follow `millstream_<noun>_<unit>_total` (counters) or
//! `millstream_<noun>_<unit>`; the module `known` has all of them with their help texts. The label `component` is the node's name
//! in the configuration. Metrics with a further label are in `tables`.

mod age;
pub mod exposition;
pub mod histogram;
pub mod known;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

pub use age::{Ages, Since};

use exposition::{Family, Number};
use histogram::{Histogram, Reading};
use known::{FOREIGN, Kind, Known, Unit, known};

use crate::{
    tables::{Census, Table, Tables},
    taps::{Point, Taps},
};

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

/// Counts time in a meter of microseconds. A remainder below a microsecond is carried to the next addition.
#[derive(Debug)]
pub(crate) struct TimeMeter {
    meter: Meter,
    /// In nanoseconds.
    rest: u64,
}

impl TimeMeter {
    pub(crate) fn new(meter: Meter) -> Self {
        Self { meter, rest: 0 }
    }

    /// Adds a time in nanoseconds. Returns the microseconds that were counted.
    pub(crate) fn add(&mut self, nanos: u64) -> u64 {
        let nanos = nanos.saturating_add(self.rest);
        let micros = nanos / 1000;
        if micros > 0 {
            self.meter.add(micros);
        }
        self.rest = nanos % 1000;
        micros
    }
}

/// A meter of any kind.
#[derive(Clone, Debug)]
enum Instrument {
    Counter(Meter),
    Gauge(Meter),
    Ages(Ages),
    Histogram(Histogram),
}

impl Instrument {
    fn kind(&self) -> Kind {
        match self {
            Self::Counter(_) => Kind::Counter,
            Self::Gauge(_) | Self::Ages(_) => Kind::Gauge,
            Self::Histogram(_) => Kind::Histogram,
        }
    }

    /// The number of a counter, gauge or age; histograms have none.
    fn value(&self) -> Option<u64> {
        match self {
            Self::Counter(meter) | Self::Gauge(meter) => Some(meter.get()),
            Self::Ages(ages) => Some(ages.oldest().as_secs()),
            Self::Histogram(_) => None,
        }
    }

    fn number(&self, unit: Unit) -> Number {
        match self {
            Self::Counter(meter) | Self::Gauge(meter) => scaled(meter.get(), unit),
            Self::Ages(ages) => Number::Real(ages.oldest().as_secs_f64()),
            Self::Histogram(histogram) => Number::Buckets(Box::new(histogram.read())),
        }
    }
}

/// The name of the metric and the component. Each pair has one meter.
type Key = (&'static str, Arc<str>);

/// All meters of the process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Meters {
    single: Arc<Mutex<BTreeMap<Key, Instrument>>>,
    tables: Tables,
    taps: Taps,
}

impl Meters {
    /// The meters of one node.
    pub fn of(&self, component: &str) -> NodeMeters {
        NodeMeters {
            all: self.clone(),
            component: component.into(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Instrument>> {
        self.single.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// (component, metric, value) of all meters except histograms, sorted by metric and component.
    pub fn snapshot(&self) -> Vec<(Arc<str>, &'static str, u64)> {
        let value = |((name, component), meter): (&Key, &Instrument)| {
            Some((component.clone(), *name, meter.value()?))
        };
        self.lock().iter().filter_map(value).collect()
    }

    /// (component, metric, content) of all histograms, sorted by metric and component.
    pub fn histograms(&self) -> Vec<(Arc<str>, &'static str, Reading)> {
        let reading = |((name, component), meter): (&Key, &Instrument)| match meter {
            Instrument::Histogram(histogram) => Some((component.clone(), *name, histogram.read())),
            _ => None,
        };
        self.lock().iter().filter_map(reading).collect()
    }

    /// The value of one metric of one component, 0 if there is none.
    pub fn value(&self, component: &str, name: &str) -> u64 {
        let found = self
            .snapshot()
            .into_iter()
            .find(|(c, n, _)| &**c == component && *n == name);
        found.map_or(0, |(_, _, value)| value)
    }

    /// Returns all meters as families, for the pages of `exposition`. A family is a metric with all its samples.
    pub fn families(&self) -> Vec<Family> {
        let mut all: Vec<Family> = Vec::new();
        let mut last = "";
        for ((name, component), instrument) in self.lock().iter() {
            let unit = known(name).map_or(Unit::None, |known| known.unit);
            if *name != last {
                all.push(family(name, instrument.kind()));
                last = name;
            }
            if let Some(family) = all.last_mut() {
                let labels = vec![("component", component.to_string())];
                let number = instrument.number(unit);
                family.samples.push(exposition::Sample { labels, number });
            }
        }
        for (name, component, label, rows) in self.tables.all() {
            if name != last {
                all.push(family(name, Kind::Gauge));
                last = name;
            }
            let Some(family) = all.last_mut() else {
                continue;
            };
            let unit = known(name).map_or(Unit::None, |known| known.unit);
            for (row, value) in rows {
                let labels = vec![("component", component.to_string()), (label, row)];
                let number = scaled(value, unit);
                family.samples.push(exposition::Sample { labels, number });
            }
        }
        all
    }

    /// Removes the meters of a node that no longer exists.
    pub(crate) fn forget(&self, component: &str) {
        self.lock().retain(|(_, of), _| **of != *component);
        self.taps.forget(component);
    }

    /// Samples of the records that pass the nodes.
    pub fn taps(&self) -> &Taps {
        &self.taps
    }

    /// The metrics that have another label besides `component`.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }
}

/// Returns the family of a known metric, without samples. A metric that is not known gets `kind` and a general help text.
pub fn family(name: &str, kind: Kind) -> Family {
    let Some(Known {
        kind, unit, help, ..
    }) = known(name)
    else {
        return Family::new(format!("millstream_{name}"), kind, Unit::None, FOREIGN);
    };
    let shown = match (unit, name.strip_suffix("microseconds")) {
        (Unit::Microseconds, Some(begin)) => format!("millstream_{begin}seconds"),
        _ => format!("millstream_{name}"),
    };
    Family::new(shown, *kind, *unit, help)
}

/// The value of a meter in the unit in which pages show it.
fn scaled(value: u64, unit: Unit) -> Number {
    match unit {
        Unit::Microseconds => Number::Real(value as f64 / 1e6),
        _ => Number::Whole(value),
    }
}

/// The meters of one node. Clones share them.
#[derive(Clone, Debug)]
pub struct NodeMeters {
    all: Meters,
    component: Arc<str>,
}

impl NodeMeters {
    /// The meters of another node, for example of a consumer whose backlog a channel measures.
    pub fn beside(&self, component: &str) -> NodeMeters {
        self.all.of(component)
    }

    /// Returns the counter `millstream_<name>_total`. Calls with the same name return the same counter.
    pub fn counter(&self, name: &'static str) -> Meter {
        let new = || Instrument::Counter(Meter::default());
        self.meter(name, new)
    }

    /// The gauge `millstream_<name>`.
    pub fn gauge(&self, name: &'static str) -> Meter {
        let new = || Instrument::Gauge(Meter::default());
        self.meter(name, new)
    }

    /// Returns the counter `millstream_<name>_total` for one more task of the node. When the meter is dropped, pages no longer show its
    /// counter. While the node has several such meters, pages show the counter of each task with the number of the task.
    pub fn task(&self, name: &'static str) -> Meter {
        Meter(self.all.tables.task(name, &self.component))
    }

    /// Returns one task's part of the gauge `millstream_<name>`, which holds an age. Pages show the longest age of all tasks.
    pub fn age(&self, name: &'static str) -> Since {
        match self.instrument(name, || Instrument::Ages(Ages::default())) {
            Instrument::Ages(ages) => ages.add(),
            // The name already belongs to a meter of another kind, which stays. This age is not shown.
            _ => Since::default(),
        }
    }

    /// The ages of all tasks of the node under this name, to read them.
    pub fn ages(&self, name: &'static str) -> Ages {
        match self.instrument(name, || Instrument::Ages(Ages::default())) {
            Instrument::Ages(ages) => ages,
            _ => Ages::default(),
        }
    }

    /// The histogram `millstream_<name>` of durations.
    pub fn histogram(&self, name: &'static str) -> Histogram {
        match self.instrument(name, || Instrument::Histogram(Histogram::default())) {
            Instrument::Histogram(histogram) => histogram,
            _ => Histogram::default(),
        }
    }

    /// The point at which records of the node are sampled.
    pub fn tap(&self) -> Point {
        self.all.taps.point(&self.component)
    }

    /// A table of gauges: `millstream_<name>` with the label `label` in addition to `component`.
    pub fn table(&self, name: &'static str, label: &'static str) -> Table {
        self.all.tables.table(name, label, &self.component)
    }

    /// A metric that counts the members of groups, such as connections by peer. `label` names the group.
    pub fn census(&self, name: &'static str, label: &'static str) -> Census {
        self.all.tables.census(name, label, &self.component)
    }

    fn meter(&self, name: &'static str, new: impl FnOnce() -> Instrument) -> Meter {
        match self.instrument(name, new) {
            Instrument::Counter(meter) | Instrument::Gauge(meter) => meter,
            _ => Meter::default(),
        }
    }

    fn instrument(&self, name: &'static str, new: impl FnOnce() -> Instrument) -> Instrument {
        let mut all = self.all.lock();
        let key = (name, self.component.clone());
        all.entry(key).or_insert_with(new).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn families_have_the_help_text_of_their_metric_and_base_units() {
        let meters = Meters::default();
        let web = meters.of("web");
        web.counter("busy_microseconds").add(2_500_000);
        web.counter("records_sent").add(1);
        meters.of("api").counter("records_sent").add(2);
        web.counter("things_of_another").add(3);
        web.histogram("ack_seconds").observe(Duration::from_secs(1));
        web.age("unsettled_age_seconds")
            .set(Some(Duration::from_secs(5)));
        web.table("file_lag_bytes", "path")
            .set(vec![("a".to_owned(), 7)]);
        let families = meters.families();
        let find = |name: &str| families.iter().find(|family| family.name == name).unwrap();
        assert_eq!(
            find("millstream_busy_seconds").samples[0].number,
            Number::Real(2.5)
        );
        assert_eq!(find("millstream_records_sent").samples.len(), 2);
        assert_eq!(find("millstream_things_of_another").help, FOREIGN);
        assert_eq!(find("millstream_ack_seconds").kind, Kind::Histogram);
        assert_eq!(find("millstream_unsettled_age_seconds").kind, Kind::Gauge);
        assert_eq!(
            find("millstream_file_lag_bytes").samples[0].labels[1].1,
            "a"
        );
        assert_eq!(meters.histograms()[0].2.count(), 1);
        assert_eq!(meters.value("web", "records_sent"), 1);
        meters.forget("web");
        assert_eq!(meters.snapshot().len(), 1);
    }

    #[test]
    fn a_name_keeps_its_first_kind() {
        let web = Meters::default().of("web");
        web.counter("records_sent").add(1);
        web.histogram("records_sent").observe(Duration::ZERO);
        web.age("records_sent").set(Some(Duration::from_secs(5)));
        assert_eq!(web.counter("records_sent").get(), 1);
    }
}
