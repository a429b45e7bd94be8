//! The seat of a running source or sink: the task that runs it. A reload can give the seat to another node with other options.
//!
//! The task stays, and with it the ports of a source and the inlet of a sink. So no batch that waits in front of a sink is lost, and the
//! consumers of a source stay connected. The current node ends as at a stop, and then the next node begins its turn.

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

/// The time in which a node must leave its seat in an orderly way. After that, its run is dropped as if the process had been killed.
/// Without this limit, a destination that does not answer could block the next node, although such a destination may be the reason for
/// the reload.
pub(crate) const GRACE: Duration = Duration::from_secs(10);

/// A seat. Clones share it.
pub(crate) struct Seat<T>(Arc<Shared<T>>);

struct Shared<T> {
    /// Stops all nodes of the section (all sources, or all sinks).
    section: Stopper,
    call: Arc<Call>,
    turn: Mutex<Turn<T>>,
}

struct Turn<T> {
    stopper: Stopper,
    /// The run that follows the current one. `None`: nothing was asked, so the supervisor decides.
    next: Option<Next<T>>,
    /// Whether the node is no longer in the plan.
    is_removed: bool,
}

/// The run that a reload or an operator wants to follow the current one.
enum Next<T> {
    /// The current node again.
    Same,
    Other(T),
    /// No node: the task ends.
    Nobody,
}

/// The request to a node to leave its seat.
#[derive(Default)]
pub(crate) struct Call {
    is_called: AtomicBool,
    inlet: AtomicWaker,
}

impl Call {
    /// Whether the node must leave. The task of `context` is woken when the node is asked to leave.
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
    /// Returns the seat of a first node, and the stop signal of this node. `section` stops all nodes of the section.
    pub(crate) fn new(section: &Stopper) -> (Self, Stop) {
        let (stopper, stop) = section.part();
        let turn = Turn {
            stopper,
            next: None,
            is_removed: false,
        };
        let shared = Shared {
            section: section.clone(),
            call: Arc::default(),
            turn: Mutex::new(turn),
        };
        (Self(Arc::new(shared)), stop)
    }

    /// Gives the seat to `next` once the current node has left. Does nothing if the node was asked to leave permanently.
    pub(crate) fn replace(&self, next: T) {
        self.end_turn(Next::Other(next));
    }

    /// Asks the node to end its run and to begin another one. Does nothing if the node was already asked to leave, because then it
    /// ends, restarts or is replaced anyway.
    pub(crate) fn restart(&self) {
        if !self.is_called() {
            self.end_turn(Next::Same);
        }
    }

    /// Asks the node to leave permanently.
    pub(crate) fn leave(&self) {
        self.end_turn(Next::Nobody);
    }

    fn end_turn(&self, next: Next<T>) {
        let mut turn = self.turn();
        if matches!(turn.next, Some(Next::Nobody)) {
            return;
        }
        turn.next = Some(next);
        self.0.call.is_called.store(true, Ordering::Release);
        self.0.call.inlet.wake();
        turn.stopper.stop();
    }

    /// Whether the node was asked to leave, and a next node has not begun its turn.
    fn is_called(&self) -> bool {
        self.0.call.is_called.load(Ordering::Acquire)
    }

    /// Notes that the plan no longer has the node. The node may still finish the work that it has begun.
    pub(crate) fn remove(&self) {
        self.turn().is_removed = true;
    }

    /// Whether the plan no longer has the node.
    pub(crate) fn is_removed(&self) -> bool {
        self.turn().is_removed
    }

    /// Whether the node was asked to leave permanently.
    pub(crate) fn is_left(&self) -> bool {
        matches!(self.turn().next, Some(Next::Nobody))
    }

    /// The request that the inlet of a sink watches.
    pub(crate) fn call(&self) -> Arc<Call> {
        self.0.call.clone()
    }

    /// Whether the seat was called, so that the supervisor need not decide what follows the current run.
    pub(crate) fn has_next(&self) -> bool {
        self.turn().next.is_some()
    }

    /// Replaces `present` by the next node and returns the stop signal of the next node; `None` if no other run follows.
    pub(crate) fn turn_to_next(&self, present: &mut T) -> Option<Stop> {
        let mut turn = self.turn();
        match turn.next.take()? {
            Next::Same => {}
            Next::Other(next) => *present = next,
            Next::Nobody => {
                turn.next = Some(Next::Nobody);
                return None;
            }
        }
        let (stopper, stop) = self.0.section.part();
        turn.stopper = stopper;
        self.0.call.is_called.store(false, Ordering::Release);
        Some(stop)
    }

    /// Resolves when a reload has asked the node to leave and the node has not left in time. `stop` is the stop signal of this node.
    /// Never resolves if the process stops instead.
    pub(crate) async fn overstayed(&self, mut stop: Stop) {
        stop.stopped().await;
        match self.is_called() {
            true => sleep(GRACE).await,
            // The stop of the process has a separate deadline.
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
        let mut node = 1;
        assert!(seat.turn_to_next(&mut node).is_none() && !first.is_stopped());
        seat.replace(2);
        assert!(first.is_stopped() && seat.has_next());
        seat.overstayed(first).await;
        let second = seat.turn_to_next(&mut node).unwrap();
        assert_eq!((node, second.is_stopped()), (2, false));
        assert!(!seat.has_next());
        seat.restart();
        assert!(second.is_stopped());
        let third = seat.turn_to_next(&mut node).unwrap();
        assert_eq!((node, third.is_stopped()), (2, false));
        // A restart neither displaces the next node nor brings back a node that must leave.
        seat.replace(4);
        seat.restart();
        let fourth = seat.turn_to_next(&mut node).unwrap();
        assert_eq!((node, fourth.is_stopped()), (4, false));
        seat.leave();
        seat.restart();
        seat.replace(5);
        assert!(fourth.is_stopped() && seat.is_left());
        assert!(seat.turn_to_next(&mut node).is_none() && seat.is_left());
        assert_eq!(node, 4);
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
