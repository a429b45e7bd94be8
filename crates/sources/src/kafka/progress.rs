//! What the thread that reads and the data thread know of each other.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use millstream_kafka::Partition;
use millstream_pipeline::failure::Failure;

/// Between two looks whether the thread has ended.
const LOOK: Duration = Duration::from_millis(5);

/// A partition as it was assigned: each time it is, it is another.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Assigned {
    pub(super) partition: Partition,
    pub(super) time: u64,
}

#[derive(Default)]
pub(super) struct Progress {
    /// Up to where every assigned partition is settled.
    settled: Mutex<HashMap<Assigned, u64>>,
    /// All answers are there, good or bad: the thread may commit and leave.
    landed: AtomicBool,
    end: Mutex<Option<Result<(), Failure>>>,
}

impl Progress {
    fn all(&self) -> MutexGuard<'_, HashMap<Assigned, u64>> {
        // Nothing in here can panic half way, so a poisoned lock is whole.
        self.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A partition is read from this offset on.
    pub(super) fn assign(&self, assigned: Assigned, begin: u64) {
        self.all().insert(assigned, begin);
    }

    /// It is not read any more.
    pub(super) fn unassign(&self, assigned: &Assigned) {
        self.all().remove(assigned);
    }

    /// Whether it is read.
    pub(super) fn is_assigned(&self, assigned: &Assigned) -> bool {
        self.all().contains_key(assigned)
    }

    /// Everything before this offset is settled. What is not assigned any more is nobody's business.
    pub(super) fn settle(&self, assigned: &Assigned, next: u64) {
        if let Some(settled) = self.all().get_mut(assigned) {
            *settled = (*settled).max(next);
        }
    }

    /// Up to where it is settled.
    pub(super) fn settled(&self, assigned: &Assigned) -> Option<u64> {
        self.all().get(assigned).copied()
    }

    /// Nothing more will be settled.
    pub(super) fn land(&self) {
        self.landed.store(true, Ordering::Release);
    }

    /// Whether nothing more will be settled.
    pub(super) fn is_landed(&self) -> bool {
        self.landed.load(Ordering::Acquire)
    }

    /// The thread has ended.
    pub(super) fn end(&self, end: Result<(), Failure>) {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
    }

    /// Waits for the thread to end; how it did.
    pub(super) async fn ended(&self) -> Result<(), Failure> {
        loop {
            let end = self
                .end
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            match end {
                Some(end) => return end,
                None => tokio::time::sleep(LOOK).await,
            }
        }
    }
}
