//! Measures whether a peer makes progress with the message that it has begun: a frame, a header, a body.
//!
//! Only time spent waiting for the peer counts, not time that this side spends decoding or waiting for memory or space.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use millstream_record::Pool;
use tokio::time::{Instant, Sleep, sleep};

/// The lowest rate of a peer, in bytes per second.
const RATE_MIN: u64 = 1 << 10;
/// While other messages wait for memory, a message must arrive fast enough to fill the memory that it holds within this many
/// seconds.
const SHORT_SECONDS: u64 = 60;
/// While other messages wait for memory, progress is measured over at most this time.
const SHORT_WINDOW: Duration = Duration::from_secs(5);
/// The number of checks per window.
const CHECKS: u32 = 4;

/// The error for a peer that is too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slow;

/// Measures the progress of one message after another.
pub(crate) struct Progress {
    pool: Pool,
    /// The time over which progress is measured. Zero: no limit.
    window: Duration,
    /// Time spent waiting in this window.
    waited: Duration,
    /// The number of bytes received in this window.
    came: u64,
    check: Option<Pin<Box<Sleep>>>,
}

impl Progress {
    pub(crate) fn new(pool: Pool, window: Duration) -> Self {
        Self {
            pool,
            window,
            waited: Duration::ZERO,
            came: 0,
            check: None,
        }
    }

    /// Counts received bytes.
    pub(crate) fn came(&mut self, bytes: usize) {
        self.came += bytes as u64;
    }

    /// Restarts the measurement, because the peer has no message to finish.
    pub(crate) fn restart(&mut self) {
        self.waited = Duration::ZERO;
        self.came = 0;
    }

    /// Waits for `read`, which receives more of a message that holds `held` bytes of memory. Fails if the peer is too slow.
    pub(crate) async fn wait<T>(
        &mut self,
        held: usize,
        read: impl Future<Output = T>,
    ) -> Result<T, Slow> {
        let mut read = pin!(read);
        let at_once = poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
        if let Poll::Ready(done) = at_once {
            return Ok(done);
        }
        if self.window.is_zero() {
            return Ok(read.await);
        }
        let step = self.window / CHECKS;
        let mut since = Instant::now();
        loop {
            let check = self.check.get_or_insert_with(|| Box::pin(sleep(step)));
            tokio::select! {
                biased;
                done = &mut read => {
                    self.waited += since.elapsed();
                    return Ok(done);
                }
                () = &mut *check => {}
            }
            let now = Instant::now();
            self.waited += now - since;
            since = now;
            self.judge(held)?;
            let step = self.window.min(SHORT_WINDOW) / CHECKS;
            if let Some(check) = &mut self.check {
                check.as_mut().reset(now + step);
            }
        }
    }

    fn judge(&mut self, held: usize) -> Result<(), Slow> {
        let (window, rate) = match self.pool.is_short() {
            true => (
                self.window.min(SHORT_WINDOW),
                RATE_MIN.max(held as u64 / SHORT_SECONDS),
            ),
            false => (self.window, RATE_MIN),
        };
        if self.waited < window {
            return Ok(());
        }
        let due = self.waited.as_secs_f64() * rate as f64;
        let came = std::mem::take(&mut self.came);
        self.waited = Duration::ZERO;
        if (came as f64) < due {
            Err(Slow)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(20);

    async fn wait(seconds: u64) {
        sleep(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_brings_less_than_a_kilobyte_a_second_is_slow() {
        let mut progress = Progress::new(Pool::new(1 << 20), WINDOW);
        for _ in 0..10 {
            progress.wait(1, wait(4)).await.unwrap();
            progress.came(5 << 10);
        }
        progress.restart();
        let mut slow = false;
        for _ in 0..10 {
            slow |= progress.wait(1, wait(4)).await.is_err();
            progress.came(1 << 10);
        }
        assert!(slow);
    }

    #[tokio::test(start_paused = true)]
    async fn time_spent_on_this_side_does_not_count() {
        let mut progress = Progress::new(Pool::new(1 << 20), WINDOW);
        progress.wait(1, wait(15)).await.unwrap();
        wait(1000).await;
        progress.wait(1, wait(1)).await.unwrap();
        assert_eq!(progress.wait(1, wait(15)).await, Err(Slow));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_a_peer_may_take_any_time() {
        let mut progress = Progress::new(Pool::new(1 << 20), Duration::ZERO);
        assert_eq!(progress.wait(1, wait(1 << 20)).await, Ok(()));
    }
}
