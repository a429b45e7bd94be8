//! The order between sources that read the same files, partitions or standard input.
//!
//! Such a source continues at the place up to which its channels have kept the records. If a reload gives these files to another source
//! (another name, other patterns, a source split in two), the earlier source may still send. Its last records are not kept yet, so the
//! new source would read them again. A channel recognizes them only if no processor has changed them. Therefore the new source waits until
//! the earlier ones have ended, and until what they sent is kept or dropped.
//!
//! The names of the sources do not matter, and neither do their patterns: one file can have several paths. A source waits for every
//! source of the same kind that the reload ends. It waits for their records only if one of its channels takes them.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::{
    condition::Trouble,
    delivery::Tally,
    node::SourceContext,
    outlet::{CHECK_EVERY, Outlet},
};

/// The time after which a source reports that it waits.
const SLOW: Duration = Duration::from_secs(3);

/// The runs of sources that read ([`crate::node::Source::reads`]).
#[derive(Default)]
pub(crate) struct Readings {
    runs: Mutex<Vec<Run>>,
    next: AtomicU64,
}

/// A run that has not ended, or whose records are not kept yet.
struct Run {
    number: u64,
    kind: &'static str,
    source: Arc<str>,
    /// The durable channels that it sends to; empty if it also sends to memory.
    channels: Vec<u128>,
    sent: Arc<Tally>,
    /// Whether a reload removes or replaces the source.
    is_leaving: bool,
    has_ended: bool,
}

/// The turn of a run. The run has ended when this is dropped.
pub(crate) struct Turn {
    readings: Arc<Readings>,
    number: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut runs = self.readings.lock();
        if let Some(run) = runs.iter_mut().find(|run| run.number == self.number) {
            run.has_ended = true;
        }
    }
}

impl Run {
    /// Whether nothing of it is in flight any more.
    fn is_over(&self) -> bool {
        self.has_ended && (self.channels.is_empty() || self.sent.pending.get() == 0)
    }

    /// Whether the run `next` must wait for this one.
    fn holds_up(&self, next: &Self) -> bool {
        let is_before = self.number != next.number && self.is_leaving && self.kind == next.kind;
        let shares = || self.channels.iter().any(|id| next.channels.contains(id));
        is_before && (!self.has_ended || self.source == next.source || shares())
    }
}

impl Readings {
    /// Notes that a reload removes or replaces these sources. Their successors start only after this call.
    pub(crate) fn leave(&self, sources: &[Arc<str>]) {
        let mut runs = self.lock();
        runs.retain(|run| !run.is_over());
        for run in runs.iter_mut().filter(|run| sources.contains(&run.source)) {
            run.is_leaving = true;
        }
    }

    /// Waits until no earlier source can send records that this source would read again. `None` if the source must stop before that. A
    /// source without a `kind` need not wait.
    pub(crate) async fn turn(
        self: &Arc<Self>,
        kind: Option<&'static str>,
        context: &SourceContext,
    ) -> Option<Option<Turn>> {
        let Some(kind) = kind else {
            return Some(None);
        };
        let turn = self.begin(kind, context);
        let slow = context.reporter.condition("predecessor");
        let (begun, mut stop) = (Instant::now(), context.stop.clone());
        while let Some(source) = self.before(turn.number) {
            if begun.elapsed() >= SLOW && !slow.holds() {
                let text = format_args!(
                    "it waits for {source}, which may read the same input and which the reload has ended: it begins when {source} has \
                     ended and its records are kept"
                );
                slow.raise(Trouble::Blocked, text);
            }
            tokio::select! {
                () = stop.stopped() => return None,
                () = sleep(CHECK_EVERY) => {}
            }
        }
        Some(Some(turn))
    }

    fn begin(self: &Arc<Self>, kind: &'static str, context: &SourceContext) -> Turn {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut runs = self.lock();
        runs.retain(|run| !run.is_over());
        runs.push(Run {
            number,
            kind,
            source: context.name.clone(),
            channels: channels(&context.outlet),
            sent: context.outlet.tally(),
            is_leaving: false,
            has_ended: false,
        });
        Turn {
            readings: self.clone(),
            number,
        }
    }

