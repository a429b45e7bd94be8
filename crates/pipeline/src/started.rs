//! The tasks and channels that were started. A reload can add more. The pipeline ends when all of them have ended.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::timeout;

use crate::{
    channel::{Backlog, BoxFuture, Channel},
    failure::Failure,
    report::Reporter,
    stop::{Stop, stop},
    supervise::{NodeState, StateCell},
};

/// How long the task of a closed channel may take to report that the channel is closed.
const AT_ONCE: Duration = Duration::from_millis(100);

/// The tasks and channels that were started, for the pipeline to wait for.
#[derive(Default)]
pub(crate) struct Started {
    sources: AtomicUsize,
    sinks: AtomicUsize,
    /// Sources that do not acknowledge records. Their senders cannot send dropped records again.
    unanswering: Mutex<BTreeSet<Arc<str>>>,
    channels: Mutex<Vec<Open>>,
}

/// An open durable channel. This value does not keep the channel alive. Only the channel's feeds and its task do, so the channel is
/// freed completely when a reload removes it.
pub(crate) struct Open {
    name: String,
    channel: Weak<dyn Channel>,
    /// Tells how much is left in the channel, also after it is closed ([`Open::watch`]).
    backlog: Option<Backlog>,
    /// Resolves when the channel is closed.
    pub(crate) ended: Stop,
    /// Resolves when the channel is closed and everything in it is kept.
    finished: BoxFuture<'static, Result<(), Failure>>,
}

impl Open {
    /// Returns an open channel. `finished` resolves when the channel is closed and everything in it is kept. `state` then shows how it
    /// has ended.
    pub(crate) fn new(
        channel: Arc<dyn Channel>,
        finished: BoxFuture<'static, Result<(), Failure>>,
        (state, reporter): (StateCell, Reporter),
    ) -> Self {
        let (name, weak) = (reporter.node().to_owned(), Arc::downgrade(&channel));
        let (running, ended) = stop();
        let task = tokio::spawn(async move {
            let finished = finished.await;
            match &finished {
                Ok(()) => state.set(NodeState::Ended),
                Err(failure) => {
                    let text = format_args!("{failure}; the channel has stopped");
                    reporter.error("failed", text);
                    state.fail(failure);
                }
            }
            drop((channel, running));
            finished
        });
        let died = |error| Err(Failure::us(format!("the task of a channel died: {error}")));
        Self {
            name,
            channel: weak,
            backlog: None,
            ended,
            finished: Box::pin(async move { task.await.unwrap_or_else(died) }),
        }
    }

    /// From now on, [`Open::left`] is known, also after the channel is closed. A channel that is watched is not freed completely.
    pub(crate) fn watch(&mut self) {
        let channel = self.channel.upgrade();
        self.backlog = channel.and_then(|channel| channel.backlog());
    }

    /// The name of the channel, and how many bytes its slowest consumer has not settled; 0 if the channel is not watched.
    pub(crate) fn left(&self) -> (&str, u64) {
        (&self.name, self.backlog.as_ref().map_or(0, |left| left()))
    }

    /// Asks the channel to keep as much as it has space for, and to close.
    pub(crate) fn give_up_waiting(&self) {
        let channel = self.channel.upgrade();
        channel.inspect(|channel| channel.give_up_waiting());
    }

    /// Waits until the channel is closed and everything in it is kept.
    pub(crate) async fn finished(&mut self) -> Result<(), Failure> {
        (&mut self.finished).await
    }

    /// Returns the result of closing the channel; `None` if it is still open.
    pub(crate) async fn is_finished(&mut self) -> Option<Result<(), Failure>> {
        timeout(AT_ONCE, self.finished()).await.ok()
    }
}

impl Started {
    /// Counts a task that begins.
    pub(crate) fn begin(&self, is_source: bool) {
        self.of(is_source).fetch_add(1, Ordering::Relaxed);
    }

    fn of(&self, is_source: bool) -> &AtomicUsize {
        match is_source {
            true => &self.sources,
            false => &self.sinks,
        }
    }

    /// Counts a task that has ended.
    pub(crate) fn end(&self, is_source: bool) {
        self.of(is_source).fetch_sub(1, Ordering::Relaxed);
    }

    /// The number of sources that run.
    pub(crate) fn sources(&self) -> usize {
        self.sources.load(Ordering::Relaxed)
    }

    /// The number of tasks that run.
    pub(crate) fn all(&self) -> usize {
        self.sources() + self.sinks.load(Ordering::Relaxed)
    }

    /// Notes that the senders of this source cannot send records again.
    pub(crate) fn add_unanswering(&self, source: &Arc<str>) {
        let all = self.unanswering.lock();
        all.unwrap_or_else(PoisonError::into_inner)
            .insert(source.clone());
    }

    /// Adds a durable channel that was opened.
    pub(crate) fn add_channel(&self, open: Open) {
        let channels = self.channels.lock();
        channels.unwrap_or_else(PoisonError::into_inner).push(open);
    }

    /// Takes the channels that were opened since the last call.
    pub(crate) fn take_channels(&self) -> Vec<Open> {
        let channels = self.channels.lock();
        std::mem::take(&mut channels.unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the senders of a source cannot send records again.
    pub(crate) fn is_unanswering(&self, source: &str) -> bool {
        let all = self.unanswering.lock();
        all.unwrap_or_else(PoisonError::into_inner).contains(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unopened::Unopened;

    #[test]
    fn tasks_are_counted_until_they_end() {
        let started = Started::default();
        started.begin(true);
        started.begin(false);
        assert_eq!((started.sources(), started.all()), (1, 2));
        started.end(true);
        assert_eq!((started.sources(), started.all()), (0, 1));
        started.add_unanswering(&"in".into());
        assert!(started.is_unanswering("in") && !started.is_unanswering("other"));
    }

    #[tokio::test]
    async fn a_channel_is_kept_until_it_is_closed() {
        let (sender, closed) = tokio::sync::oneshot::channel::<()>();
        let channel: Arc<dyn Channel> = Arc::new(Unopened::default());
        let weak = Arc::downgrade(&channel);
        let finished = async {
            let _ = closed.await;
            Ok(())
        };
        let shown = (StateCell::new(), Reporter::new("c"));
        let mut open = Open::new(channel, Box::pin(finished), shown);
        assert_eq!(open.is_finished().await, None);
        assert!(weak.upgrade().is_some());
        sender.send(()).unwrap();
        assert_eq!(open.finished().await, Ok(()));
        assert!(weak.upgrade().is_none() && open.ended.is_over());
    }

    #[tokio::test]
    async fn a_channel_whose_writer_dies_has_failed_at_once() {
        let (state, reporter) = (StateCell::new(), Reporter::new("c"));
        let (sender, died) = tokio::sync::oneshot::channel();
        let finished = async { died.await.unwrap_or(Ok(())) };
        let channel: Arc<dyn Channel> = Arc::new(Unopened::default());
        let open = Open::new(channel, Box::pin(finished), (state.clone(), reporter));
        assert_eq!(state.get(), NodeState::Running);
        sender.send(Err(Failure::us("it has panicked"))).unwrap();
        open.ended.clone().stopped().await;
        assert_eq!(state.get(), NodeState::Failed("it has panicked".to_owned()));
    }
}
