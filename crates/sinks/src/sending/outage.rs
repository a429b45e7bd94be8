//! Handles a destination that fails: backs off, retries, and gives up when `retry.give_up` is over.

use std::{fmt, time::Duration};

use millstream_pipeline::{
    condition::{Condition, Trouble},
    node::SinkContext,
    report::Reporter,
    stop::Stop,
};
use tokio::time::{Instant, sleep};

use super::{Backoff, Retry};

/// The next step after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The wait is over: retry.
    Retry,
    /// The destination has failed for `retry.give_up`: reject the records.
    GiveUp,
    /// The process stops, and a durable channel keeps the undelivered records: return.
    Stop,
}

/// The failures of one destination since the last success.
#[derive(Debug)]
pub(crate) struct Outage {
    backoff: Backoff,
    give_up: Option<Duration>,
    /// When the clock of `give_up` was started.
    since: Option<Instant>,
    reporter: Reporter,
    /// The log keyword of `condition`. The condition exists from the first failure on.
    kind: &'static str,
    condition: Option<Condition>,
    /// Whether the condition only says that an answer is late.
    is_late: bool,
    /// Ends waits early when the process stops. `None` if the sink reads from memory: the sink then continues during a stop,
    /// because no later start could deliver the records.
    stop: Option<Stop>,
}

impl Outage {
    /// `durable`: whether a durable channel keeps undelivered records. `kind`: the log keyword of the condition.
    pub(crate) fn new(
        retry: &Retry,
        context: &SinkContext,
        durable: bool,
        kind: &'static str,
    ) -> Self {
        Self {
            backoff: Backoff::new(retry),
            give_up: retry.give_up.0,
            since: None,
            reporter: context.reporter.clone(),
            kind,
            condition: None,
            is_late: false,
            stop: durable.then(|| context.stop.clone()),
        }
    }

    /// Notes a success: clears the condition, resets the back-off and the clock of `give_up`, and logs the end of an outage.
    pub(crate) fn succeeded(&mut self) {
        self.backoff.reset();
        self.since = None;
        self.recover();
    }

    /// Clears the condition. The last of the conditions of the sink logs that its destination works again.
    fn recover(&mut self) {
        let condition = self.condition.take();
        let Some(lasted) = condition.and_then(|condition| condition.clear()) else {
            return;
        };
        if self.reporter.conditions().is_empty() {
            let seconds = lasted.as_secs();
            let text = format_args!("the destination works again after {seconds} s");
            self.reporter.info("recovered", text);
        }
    }

    /// Notes that an answer is late, since `since`, before the attempt has failed.
    pub(crate) fn late(&mut self, since: std::time::Instant, why: impl fmt::Display) {
        let trouble = match &self.condition {
            Some(condition) if condition.holds() => Trouble::Retrying,
            _ => {
                self.is_late = true;
                Trouble::Blocked
            }
        };
        let (reporter, kind) = (&self.reporter, self.kind);
        let condition = self
            .condition
            .get_or_insert_with(|| reporter.condition(kind));
        condition.raise_since(trouble, since, why);
    }

    /// Notes a partial success: resets the back-off. The clock of `give_up` keeps running.
    pub(crate) fn progressed(&mut self) {
        self.backoff.reset();
        if std::mem::take(&mut self.is_late) {
            self.recover();
        }
    }

    /// Notes that the destination has taken records: stops the clock of `give_up`. The back-off stays, because the connection may
    /// still fail soon.
    pub(crate) fn accepted(&mut self) {
        self.since = None;
    }

    /// Clears the condition, and nothing else.
    pub(crate) fn clear(&mut self) {
        self.condition = None;
    }

    /// Starts the clock of `give_up` before the first failure.
    pub(crate) fn start_clock(&mut self) {
        self.since = Some(Instant::now());
    }

    /// Whether the destination has failed for longer than `retry.give_up`. The first call since the last success starts the clock.
    pub(crate) fn is_overdue(&mut self) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        self.give_up.is_some_and(|limit| since.elapsed() >= limit)
    }

    /// Counts a failure and returns the time to wait. Sinks that report failures themselves call this.
    pub(crate) fn failed(&mut self) -> Duration {
        self.backoff.failed()
    }

    /// Waits. Returns `false` if the process stops meanwhile and a durable channel keeps the records.
    pub(crate) async fn wait(&mut self, wait: Duration) -> bool {
        let Some(stop) = &mut self.stop else {
            sleep(wait).await;
            return true;
        };
        tokio::select! {
            biased;
            () = stop.stopped() => false,
            () = sleep(wait) => true,
        }
    }

    /// Counts a failure, raises the condition and waits, at least for `at_least` (a server may name a time). Returns `false` if the
    /// process stops meanwhile and a durable channel keeps the records.
    pub(crate) async fn pause(&mut self, why: impl fmt::Display, at_least: Duration) -> bool {
        let wait = self.failed().max(at_least);
        self.is_late = false;
        let (reporter, kind) = (&self.reporter, self.kind);
        let condition = self
            .condition
            .get_or_insert_with(|| reporter.condition(kind));
        let seconds = wait.as_secs_f64();
        condition.raise(
            Trouble::Retrying,
            format_args!("{why}; retrying in {seconds:.1} s"),
        );
        self.wait(wait).await
    }

    /// Returns `GiveUp` if `retry.give_up` is over; otherwise pauses before the next attempt.
    pub(crate) async fn retry(&mut self, why: impl fmt::Display, at_least: Duration) -> Then {
        if self.is_overdue() {
            return Then::GiveUp;
        }
        match self.pause(why, at_least).await {
            true => Then::Retry,
            false => Then::Stop,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{Rig, Upstream};

    fn run(give_up: &str, durable: bool, test: impl AsyncFnOnce(Outage, Rig)) {
        let rig = Rig::new(
            &crate::discard::COMPONENT,
            "{}",
            &Upstream::memory(),
            "unused".as_ref(),
        );
        let retry: Retry =
            serde_json::from_value(serde_json::json!({ "give_up": give_up })).unwrap();
        let outage = Outage::new(&retry, &rig.context, durable, "server");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(test(outage, rig));
    }

    #[test]
    fn it_gives_up_only_after_the_whole_limit_without_a_success() {
        run("10s", false, async |mut outage, rig| {
            let mut retries = 0;
            while outage.retry("no answer", Duration::ZERO).await == Then::Retry {
                retries += 1;
            }
            // 1 + 2 + 4 + 8 s.
            assert_eq!(retries, 4);
            assert_eq!(rig.context.reporter.conditions().len(), 1);
            outage.succeeded();
            assert_eq!(rig.context.reporter.conditions(), []);
            outage.succeeded();
            let events = rig.context.reporter.events();
            assert_eq!(events, [("error", "server", 4), ("info", "recovered", 1)]);
            assert_eq!(outage.retry("again", Duration::ZERO).await, Then::Retry);
        });
    }

    #[test]
    fn a_stop_ends_the_wait_only_where_a_durable_channel_keeps_the_records() {
        for (durable, then) in [(true, Then::Stop), (false, Then::Retry)] {
            run("never", durable, async |mut outage, rig| {
                rig.stopper.stop();
                assert_eq!(outage.retry("no answer", Duration::ZERO).await, then);
            });
        }
    }
}
