//! What stands for a durable channel that could not be opened.
//!
//! Its sources and sinks do not run. A node that rejects records into it does: what it rejects waits here, because it must
//! not be dropped.

use crate::{
    channel::{BoxFuture, Channel, Group},
    stop::{Stop, Stopper, stop},
};

/// A channel that takes nothing.
pub(crate) struct Unopened {
    stopper: Stopper,
    stop: Stop,
}

impl Default for Unopened {
    fn default() -> Self {
        let (stopper, stop) = stop();
        Self { stopper, stop }
    }
}

impl Channel for Unopened {
    fn put(&self, group: Group) -> BoxFuture<'_, ()> {
        let mut stop = self.stop.clone();
        Box::pin(async move {
            stop.stopped().await;
            // Its token is dropped with it, which fails the receipt.
            drop(group);
        })
    }

    fn is_full(&self) -> bool {
        true
    }

    fn close(&self) {}

    fn give_up_waiting(&self) {
        self.stopper.stop();
    }
}
