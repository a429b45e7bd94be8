//! A sink leaves a channel that remains, or is given up together with its channel: the channel forgets the consumer.

use std::sync::{Arc, Weak};

use tokio::{task::AbortHandle, time::sleep};

use super::known::Known;
use crate::{
    channel::Channel,
    delivery,
    meters::Meter,
    outlet::{CHECK_EVERY, Wires},
    report::Reporter,
    stop::Stop,
};

/// The sinks that have left a channel, each with the task that lets the channel forget it.
#[derive(Default)]
pub(super) struct Leavers(Vec<(Leaver, AbortHandle)>);

/// A sink that has left a channel.
#[derive(Clone)]
pub(super) struct Leaver {
    pub(super) channel: Arc<str>,
    pub(super) sink: Arc<str>,
    pub(super) place: Weak<dyn Channel>,
    /// Each resolves when a task of the sink that reads the channel has ended.
    pub(super) tasks: Vec<Stop>,
    /// Whether the channel forgets the sink in any case (`reload --forget`).
    pub(super) is_given_up: bool,
    /// The destinations, before the reload, of the ports that led to the channel.
    pub(super) wires: Vec<Weak<Wires>>,
    /// The reporter of the channel.
    pub(super) reporter: Reporter,
}

impl Leavers {
    /// Lets a channel forget a sink once the sink has ended.
    pub(super) fn add(&mut self, leaver: Leaver) {
        let Leaver {
            place,
            sink,
            tasks,
            is_given_up,
            wires,
            reporter,
            ..
        } = leaver.clone();
        let leave = leave(place, sink, tasks, is_given_up, wires);
        let task = tokio::spawn(async move {
            if let Err(why) = leave.await {
                reporter.warn("forget", why);
            }
        });
        self.0.retain(|(_, task)| !task.is_finished());
        self.0.push((leaver, task.abort_handle()));
    }

    /// Returns the sinks that read their channel again in the plan `new`. Their channels no longer forget them. Otherwise, a channel could
    /// forget a sink before the sink's new reader is attached, and the sink would read everything in the channel again.
    pub(super) fn take_back(&mut self, new: &Known) -> Vec<Leaver> {
        self.0.retain(|(_, task)| !task.is_finished());
        let is_back = |leaver: &Leaver| {
            let mut inputs = new.inputs();
            inputs.any(|(sink, input)| *sink == leaver.sink && input == Some(&leaver.channel))
        };
        let back = self.0.extract_if(.., |(leaver, _)| is_back(leaver));
        let stopped = back.map(|(leaver, task)| {
            task.abort();
            leaver
        });
        stopped.collect()
    }
}

