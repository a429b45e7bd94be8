//! What ends a connection beside its peer: the wish to stop, and silence.

use std::{
    future::Future,
    pin::{Pin, pin},
    time::{Duration, Instant},
};

use millstream_pipeline::{node::LocalFuture, stop::Stop};
use tokio::time::{Sleep, sleep};

use super::{end::End, outgoing::Outgoing};

/// Waits for what ends a connection beside its peer.
pub(super) struct Watch {
    pub(super) stop: Stop,
    stopped: LocalFuture<'static, ()>,
    quiet: Pin<Box<Sleep>>,
    idle: Duration,
    /// When something came last.
    pub(super) last: Instant,
}

impl Watch {
    pub(super) fn new(stop: Stop, idle: Duration) -> Self {
        let mut wish = stop.clone();
        Self {
            stop,
            stopped: Box::pin(async move { wish.stopped().await }),
            quiet: Box::pin(sleep(idle)),
            idle,
            last: Instant::now(),
        }
    }

    /// What `read` gives, unless the process wants to end or the peer is silent for too long.
    pub(super) async fn until<T>(
        &mut self,
        out: &Outgoing,
        read: impl Future<Output = T>,
    ) -> Result<T, End> {
        let mut read = pin!(read);
        loop {
            tokio::select! {
                biased;
                done = &mut read => return Ok(done),
                () = &mut self.stopped => return Err(End::Stopped),
                () = &mut self.quiet => {
                    // A peer that waits for its acks may be silent.
                    if out.answers.open() > 0 {
                        self.last = Instant::now();
                    }
                    if self.last.elapsed() >= self.idle {
                        return Err(End::Idle);
                    }
                    self.quiet.as_mut().reset((self.last + self.idle).into());
                }
            }
        }
    }
}
