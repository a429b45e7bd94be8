//! The history of each node in a fixed amount of memory: a sample per second for five minutes, and one per ten seconds for an hour.
//!
//! Every second, the main thread takes one sample of all nodes from the existing meters. Seconds without a sample stay empty, so each sample
//! keeps its time. `/status` and `/events` show the rates of the last five seconds.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{
    filling::{Full, Space},
    flow::Rates,
};

/// The time between two samples.
pub const STEP: Duration = Duration::from_secs(1);
/// The number of seconds over which the current rates are measured. Over one second, a source that sends two batches per second would
/// alternate between rates.
const RATE_SECONDS: usize = 5;
/// The number of fine samples, one per second.
const FINE_MAX: usize = 300;
/// The number of seconds in a coarse sample.
const COARSE_SECONDS: usize = 10;
/// The number of coarse samples.
const COARSE_MAX: usize = 360;
/// The maximum number of nodes with a history. Each history takes 24 kB.
const NODES_MAX: usize = 512;
/// The maximum number of changes of a node's state in its history.
const CHANGES_MAX: usize = 20;

/// The names of the series. Rates are per second.
const SERIES: [&str; 9] = [
    "records_received",
    "records_sent",
    "bytes",
    "errors",
    "busy",
    "waiting_bytes",
    "waiting_records",
    "behind_seconds",
    "latency_seconds",
];
const RECEIVED: usize = 0;
const SENT: usize = 1;
const BYTES: usize = 2;
const ERRORS: usize = 3;
const BUSY: usize = 4;
const WAITING_BYTES: usize = 5;
const WAITING_RECORDS: usize = 6;
const BEHIND: usize = 7;
const LATENCY: usize = 8;

/// The number of series that are rates of counters. These series come first in [`SERIES`].
const COUNTERS: usize = 5;

/// One sample: a value for each series. The value is NaN if the node does not have the meter of the series.
type Sample = [f32; SERIES.len()];

/// The meters of failures that matter to an operator. Their sum is the series `errors`.
const FAILURES: [&str; 12] = [
    "records_rejected",
    "records_failed",
    "records_dropped",
    "records_given_up",
    "chunks_refused",
    "requests_refused",
    "calls_refused",
    "connections_refused",
    "connections_failed",
    "handshakes_failed",
    "requests_resent",
    "read_errors",
];

/// The meters of a node at one time.
#[derive(Clone, Copy, Default)]
pub struct Reading {
    counters: [Option<u64>; COUNTERS],
    rejected: Option<u64>,
    waiting_bytes: Option<u64>,
    waiting_records: Option<u64>,
    behind: Option<f32>,
    /// The number of batches that were timed, and the sum of their times.
    latency: Option<(u64, Duration)>,
    /// Only of a disk channel.
    space: Space,
}

impl Reading {
    /// Adds a meter of the node. `now` is the time of the wall clock in seconds.
    pub fn take(&mut self, meter: &str, value: u64, now: i64) {
        match meter {
            "records_received" => self.counters[RECEIVED] = Some(value),
            "records_sent" => self.counters[SENT] = Some(value),
            // Only a sink has this meter; it counts the records that left.
            "records_settled" => self.counters[SENT] = Some(value),
            "bytes_received" => self.counters[BYTES] = Some(value),
            "bytes_sent" if self.counters[BYTES].is_none() => self.counters[BYTES] = Some(value),
            "busy_microseconds" => self.counters[BUSY] = Some(value),
            "backlog_bytes" | "lag_bytes" => self.waiting_bytes = Some(value),
            "pending_records" => self.waiting_records = Some(value),
            "used_bytes" => self.space.used = Some(value),
            "size_max_bytes" => self.space.limit = Some(value),
            "disk_free_bytes" => self.space.free = Some(value),
            // Bytes in flight. If the node also measures its backlog, the backlog is used, because it is more exact.
            "pending_bytes" if self.waiting_bytes.is_none() => self.waiting_bytes = Some(value),
            "unsettled_age_seconds" => self.behind = Some(value as f32),
            "oldest_record_timestamp_seconds" => {
                let since = u64::try_from(now).unwrap_or(0).saturating_sub(value);
                let age = if value == 0 { 0 } else { since };
                self.behind = Some(age as f32);
            }
            _ => {}
        }
        if meter == "records_rejected" {
            self.rejected = Some(value);
        }
        if FAILURES.contains(&meter) {
            let sum = self.counters[ERRORS].unwrap_or(0);
            self.counters[ERRORS] = Some(sum.saturating_add(value));
        }
    }

