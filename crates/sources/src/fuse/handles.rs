//! Open files.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use rustix::io::Errno;
use tokio::sync::{OwnedMutexGuard, TryLockError};

use super::{rules::Rule, stream::Stream, tee::Tee};
use crate::flight::Flight;

/// Whoever changes what is unfinished of an open file whose lines are joined has its turn, to the end.
pub(super) type Turn = OwnedMutexGuard<()>;

/// One open file: what one `open` gave, until the last of its copies is closed.
pub(super) struct Handle {
    pub node: u64,
    /// None: it is open for reading only.
    stream: Option<Mutex<Stream>>,
    /// Where lines are joined: the system lets one write at a time in, but joined lines leave without any, too. None: there
    /// are only writes.
    turns: Option<Arc<tokio::sync::Mutex<()>>>,
    /// Behind memory: what was sent and is not settled.
    pub flight: tokio::sync::Mutex<Flight<()>>,
    synced: AtomicBool,
    lost: AtomicBool,
}

impl Handle {
    pub(super) fn new(node: u64, stream: Option<Stream>) -> Self {
        let joins = |stream: &Stream| stream.rule.how.wait().is_some();
        Self {
            node,
            turns: stream
                .as_ref()
                .filter(|stream| joins(stream))
                .map(|_| Arc::default()),
            stream: stream.map(Mutex::new),
            flight: tokio::sync::Mutex::default(),
            synced: AtomicBool::new(false),
            lost: AtomicBool::new(false),
        }
    }

    /// What is written through it.
    pub(super) fn stream(&self) -> Option<MutexGuard<'_, Stream>> {
        let stream = self.stream.as_ref()?;
        Some(stream.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether its lines are joined.
    pub(super) fn joins(&self) -> bool {
        self.turns.is_some()
    }

    /// Waits for its turn; None: it needs none.
    pub(super) async fn turn(&self) -> Option<Turn> {
        Some(self.turns.clone()?.lock_owned().await)
    }

    /// A turn, if it is nobody's.
    pub(super) fn try_turn(&self) -> Result<Option<Turn>, TryLockError> {
        let turns = self.turns.clone();
        turns.map(tokio::sync::Mutex::try_lock_owned).transpose()
    }

    pub(super) fn wants_copy(&self) -> bool {
        self.stream()
            .is_some_and(|stream| stream.tee.is_some() || stream.rule.exec.is_some())
    }

    /// Where copies of its records go.
    pub(super) fn copies(&self) -> (Option<Arc<Tee>>, Arc<Rule>) {
        let stream = self.stream().expect("only what is written is copied");
        (stream.tee.clone(), stream.rule.clone())
    }

    pub(super) fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Relaxed)
    }

    pub(super) fn set_synced(&self) {
        self.synced.store(true, Ordering::Relaxed);
    }

    pub(super) fn set_lost(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Whether something was lost since the last time this was asked.
    pub(super) fn take_lost(&self) -> bool {
        self.lost.swap(false, Ordering::Relaxed)
    }
}

/// All open files, by the number that the kernel knows them by.
#[derive(Default)]
pub(super) struct Handles {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Handle>>>,
}

impl Handles {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Handle>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, handle: Handle) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(number, Arc::new(handle));
        number
    }

    pub(super) fn get(&self, number: u64) -> Result<Arc<Handle>, Errno> {
        self.lock().get(&number).cloned().ok_or(Errno::BADF)
    }

    pub(super) fn remove(&self, number: u64) -> Option<Arc<Handle>> {
        self.lock().remove(&number)
    }

    /// Those of one file.
    pub(super) fn of_node(&self, node: u64) -> Vec<Arc<Handle>> {
        let open = self.lock();
        let of_node = open.values().filter(|handle| handle.node == node);
        of_node.cloned().collect()
    }

    /// Those whose lines are joined.
    pub(super) fn joining(&self) -> Vec<Arc<Handle>> {
        let open = self.lock();
        open.values()
            .filter(|handle| handle.joins())
            .cloned()
            .collect()
    }

    /// Takes all of them.
    pub(super) fn drain(&self) -> Vec<Arc<Handle>> {
        self.lock().drain().map(|(_, handle)| handle).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }
}
