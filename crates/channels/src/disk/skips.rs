//! Counts and logs skipped records. If a consumer has `behind: { then: skip }` and falls too far behind, or if the channel has `max_age`, the
//! channel skips records for it. While skipping continues, the channel has a condition.

use std::time::{Duration, Instant};

use millstream_pipeline::{
    channel::Consumer,
    condition::{Condition, Trouble},
    meters::Meter,
    node::ChannelContext,
    report::Reporter,
};
use millstream_record::Time;

use super::log::{Log, Skipped};

/// The first skip is logged immediately, later ones in summaries at this interval.
const SUMMARY: Duration = Duration::from_secs(10);
/// The condition is cleared when no record was skipped for this long, and the consumer's backlog stayed within half of its limits.
const CALM: Duration = Duration::from_secs(10);

/// Those consumers of a channel for which it may skip batches.
pub(super) struct Skips(Vec<Skipper>);

struct Skipper {
    name: String,
    records: Meter,
    bytes: Meter,
    reporter: Reporter,
    condition: Condition,
    /// Everything that was skipped up to the last check.
    seen: Skipped,
    /// Everything that had been skipped when the condition was last cleared.
    cleared: Skipped,
    /// Everything that had been skipped when the last line was logged.
    logged: Skipped,
    logged_at: Option<Instant>,
    calm_since: Option<Instant>,
}

impl Skips {
    pub(super) fn new(context: &ChannelContext, consumers: &[Consumer], log: &Log) -> Self {
        let may_skip = consumers.iter().filter(|consumer| log.may_skip(consumer));
        let skipper = |consumer| Skipper::new(context, consumer, Skipped::default());
        Self(may_skip.map(skipper).collect())
    }

    /// Adds a consumer, or changes its `behind`.
    pub(super) fn attach(&mut self, context: &ChannelContext, consumer: &Consumer, log: &Log) {
        self.forget(&consumer.name);
        if log.may_skip(consumer) {
            let seen = log.skipped(&consumer.name);
            self.0.push(Skipper::new(context, consumer, seen));
        }
    }

    /// Removes a consumer.
    pub(super) fn forget(&mut self, consumer: &str) {
        self.0.retain(|skipper| skipper.name != consumer);
    }

    /// Counts and reports the records that were skipped since the last call. `now` is the time of the channel's clock.
    pub(super) fn look(&mut self, log: &Log, now: Time) {
        for skipper in &mut self.0 {
            skipper.look(log, now);
        }
    }

    /// Logs the skipped records that no summary has reported yet. Called when the channel closes.
    pub(super) fn end(&mut self) {
        for skipper in &mut self.0 {
            if skipper.seen != skipper.logged {
                skipper.reporter.warn("skip at the end", skipper.text());
            }
        }
    }
}

impl Skipper {
    /// `seen` is the total that the log had already skipped for the consumer.
    fn new(context: &ChannelContext, consumer: &Consumer, seen: Skipped) -> Self {
        let meters = context.meters.beside(&consumer.name);
        // A separate rate limit, so that no consumer hides the first skip of another.
        let reporter = context.reporter.apart();
        Self {
            name: consumer.name.to_string(),
            records: meters.counter("records_skipped"),
            bytes: meters.counter("bytes_skipped"),
            condition: reporter.condition("skip"),
            reporter,
            seen,
            cleared: seen,
            logged: seen,
            logged_at: None,
            calm_since: None,
        }
    }

    fn look(&mut self, log: &Log, now: Time) {
        let total = log.skipped(&self.name);
        let more = total - self.seen;
        self.seen = total;
        self.records.add(more.records);
        self.bytes.add(more.bytes);
        if more != Skipped::default() {
            self.calm_since = None;
        } else if !self.condition.holds() {
            return;
        } else if self.is_calm(log, now) {
            self.clear();
            return;
        }
        let is_due = self.logged_at.is_none_or(|at| at.elapsed() >= SUMMARY);
        if is_due && self.seen != self.logged {
            self.condition.raise(Trouble::Losing, self.text());
            self.logged = self.seen;
            self.logged_at = Some(Instant::now());
        }
    }

    fn is_calm(&mut self, log: &Log, now: Time) -> bool {
        if !log.has_caught_up(&self.name, now) {
            self.calm_since = None;
            return false;
        }
        let since = *self.calm_since.get_or_insert_with(Instant::now);
        since.elapsed() >= CALM
    }

    fn clear(&mut self) {
        let lasted = self.condition.clear().unwrap_or_default();
        let all = words(self.seen - self.cleared);
        self.reporter.warn(
            "caught up",
            format_args!(
                "{} has caught up; {all} were skipped for it in {} s",
                self.name,
                lasted.as_secs()
            ),
        );
        (self.cleared, self.logged) = (self.seen, self.seen);
        (self.logged_at, self.calm_since) = (None, None);
    }

    fn text(&self) -> String {
        let (now, all) = (self.seen - self.logged, self.seen - self.cleared);
        let before = match self.logged == self.cleared {
            true => String::new(),
            false => format!(" ({} since it fell behind)", words(all)),
        };
        format!(
            "{} is further behind than `behind` and `max_age` allow: {} were skipped for it{before}; make its destination faster, allow \
             more, or let the sources wait for it (`then: block` without `max_age`)",
            self.name,
            words(now)
        )
    }
}

fn words(skipped: Skipped) -> String {
    format!("{} records ({} bytes)", skipped.records, skipped.bytes)
}
