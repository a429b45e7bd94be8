//! A stop signal that every task can wait for.

use std::sync::Arc;

use tokio::sync::watch;

/// Waits for the stop. Clones wait for the same one.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

/// Sends the stop.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<watch::Sender<bool>>);

/// A stop that was not requested yet.
pub fn stop() -> (Stopper, Stop) {
    let (sender, receiver) = watch::channel(false);
    (Stopper(Arc::new(sender)), Stop(receiver))
}

impl Stopper {
    /// Stops every task that waits for it.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Waits for this stop.
    pub fn watch(&self) -> Stop {
        Stop(self.0.subscribe())
    }
}

impl Stop {
    /// Whether the stop was requested.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns when the stop is requested, or when its sender is gone.
    pub async fn stopped(&mut self) {
        let _ = self.0.wait_for(|stopped| *stopped).await;
    }
}
