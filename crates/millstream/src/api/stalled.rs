//! Notices nodes that hang. A node hangs if it has waiting work, makes no progress, and reports no fault.
//!
//! The code that meets a fault usually raises a condition: a lasting problem of a node, which `/status` shows. This module finds the
//! other cases: a server that takes bytes and never answers, a file system that hangs, a bug in Millstream.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use millstream_pipeline::{
    condition::{Condition, Trouble},
    meters::Meters,
    running::{NodeStatus, Nodes},
};

/// The interval between two checks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The meters that change while a sink makes progress. `write_seconds` counts settled checkpoints: it changes even if a processor drops
/// all records.
const MOVES: [&str; 8] = [
    "write_seconds",
    "records_received",
    "records_settled",
    "records_skipped",
    "bytes_written",
    "bytes_published",
    "chunks_acked",
    "requests_sent",
];

/// Raises a condition of each node that makes no progress for `limit` although work waits for it. A limit of 0 turns this check off.
pub(super) async fn watch(nodes: Nodes, meters: Meters, limit: Duration) {
    if limit.is_zero() {
        return;
    }
    let mut marks = Marks::default();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        marks.look(&nodes.now(), &meters, limit, Instant::now());
    }
}

/// The last progress of each node.
#[derive(Default)]
struct Marks(BTreeMap<Arc<str>, Mark>);

struct Mark {
    /// The values of the meters at the last progress.
    progress: Vec<u64>,
    since: Instant,
    condition: Condition,
}

/// The work that waits for a node.
struct Wait {
    /// A description, as the beginning of a sentence.
    what: String,
    progress: Vec<u64>,
    /// How long the work may take if nothing is wrong. It is added to the limit.
    patience: Duration,
}

impl Marks {
    fn look(&mut self, nodes: &[NodeStatus], meters: &Meters, limit: Duration, now: Instant) {
        let values = Values::new(meters);
        self.0
            .retain(|name, _| nodes.iter().any(|node| node.name == *name));
        // A processor that fails or does not answer stops the channel or sink after it, and already reports a condition.
        let in_trouble = nodes.iter().filter(|node| reports_fault(node));
        let explained: Vec<_> = in_trouble.flat_map(|node| &node.feeds).collect();
        for node in nodes {
            let wait = match node.section {
                "sink" => values.at_sink(node),
                "channel" => values.at_channel(node, nodes),
                _ => None,
            };
            let Some(wait) = wait else {
                self.0.remove(&node.name);
                continue;
            };
            let mark = self.0.entry(node.name.clone()).or_insert_with(|| Mark {
                progress: Vec::new(),
                since: now,
                condition: node.reporter.condition("stalled"),
            });
            let is_explained = explained.contains(&&node.name);
            mark.note(&wait, node, is_explained, (limit, now));
        }
    }
}

impl Mark {
    /// Raises the condition if the node has made no progress for the limit. `is_explained`: a processor in front of the node reports a
    /// condition that explains this.
    fn note(
        &mut self,
        wait: &Wait,
        node: &NodeStatus,
        is_explained: bool,
        (limit, now): (Duration, Instant),
    ) {
        if self.progress != wait.progress {
            self.progress.clone_from(&wait.progress);
            self.since = now;
            self.condition.clear();
            return;
        }
        let limit = limit + wait.patience;
        // A node that reports a fault has already explained why it makes no progress.
        let is_known = is_explained || self.condition.holds() || reports_fault(node);
        if !is_known && now.duration_since(self.since) >= limit {
            let text = format_args!(
                "{}, and nothing has moved for {} s although no fault is reported: look at its destination, and at the disk",
                wait.what,
                limit.as_secs()
            );
            self.condition
                .raise_since(Trouble::Blocked, self.since, text);
        }
    }
}

/// Whether a node reports a fault that explains why it makes no progress.
fn reports_fault(node: &NodeStatus) -> bool {
    let conditions = node.reporter.conditions();
    conditions
        .iter()
        .any(|held| held.trouble != Trouble::Degraded)
}