    /// Adds a timing of batches. For a source, this is the time until the acknowledgment. For a sink, it is the time from the source until
    /// the batch is settled. For other nodes, it is the time of a write.
    pub fn time(&mut self, meter: &str, count: u64, sum: Duration) {
        let is_whole_way = matches!(meter, "ack_seconds" | "end_to_end_seconds");
        if is_whole_way || self.latency.is_none() {
            self.latency = Some((count, sum));
        }
    }

    /// Completes the reading of a node in this section of the configuration (`source`, `sink`, ...). The meter of pending records is
    /// removed from all nodes except sources, because in other sections it counts rejected records.
    pub fn of(mut self, section: &str) -> Self {
        if section != "source" {
            self.waiting_records = None;
        }
        self
    }

    /// Returns the sample for the time since an earlier reading.
    fn since(&self, before: &Self, seconds: f32) -> Sample {
        let rate = |now: Option<u64>, before: Option<u64>| match (now, before) {
            (Some(now), before) => now.saturating_sub(before.unwrap_or(0)) as f32 / seconds,
            (None, _) => f32::NAN,
        };
        let mut sample = [f32::NAN; SERIES.len()];
        let counters = self.counters.iter().zip(before.counters);
        for (value, (now, before)) in sample.iter_mut().zip(counters) {
            *value = rate(*now, before);
        }
        // Microseconds per second become the share of one CPU.
        sample[BUSY] /= 1e6;
        sample[WAITING_BYTES] = self.waiting_bytes.map_or(f32::NAN, |it| it as f32);
        sample[WAITING_RECORDS] = self.waiting_records.map_or(f32::NAN, |it| it as f32);
        sample[BEHIND] = self.behind.unwrap_or(f32::NAN);
        if let Some((count, sum)) = self.latency {
            let (earlier, earlier_sum) = before.latency.unwrap_or_default();
            let batches = count.saturating_sub(earlier);
            // The meter may add the time of a batch before it counts the batch. If no new batch is counted, the sample has no latency.
            if batches > 0 {
                let whole = sum.saturating_sub(earlier_sum).as_secs_f32();
                sample[LATENCY] = whole / batches as f32;
            }
        }
        sample
    }
}

/// A node at the time of a sample.
pub struct Seen<'a> {
    /// Its name.
    pub name: Arc<str>,
    /// Its meters.
    pub reading: Reading,
    /// Its state as a word.
    pub state: &'static str,
    /// The reason for a state other than `running` and `ended`.
    pub why: Option<&'a str>,
}

/// A change of a node's state.
struct Change {
    time: i64,
    state: &'static str,
    why: Option<String>,
}

struct OfNode {
    /// The second of the last sample in which the node was seen.
    seen: u64,
    /// The readings of the last [`RATE_SECONDS`], the newest last.
    before: VecDeque<(Instant, Reading)>,
    /// The values of the last sample, with the rates of the last [`RATE_SECONDS`].
    now: Sample,
    rejected: Option<f64>,
    fine: VecDeque<Sample>,
    coarse: VecDeque<Sample>,
    /// Of a disk channel: the free bytes of its disk, for each fine sample.
    free: VecDeque<f32>,
    changes: VecDeque<Change>,
}

/// The history of all nodes.
#[derive(Default)]
pub struct History {
    nodes: HashMap<Arc<str>, OfNode>,
    /// The second of the last sample; the first sample is in second 1.
    second: u64,
    first: Option<Instant>,
    /// When the last sample was taken, by the wall clock.
    time: i64,
}

