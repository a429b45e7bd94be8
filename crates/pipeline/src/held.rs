//! The conditions of one node that are raised now. A condition is a lasting problem that keeps the node from its work.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// The effect of a condition on the node's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// The node works, but it will not for ever: an operator must do something first.
    Degraded,
    /// The node waits for something that it cannot change: room on a disk or in a channel, a slow consumer.
    Blocked,
    /// The destination or the peer fails, and the node retries.
    Retrying,
    /// Accepted records are missing or are being skipped. Lasts until an operator clears it or no more records are skipped.
    Losing,
}

/// A condition that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its effect.
    pub trouble: Trouble,
    /// Why, in one sentence that says what to do.
    pub why: String,
    /// For how long it has held.
    pub age: Duration,
    /// The node that causes it, if it is another one: a consumer that holds a channel, or the channel in front of which a source waits.
    pub cause: Option<Arc<str>>,
}

/// All conditions of one node. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    next: AtomicU64,
    held: Mutex<BTreeMap<u64, Active>>,
}

/// A condition that is raised, with its start instead of its age.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) trouble: Trouble,
    pub(crate) why: String,
    pub(crate) cause: Option<Arc<str>>,
    pub(crate) since: Instant,
}

impl Conditions {
    pub(crate) fn held(&self) -> Vec<Held> {
        let report = |active: &Active| Held {
            trouble: active.trouble,
            why: active.why.clone(),
            age: active.since.elapsed(),
            cause: active.cause.clone(),
        };
        self.lock().values().map(report).collect()
    }

    /// The id of a new condition.
    pub(crate) fn next_id(&self) -> u64 {
        self.0.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The conditions that hold, by id.
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Active>> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
