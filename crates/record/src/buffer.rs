//! A pool of reusable buffers, and the bound on the memory of all of them.
//!
//! The first access to fresh memory is the largest cost of moving a batch, so buffers come from a pool and return to it when the last
//! batch that shares them is dropped. The pool also enforces `memory_max`. Buffers in use and free buffers count towards this bound. Free
//! buffers are dropped when buffers in use need their memory. Requests wait while buffers in use take too much memory.
//!
//! A message from a peer has a [`Claim`]: the maximum memory that the message may take. The buffers of the message grow as its bytes
//! arrive. The pool admits as many messages as can be completed ([`crate::claims`]); other messages wait before they get their first
//! buffer.
//!
//! The offset of a buffer in its page decides how fast the kernel copies into it. The program's allocator (`sys/allocator.rs`) chooses this
//! offset for every large buffer, not only for those of the pool.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;

use crate::{
    free::{BUFFER_BYTES_MIN, KEEP_BYTES_MAX},
    ledger::{Ledger, Wish},
};

/// A pool of byte buffers with a bound on the bytes in use. Clones share the pool.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

struct Inner {
    bytes_max: usize,
    ledger: Mutex<Ledger>,
}

impl Pool {
    /// A pool of which at most `bytes_max` bytes are in use at a time.
    pub fn new(bytes_max: usize) -> Self {
        Self(Arc::new(Inner {
            bytes_max,
            ledger: Mutex::new(Ledger::new(bytes_max)),
        }))
    }

    /// Returns an empty buffer with room for `bytes` of incoming data. Waits while this buffer would raise the memory in use above three
    /// quarters of the bound. The last quarter is for [`Pool::take`], so that code that drains memory never waits for code that fills it.
    /// While at most a quarter of the bound is in use, a request of any size is granted, so that a large request cannot wait forever.
    pub async fn reserve(&self, bytes: usize) -> Buffer {
        let bytes = bytes.max(BUFFER_BYTES_MIN);
        self.granted(bytes, None).await;
        self.hand_out(bytes, None)
    }

    /// Returns an empty buffer with room for `bytes`, for code that drains memory (readers of a channel, encoders). Never waits, even
    /// beyond the bound, because there are few callers, and each of them holds a bounded number of buffers.
    pub fn take(&self, bytes: usize) -> Buffer {
        let bytes = bytes.max(BUFFER_BYTES_MIN);
        self.lock().take(bytes);
        self.hand_out(bytes, None)
    }

    /// Begins a message that may take up to `bytes` of memory.
    pub fn claim(&self, bytes: usize) -> Claim {
        Claim {
            number: self.lock().begin_claim(bytes),
            pool: self.clone(),
        }
    }

    /// Counts `bytes` as taken until the [`Charge`] is dropped; for memory that is not in a buffer. Returns `None` if the bound would be
    /// exceeded.
    pub fn charge(&self, bytes: usize) -> Option<Charge> {
        self.lock().charge(bytes).then(|| Charge {
            bytes,
            pool: self.clone(),
        })
    }

    /// Like [`Pool::charge`], for code that drains memory: never refuses, even beyond the bound.
    pub fn hold(&self, bytes: usize) -> Charge {
        let mut ledger = self.lock();
        ledger.take(bytes);
        ledger.shed();
        drop(ledger);
        Charge {
            bytes,
            pool: self.clone(),
        }
    }

    /// Whether a request for memory has been waiting for at least a second.
    pub fn is_short(&self) -> bool {
        self.lock().is_short()
    }

    /// The bytes in use.
    pub fn taken_bytes(&self) -> usize {
        self.lock().taken()
    }

    /// The bound.
    pub fn bytes_max(&self) -> usize {
        self.0.bytes_max
    }

    /// Waits until a request is granted. Its bytes then count as taken.
    async fn granted(&self, bytes: usize, claim: Option<u64>) {
        Granting {
            pool: self,
            wish: Wish { bytes, claim },
            number: None,
        }
        .await;
    }

    /// Returns an empty buffer with room for `bytes`, which already count as taken.
    fn hand_out(&self, bytes: usize, claim: Option<u64>) -> Buffer {
        let mut ledger = self.lock();
        let free = ledger.reuse(bytes, claim);
        ledger.shed();
        drop(ledger);
        let size = free.as_ref().map_or(bytes, Vec::capacity);
        Buffer {
            bytes: free.unwrap_or_else(|| Vec::with_capacity(bytes)),
            size,
            claimed: claim.map(|claim| (claim, size)),
            pool: self.clone(),
        }
    }

