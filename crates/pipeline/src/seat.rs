//! The place of a running source or sink, which a reload gives to another one with other options.
//!
//! The task stays, and with it the ports of a source and the inlet of a sink: so nothing that waits in front of the sink is lost, and
//! nothing that follows the source has to be connected again. The present node ends as at a stop; the next one then begins.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Context,
    time::Duration,
};

use atomic_waker::AtomicWaker;
use tokio::time::sleep;

use crate::stop::{Stop, Stopper};

/// A node that is to leave its seat ends in order within this time. Otherwise its run is dropped as by a kill: a destination that does
/// not answer may be the reason for the reload.
const GRACE: Duration = Duration::from_secs(10);

/// A seat. Clones share it.
pub(crate) struct Seat<T>(Arc<Shared<T>>);

struct Shared<T> {
    /// The stop of all nodes of its section.
    section: Stopper,
    call: Arc<Call>,
    turn: Mutex<Turn<T>>,
}

struct Turn<T> {
    stopper: Stopper,
    next: Option<T>,
}

/// Asks the node in a seat to leave.
#[derive(Default)]
pub(crate) struct Call {
    is_called: AtomicBool,
    inlet: AtomicWaker,
}

impl Call {
    /// Whether the node is to leave; `context` is woken when that changes.
    pub(crate) fn is_called(&self, context: &Context<'_>) -> bool {
        self.inlet.register(context.waker());
        self.is_called.load(Ordering::Acquire)
    }
}

impl<T> Clone for Seat<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Seat<T> {
    /// The seat of a first node, and the stop of that. `section` stops all nodes of a section.
    pub(crate) fn new(section: &Stopper) -> (Self, Stop) {
        let (stopper, stop) = section.part();
        let next = None;
        let shared = Shared {
            section: section.clone(),
            call: Arc::default(),
            turn: Mutex::new(Turn { stopper, next }),
        };
        (Self(Arc::new(shared)), stop)
    }

    /// Gives the seat to another node as soon as the present one has left.
    pub(crate) fn replace(&self, next: T) {
        self.end_turn(Some(next));
    }

    /// Asks the node to leave.
    pub(crate) fn leave(&self) {
        self.end_turn(None);
    }

    fn end_turn(&self, next: Option<T>) {
        let mut turn = self.turn();
        turn.next = next;
        self.0.call.is_called.store(true, Ordering::Release);
        self.0.call.inlet.wake();
        turn.stopper.stop();
    }

    /// Asks the inlet of a sink to end.
    pub(crate) fn call(&self) -> Arc<Call> {
        self.0.call.clone()
    }

    /// The next node and its stop, if there is one.
    pub(crate) fn next(&self) -> Option<(T, Stop)> {
        let mut turn = self.turn();
        let next = turn.next.take()?;
        let (stopper, stop) = self.0.section.part();
        turn.stopper = stopper;
        self.0.call.is_called.store(false, Ordering::Release);
        Some((next, stop))
    }

    /// Returns when the node was asked to leave, by a reload, and has not done so in time. `stop` is its own.
    pub(crate) async fn overstayed(&self, mut stop: Stop) {
        stop.stopped().await;
        match self.0.call.is_called.load(Ordering::Acquire) {
            true => sleep(GRACE).await,
            // The process stops, and has its own deadline.
            false => std::future::pending().await,
        }
    }

    fn turn(&self) -> MutexGuard<'_, Turn<T>> {
        self.0.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stop::stop;

    #[tokio::test(start_paused = true)]
    async fn the_next_node_begins_when_the_present_one_was_asked_to_leave() {
        let (section, _) = stop();
        let (seat, first) = Seat::new(&section);
        assert!(seat.next().is_none() && !first.is_stopped());
        seat.replace(2);
        assert!(first.is_stopped());
        seat.overstayed(first).await;
        let (next, second) = seat.next().unwrap();
        assert_eq!((next, second.is_stopped()), (2, false));
        assert!(seat.next().is_none());
        seat.leave();
        assert!(second.is_stopped() && seat.next().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_of_the_process_has_its_own_deadline() {
        let (section, _) = stop();
        let (seat, only) = Seat::<()>::new(&section);
        section.stop();
        let overstayed = tokio::time::timeout(2 * GRACE, seat.overstayed(only));
        assert!(overstayed.await.is_err());
    }
}
