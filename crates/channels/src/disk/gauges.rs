//! The gauges of a disk channel.

use millstream_pipeline::{meters::Meter, node::ChannelContext, report::Reporter};
use millstream_record::Time;

use super::log::{Log, Unclaimed};

/// The gauges of one channel.
pub(super) struct Gauges {
    unclaimed: Meter,
    used: Meter,
    limit: Meter,
    backlog: Meter,
    /// When the oldest record was kept that some consumer has not settled, in seconds since 1970; 0: there is none.
    oldest: Meter,
    repeats: Meter,
    ids: Meter,
    evicted: Meter,
    /// The backlog of each consumer, beside its other meters.
    backlogs: Vec<(String, Meter)>,
}

impl Gauges {
    pub(super) fn new(context: &ChannelContext, log: &Log) -> Self {
        let meters = &context.meters;
        let backlogs = log.consumers().into_iter().map(|(name, _)| {
            let meter = meters.beside(&name).gauge("backlog_bytes");
            (name, meter)
        });
        Self {
            unclaimed: meters.counter("records_unclaimed"),
            used: meters.gauge("used_bytes"),
            limit: meters.gauge("size_max_bytes"),
            backlog: meters.gauge("backlog_bytes"),
            oldest: meters.gauge("oldest_record_timestamp_seconds"),
            repeats: meters.gauge("repeated_chunks"),
            ids: meters.gauge("remembered_ids"),
            evicted: meters.gauge("evicted_young_ids"),
            backlogs: backlogs.collect(),
        }
    }

    /// Sets all gauges, and reports records that no sink takes.
    pub(super) fn set(&mut self, log: &mut Log, reporter: &Reporter) {
        self.used.set(log.used_bytes());
        self.limit.set(log.options().size_max);
        let oldest = log.oldest().map_or(0, Time::seconds);
        self.oldest.set(u64::try_from(oldest).unwrap_or(0));
        self.repeats.set(log.repeats());
        self.ids.set(log.ids() as u64);
        self.evicted.set(log.evicted_young());
        let mut most = 0;
        for (name, backlog) in &self.backlogs {
            let bytes = log.backlog_bytes(name);
            backlog.set(bytes);
            most = bytes.max(most);
        }
        self.backlog.set(most);
        if let Some(Unclaimed { records, tag }) = log.drain_unclaimed() {
            self.unclaimed.add(records);
            let all = self.unclaimed.get();
            reporter.warn(
                "unclaimed",
                format_args!(
                    "no sink takes the tag `{tag}` from this channel: its records are dropped ({all} of this and other tags \
                     since the start); add it to the `tags` of a sink, or take it with a sink of type discard"
                ),
            );
        }
    }
}
