//! What ends a connection beside its peer: the wish to stop, and silence.

use std::{
    future::Future,
    pin::{Pin, pin},
    time::{Duration, Instant},
};

use millstream_pipeline::{node::LocalFuture, stop::Stop};
use tokio::time::{Sleep, sleep};

/// An idle limit of 0 is none.
pub(crate) const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// What ends a connection beside its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quit {
    /// The process wants to end.
    Stopped,
    /// Nothing came for too long.
    Idle,
}

/// Waits for what ends a connection beside its peer.
pub(crate) struct Watch {
    pub(crate) stop: Stop,
    stopped: LocalFuture<'static, ()>,
    quiet: Pin<Box<Sleep>>,
    idle: Duration,
    /// When something came last.
    pub(crate) last: Instant,
}

impl Watch {
    /// `idle`: how long the peer may be silent; 0: for ever.
    pub(crate) fn new(stop: Stop, idle: Duration) -> Self {
        let idle = if idle.is_zero() { NEVER } else { idle };
        let mut wish = stop.clone();
        Self {
            stop,
            stopped: Box::pin(async move { wish.stopped().await }),
            quiet: Box::pin(sleep(idle)),
            idle,
            last: Instant::now(),
        }
    }

    /// What `read` gives, unless the process wants to end or the peer is silent for too long. `may_wait`: whether it may
    /// be silent, because it waits for us.
    pub(crate) async fn until<T>(
        &mut self,
        may_wait: impl Fn() -> bool,
        read: impl Future<Output = T>,
    ) -> Result<T, Quit> {
        let mut read = pin!(read);
        loop {
            tokio::select! {
                biased;
                done = &mut read => return Ok(done),
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
