//! Buffers that are used again, and the bound on the memory of them all.
//!
//! Memory touched for the first time is the largest cost there is, so buffers come from a pool and go back to it when
//! the last batch that shares them is dropped. The pool also holds the promise of `memory_max`: a buffer counts from
//! when it is taken until it is back, and who wants one while all is taken waits.
//!
//! Where in a page a buffer begins decides how fast the kernel copies into it. The program's allocator sees to that
//! (`sys/allocator.rs`), for these buffers and for every other large one.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;

/// Buffers of the hot paths are no larger than this when they are kept for reuse: a queue is 2-4 MiB.
const KEEP_BYTES_MAX: usize = 4 << 20;
/// The smallest buffer handed out; smaller wishes are rounded up, so that buffers fit the next wish.
const BUFFER_BYTES_MIN: usize = 64 << 10;
/// How many free buffers are kept, so that what was touched once is touched again.
const FREE_BUFFERS_MAX: usize = 64;

/// A pool of byte buffers with a bound on the bytes that are out together. Cloning shares it.
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

struct Shared {
    bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Bytes that are out, by capacity as it was asked for.
    taken: usize,
    /// Free buffers, the last returned first: it is the one that is still in the cache.
    free: Vec<Vec<u8>>,
    waiting: Vec<Waker>,
}

impl Pool {
    /// A pool of which at most `bytes_max` bytes are out at a time.
    pub fn new(bytes_max: usize) -> Self {
        Self(Arc::new(Shared {
            bytes_max,
            state: Mutex::new(State::default()),
        }))
    }

    /// An empty buffer with room for `bytes` that comes in from outside. Waits while three quarters of the bound are
    /// taken: the rest is for [`Pool::take`], so that what drains memory never waits for what fills it. One buffer is
    /// always granted when nothing is out, so that a wish above the bound cannot wait for ever.
    pub async fn reserve(&self, bytes: usize) -> Buffer {
        std::future::poll_fn(|context| self.poll_reserve(bytes, context)).await
    }

    fn poll_reserve(&self, bytes: usize, context: &mut Context<'_>) -> Poll<Buffer> {
        let size = bytes.max(BUFFER_BYTES_MIN);
        let mut state = self.lock();
        if state.taken > 0 && state.taken + size > self.0.bytes_max / 4 * 3 {
            if !state
                .waiting
                .iter()
                .any(|waker| waker.will_wake(context.waker()))
            {
                state.waiting.push(context.waker().clone());
            }
            return Poll::Pending;
        }
        Poll::Ready(self.hand_out(&mut state, size))
    }

    /// An empty buffer with room for `bytes` for what drains memory (readers of a channel, encoders). Never waits: those
    /// who ask are few and each holds a bounded number.
    pub fn take(&self, bytes: usize) -> Buffer {
        let mut state = self.lock();
        self.hand_out(&mut state, bytes.max(BUFFER_BYTES_MIN))
    }

    /// Bytes that are out now.
    pub fn taken_bytes(&self) -> usize {
        self.lock().taken
    }

    /// The bound.
    pub fn bytes_max(&self) -> usize {
        self.0.bytes_max
    }

    fn hand_out(&self, state: &mut State, size: usize) -> Buffer {
        state.taken += size;
        // The last returned one that fits without being four times too large.
        let found = state
            .free
            .iter()
            .rposition(|free| free.capacity() >= size && free.capacity() / 4 <= size);
        let bytes = match found {
            Some(place) => state.free.remove(place),
            None => Vec::with_capacity(size),
        };
        Buffer {
            bytes,
            size,
            pool: self.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here can panic half way, so a poisoned lock is whole.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Pool({} of {} bytes out)",
            self.taken_bytes(),
            self.bytes_max()
        )
    }
}

/// A buffer out of a [`Pool`]: a `Vec<u8>` that goes back when it is dropped. Growing it beyond what was asked for is
/// allowed (it is a `Vec`), but does not count: who knows how large it can become asks for that.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    size: usize,
    pool: Pool,
}

impl Buffer {
    /// Shares the bytes; the buffer goes back to its pool when the last of them is dropped.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Deref for Buffer {
    type Target = Vec<u8>;
    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        let mut state = self.pool.lock();
        state.taken = state.taken.saturating_sub(self.size);
        if bytes.capacity() >= BUFFER_BYTES_MIN
            && bytes.capacity() <= KEEP_BYTES_MAX
            && state.free.len() < FREE_BUFFERS_MAX
        {
            state.free.push(bytes);
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for waker in waiting {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn try_reserve(pool: &Pool, bytes: usize) -> Option<Buffer> {
        match pool.poll_reserve(bytes, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(buffer) => Some(buffer),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_buffer_comes_back_when_the_last_share_is_dropped() {
        let pool = Pool::new(1 << 20);
        let mut buffer = pool.take(100_000);
        buffer.extend_from_slice(b"abc");
        let place = buffer.as_ptr();
        let share = buffer.freeze();
        let slice = share.slice(1..2);
        drop(share);
        assert_eq!(pool.taken_bytes(), 100_000);
        drop(slice);
        assert_eq!(pool.taken_bytes(), 0);
        assert_eq!(pool.take(90_000).as_ptr(), place);
    }

    #[test]
    fn what_fills_waits_at_three_quarters_and_what_drains_does_not() {
        let pool = Pool::new(400 << 10);
        let first = try_reserve(&pool, 300 << 10);
        assert!(first.is_some());
        assert!(try_reserve(&pool, 1).is_none());
        assert_eq!(pool.take(1).len(), 0);
        drop(first);
        assert!(try_reserve(&pool, 1).is_some());
    }

    #[test]
    fn a_wish_above_the_bound_is_granted_when_nothing_is_out() {
        let pool = Pool::new(100 << 10);
        assert!(try_reserve(&pool, 1 << 20).is_some());
    }
}
