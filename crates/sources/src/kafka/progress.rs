//! State shared by the reading thread and the data thread.

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

/// The interval at which [`Progress::ended`] checks whether the reading thread has ended.
const LOOK: Duration = Duration::from_millis(5);

/// One assignment of a partition. A later assignment of the same partition is a different one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Assigned {
    pub(super) partition: Partition,
    pub(super) time: u64,
}

/// How far each partition is settled, whether the data thread has finished, and how the reading thread has ended.
#[derive(Default)]
pub(super) struct Progress {
    /// The offset up to which each assigned partition is settled.
    settled: Mutex<HashMap<Assigned, u64>>,
    /// Whether every batch that was sent is settled or has failed. The reading thread may then commit and leave the group.
    landed: AtomicBool,
    /// Whether the reading thread ends only to begin again with a new client.
    again: AtomicBool,
    end: Mutex<Option<Result<(), Failure>>>,
}

impl Progress {
    fn all(&self) -> MutexGuard<'_, HashMap<Assigned, u64>> {
        // No update can panic halfway, so the map of a poisoned lock is consistent.
        self.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the reading thread ends to begin again.
    pub(super) fn begin_again(&self) {
        self.again.store(true, Ordering::Relaxed);
    }

    /// Whether the reading thread ends to begin again.
    pub(super) fn begins_again(&self) -> bool {
        self.again.load(Ordering::Relaxed)
    }

    /// Notes that a partition is read from `begin` on.
    pub(super) fn assign(&self, assigned: Assigned, begin: u64) {
        self.all().insert(assigned, begin);
    }

    /// Notes that a partition is not read any more.
    pub(super) fn unassign(&self, assigned: &Assigned) {
        self.all().remove(assigned);
    }

    /// Whether this assignment of a partition is still read.
    pub(super) fn is_assigned(&self, assigned: &Assigned) -> bool {
        self.all().contains_key(assigned)
    }

    /// Notes that everything before `next` is settled. Does nothing if the partition is not assigned any more.
    pub(super) fn settle(&self, assigned: &Assigned, next: u64) {
        if let Some(settled) = self.all().get_mut(assigned) {
            *settled = (*settled).max(next);
        }
    }

    /// The offset up to which a partition is settled; None if the partition is not assigned any more.
    pub(super) fn settled(&self, assigned: &Assigned) -> Option<u64> {
        self.all().get(assigned).copied()
    }

    /// Notes that every batch that was sent is settled or has failed.
    pub(super) fn land(&self) {
        self.landed.store(true, Ordering::Release);
    }

    /// Whether nothing more will be settled.
    pub(super) fn is_landed(&self) -> bool {
        self.landed.load(Ordering::Acquire)
    }

    /// Notes how the reading thread has ended.
    pub(super) fn end(&self, end: Result<(), Failure>) {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
    }

    /// Waits until the reading thread has ended, and returns its result.
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
