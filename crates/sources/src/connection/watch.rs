//! Ends a connection for reasons other than a close by its peer: a stop of the process, the idle timeout, too little progress.

use std::{
    future::Future,
    pin::{Pin, pin},
    time::{Duration, Instant},
};

use millstream_net::Limits;
use millstream_pipeline::{
    node::{LocalFuture, SourceContext},
    stop::Stop,
};
use tokio::time::{Sleep, sleep};

use super::progress::Progress;

/// Replaces an idle timeout of 0, which means that there is no timeout.
pub(crate) const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The reason why a connection ends, unless the peer ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quit {
    /// The process stops.
    Stopped,
    /// The peer was silent for too long.
    Idle,
    /// The peer makes too little progress with the message that it has begun.
    Slow,
}

/// The limits on the time a peer takes; zero: no limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// The longest time without a byte.
    pub(crate) idle: Duration,
    /// The time over which progress with a message is measured.
    pub(crate) progress: Duration,
}

impl Patience {
    pub(crate) fn of(limits: &Limits) -> Self {
        Self {
            idle: limits.idle.as_duration(),
            progress: limits.progress.as_duration(),
        }
    }

    /// The timeout for a peer to read some bytes of an answer: the shorter of the two limits.
    pub(crate) fn with_answers(self) -> Duration {
        let all = [self.progress, self.idle];
        all.into_iter()
            .filter(|time| !time.is_zero())
            .min()
            .unwrap_or(NEVER)
    }
}

/// Waits for a read, or for a reason to end the connection.
pub(crate) struct Watch {
    pub(crate) stop: Stop,
    stopped: LocalFuture<'static, ()>,
    quiet: Pin<Box<Sleep>>,
    idle: Duration,
    /// When bytes were last received.
    pub(crate) last: Instant,
    progress: Progress,
}

impl Watch {
    pub(crate) fn new(context: &SourceContext, patience: Patience) -> Self {
        let idle = match patience.idle {
            Duration::ZERO => NEVER,
            idle => idle,
        };
        let mut stop = context.stop.clone();
        Self {
            stop: context.stop.clone(),
            stopped: Box::pin(async move { stop.stopped().await }),
            quiet: Box::pin(sleep(idle)),
            idle,
            last: Instant::now(),
            progress: Progress::new(context.pool.clone(), patience.progress),
        }
    }

    /// Counts received bytes.
    pub(crate) fn came(&mut self, bytes: usize) {
        self.last = Instant::now();
        self.progress.came(bytes);
    }

    /// Returns the output of `read`, or why the connection ends before that. `may_wait`: whether the peer may be silent,
    /// because it waits for an answer. `amid`: the bytes of memory that the current message holds, or `None` between messages.
    /// During a message, the peer must make progress.
    pub(crate) async fn until<T>(
        &mut self,
        may_wait: impl Fn() -> bool,
        amid: Option<usize>,
        read: impl Future<Output = T>,
    ) -> Result<T, Quit> {
        let progress = &mut self.progress;
        let mut read = pin!(async move {
            match amid {
                Some(held) => progress.wait(held, read).await.map_err(|_| Quit::Slow),
                None => {
                    progress.restart();
                    Ok(read.await)
                }
            }
        });
        loop {
            tokio::select! {
                biased;
                done = &mut read => return done,
                () = &mut self.stopped => return Err(Quit::Stopped),
                () = &mut self.quiet => {
                    if may_wait() {
                        self.last = Instant::now();
                    }
                    if self.last.elapsed() >= self.idle {
                        return Err(Quit::Idle);
                    }
                    self.quiet.as_mut().reset((self.last + self.idle).into());
                }
            }
        }
    }
}
