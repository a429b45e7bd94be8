//! A stop signal that every task can wait for.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

/// Waits for a stop. Clones wait for the same one.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

/// Requests a stop.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Sender>);

#[derive(Debug)]
struct Sender {
    stopped: watch::Sender<bool>,
    parts: Mutex<Vec<Stopper>>,
}

/// Returns a stop that has not been requested yet, with the handle that requests it.
pub fn stop() -> (Stopper, Stop) {
    let (stopped, receiver) = watch::channel(false);
    let parts = Mutex::default();
    (Stopper(Arc::new(Sender { stopped, parts })), Stop(receiver))
}

impl Stopper {
    /// Stops every task that waits for this stop or for one of its parts.
    pub fn stop(&self) {
        self.0.stopped.send_replace(true);
        let parts = self.0.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.iter().for_each(Self::stop);
    }

    /// A handle that waits for this stop.
    pub fn watch(&self) -> Stop {
        Stop(self.0.stopped.subscribe())
    }

    /// Makes a part: a stop that can be requested alone, and that is also requested when this stop is requested.
    pub fn part(&self) -> (Stopper, Stop) {
        let (stopper, stop) = stop();
        let mut parts = self.0.parts.lock().unwrap_or_else(PoisonError::into_inner);
        // If no task waits for a part any more, its node has ended.
        parts.retain(|part| part.0.stopped.receiver_count() > 0);
        parts.push(stopper.clone());
        if *self.0.stopped.borrow() {
            stopper.stop();
        }
        (stopper, stop)
    }
}

impl Stop {
    /// Whether the stop was requested.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// Whether all its [`Stopper`]s are gone.
    pub(crate) fn is_over(&self) -> bool {
        self.0.has_changed().is_err()
    }

    /// Resolves when the stop is requested, or when all its [`Stopper`]s are gone.
    pub async fn stopped(&mut self) {
        let _ = self.0.wait_for(|stopped| *stopped).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_stops_alone_and_with_the_whole() {
        let (whole, all) = stop();
        let ((first, one), (_second, two)) = (whole.part(), whole.part());
        first.stop();
        assert!(one.is_stopped() && !two.is_stopped() && !all.is_stopped());
        drop(one);
        whole.stop();
        assert!(two.is_stopped() && all.is_stopped());
        assert!(whole.part().1.is_stopped());
    }
}