impl History {
    /// Takes a sample of all nodes. Nodes that `all` does not contain no longer exist, and their histories are removed.
    pub fn sample<'a>(&mut self, all: impl Iterator<Item = Seen<'a>>, now: Instant) {
        let first = *self.first.get_or_insert(now);
        let second = 1 + (now.saturating_duration_since(first) + STEP / 2).as_secs();
        // Each second has at most one sample. A sample that comes early counts for the next second.
        (self.second, self.time) = (second.max(self.second + 1), Timestamp::now().as_second());
        for seen in all {
            if self.nodes.len() < NODES_MAX || self.nodes.contains_key(&seen.name) {
                let new = || OfNode::new((now, seen.reading));
                let node = self.nodes.entry(seen.name.clone()).or_insert_with(new);
                node.sample(&seen, now, self.second, self.time);
            }
        }
        self.nodes.retain(|_, node| node.seen == self.second);
    }

    /// The rates of a node in the last five seconds, for the rates of edges.
    pub fn rates(&self, node: &str) -> Rates {
        let Some(node) = self.nodes.get(node) else {
            return Rates::default();
        };
        let rate = |at: usize| (!node.now[at].is_nan()).then(|| f64::from(node.now[at]));
        Rates {
            received: rate(RECEIVED),
            sent: rate(SENT),
            rejected: node.rejected,
        }
    }

    /// The last sample of a node, with the rates of the last five seconds, as a map of the series that it has.
    pub fn now(&self, node: &str) -> Option<Value> {
        let node = self.nodes.get(node)?;
        let series = SERIES.iter().zip(node.now);
        let shown = series.filter(|(_, value)| !value.is_nan());
        let shown: Map<_, _> = shown
            .map(|(name, value)| ((*name).to_owned(), number(value)))
            .collect();
        Some(Value::Object(shown))
    }

    /// When a disk channel or its disk will be full.
    pub fn full_in(&self, node: &str) -> Option<Full> {
        let node = self.nodes.get(node)?;
        let (_, last) = node.before.back()?;
        last.space.limit?;
        // Seconds without a sample count for nothing.
        let backlogs = node.fine.iter().map(|sample| sample[WAITING_BYTES]);
        let backlogs = backlogs.filter(|bytes| !bytes.is_nan());
        last.space.full_in(&backlogs.collect(), &node.free)
    }

    /// The last hour of a node as JSON; `None` if it has no samples.
    pub fn of(&self, name: &str) -> Option<Value> {
        let node = self.nodes.get(name)?;
        Some(node.page(name, self.time))
    }
}

/// The page of a node that has no samples, because it has just started, or because [`NODES_MAX`] other nodes have a history.
pub fn empty(name: &str) -> Value {
    let node = OfNode::new((Instant::now(), Reading::default()));
    node.page(name, Timestamp::now().as_second())
}

impl OfNode {
    fn new(reading: (Instant, Reading)) -> Self {
        Self {
            seen: 0,
            before: VecDeque::from([reading]),
            now: [f32::NAN; SERIES.len()],
            rejected: None,
            fine: VecDeque::with_capacity(FINE_MAX),
            coarse: VecDeque::with_capacity(COARSE_MAX),
            free: VecDeque::new(),
            changes: VecDeque::new(),
        }
    }

    fn page(&self, name: &str, time: i64) -> Value {
        let change = |it: &Change| json!({ "time": it.time, "state": it.state, "why": it.why });
        json!({
            "node": name,
            "time": time,
            "fine": series(&self.fine, 1),
            "coarse": series(&self.coarse, COARSE_SECONDS),
            "changes": self.changes.iter().map(change).collect::<Vec<_>>(),
        })
    }

