//! The wish to stop, spread to every task.

use std::sync::Arc;

use tokio::sync::watch;

/// Says when to stop. Cloning listens to the same wish.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

/// Makes the wish.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<watch::Sender<bool>>);

/// A wish to stop that nobody has had yet.
pub fn stop() -> (Stopper, Stop) {
    let (sender, receiver) = watch::channel(false);
    (Stopper(Arc::new(sender)), Stop(receiver))
}

impl Stopper {
    /// Everybody who listens stops now.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Whether it is time.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns when it is time. Also when nobody is left who could ever say so.
    pub async fn stopped(&mut self) {
        let _ = self.0.wait_for(|stopped| *stopped).await;
    }
}