/// The values of all meters at one check. The value of a histogram is the number of its observations.
struct Values(BTreeMap<(Arc<str>, &'static str), u64>);

impl Values {
    fn new(meters: &Meters) -> Self {
        let numbers = meters.snapshot().into_iter();
        let numbers = numbers.map(|(node, name, value)| ((node, name), value));
        let counts = meters.histograms().into_iter();
        let counts = counts.map(|(node, name, reading)| ((node, name), reading.count()));
        Self(numbers.chain(counts).collect())
    }

    fn get(&self, node: &Arc<str>, name: &'static str) -> u64 {
        self.0.get(&(node.clone(), name)).copied().unwrap_or(0)
    }

    /// The work that waits for a sink: bytes in its channel or its queue in memory, or batches that it has taken. `None` if no work waits.
    fn at_sink(&self, node: &NodeStatus) -> Option<Wait> {
        let consumer = node.consumer.as_ref()?;
        let queued = consumer.fill().map_or(0, |(used, _)| used);
        let bytes = queued + self.get(&node.name, "backlog_bytes");
        let age = self.get(&node.name, "unsettled_age_seconds");
        let what = match (bytes, age) {
            (0, 0) => return None,
            (0, age) => format!("a batch has waited for {age} s"),
            (bytes, _) => format!("{bytes} bytes wait"),
        };
        let progress = MOVES.iter().map(|name| self.get(&node.name, name));
        Some(Wait {
            what,
            progress: progress.collect(),
            patience: consumer.settles_within.unwrap_or_default(),
        })
    }

    /// The work that waits for a channel: groups that the channel has taken and not kept, or otherwise the pending records of its sources
    /// (sent, and not kept yet). `None` if there is no such work. Pending records do not count while work waits for a sink with a queue in
    /// memory. In that case, the sources may be waiting for that sink.
    fn at_channel(&self, channel: &NodeStatus, nodes: &[NodeStatus]) -> Option<Wait> {
        let received = self.get(&channel.name, "records_received");
        let unkept = self.get(&channel.name, "unkept_groups");
        if unkept > 0 {
            let commits = self.get(&channel.name, "write_seconds");
            return Some(Wait {
                what: format!("{unkept} groups of batches wait to be kept"),
                progress: vec![received, commits],
                patience: Duration::ZERO,
            });
        }
        let is_queued = |node: &NodeStatus| {
            let queue = node.consumer.as_ref().is_some_and(|it| it.queue.is_some());
            queue && self.at_sink(node).is_some()
        };
        if nodes.iter().any(is_queued) {
            return None;
        }
        let sources = nodes.iter().filter(|node| node.section == "source");
        let sources = sources.filter(|node| node.fills.contains(&channel.name));
        let of_sources = |name| -> u64 {
            let values = sources.clone().map(|node| self.get(&node.name, name));
            values.fold(0, u64::wrapping_add)
        };
        let pending = of_sources("pending_records");
        if pending == 0 {
            return None;
        }
        // This number grows even if a processor in front of the channel drops all records.
        let done = of_sources("records_sent")
            .wrapping_sub(of_sources("records_dropped"))
            .wrapping_sub(pending);
        Some(Wait {
            what: format!("{pending} records wait to be kept"),
            progress: vec![pending, received, done],
            patience: Duration::ZERO,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use millstream_pipeline::{
        channel::{BoxFuture, Channel, Group},
        report::Reporter,
        running::ConsumerStatus,
        supervise::StateCell,
    };

    use super::*;

    /// The queue in front of a sink.
    struct Queue;

    impl Channel for Queue {
        fn put(&self, _: Group) -> BoxFuture<'_, ()> {
            Box::pin(async {})
        }

        fn close(&self) {}
    }

    const LIMIT: Duration = Duration::from_secs(60);

    fn node(name: &str, section: &'static str, fills: &[&str]) -> NodeStatus {
        NodeStatus {
            name: name.into(),
            section,
            kind: "test",
            states: vec![StateCell::new()],
            reporter: Reporter::new(name),
            fills: fills.iter().map(|name| (*name).into()).collect(),
            feeds: Vec::new(),
            is_leaving: false,
            consumer: (section == "sink").then(|| ConsumerStatus {
                queue: None,
                settles_within: Some(Duration::from_secs(5)),
            }),
        }
    }

    #[test]
    fn a_sink_with_waiting_bytes_is_stalled_after_the_limit_until_it_makes_progress() {
        let (meters, mut marks) = (Meters::default(), Marks::default());
        let nodes = [node("out", "sink", &[])];
        let own = meters.of("out");
        let start = Instant::now();
        let mut look = |seconds| {
            let now = start + Duration::from_secs(seconds);
            marks.look(&nodes, &meters, LIMIT, now);
            nodes[0].reporter.conditions().pop().map(|held| held.why)
        };
        assert_eq!(look(0), None);
        own.gauge("backlog_bytes").set(77);
        own.counter("records_settled").add(1);
        assert_eq!(look(10), None);
        assert_eq!(look(74), None);
        let why = look(75).unwrap();
        assert!(
            why.contains("77 bytes wait") && why.contains("65 s"),
            "{why}"
        );
        assert!(look(76).is_some());
        own.counter("records_settled").add(1);
        assert_eq!(look(77), None);
        assert_eq!(look(141), None);
        assert!(look(142).is_some());
        own.gauge("backlog_bytes").set(0);
        assert_eq!(look(143), None);
    }

    #[test]
    fn nodes_after_a_processor_that_drops_all_records_are_not_stalled() {
        let (meters, mut marks) = (Meters::default(), Marks::default());
        let nodes = [
            node("in", "source", &["buffer"]),
            node("buffer", "channel", &[]),
            node("out", "sink", &[]),
        ];
        let (source, sink) = (meters.of("in"), meters.of("out"));
        // At each check, one batch waits to be kept, and one waits to be settled. They are not the batches of the previous check.
        source.gauge("pending_records").set(5);
        sink.gauge("backlog_bytes").set(77);
        let mut look = |seconds| {
            source.counter("records_sent").add(5);
            sink.histogram("write_seconds").observe(Duration::ZERO);
            let now = Instant::now() + Duration::from_secs(seconds);
            marks.look(&nodes, &meters, LIMIT, now);
        };
        (0..300).step_by(50).for_each(&mut look);
        assert!(
            nodes
                .iter()
                .all(|node| node.reporter.conditions().is_empty())
        );
    }

    #[test]
    fn a_channel_whose_sources_retry_is_stalled() {
        let (meters, mut marks) = (Meters::default(), Marks::default());
        let nodes = [
            node("in", "source", &["buffer"]),
            node("buffer", "channel", &[]),
        ];
        let source = meters.of("in");
        source.gauge("pending_records").set(5);
        for seconds in (0..=100).step_by(50) {
            source.counter("records_sent").add(5);
            source.counter("records_dropped").add(5);
            let now = Instant::now() + Duration::from_secs(seconds);
            marks.look(&nodes, &meters, LIMIT, now);
        }
        assert_eq!(nodes[1].reporter.conditions().len(), 1);
    }

    #[test]
    fn a_sink_that_reports_a_fault_is_not_reported_twice() {
        let (meters, mut marks) = (Meters::default(), Marks::default());
        let nodes = [node("out", "sink", &[])];
        meters.of("out").gauge("backlog_bytes").set(77);
        let fault = nodes[0].reporter.condition("server");
        fault.raise(Trouble::Retrying, "refused");
        let start = Instant::now();
        for seconds in 0..100 {
            let now = start + Duration::from_secs(seconds);
            marks.look(&nodes, &meters, LIMIT, now);
        }
        assert_eq!(nodes[0].reporter.conditions().len(), 1);
    }

    #[test]
    fn a_node_after_a_processor_in_trouble_is_not_reported_and_another_node_is() {
        let (meters, mut marks) = (Meters::default(), Marks::default());
        let mut asked = node("asked", "processor", &[]);
        asked.feeds = vec!["out".into()];
        let nodes = [asked, node("out", "sink", &[]), node("other", "sink", &[])];
        for name in ["out", "other"] {
            meters.of(name).gauge("backlog_bytes").set(77);
        }
        let slow = nodes[0].reporter.condition("processor");
        slow.raise(Trouble::Blocked, "no answer");
        let start = Instant::now();
        for seconds in 0..100 {
            let now = start + Duration::from_secs(seconds);
            marks.look(&nodes, &meters, LIMIT, now);
        }
        let held = |at: usize| nodes[at].reporter.conditions().len();
        assert_eq!((held(1), held(2)), (0, 1));
    }

    #[test]
    fn a_channel_that_keeps_nothing_is_stalled() {
        let (meters, mut marks) = (Meters::default(), Marks::default());
        let nodes = [
            node("in", "source", &["buffer"]),
            node("buffer", "channel", &[]),
        ];
        meters.of("in").gauge("pending_records").set(5);
        let start = Instant::now();
        marks.look(&nodes, &meters, LIMIT, start);
        marks.look(&nodes, &meters, LIMIT, start + LIMIT);
        assert!(nodes[0].reporter.conditions().is_empty());
        let held = nodes[1].reporter.conditions();
        assert!(held[0].why.contains("5 records wait"), "{}", held[0].why);
    }

    #[test]
    fn a_channel_that_keeps_nothing_is_stalled_although_records_wait_for_a_sink_behind_memory() {
        let (meters, mut marks) = (Meters::default(), Marks::default());
        let mut sink = node("out", "sink", &[]);
        let queue: Weak<dyn Channel> = Weak::<Queue>::new();
        sink.consumer = Some(ConsumerStatus {
            queue: Some(queue),
            settles_within: None,
        });
        let nodes = [
            node("in", "source", &["buffer"]),
            node("buffer", "channel", &[]),
            sink,
        ];
        let (source, buffer, out) = (meters.of("in"), meters.of("buffer"), meters.of("out"));
        source.gauge("pending_records").set(5);
        out.gauge("unsettled_age_seconds").set(1);
        let start = Instant::now();
        let mut look = |seconds, unkept| {
            // The sink makes progress, and the source sends records only to it.
            out.counter("records_settled").add(1);
            source.counter("records_sent").add(1);
            buffer.gauge("unkept_groups").set(unkept);
            let now = start + Duration::from_secs(seconds);
            marks.look(&nodes, &meters, LIMIT, now);
            nodes[1].reporter.conditions().pop().map(|held| held.why)
        };
        assert_eq!(look(0, 0), None);
        assert_eq!(look(100, 0), None);
        assert_eq!(look(101, 3), None);
        let why = look(161, 3).unwrap();
        assert!(why.contains("3 groups of batches wait"), "{why}");
        assert_eq!(look(162, 0), None);
    }
}