    /// Gives back bytes that count as taken, and their buffer. Wakes the requests that are granted as a result.
    fn give_back(&self, bytes: usize, claimed: Option<(u64, usize)>, buffer: Option<Vec<u8>>) {
        let wakers = self.lock().give_back(bytes, claimed, buffer);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        // No code that holds the lock can panic in the middle of a change, so the ledger is consistent even if the lock is poisoned.
        self.0.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that becomes ready when it is granted.
struct Granting<'p> {
    pool: &'p Pool,
    wish: Wish,
    /// The number of the request in the ledger while it waits there.
    number: Option<u64>,
}

impl Future for Granting<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut ledger = self.pool.lock();
        let number = match self.number {
            Some(number) => number,
            None if ledger.grant_now(self.wish) => return Poll::Ready(()),
            None => {
                let (number, wakers) = ledger.wait(self.wish, context.waker().clone());
                drop(ledger);
                self.number = Some(number);
                wakers.into_iter().for_each(Waker::wake);
                ledger = self.pool.lock();
                number
            }
        };
        let granted = ledger.poll(number, context.waker());
        drop(ledger);
        if !granted {
            return Poll::Pending;
        }
        self.number = None;
        Poll::Ready(())
    }
}

impl Drop for Granting<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else {
            return;
        };
        let granted = self.pool.lock().cancel(number);
        let bytes = if granted { self.wish.bytes } else { 0 };
        // Requests that waited behind this one may be granted now.
        self.pool
            .give_back(bytes, self.wish.claim.map(|claim| (claim, bytes)), None);
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

/// The memory that a message may take while it is received. The buffers of the message may outlive the claim.
#[derive(Debug)]
pub struct Claim {
    number: u64,
    pool: Pool,
}

impl Claim {
    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Lets the message take `bytes` more, even beyond its claim. Returns false if the message would exceed the memory for large messages,
    /// or if other messages could no longer be completed. Always returns true if the message may then hold at most 256 KiB.
    #[must_use]
    pub fn extend(&self, bytes: usize) -> bool {
        self.pool.lock().extend_claim(self.number, bytes)
    }

    /// Waits until there is memory for `bytes` and all messages can still be completed, and returns an empty buffer of that size.
    pub async fn reserve(&self, bytes: usize) -> Buffer {
        let bytes = bytes.max(BUFFER_BYTES_MIN);
        self.pool.granted(bytes, Some(self.number)).await;
        self.pool.hand_out(bytes, Some(self.number))
    }

    /// Like [`Claim::reserve`], but even beyond the claim of the message. Returns `None` if [`Claim::extend`] returns false.
    pub async fn reserve_more(&self, bytes: usize) -> Option<Buffer> {
        let bytes = bytes.max(BUFFER_BYTES_MIN);
        match self.extend(bytes) {
            true => Some(self.reserve(bytes).await),
            false => None,
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let wakers = self.pool.lock().end_claim(self.number);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Bytes that count as taken until this is dropped.
#[derive(Debug)]
pub struct Charge {
    bytes: usize,
    pool: Pool,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.pool.give_back(self.bytes, None, None);
    }
}

/// A buffer of a [`Pool`]: a `Vec<u8>` that returns to the pool when it is dropped. A write beyond its capacity grows the `Vec` without
/// counting the memory; use [`Buffer::grow`] instead.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    /// The bytes that count as taken.
    size: usize,
    /// The number of the buffer's claim, and the bytes that count towards the claim.
    claimed: Option<(u64, usize)>,
    pool: Pool,
}

impl Buffer {
    /// Shares the bytes; the buffer returns to its pool when the last share is dropped.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// Waits for memory and grows the buffer until it has room for `bytes` in total. If the buffer has a claim, the added memory counts
    /// towards that claim. The content stays.
    pub async fn grow(&mut self, bytes: usize) {
        let Some(more) = bytes.checked_sub(self.size).filter(|more| *more > 0) else {
            return;
        };
        self.pool
            .granted(more, self.claimed.map(|(claim, _)| claim))
            .await;
        if let Some((_, claimed)) = &mut self.claimed {
            *claimed += more;
        }
        self.size += more;
        if bytes > KEEP_BYTES_MAX {
            // The system grows an allocation of this size by remapping its pages, without copying.
            let missing = bytes - self.bytes.len();
            self.bytes.reserve_exact(missing);
            return;
        }
        let claim = self.claimed.map(|(claim, _)| claim);
        let free = self.pool.lock().reuse(bytes, claim);
        let mut larger = free.unwrap_or_else(|| Vec::with_capacity(bytes));
        larger.extend_from_slice(&self.bytes);
        self.size = larger.capacity();
        self.claimed = claim.map(|claim| (claim, self.size));
        let smaller = std::mem::replace(&mut self.bytes, larger);
        self.pool.lock().keep(smaller);
    }

