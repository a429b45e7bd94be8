//! The queue between the data threads and the writer: groups and notes in order, bounded in bytes.

use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake},
    time::Duration,
};

use millstream_pipeline::{
    channel::{Attached, Consumer, Group, Note},
    delivery::Token,
};
use millstream_record::Position;
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit, oneshot};

use super::{log::Skipped, options::Config};

/// The maximum number of notes in the queue. A note reports, for example, the end of a connection. Notes are small, and each connection
/// sends one.
const NOTES_MAX: usize = 100_000;

/// The memory of a batch in bytes, without its body and its origins.
const BATCH_BYTES: usize = 256;
/// The memory of an origin in bytes.
const ORIGIN_BYTES: usize = 128;

/// Work for the writer.
pub(super) enum Entry {
    Group(Group),
    Note(Note),
    /// A token that is settled when everything before this entry is synced.
    Sync(Token),
}

/// Asks the writer for a change.
pub(super) enum Request {
    /// Forget the consumer of this name.
    Forget(String, Answer<()>),
    /// No sink reads for the consumer of this name any more, and it stays.
    Abandon(String),
    /// Move a consumer past everything up to a position, permanently. `Skipped`: how much of this the consumer has not settled.
    Skip(String, Position, Skipped, Answer<u64>),
    /// Attach a reader for a consumer.
    Attach(Consumer, Answer<Attached>),
    /// Use these options.
    Change(Config),
}

/// The sender for the answer to a request.
pub(super) type Answer<T> = oneshot::Sender<Result<T, String>>;

/// The queue in front of the writer.
pub(super) struct Queue {
    room: Semaphore,
    room_bytes: AtomicUsize,
    waiting: Mutex<Waiting>,
    ready: Condvar,
    /// Whether the log has no space for the groups that were taken from the queue.
    is_full: AtomicBool,
}

/// The content of the queue.
#[derive(Default)]
struct Waiting {
    /// The entries, each with the bytes that it takes in the queue.
    entries: VecDeque<(Entry, usize)>,
    notes: usize,
    closed: bool,
    /// Whether a stop no longer waits for space in the log.
    given_up: bool,
    /// Whether the writer must wake: a consumer has settled a batch, or a request has arrived.
    poked: bool,
    requests: Vec<Request>,
    /// Whether the writer works on entries that it has removed.
    is_working: bool,
    /// `None` while the writer runs. `Ok`: it has kept everything and ended. `Err`: it has stopped with this error.
    ended: Option<Result<(), String>>,
}

/// A piece of work for the writer.
pub(super) struct Work {
    pub(super) entries: Vec<Entry>,
    /// Whether the queue is closed and empty.
    pub(super) closed: bool,
}

impl Queue {
    pub(super) fn new(bytes_max: usize) -> Self {
        let room_bytes = room_bytes(bytes_max);
        Self {
            room: Semaphore::new(room_bytes),
            room_bytes: room_bytes.into(),
            waiting: Mutex::default(),
            ready: Condvar::new(),
            is_full: AtomicBool::new(false),
        }
    }

    /// Adds a group; waits for room in the queue. After the writer has stopped, the group is dropped, which fails its receipt.
    pub(super) async fn put(&self, group: Group) {
        let Some(bytes) = self.take_room(memory_bytes(&group)).await else {
            return;
        };
        let mut waiting = self.lock();
        if waiting.ended.is_none() {
            waiting.entries.push_back((Entry::Group(group), bytes));
            self.ready.notify_one();
        }
    }

    /// Waits for room for a group, and returns the bytes taken; `None` after the writer has stopped. A group that is larger than the queue
    /// takes all the room.
    async fn take_room(&self, group_bytes: usize) -> Option<usize> {
        loop {
            let bytes = group_bytes.min(self.room_bytes.load(Ordering::Relaxed));
            let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
            if let Some(taken) = self.acquire(permits).await {
                return taken.ok().map(|()| bytes);
            }
        }
    }

    /// Waits for `permits` permits. Returns `None` if a resize has left the queue with fewer permits in total, because then the wait would
    /// never end.
    async fn acquire(&self, permits: u32) -> Option<Result<(), AcquireError>> {
        let mut acquire = pin!(self.room.acquire_many(permits));
        let first = poll_fn(|cx| Poll::Ready(self.poll_if_fits(permits, acquire.as_mut(), cx)));
        let taken = match first.await? {
            Poll::Ready(taken) => taken,
            Poll::Pending => acquire.await,
        };
        Some(taken.map(SemaphorePermit::forget))
    }

    /// Polls for permits; returns `None` if the queue is too small for them. [`Queue::resize`] holds the same lock, so it cannot run
    /// between the check and the poll. After the poll, a resize cannot take permits away from this producer, because the semaphore gives
    /// free permits to the first waiter.
    fn poll_if_fits<F: Future>(
        &self,
        permits: u32,
        acquire: Pin<&mut F>,
        context: &mut Context<'_>,
    ) -> Option<Poll<F::Output>> {
        let _waiting = self.lock();
        let fits = permits as usize <= self.room_bytes.load(Ordering::Relaxed);
        fits.then(|| acquire.poll(context))
    }

    pub(super) fn note(&self, note: Note) {
        let mut waiting = self.lock();
        // A dropped note may cause a duplicate, but never a loss.
        if waiting.notes < NOTES_MAX && waiting.ended.is_none() {
            waiting.notes += 1;
            waiting.entries.push_back((Entry::Note(note), 0));
            self.ready.notify_one();
        }
    }

