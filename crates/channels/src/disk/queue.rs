//! What waits to be written: groups and notes in their order, bounded in bytes, between the data threads and the writer.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Wake,
    time::Duration,
};

use millstream_pipeline::{
    channel::{Group, Note},
    delivery::Token,
};
use tokio::sync::Semaphore;

/// Notes that wait at most: they are small and come once per connection.
const NOTES_MAX: usize = 100_000;

/// What a batch takes in memory beside its bytes, and an origin.
const BATCH_BYTES: usize = 256;
const ORIGIN_BYTES: usize = 128;

/// Something for the writer.
pub(super) enum Entry {
    Group(Group),
    Note(Note),
    /// Somebody waits until everything before it is synced.
    Sync(Token),
}

/// The queue in front of the writer.
pub(super) struct Queue {
    room: Semaphore,
    room_bytes: usize,
    state: Mutex<State>,
    ready: Condvar,
    /// What was taken out of it finds no room in the log.
    is_full: AtomicBool,
}

#[derive(Default)]
struct State {
    entries: VecDeque<(Entry, usize)>,
    notes: usize,
    closed: bool,
    /// Whoever waits for room has waited long enough.
    given_up: bool,
    /// A consumer has settled something.
    poked: bool,
    /// The writer has kept everything and is gone, or has stopped with this text.
    ended: Option<Result<(), String>>,
}

/// What the writer got.
pub(super) struct Taken {
    pub(super) entries: Vec<Entry>,
    /// Nothing more will come.
    pub(super) closed: bool,
    /// A consumer has settled something.
    pub(super) poked: bool,
}

impl Queue {
    pub(super) fn new(bytes_max: usize) -> Self {
        let room_bytes = bytes_max.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Self {
            room: Semaphore::new(room_bytes),
            room_bytes,
            state: Mutex::default(),
            ready: Condvar::new(),
            is_full: AtomicBool::new(false),
        }
    }

    /// Waits for room. After the writer has stopped the group is dropped, which fails its receipt.
    pub(super) async fn put(&self, group: Group) {
        // A group larger than the queue takes all of it.
        let bytes = memory_bytes(&group).min(self.room_bytes);
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        let Ok(room) = self.room.acquire_many(permits).await else {
            return;
        };
        room.forget();
        let mut state = self.lock();
        if state.ended.is_none() {
            state.entries.push_back((Entry::Group(group), bytes));
            self.ready.notify_one();
        }
    }

    pub(super) fn note(&self, note: Note) {
        let mut state = self.lock();
        // Beyond the bound a repeat may be stored; nothing is lost.
        if state.notes < NOTES_MAX && state.ended.is_none() {
            state.notes += 1;
            state.entries.push_back((Entry::Note(note), 0));
            self.ready.notify_one();
        }
    }

    /// After the writer has stopped the token is dropped, which fails its receipt.
    pub(super) fn sync(&self, token: Token) {
        let mut state = self.lock();
        if state.ended.is_none() {
            state.entries.push_back((Entry::Sync(token), 0));
            self.ready.notify_one();
        }
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.ready.notify_one();
    }

    /// Closes it now: senders that wait for room in it continue, and the writer does not wait for room in the log.
    pub(super) fn give_up_waiting(&self) {
        let mut state = self.lock();
        (state.closed, state.given_up, state.poked) = (true, true, true);
        drop(state);
        self.room.close();
        self.ready.notify_one();
    }

    pub(super) fn has_given_up(&self) -> bool {
        self.lock().given_up
    }

    /// Takes entries of about `bytes_max` bytes, at least one. Waits for one, or until a consumer has settled something,
    /// or for `wait`.
    pub(super) fn take(&self, bytes_max: usize, wait: Option<Duration>) -> Taken {
        let mut state = self.lock();
        if state.entries.is_empty() && !state.closed && !state.poked {
            state = match wait {
                None => self
                    .ready
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(wait) => {
                    self.ready
                        .wait_timeout(state, wait)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
        let (mut entries, mut taken_bytes) = (Vec::new(), 0);
        while taken_bytes < bytes_max
            && let Some((entry, bytes)) = state.entries.pop_front()
        {
            taken_bytes += bytes;
            state.notes -= usize::from(matches!(entry, Entry::Note(_)));
            entries.push(entry);
        }
        let taken = Taken {
            entries,
            closed: state.closed && state.entries.is_empty(),
            poked: std::mem::take(&mut state.poked),
        };
        drop(state);
        self.room.add_permits(taken_bytes);
        taken
    }

    /// Waits until a consumer has settled something, at most for `wait`. What comes meanwhile stays in the queue.
    pub(super) fn wait_for_settle(&self, wait: Duration) {
        let state = self.lock();
        let (mut state, _) = self
            .ready
            .wait_timeout_while(state, wait, |state| !state.poked)
            .unwrap_or_else(PoisonError::into_inner);
        state.poked = false;
    }

    /// The writer finds room in the log, or none.
    pub(super) fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    pub(super) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// The writer ends: what is still here is dropped, and whoever waits for room goes on.
    pub(super) fn end(&self, how: Result<(), String>) {
        let mut state = self.lock();
        state.ended = Some(how);
        let dropped = std::mem::take(&mut state.entries);
        drop(state);
        self.set_full(false);
        self.room.close();
        drop(dropped);
    }

    /// How the writer has ended, if it has.
    pub(super) fn ended(&self) -> Option<Result<(), String>> {
        self.lock().ended.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here can panic half way, so a poisoned lock is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a group takes in memory, about.
fn memory_bytes(group: &Group) -> usize {
    let batches = group.batches.iter();
    batches
        .map(|batch| batch.len() + BATCH_BYTES + batch.origins.len() * ORIGIN_BYTES)
        .sum()
}

impl Wake for Queue {
    fn wake(self: Arc<Self>) {
        self.lock().poked = true;
        self.ready.notify_one();
    }
}
