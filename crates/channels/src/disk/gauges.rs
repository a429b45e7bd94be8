//! The gauges of a disk channel.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use millstream_pipeline::{
    meters::{Ages, Meter, Since},
    node::ChannelContext,
    report::Reporter,
    tables::Table,
};
use millstream_record::Time;
use millstream_sys::disk::Disk;

use super::log::{Log, OtherContent, Unclaimed};

/// How often the file system is asked for its free space.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The meter of the age of a consumer's oldest unsettled batch.
const AGE: &str = "unsettled_age_seconds";

/// The gauges of one channel.
pub(super) struct Gauges {
    unclaimed: Meter,
    used: Meter,
    limit: Meter,
    backlog: Meter,
    /// When the oldest record was received that some consumer has not settled, in seconds since 1970; 0 if every consumer has settled all
    /// records. This is the largest age of a consumer, as its sink shows it, as a time.
    oldest: Meter,
    repeats: Meter,
    ids: Meter,
    evicted: Meter,
    free: Meter,
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    /// When the free space was last requested. Each request is a system call.
    asked: Option<Instant>,
    /// The backlogs by consumer: which of them holds the channel.
    backlogs: Table,
    /// The backlog and age of each consumer. These gauges belong to the meters of the consumer's sink.
    consumers: Vec<Behind>,
}

/// How far a consumer is behind.
struct Behind {
    name: String,
    backlog: Meter,
    /// The age of what its reader has not taken.
    age: Since,
    /// That age, and the ages of what its tasks have taken and not settled.
    ages: Ages,
}

impl Behind {
    fn new(context: &ChannelContext, name: String) -> Self {
        let meters = context.meters.beside(&name);
        Self {
            name,
            backlog: meters.gauge("backlog_bytes"),
            age: meters.age(AGE),
            ages: meters.ages(AGE),
        }
    }
}

impl Gauges {
    pub(super) fn new(context: &ChannelContext, log: &Log, disk: Arc<dyn Disk>) -> Self {
        let meters = &context.meters;
        let consumers = log.consumers().into_iter();
        let consumers = consumers.map(|(name, _)| Behind::new(context, name));
        Self {
            unclaimed: meters.counter("records_unclaimed"),
            used: meters.gauge("used_bytes"),
            limit: meters.gauge("size_max_bytes"),
            backlog: meters.gauge("backlog_bytes"),
            oldest: meters.gauge("oldest_record_timestamp_seconds"),
            repeats: meters.gauge("repeated_chunks"),
            ids: meters.gauge("remembered_ids"),
            evicted: meters.gauge("evicted_young_ids"),
            free: meters.gauge("disk_free_bytes"),
            disk,
            directory: context.directory.clone(),
            asked: None,
            backlogs: meters.table("consumer_backlog_bytes", "consumer"),
            consumers: consumers.collect(),
        }
    }

    /// Adds the gauges of a consumer, unless it already has them.
    pub(super) fn attach(&mut self, context: &ChannelContext, consumer: &str) {
        if self.consumers.iter().all(|it| it.name != consumer) {
            let behind = Behind::new(context, consumer.to_owned());
            self.consumers.push(behind);
        }
    }

    /// Removes the gauges of a consumer, and sets its backlog to 0.
    pub(super) fn forget(&mut self, consumer: &str) {
        let gone = self.consumers.iter().filter(|it| it.name == consumer);
        gone.for_each(|behind| behind.backlog.set(0));
        self.consumers.retain(|it| it.name != consumer);
    }

    /// Asks for the free space of the file system, and shows the backlogs by consumer, at most once per [`ASK_EVERY`].
    fn set_rarely(&mut self) {
        if self.asked.is_some_and(|asked| asked.elapsed() < ASK_EVERY) {
            return;
        }
        self.asked = Some(Instant::now());
        let backlogs = self.consumers.iter();
        let backlogs = backlogs.map(|it| (it.name.clone(), it.backlog.get()));
        self.backlogs
            .set(backlogs.filter(|(_, bytes)| *bytes > 0).collect());
        // An error is ignored, because a missing directory is reported as a condition of the channel.
        if let Ok(space) = self.disk.space(&self.directory) {
            self.free.set(space.free);
        }
    }

    /// Sets all gauges, and warns about records whose tag no sink takes.
    pub(super) fn set(&mut self, log: &mut Log, reporter: &Reporter) {
        self.used.set(log.used_bytes());
        self.limit.set(log.options().size_max);
        self.repeats.set(log.repeats());
        self.ids.set(log.ids() as u64);
        self.evicted.set(log.evicted_young());
        let (mut most, mut waited, now) = (0, Duration::ZERO, Time::now());
        for Behind {
            name,
            backlog,
            age,
            ages,
        } in &self.consumers
        {
            let bytes = log.backlog_bytes(name);
            backlog.set(bytes);
            most = bytes.max(most);
            age.set(log.oldest_of(name).map(|oldest| {
                // The difference is negative if the wall clock has jumped back.
                let nanoseconds = u64::try_from(now.0.saturating_sub(oldest.0));
                Duration::from_nanos(nanoseconds.unwrap_or(0))
            }));
            waited = waited.max(ages.oldest());
        }
        let received = i64::try_from(waited.as_nanos()).map_or(0, |age| now.0.saturating_sub(age));
        let oldest = u64::try_from(Time(received).seconds()).unwrap_or(0);
        self.oldest.set(if waited.is_zero() { 0 } else { oldest });
        self.backlog.set(most);
        self.set_rarely();
        self.report(log, reporter);
    }

    /// Warns about chunks that arrived again with another content, and about records whose tag no sink takes.
    fn report(&mut self, log: &mut Log, reporter: &Reporter) {
        let OtherContent { repeats, stored } = log.drain_other_content();
        if repeats > 0 {
            reporter.warn(
                "other_content",
                format_args!(
                    "{repeats} chunks arrived again with another content and were not stored: this is right if a processor or an option                      of the Millstream that sends them has changed; if two senders run with copies of one `data_dir`, or it was                      restored from a backup, give one of them a new `data_dir`"
                ),
            );
        }
        if stored > 0 {
            reporter.warn(
                "other_content_stored",
                format_args!(
                    "{stored} chunks were stored although a part of their position is stored with another content: a processor or an                      option of the Millstream that sends them has changed, so some of their records may be stored twice"
                ),
            );
        }
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