    /// Asks for a sync of everything that was added before. After the writer has stopped, the token is dropped, which fails its receipt.
    pub(super) fn sync(&self, token: Token) {
        let mut waiting = self.lock();
        if waiting.ended.is_none() {
            waiting.entries.push_back((Entry::Sync(token), 0));
            self.ready.notify_one();
        }
    }

    /// Asks the writer for a change. The writer also answers while it waits for space. A request is dropped after the writer has stopped.
    pub(super) fn request(&self, request: Request) {
        let mut waiting = self.lock();
        if waiting.ended.is_none() {
            waiting.requests.push(request);
            waiting.poked = true;
            self.ready.notify_one();
        }
    }

    /// The requests since the last call.
    pub(super) fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.lock().requests)
    }

    /// Changes the size of the queue. The queue shrinks at most by the room that is free now, so it may stay larger than `bytes_max`.
    pub(super) fn resize(&self, bytes_max: usize) {
        let _waiting = self.lock();
        let (old, new) = (
            self.room_bytes.load(Ordering::Relaxed),
            room_bytes(bytes_max),
        );
        let now = match new.checked_sub(old) {
            Some(more) => {
                self.room.add_permits(more);
                new
            }
            None => old - self.room.forget_permits(old - new),
        };
        self.room_bytes.store(now, Ordering::Relaxed);
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.ready.notify_one();
    }

    /// Closes the queue and ends all waiting: wakes the producers that wait for room in the queue, and the writer if it waits for space in
    /// the log.
    pub(super) fn give_up_waiting(&self) {
        let mut waiting = self.lock();
        (waiting.closed, waiting.given_up, waiting.poked) = (true, true, true);
        drop(waiting);
        self.room.close();
        self.ready.notify_one();
    }

    /// Whether the queue is closed: no more groups will arrive, but some may still wait in it.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    pub(super) fn has_given_up(&self) -> bool {
        self.lock().given_up
    }

    /// Removes entries of about `bytes_max` bytes, at least one if there is any. Waits until there is an entry, a consumer has
    /// settled a batch, a request has arrived, the queue is closed, or `wait` is over.
    pub(super) fn next_work(&self, bytes_max: usize, wait: Duration) -> Work {
        let mut waiting = self.lock();
        waiting.is_working = false;
        if waiting.entries.is_empty() && !waiting.closed && !waiting.poked {
            (waiting, _) = self
                .ready
                .wait_timeout(waiting, wait)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let (mut entries, mut freed) = (Vec::new(), 0);
        while freed < bytes_max
            && let Some((entry, bytes)) = waiting.entries.pop_front()
        {
            freed += bytes;
            waiting.notes -= usize::from(matches!(entry, Entry::Note(_)));
            entries.push(entry);
        }
        waiting.poked = false;
        waiting.is_working = true;
        let work = Work {
            entries,
            closed: waiting.closed && waiting.entries.is_empty(),
        };
        drop(waiting);
        self.room.add_permits(freed);
        work
    }

    /// Whether the writer waits for work and there is none.
    pub(super) fn is_idle(&self) -> bool {
        let waiting = self.lock();
        let is_ending = waiting.closed || waiting.given_up || waiting.ended.is_some();
        waiting.entries.is_empty() && !waiting.is_working && !is_ending
    }

    /// Waits until a consumer has settled a batch or a request has arrived, at most for `wait`. New entries stay in the queue.
    pub(super) fn wait_for_settle(&self, wait: Duration) {
        let waiting = self.lock();
        let (mut waiting, _) = self
            .ready
            .wait_timeout_while(waiting, wait, |waiting| !waiting.poked)
            .unwrap_or_else(PoisonError::into_inner);
        waiting.poked = false;
    }

    /// Notes whether there is space in the log.
    pub(super) fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    pub(super) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Notes that the writer has ended. Drops the remaining entries, and releases the producers that wait for room.
    pub(super) fn end(&self, result: Result<(), String>) {
        let mut waiting = self.lock();
        waiting.ended = Some(result);
        let dropped = std::mem::take(&mut waiting.entries);
        waiting.requests.clear();
        drop(waiting);
        self.set_full(false);
        self.room.close();
        drop(dropped);
    }

    /// The result with which the writer has ended; `None` while it runs.
    pub(super) fn ended(&self) -> Option<Result<(), String>> {
        self.lock().ended.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // No holder can panic in the middle of a change, so the data is consistent even if the lock is poisoned.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The permits for a queue of this size.
fn room_bytes(bytes_max: usize) -> usize {
    bytes_max.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize))
}

/// The approximate memory of a group in bytes.
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

#[cfg(test)]
mod tests {
    use millstream_testkit::block_on;

    use super::*;

    /// A resize between the size check and the wait must not leave a producer waiting for permits that will never exist.
    #[test]
    fn a_producer_does_not_wait_for_more_room_than_the_queue_has_after_a_resize() {
        let queue = Queue::new(1_000);
        queue.resize(10);
        assert!(block_on(queue.acquire(1_000)).is_none());
        assert_eq!(block_on(queue.take_room(1_000)), Some(10));
        queue.room.close();
        assert_eq!(block_on(queue.take_room(1)), None);
    }
}