    /// Like [`Buffer::grow`], but even beyond the claim, for a message of unknown length. Returns false if [`Claim::extend`] returns false.
    pub async fn grow_more(&mut self, claim: &Claim, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.size);
        let granted = claim.extend(more);
        if granted {
            self.grow(bytes).await;
        }
        granted
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
        let bytes = std::mem::take(&mut self.bytes);
        self.pool.give_back(self.size, self.claimed, Some(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
        let future = std::pin::pin!(future);
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_buffer_returns_to_the_pool_when_the_last_share_is_dropped() {
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
        let again = pool.take(90_000);
        assert_eq!((again.as_ptr(), pool.taken_bytes()), (place, 100_000));
    }

    #[test]
    fn filling_waits_at_three_quarters_and_draining_does_not() {
        let pool = Pool::new(400 << 10);
        let first = ready(pool.reserve(300 << 10));
        assert!(first.is_some());
        assert!(ready(pool.reserve(1)).is_none());
        assert_eq!(pool.take(1).len(), 0);
        drop(first);
        assert!(ready(pool.reserve(1)).is_some());
    }

    #[test]
    fn a_request_above_the_bound_is_granted_when_nothing_is_in_use() {
        let pool = Pool::new(100 << 10);
        assert!(ready(pool.reserve(1 << 20)).is_some());
        let claim = pool.claim(1 << 20);
        let mut buffer = ready(claim.reserve(1)).unwrap();
        assert!(ready(buffer.grow(1 << 20)).is_some());
    }

    #[test]
    fn messages_that_do_not_fit_together_are_completed_one_after_another() {
        let pool = Pool::new(8 << 20);
        let claims = [(); 2].map(|()| pool.claim(3 << 20));
        let mut first = ready(claims[0].reserve(1 << 20)).unwrap();
        let mut second = ready(claims[1].reserve(1 << 20)).unwrap();
        // If both grew, they would exceed the part for large messages: three quarters of three quarters of the bound.
        assert!(ready(first.grow(3 << 20)).is_some());
        let mut growing = Box::pin(second.grow(3 << 20));
        assert!(
            growing
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        // There is room for small messages.
        assert!(
            ready(pool.claim(0).reserve_more(200 << 10))
                .flatten()
                .is_some()
        );
        assert!(ready(pool.reserve(64 << 10)).is_some());
        drop(first);
        assert!(
            growing
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_ready()
        );
        drop(growing);
        assert_eq!(second.capacity(), 3 << 20);
        drop((claims, second));
        assert_eq!(pool.taken_bytes(), 0);
    }

    #[test]
    fn a_request_dropped_after_it_was_granted_returns_its_memory() {
        let pool = Pool::new(400 << 10);
        let first = ready(pool.reserve(300 << 10));
        let mut waits = Box::pin(pool.reserve(100 << 10));
        assert!(
            waits
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        drop(first);
        assert_eq!(pool.taken_bytes(), 100 << 10);
        drop(waits);
        assert_eq!(pool.taken_bytes(), 0);
    }

    #[test]
    fn free_buffers_count_as_memory() {
        let pool = Pool::new(1 << 20);
        drop([(); 8].map(|()| pool.take(128 << 10)));
        assert_eq!(pool.lock().free_bytes(), 1 << 20);
        let large = pool.take(900 << 10);
        assert!(pool.lock().free_bytes() + large.capacity() <= 1 << 20);
    }

    #[test]
    fn a_buffer_keeps_its_content_while_it_grows() {
        let pool = Pool::new(64 << 20);
        let claim = pool.claim(20 << 20);
        let mut buffer = ready(claim.reserve(1)).unwrap();
        buffer.extend_from_slice(b"what it holds");
        for bytes in [100 << 10, 3 << 20, 20 << 20] {
            ready(buffer.grow(bytes)).unwrap();
            assert!(buffer.capacity() >= bytes);
            assert_eq!(&buffer[..], b"what it holds");
        }
        drop((claim, buffer));
        assert_eq!(pool.taken_bytes(), 0);
    }
}