/// Lets `channel` forget the consumer `sink` once the sink has ended: `tasks` resolve when its tasks that read the channel
/// have ended. The error is a text for the operator: the reason why
/// the channel still has the consumer.
///
/// A reload is refused if the sink has not settled everything that the channel has kept. But at the reload, a batch may still be on its way
/// into the channel: in the channel's queue, or in a slow processor in front of the channel. The channel keeps this batch later, and no
/// other channel has it for the sink. Therefore, the consumer stays if the sink ends before it has settled that batch. `wires` has the
/// destinations, before the reload, of the ports that led to the channel. Until the last batch from a port has arrived, its `Wires` exist.
///
/// With `given_up` (`reload --forget`), the channel forgets the consumer in any case.
async fn leave(
    channel: Weak<dyn Channel>,
    sink: Arc<str>,
    mut tasks: Vec<Stop>,
    given_up: bool,
    wires: Vec<Weak<Wires>>,
) -> Result<(), String> {
    let unsettled = || {
        let channel = channel.upgrade();
        channel.map_or(0, |channel| channel.unsettled_bytes(&sink))
    };
    let is_coming = || !given_up && wires.iter().any(|wires| wires.strong_count() > 0);
    // Records that are unsettled when the sink has ended stay unsettled. They may occupy the space that a batch on its way needs, so this
    // loop then does not wait for that batch.
    while is_coming() && !(tasks.iter().all(Stop::is_over) && unsettled() > 0) {
        sleep(CHECK_EVERY).await;
    }
    // Waits until the batches in the channel's queue are kept. If the consumer is given up, there is no sync: the unsettled records of
    // this consumer may fill the channel, and a full channel does not sync batches that wait for space.
    if !given_up
        && !is_coming()
        && let Some(channel) = channel.upgrade()
    {
        let (token, kept) = delivery::receipt(false, 0, Meter::default());
        channel.sync(token);
        drop(channel);
        // If the sync fails, the batches are counted without it.
        let _ = kept.await;
    }
    let is_late = !given_up && unsettled() > 0;
    for task in &mut tasks {
        task.stopped().await;
    }
    let bytes = unsettled();
    // The consumer stays, and nothing else would say so from now on.
    let abandon = || channel.upgrade().inspect(|channel| channel.abandon(&sink));
    if is_late && bytes > 0 {
        abandon();
        return Err(format!(
            "the consumer {sink} stays in the channel: it has not settled {bytes} bytes, which arrived during or after the reload. Let \
             {sink} read the channel again, or drop them with `millstream channel forget --running --consumer {sink}` and the name of \
             the channel"
        ));
    }
    let forgotten = channel.upgrade().map(|channel| channel.forget(&sink));
    if let Some(forgotten) = forgotten
        && let Ok(Err(why)) = forgotten.await
    {
        abandon();
        return Err(format!("the consumer {sink} stays in the channel: {why}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    };

    use tokio::sync::oneshot;

    use super::*;
    use crate::{
        channel::{BoxFuture, Group},
        stop::stop,
    };

    /// A durable channel with one consumer.
    #[derive(Default)]
    struct Kept {
        unsettled: AtomicU64,
        is_full: AtomicBool,
        /// The tokens that wait for space.
        waiting: Mutex<Vec<delivery::Token>>,
        forgotten: Mutex<Vec<String>>,
        abandoned: Mutex<Vec<String>>,
    }

    /// The channel in a feed. It shares the state in `Kept` with the test.
    struct Shared(Arc<Kept>);

    impl Channel for Shared {
        fn put(&self, _: Group) -> BoxFuture<'_, ()> {
            Box::pin(async {})
        }

        fn close(&self) {}

        fn sync(&self, token: delivery::Token) {
            match self.0.is_full.load(SeqCst) {
                true => self.0.waiting.lock().unwrap().push(token),
                false => token.settle(),
            }
        }

        fn unsettled_bytes(&self, _: &str) -> u64 {
            self.0.unsettled.load(SeqCst)
        }

        fn forget(&self, consumer: &str) -> oneshot::Receiver<Result<(), String>> {
            self.0.forgotten.lock().unwrap().push(consumer.to_owned());
            let (answer, receiver) = oneshot::channel();
            let _ = answer.send(Ok(()));
            receiver
        }

        fn abandon(&self, consumer: &str) {
            self.0.abandoned.lock().unwrap().push(consumer.to_owned());
        }
    }

    /// Lets a sink leave that has not settled `late` bytes at the reload, and `end` bytes when it ends. Returns the result, and whether the
    /// channel has forgotten it.
    async fn left(late: u64, end: u64, given_up: bool) -> (Result<(), String>, bool) {
        let kept = Arc::<Kept>::default();
        kept.unsettled.store(late, SeqCst);
        // If the consumer is given up, its records fill the channel.
        kept.is_full.store(given_up, SeqCst);
        let channel: Arc<dyn Channel> = Arc::new(Shared(kept.clone()));
        let (stopper, ended) = stop();
        let leaving = leave(
            Arc::downgrade(&channel),
            "s".into(),
            vec![ended],
            given_up,
            vec![],
        );
        let leaving = tokio::spawn(leaving);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(kept.forgotten.lock().unwrap().is_empty(), "before its end");
        kept.unsettled.store(end, SeqCst);
        stopper.stop();
        let result = leaving.await.unwrap();
        let forgotten = kept.forgotten.lock().unwrap().len() == 1;
        let abandoned = kept.abandoned.lock().unwrap().len() == 1;
        assert_ne!(
            forgotten, abandoned,
            "a consumer that stays has a condition"
        );
        (result, forgotten)
    }

    #[tokio::test]
    async fn a_consumer_stays_if_it_has_not_settled_what_arrived_during_the_reload() {
        let (result, forgotten) = left(10, 10, false).await;
        assert!(!forgotten);
        let why = result.unwrap_err();
        assert!(
            why.contains("10 bytes") && why.contains("--consumer s`"),
            "{why}"
        );
        // Another source may have sent all of it after the reload.
        assert!(why.contains("during or after the reload"), "{why}");
        // The sink has settled it before its end.
        assert_eq!(left(10, 0, false).await, (Ok(()), true));
        // The unsettled records arrived only after the reload, and the sink reads them elsewhere.
        assert_eq!(left(0, 10, false).await, (Ok(()), true));
        assert_eq!(left(10, 10, true).await, (Ok(()), true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_consumer_stays_until_a_batch_that_a_processor_holds_has_arrived() {
        let cases = [(10, true, false), (10, false, false), (0, true, true)];
        for (late, arrives, is_forgotten) in cases {
            let kept = Arc::<Kept>::default();
            let channel: Arc<dyn Channel> = Arc::new(Shared(kept.clone()));
            let (stopper, ended) = stop();
            drop(stopper);
            let mut wires = Some(Arc::new(Wires::default()));
            let before = wires.iter().map(Arc::downgrade).collect();
            let leaving = leave(
                Arc::downgrade(&channel),
                "s".into(),
                vec![ended],
                false,
                before,
            );
            let leaving = tokio::spawn(leaving);
            sleep(100 * CHECK_EVERY).await;
            assert!(!leaving.is_finished() && kept.forgotten.lock().unwrap().is_empty());
            kept.unsettled.store(late, SeqCst);
            // If `arrives` is false, the batch waits for space.
            wires.take_if(|_| arrives);
            assert_eq!(leaving.await.unwrap().is_ok(), is_forgotten);
            assert_eq!(kept.forgotten.lock().unwrap().is_empty(), !is_forgotten);
        }
    }
}
