//! The stand-in for a durable channel that could not be opened.
//!
//! The sources that send to such a channel and the sinks that read it do not run. A node does run if only its rejected records go to
//! such a channel. These records wait here, because they must not be dropped.

use crate::{
    channel::{BoxFuture, Channel, Group},
    stop::{Stop, Stopper, stop},
};

/// A channel that never accepts a batch.
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
            // Dropping the group drops its token, which fails the receipt.
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