    /// Adds a sample. `now` and `second` are the time since the start, `time` is that of the wall clock.
    fn sample(&mut self, seen: &Seen<'_>, now: Instant, second: u64, time: i64) {
        let sample = self.since(seen, now, self.before.back());
        self.now = self.since(seen, now, self.before.front());
        self.rejected = self.rejected(seen, now);
        push(&mut self.before, (now, seen.reading), RATE_SECONDS);
        if let Some(free) = seen.reading.space.free {
            push(&mut self.free, free as f32, FINE_MAX);
        }
        self.add(sample, second);
        self.change(seen, time);
    }

    /// The sample for the time since an earlier reading. A node that restarted under the same name may count from 0 again. Its rate is
    /// then 0, and never negative.
    fn since(&self, seen: &Seen<'_>, now: Instant, before: Option<&(Instant, Reading)>) -> Sample {
        match before {
            Some((then, before)) => seen.reading.since(before, seconds(*then, now)),
            None => [f32::NAN; SERIES.len()],
        }
    }

    /// Rejected records per second in the last [`RATE_SECONDS`].
    fn rejected(&self, seen: &Seen<'_>, now: Instant) -> Option<f64> {
        let (then, before) = self.before.front()?;
        let records = seen.reading.rejected?;
        let new = records.saturating_sub(before.rejected.unwrap_or(0));
        Some(new as f64 / f64::from(seconds(*then, now)))
    }

    /// Adds the sample of a second, behind an empty sample for each second that has none.
    fn add(&mut self, sample: Sample, second: u64) {
        // More seconds than the whole history has change nothing more.
        let most = (COARSE_MAX * COARSE_SECONDS) as u64;
        let missed = match self.seen {
            0 => 0,
            seen => (second - seen - 1).min(most),
        };
        for at in second - missed..=second {
            let is_last = at == second;
            let own = if is_last {
                sample
            } else {
                [f32::NAN; SERIES.len()]
            };
            push(&mut self.fine, own, FINE_MAX);
            if at.is_multiple_of(COARSE_SECONDS as u64) {
                let last = self.fine.iter().rev().take(COARSE_SECONDS);
                push(&mut self.coarse, mean(last), COARSE_MAX);
            }
        }
        self.seen = second;
    }

    /// Notes a change of the node's state.
    fn change(&mut self, seen: &Seen<'_>, time: i64) {
        let last = self.changes.back();
        let is_new = match last {
            Some(last) => last.state != seen.state || last.why.as_deref() != seen.why,
            None => true,
        };
        if is_new {
            let change = Change {
                time,
                state: seen.state,
                why: seen.why.map(str::to_owned),
            };
            // The reason for a state often contains a count or a time. So if only the reason changes, the new reason replaces the old one,
            // and no change is added.
            if last.is_some_and(|last| last.state == seen.state) {
                let began = self.changes.pop_back().map_or(time, |last| last.time);
                self.changes.push_back(Change {
                    time: began,
                    ..change
                });
            } else {
                push(&mut self.changes, change, CHANGES_MAX);
            }
        }
    }
}

/// The seconds between two readings. Two readings at the same time count as one second apart, because they have no rate.
fn seconds(before: Instant, now: Instant) -> f32 {
    match now.saturating_duration_since(before) {
        Duration::ZERO => 1.0,
        some => some.as_secs_f32().max(0.001),
    }
}

fn push<T>(all: &mut VecDeque<T>, one: T, most: usize) {
    if all.len() == most {
        all.pop_front();
    }
    all.push_back(one);
}

/// The mean of samples. For each series, only the samples in which it is not NaN count.
fn mean<'a>(samples: impl Iterator<Item = &'a Sample>) -> Sample {
    let (mut sums, mut counts) = ([0.0; SERIES.len()], [0.0; SERIES.len()]);
    for sample in samples {
        for (at, value) in sample.iter().enumerate().filter(|(_, it)| !it.is_nan()) {
            sums[at] += value;
            counts[at] += 1.0;
        }
    }
    // A series that is NaN in all samples stays NaN, because 0 / 0 is NaN.
    std::array::from_fn(|at| sums[at] / counts[at])
}

