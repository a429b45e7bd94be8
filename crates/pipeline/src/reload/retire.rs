//! Lets a channel or queue that a reload has removed end while it is full.
//!
//! A source may wait for room in the removed channel, or for the receipt of a batch that waits there. Its sinks may never make this room:
//! their destination hangs, they were given up, or a consumer without a sink holds everything. So after a time the senders no longer wait. A batch that
//! the channel has not accepted fails at its sender, which sends it again to the new destinations if it can.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::{channel::Channel, outlet::CHECK_EVERY, report::Reporter, seat::GRACE, stop::Stop};

/// How long senders wait for room if no consumer will make it.
const GIVEN_UP: Duration = Duration::from_secs(1);

/// A removed channel, or the removed memory in front of a sink.
pub(super) struct Removed {
    pub(super) name: Arc<str>,
    pub(super) channel: Weak<dyn Channel>,
    /// Each resolves when a task that still fills the channel and has left the plan, too, has ended.
    pub(super) fillers: Vec<Stop>,
    /// Whether its consumers were given up.
    pub(super) is_given_up: bool,
}

impl Removed {
    /// Returns when nothing waits for the channel any more, because it has ended or gives up what waits.
    pub(super) async fn retire(mut self, reporter: Reporter) {
        for filler in &mut self.fillers {
            filler.stopped().await;
        }
        let patience = match self.is_given_up {
            true => GIVEN_UP,
            false => GRACE,
        };
        let mut full: Option<(u64, Instant)> = None;
        while let Some(channel) = self.channel.upgrade() {
            let now = Instant::now();
            full = channel.waiting().map(|room| match full {
                Some((before, since)) if before == room => (room, since),
                _ => (room, now),
            });
            if full.is_some_and(|(_, since)| now - since >= patience) {
                reporter.warn(
                    "removed",
                    format_args!(
                        "{} was removed while it was full: its senders no longer wait for it, and send what it has not accepted \
                         to their new destinations if they can send it again",
                        self.name
                    ),
                );
                return channel.give_up_waiting();
            }
            drop(channel);
            sleep(CHECK_EVERY).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

    use super::*;
    use crate::{
        channel::{BoxFuture, Group},
        stop::stop,
    };

    #[derive(Default)]
    struct State {
        is_full: AtomicBool,
        made_room: AtomicU64,
        has_given_up: AtomicBool,
    }

    struct Removable(Arc<State>);

    impl Channel for Removable {
        fn put(&self, _: Group) -> BoxFuture<'_, ()> {
            Box::pin(async {})
        }
        fn waiting(&self) -> Option<u64> {
            let room = self.0.made_room.load(SeqCst);
            self.0.is_full.load(SeqCst).then_some(room)
        }
        fn close(&self) {}
        fn give_up_waiting(&self) {
            self.0.has_given_up.store(true, SeqCst);
        }
    }

    /// Returns how long a removed channel that stays full lets its senders wait.
    async fn waited(is_given_up: bool, fillers: Vec<Stop>) -> Duration {
        let state = Arc::<State>::default();
        let channel: Arc<dyn Channel> = Arc::new(Removable(state.clone()));
        let removed = Removed {
            name: "c".into(),
            channel: Arc::downgrade(&channel),
            fillers,
            is_given_up,
        };
        let began = Instant::now();
        let reporter = Reporter::new("c");
        let retiring = tokio::spawn(removed.retire(reporter));
        // A channel that is only slow is full for moments.
        for _ in 0..100 {
            state.is_full.store(true, SeqCst);
            sleep(GIVEN_UP / 2).await;
            state.is_full.store(false, SeqCst);
            sleep(2 * CHECK_EVERY).await;
        }
        // Its queue is always full, because more senders wait, but its sink reads.
        state.is_full.store(true, SeqCst);
        for _ in 0..100 {
            sleep(GIVEN_UP / 2).await;
            state.made_room.fetch_add(1, SeqCst);
        }
        assert!(!state.has_given_up.load(SeqCst));
        let slow = began.elapsed();
        retiring.await.unwrap();
        assert!(state.has_given_up.load(SeqCst));
        began.elapsed() - slow
    }

    #[tokio::test(start_paused = true)]
    async fn senders_wait_for_a_slow_channel_and_only_for_a_time_for_a_full_one() {
        let near = |waited: Duration, wanted: Duration| {
            let margin = 4 * CHECK_EVERY;
            assert!(
                waited + margin > wanted && waited < wanted + margin,
                "{waited:?}"
            );
        };
        near(waited(false, Vec::new()).await, GRACE);
        near(waited(true, Vec::new()).await, GIVEN_UP);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pump_that_still_fills_the_channel_ends_first() {
        let (running, pump) = stop();
        let filled = waited(true, vec![pump]);
        let ended = async {
            sleep(Duration::from_secs(600)).await;
            drop(running);
        };
        let (waited, ()) = tokio::join!(filled, ended);
        assert!(waited > Duration::from_secs(400), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_given_up_when_the_last_sender_is_done() {
        let state = Arc::<State>::default();
        let channel: Arc<dyn Channel> = Arc::new(Removable(state.clone()));
        let removed = Removed {
            name: "c".into(),
            channel: Arc::downgrade(&channel),
            fillers: Vec::new(),
            is_given_up: false,
        };
        state.is_full.store(true, SeqCst);
        let retiring = tokio::spawn(removed.retire(Reporter::new("c")));
        sleep(GRACE / 2).await;
        drop(channel);
        retiring.await.unwrap();
        assert!(!state.has_given_up.load(SeqCst));
    }
}
