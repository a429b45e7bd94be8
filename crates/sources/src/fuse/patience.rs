//! How long a write waits for space in the next channels.

use std::time::Duration;

use millstream_pipeline::stop::Stop;
use rustix::io::Errno;
use tokio::time::Instant;

use super::config::WhenFull;

/// At a stop, a write that can be kept soon is still kept. After this time it fails.
const STOP_AFTER: Duration = Duration::from_millis(200);

/// How long a request waits for space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// When it ends. `None`: never.
    until: Option<Instant>,
    /// Whether it ends at a stop, too.
    ends_at_stop: bool,
}

impl Patience {
    /// For bytes that were acknowledged before: no program waits for an answer, and they must not get lost.
    pub(super) const ENDLESS: Self = Self {
        until: None,
        ends_at_stop: false,
    };

    /// For a write that begins now. Its program waits for an answer.
    pub(super) fn of_write(when_full: WhenFull) -> Self {
        Self {
            until: when_full.limit().map(|limit| Instant::now() + limit),
            ends_at_stop: true,
        }
    }

    /// Whether a time limit ends it.
    pub(super) fn has_limit(&self) -> bool {
        self.until.is_some()
    }

    /// Waits until a time limit has passed. Never returns if there is none.
    async fn over(&self) {
        match self.until {
            Some(until) => tokio::time::sleep_until(until).await,
            None => std::future::pending().await,
        }
    }

    /// Waits until a stop no longer allows waiting. Never returns if a stop does not end the wait.
    async fn stopped(&self, stop: &Stop) {
        if !self.ends_at_stop {
            return std::future::pending().await;
        }
        stop.clone().stopped().await;
        tokio::time::sleep(STOP_AFTER).await;
    }

    /// Waits until the patience ends. Returns the error for the writer.
    pub(super) async fn ended(&self, stop: &Stop) -> Errno {
        tokio::select! {
            () = self.over() => Errno::NOSPC,
            () = self.stopped(stop) => Errno::IO,
        }
    }
}

#[cfg(test)]
mod tests {
    use millstream_pipeline::stop::stop;
    use millstream_testkit::block_on;

    use super::*;

    #[test]
    fn patience_ends_at_its_limit_or_at_a_stop() {
        let (stopper, stop) = stop();
        let short = Patience::of_write(WhenFull::Limited(Duration::from_millis(20)));
        assert!(short.has_limit());
        assert_eq!(block_on(short.ended(&stop)), Errno::NOSPC);
        stopper.stop();
        let long = Patience::of_write(WhenFull::Block);
        assert_eq!(block_on(long.ended(&stop)), Errno::IO);
        let endless = async {
            let waiting = Patience::ENDLESS.ended(&stop);
            tokio::time::timeout(2 * STOP_AFTER, waiting).await
        };
        assert!(block_on(endless).is_err() && !long.has_limit());
    }
}