/// The series that have a value, each with the oldest sample first.
fn series(samples: &VecDeque<Sample>, seconds: usize) -> Value {
    let mut shown = json!({ "seconds": seconds, "samples": samples.len() });
    for (at, name) in SERIES.iter().enumerate() {
        if samples.iter().any(|sample| !sample[at].is_nan()) {
            shown[*name] = samples.iter().map(|sample| number(sample[at])).collect();
        }
    }
    shown
}

/// A number with at most three decimals, without a point if it is whole; `null` for NaN.
fn number(value: f32) -> Value {
    let rounded = (f64::from(value) * 1000.0).round() / 1000.0;
    match rounded {
        _ if value.is_nan() => Value::Null,
        whole if whole.fract() == 0.0 && whole.abs() < 9e15 => json!(whole as i64),
        part => json!(part),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A history of a node `out` whose counter of received records has these values, one second apart.
    fn history(values: &[u64]) -> History {
        let (mut history, start) = (History::default(), Instant::now());
        for (second, value) in values.iter().enumerate() {
            let mut reading = Reading::default();
            reading.take("records_received", *value, 0);
            let seen = Seen {
                name: "out".into(),
                reading,
                state: "running",
                why: None,
            };
            let now = start + Duration::from_secs(second as u64);
            history.sample([seen].into_iter(), now);
        }
        history
    }

    #[test]
    fn counters_become_rates_of_each_second_and_of_the_last_five_seconds() {
        let history = history(&[5, 5, 25, 26]);
        assert_eq!(history.rates("out").received, Some(7.0));
        assert_eq!(
            history.now("out").unwrap(),
            json!({ "records_received": 7 })
        );
        let page = history.of("out").unwrap();
        assert_eq!(page["fine"]["records_received"], json!([0, 0, 20, 1]));
        assert_eq!(page["fine"]["seconds"], 1);
        assert!(page["fine"].get("bytes").is_none(), "{page}");
        assert_eq!(history.of("other"), None);
        assert_eq!(empty("new")["fine"], json!({ "seconds": 1, "samples": 0 }));
    }

    #[test]
    fn an_hour_is_kept_in_a_bounded_number_of_samples() {
        let values: Vec<u64> = (0..4000).map(|second| second * 10).collect();
        let history = history(&values);
        let page = history.of("out").unwrap();
        assert_eq!(
            page["fine"]["records_received"].as_array().unwrap().len(),
            FINE_MAX
        );
        let coarse = page["coarse"]["records_received"].as_array().unwrap();
        assert_eq!(coarse.len(), COARSE_MAX);
        assert!(coarse.iter().all(|rate| *rate == 10), "{coarse:?}");
    }

    /// A history with samples at these seconds; the node receives 10 records in each second.
    fn at_seconds(seconds: &[u64]) -> History {
        let (mut history, start) = (History::default(), Instant::now());
        for second in seconds {
            let mut reading = Reading::default();
            reading.take("records_received", second * 10, 0);
            let seen = Seen {
                name: "out".into(),
                reading,
                state: "running",
                why: None,
            };
            // A sample is rarely taken exactly at its second.
            let late = Duration::from_millis(second * 37 % 300);
            history.sample(
                [seen].into_iter(),
                start + Duration::from_secs(*second) + late,
            );
        }
        history
    }

    #[test]
    fn seconds_without_a_sample_stay_empty_so_that_the_others_keep_their_time() {
        let page = at_seconds(&[0, 1, 2, 6, 7]).of("out").unwrap();
        let fine = page["fine"]["records_received"].as_array().unwrap();
        let is_empty: Vec<_> = fine.iter().map(Value::is_null).collect();
        assert_eq!(
            is_empty,
            [false, false, false, true, true, true, false, false]
        );
        assert_eq!(page["fine"]["samples"], 8);
        // A gap of minutes is a gap in the coarse samples, too.
        let seconds: Vec<u64> = (0..60).chain(180..240).collect();
        let page = at_seconds(&seconds).of("out").unwrap();
        let coarse = page["coarse"]["records_received"].as_array().unwrap();
        let empty = coarse.iter().filter(|it| it.is_null()).count();
        assert_eq!((coarse.len(), empty), (24, 12));
        // After a gap of a day, everything before it is gone.
        let page = at_seconds(&[0, 1, 86_400]).of("out").unwrap();
        let fine = page["fine"]["records_received"].as_array().unwrap();
        assert_eq!(fine.iter().filter(|it| !it.is_null()).count(), 1);
    }

    #[test]
    fn rates_are_means_over_five_seconds_also_behind_a_gap() {
        let history = history(&[0, 100, 100, 100, 100, 100, 100, 160]);
        assert_eq!(history.rates("out").received, Some(12.0));
        let rate = at_seconds(&[0, 1, 2, 30]).rates("out").received.unwrap();
        assert!((rate - 10.0).abs() < 0.5, "{rate}");
    }

    #[test]
    fn a_removed_node_is_forgotten_and_the_number_of_nodes_is_bounded() {
        let mut history = history(&[1, 2]);
        let many = (0..NODES_MAX + 10).map(|at| Seen {
            name: at.to_string().into(),
            reading: Reading::default(),
            state: "running",
            why: None,
        });
        history.sample(many, Instant::now());
        assert!(history.nodes.len() <= NODES_MAX);
        assert_eq!(history.of("out"), None);
    }

    #[test]
    fn changes_of_state_are_remembered_with_their_last_reason() {
        let (mut history, start) = (History::default(), Instant::now());
        let states = [
            ("running", None),
            ("retrying", Some("refused, next attempt in 1 s")),
            ("retrying", Some("refused, next attempt in 2 s")),
            ("running", None),
        ];
        for (second, (state, why)) in states.into_iter().enumerate() {
            let seen = Seen {
                name: "out".into(),
                reading: Reading::default(),
                state,
                why,
            };
            history.sample(
                [seen].into_iter(),
                start + Duration::from_secs(second as u64),
            );
        }
        let page = history.of("out").unwrap();
        let states = page["changes"].as_array().unwrap().iter();
        let states: Vec<_> = states
            .map(|it| (it["state"].clone(), it["why"].clone()))
            .collect();
        assert_eq!(states.len(), 3, "{states:?}");
        assert_eq!(states[1].1, "refused, next attempt in 2 s");
    }

    #[test]
    fn a_channel_and_its_sink_are_behind_by_the_same_time() {
        for (meter, value) in [
            ("unsettled_age_seconds", 30),
            ("oldest_record_timestamp_seconds", 70),
        ] {
            let mut reading = Reading::default();
            reading.take(meter, value, 100);
            // This is only what a network sink has in flight.
            reading.take("behind_seconds", 7, 100);
            assert_eq!(reading.since(&Reading::default(), 1.0)[BEHIND], 30.0);
        }
    }

    #[test]
    fn the_latency_is_the_mean_of_the_batches_of_a_second() {
        let mut before = Reading::default();
        before.time("write_seconds", 10, Duration::from_secs(1));
        let mut now = before;
        assert!(now.since(&before, 1.0)[LATENCY].is_nan());
        now.time("end_to_end_seconds", 10, Duration::from_secs(2));
        assert!(now.since(&before, 1.0)[LATENCY].is_nan());
        now.time("end_to_end_seconds", 14, Duration::from_secs(3));
        now.time("write_seconds", 99, Duration::from_secs(99));
        assert_eq!(now.since(&before, 1.0)[LATENCY], 0.5);
    }

    #[test]
    fn ages_and_errors_come_from_the_meters_that_a_node_has() {
        let mut reading = Reading::default();
        reading.take("oldest_record_timestamp_seconds", 70, 100);
        reading.take("backlog_bytes", 5, 100);
        reading.take("records_rejected", 2, 100);
        reading.take("read_errors", 3, 100);
        let sample = reading.since(&Reading::default(), 1.0);
        assert_eq!(sample[BEHIND], 30.0);
        assert_eq!(sample[WAITING_BYTES], 5.0);
        assert_eq!(sample[ERRORS], 5.0);
        assert!(sample[RECEIVED].is_nan());
    }
}