    /// The source of an earlier run for which this run must wait.
    fn before(&self, number: u64) -> Option<Arc<str>> {
        let mut runs = self.lock();
        // A run that is over is removed, so that later records of a source with the same name hold up no other source.
        runs.retain(|run| !run.is_over());
        let own = runs.iter().find(|run| run.number == number)?;
        let before = runs.iter().find(|run| run.holds_up(own));
        before.map(|run| run.source.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Run>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The durable channels of a port that leads only to such channels.
fn channels(outlet: &Outlet) -> Vec<u128> {
    match outlet.is_durable() {
        true => outlet.channel_ids(),
        false => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use millstream_record::Pool;

    use super::*;
    use crate::{
        channel::{BoxFuture, Channel, Group},
        delivery,
        meters::Meters,
        outlet::{Edge, Feed},
        report::Reporter,
        stop::{Stopper, stop},
        threads::Threads,
    };

    /// A durable channel with this id.
    struct Durable(u128);

    impl Channel for Durable {
        fn put(&self, _: Group) -> BoxFuture<'_, ()> {
            Box::pin(async {})
        }

        fn close(&self) {}

        fn id(&self) -> Option<u128> {
            Some(self.0)
        }
    }

    /// A source that sends to the durable channels with these ids.
    fn context(name: &str, channels: &[u128]) -> (SourceContext, Stopper) {
        let meters = Meters::default().of(name);
        let edge = |id: &u128| Edge::to(Feed::new(Arc::new(Durable(*id))));
        let (stopper, stop) = stop();
        let context = SourceContext {
            name: name.into(),
            follows: [].into(),
            outlet: Outlet::new(channels.iter().map(edge).collect(), &meters, false),
            rejects: Outlet::new(Vec::new(), &meters, true),
            threads: Threads::start(1).unwrap(),
            stop,
            once: false,
            pool: Pool::new(1 << 20),
            meters: meters.clone(),
            reporter: Reporter::new(name),
            host: "here".into(),
            directory: "unused".into(),
        };
        (context, stopper)
    }

    /// A record of the source that is not kept before the token is dropped.
    fn in_flight(context: &SourceContext) -> delivery::Token {
        delivery::receipt(false, 1, context.outlet.tally()).0
    }

    /// Returns the turn if the source gets it soon.
    async fn soon(
        readings: &Arc<Readings>,
        kind: &'static str,
        context: &SourceContext,
    ) -> Option<Turn> {
        let turn = tokio::time::timeout(4 * CHECK_EVERY, readings.turn(Some(kind), context));
        turn.await.ok().flatten().flatten()
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_with_another_name_begins_when_the_earlier_one_has_ended_and_its_records_are_kept()
     {
        let readings = Arc::new(Readings::default());
        let ((old, _o), (new, _n)) = (context("app", &[1]), context("appx", &[1]));
        let present = soon(&readings, "files", &old).await.unwrap();
        let beside = soon(&readings, "files", &new).await;
        assert!(beside.is_some(), "both are configured");
        drop(beside);
        let sent = in_flight(&old);
        readings.leave(&["app".into()]);
        assert!(soon(&readings, "files", &new).await.is_none());
        drop(present);
        assert!(
            soon(&readings, "files", &new).await.is_none(),
            "a record of the earlier source is in flight"
        );
        assert!(soon(&readings, "partitions", &new).await.is_some());
        drop(sent);
        assert!(soon(&readings, "files", &new).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn records_on_their_way_into_another_channel_hold_up_no_source() {
        let readings = Arc::new(Readings::default());
        let ((old, _o), (new, _n)) = (context("a", &[1, 2]), context("b", &[3]));
        let (part, _p) = context("c", &[2, 3]);
        let present = soon(&readings, "files", &old).await;
        let _sent = in_flight(&old);
        readings.leave(&["a".into()]);
        assert!(soon(&readings, "files", &new).await.is_none(), "a runs");
        drop(present);
        assert!(soon(&readings, "files", &new).await.is_some());
        assert!(soon(&readings, "files", &part).await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn two_sources_that_exchange_their_files_both_wait_and_then_both_begin() {
        let readings = Arc::new(Readings::default());
        let ((a, _a), (b, _b)) = (context("a", &[1]), context("b", &[1]));
        let present = [
            soon(&readings, "files", &a).await,
            soon(&readings, "files", &b).await,
        ];
        let sent = [in_flight(&a), in_flight(&b)];
        readings.leave(&["a".into(), "b".into()]);
        drop(present);
        let next = |context: SourceContext| {
            let readings = readings.clone();
            tokio::spawn(async move {
                let turn = readings.turn(Some("files"), &context).await.unwrap();
                // The next run sends immediately, and never stops sending.
                let sent = in_flight(&context);
                (turn, sent, context)
            })
        };
        let both = [next(a), next(b)];
        sleep(10 * CHECK_EVERY).await;
        assert!(both.iter().all(|it| !it.is_finished()));
        drop(sent);
        for run in both {
            let begins = tokio::time::timeout(10 * CHECK_EVERY, run);
            begins
                .await
                .expect("the records of the other's next run hold up no source")
                .unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_waits_says_so_and_never_begins_if_it_must_stop() {
        let readings = Arc::new(Readings::default());
        let ((old, _o), (new, stopper)) = (context("app", &[1]), context("appx", &[1]));
        let _present = soon(&readings, "files", &old).await;
        readings.leave(&["app".into()]);
        let reporter = new.reporter.clone();
        let waits = tokio::spawn({
            let readings = readings.clone();
            async move { readings.turn(Some("files"), &new).await.is_some() }
        });
        sleep(SLOW + 2 * CHECK_EVERY).await;
        let held = reporter.conditions();
        assert!(
            held.len() == 1 && held[0].why.contains("waits for app,"),
            "{held:?}"
        );
        stopper.stop();
        assert!(!waits.await.unwrap());
        assert!(reporter.conditions().is_empty());
    }
}
