//! A pool of reusable buffers, and the bound on the memory of all of them.
//!
//! Touching memory for the first time is the largest cost of all, so buffers come from a pool and return to it when the
//! last batch that shares them is dropped. The pool also enforces `memory_max`: a buffer counts from when it is taken
//! until it is returned, free buffers count as well, and requests wait while everything is taken.
//!
//! A message from outside has a [`Claim`]: the most it may take. Its buffers grow as its bytes arrive, and the pool
//! admits as many messages as can be completed ([`crate::claims`]); the others wait before their first buffer.
//!
//! The offset of a buffer in its page decides how fast the kernel copies into it. The program's allocator chooses it
//! (`sys/allocator.rs`), for these buffers and every other large one.

use std::{
    collections::BTreeMap,
    fmt,
    ops::{Deref, DerefMut},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use bytes::Bytes;

use crate::{
    claims::{Ask, Claims},
    free::{BUFFER_BYTES_MIN, FreeList, KEEP_BYTES_MAX},
};

/// A message up to this size is small: it may use all memory for incoming data, larger ones only three quarters of it.
/// So large messages that never complete cannot keep out small ones.
const SMALL_BYTES_MAX: usize = 256 << 10;
/// Memory is short when a request has waited this long.
const SHORT_AFTER: Duration = Duration::from_secs(1);

/// A pool of byte buffers with a bound on the bytes in use. Cloning shares it.
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

struct Shared {
    bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Bytes in use, by capacity.
    taken: usize,
    free: FreeList,
    claims: Claims,
    /// The number of the next claim or request.
    next: u64,
    /// Waiting requests, in order of arrival.
    waiting: BTreeMap<u64, Request>,
}

/// A request for memory.
struct Request {
    wish: Wish,
    since: Instant,
    granted: bool,
    waker: Waker,
}

#[derive(Clone, Copy)]
struct Wish {
    bytes: usize,
    /// The message that requests memory.
    claim: Option<u64>,
}

/// The decision on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Granted,
    /// There is no memory left now.
    Full,
    /// Granted, large messages would exceed their share, or could not be completed.
    Unsafe,
}

impl Pool {
    /// A pool of which at most `bytes_max` bytes are in use at a time.
    pub fn new(bytes_max: usize) -> Self {
        Self(Arc::new(Shared {
            bytes_max,
            state: Mutex::new(State::default()),
        }))
    }

    /// An empty buffer with room for `bytes` of incoming data. Waits while three quarters of the bound are taken: the
    /// remainder is for [`Pool::take`], so that what drains memory never waits for what fills it. When nothing is in
    /// use, one buffer is always granted, so that a request above the bound cannot wait forever.
    pub async fn reserve(&self, bytes: usize) -> Buffer {
        let bytes = bytes.max(BUFFER_BYTES_MIN);
        self.granted(bytes, None).await;
        self.hand_out(bytes, None)
    }

    /// An empty buffer with room for `bytes` for code that drains memory (readers of a channel, encoders). Never waits:
    /// there are few callers, and each holds a bounded number of buffers.
    pub fn take(&self, bytes: usize) -> Buffer {
        let bytes = bytes.max(BUFFER_BYTES_MIN);
        self.lock().taken += bytes;
        self.hand_out(bytes, None)
    }

    /// Begins a message of up to `bytes`.
    pub fn claim(&self, bytes: usize) -> Claim {
        let need = bytes.min(claims_max(self.0.fill_max()));
        let mut state = self.lock();
        let number = state.number();
        state.claims.begin(number, need);
        Claim {
            number,
            pool: self.clone(),
        }
    }

    /// Counts `bytes` that are held outside of a buffer; `None` if all memory is taken.
    pub fn charge(&self, bytes: usize) -> Option<Charge> {
        let mut state = self.lock();
        if state.taken + bytes > self.0.bytes_max {
            return None;
        }
        state.taken += bytes;
        state.shed(self.0.bytes_max);
        drop(state);
        Some(Charge {
            bytes,
            pool: self.clone(),
        })
    }

    /// Whether a request for memory has been waiting for at least a second.
    pub fn is_short(&self) -> bool {
        let state = self.lock();
        let mut waiting = state.waiting.values().filter(|request| !request.granted);
        waiting
            .next()
            .is_some_and(|request| request.since.elapsed() >= SHORT_AFTER)
    }

    /// The bytes in use.
    pub fn taken_bytes(&self) -> usize {
        self.lock().taken
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

    /// A buffer of which `bytes` already count as taken.
    fn hand_out(&self, bytes: usize, claim: Option<u64>) -> Buffer {
        let mut state = self.lock();
        let found = state.reuse(bytes, claim, self.0.fill_max());
        let size = found.as_ref().map_or(bytes, Vec::capacity);
        state.shed(self.0.bytes_max);
        drop(state);
        Buffer {
            bytes: found.unwrap_or_else(|| Vec::with_capacity(bytes)),
            size,
            claimed: claim.map(|claim| (claim, size)),
            pool: self.clone(),
        }
    }

    /// Returns bytes that were counted.
    fn give_back(&self, bytes: usize, claimed: Option<(u64, usize)>, buffer: Option<Vec<u8>>) {
        let mut state = self.lock();
        state.taken = state.taken.saturating_sub(bytes);
        if let Some((claim, bytes)) = claimed {
            state.claims.give_back(claim, bytes);
        }
        if let Some(buffer) = buffer {
            state.free.keep(buffer);
            state.shed(self.0.bytes_max);
        }
        let wakers = state.serve(self.0.fill_max());
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock can panic half way, so a poisoned lock is consistent.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// The most memory for incoming data.
    fn fill_max(&self) -> usize {
        self.bytes_max / 4 * 3
    }
}

/// The part of the memory for incoming data that messages may use that are not small.
fn claims_max(fill_max: usize) -> usize {
    fill_max / 4 * 3
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Grants a request if there is memory for it and all messages can still be completed.
    fn decide(&mut self, wish: Wish, fill_max: usize) -> Verdict {
        if let Some(claim) = wish.claim
            && self.claims.ask(claim, wish.bytes).total() > SMALL_BYTES_MAX
            && !self.claims.allows(claim, wish.bytes, claims_max(fill_max))
        {
            return Verdict::Unsafe;
        }
        // One message always gets what it requests if the others hold no more than the part for draining.
        let own = wish.claim.map_or(0, |claim| self.claims.held(claim));
        let others = self.taken.saturating_sub(own);
        if others > fill_max / 3 && self.taken + wish.bytes > fill_max {
            return Verdict::Full;
        }
        if let Some(claim) = wish.claim {
            self.claims.take(claim, wish.bytes);
        }
        self.taken += wish.bytes;
        Verdict::Granted
    }

    /// Grants all requests that can be granted and returns the tasks to wake. Messages that hold memory come first,
    /// because others wait for what they return; while one of them lacks memory, no other request is granted. Of
    /// several messages that request too much only one is checked, because the check looks at every message.
    fn serve(&mut self, fill_max: usize) -> Vec<Waker> {
        let mut wakers = Vec::new();
        if self.waiting.is_empty() {
            return wakers;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        let mut full = false;
        let mut refused: Vec<Ask> = Vec::new();
        for holding in [true, false] {
            for request in waiting.values_mut().filter(|request| !request.granted) {
                let Wish { bytes, claim } = request.wish;
                let ask = claim.map(|claim| self.claims.ask(claim, bytes));
                if ask.is_some_and(|ask| ask.held > 0) != holding {
                    continue;
                }
                let is_refused = |ask: &Ask| {
                    ask.total() > SMALL_BYTES_MAX
                        && refused.iter().any(|other| ask.is_no_easier_than(other))
                };
                if ask.as_ref().is_some_and(is_refused) {
                    continue;
                }
                match self.decide(request.wish, fill_max) {
                    Verdict::Granted => {
                        request.granted = true;
                        wakers.push(request.waker.clone());
                    }
                    Verdict::Full => full = true,
                    Verdict::Unsafe => refused.extend(ask),
                }
                if full && !holding {
                    break;
                }
            }
            if full {
                break;
            }
        }
        self.waiting = waiting;
        wakers
    }

    /// A free buffer that fits. Capacity beyond `bytes`, which already count as taken, counts as well; so a message
    /// gets a larger buffer only while there is plenty of memory.
    fn reuse(&mut self, bytes: usize, claim: Option<u64>, fill_max: usize) -> Option<Vec<u8>> {
        let fitting = self.free.find(bytes)?;
        let beyond = fitting.capacity - bytes;
        if let Some(claim) = claim.filter(|_| beyond > 0) {
            let plenty = self.taken + beyond <= fill_max / 2;
            if !plenty || !self.claims.allows(claim, beyond, claims_max(fill_max)) {
                return None;
            }
            self.claims.take(claim, beyond);
        }
        self.taken += beyond;
        Some(self.free.take(fitting))
    }

    /// Drops free buffers until all memory is below the bound.
    fn shed(&mut self, bytes_max: usize) {
        self.free.shrink(bytes_max.saturating_sub(self.taken));
    }
}

/// A request that becomes ready when it is granted.
struct Granting<'p> {
    pool: &'p Pool,
    wish: Wish,
    /// The number of the request while it waits.
    number: Option<u64>,
}

impl Future for Granting<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let fill_max = self.pool.0.fill_max();
        let mut state = self.pool.lock();
        let number = match self.number {
            Some(number) => number,
            None if state.waiting.is_empty()
                && state.decide(self.wish, fill_max) == Verdict::Granted =>
            {
                state.shed(self.pool.0.bytes_max);
                return Poll::Ready(());
            }
            None => {
                let number = state.number();
                let request = Request {
                    wish: self.wish,
                    since: Instant::now(),
                    granted: false,
                    waker: context.waker().clone(),
                };
                state.waiting.insert(number, request);
                let wakers = state.serve(fill_max);
                drop(state);
                self.number = Some(number);
                wakers.into_iter().for_each(Waker::wake);
                state = self.pool.lock();
                number
            }
        };
        match state.waiting.get_mut(&number) {
            Some(request) if !request.granted => {
                request.waker.clone_from(context.waker());
                Poll::Pending
            }
            _ => {
                state.waiting.remove(&number);
                state.shed(self.pool.0.bytes_max);
                drop(state);
                self.number = None;
                Poll::Ready(())
            }
        }
    }
}

impl Drop for Granting<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else {
            return;
        };
        let request = self.pool.lock().waiting.remove(&number);
        let granted = request.is_some_and(|request| request.granted);
        let bytes = if granted { self.wish.bytes } else { 0 };
        // Other requests may have waited behind this one.
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

/// The memory of a message being received. Its buffers may outlive it.
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

    /// Lets the message take `bytes` from now on, even beyond its claim; false if other messages could no longer be
    /// completed.
    #[must_use]
    pub fn extend(&self, bytes: usize) -> bool {
        let claims_max = claims_max(self.pool.0.fill_max());
        let mut state = self.pool.lock();
        let is_small = state.claims.ask(self.number, bytes).total() <= SMALL_BYTES_MAX;
        is_small || state.claims.extend(self.number, bytes, claims_max)
    }

    /// An empty buffer with room for `bytes`, once there is memory for it and all messages can be completed with it.
    pub async fn reserve(&self, bytes: usize) -> Buffer {
        let bytes = bytes.max(BUFFER_BYTES_MIN);
        self.pool.granted(bytes, Some(self.number)).await;
        self.pool.hand_out(bytes, Some(self.number))
    }

    /// As [`Claim::reserve`], even beyond the claim of the message; `None` if other messages could no longer be
    /// completed.
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
        let mut state = self.pool.lock();
        state.claims.end(self.number);
        let wakers = state.serve(self.pool.0.fill_max());
        drop(state);
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

/// A buffer of a [`Pool`]: a `Vec<u8>` that returns to the pool when it is dropped. Writing beyond its capacity is
/// possible (it is a `Vec`) but not counted; [`Buffer::grow`] counts.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    /// The bytes that count as taken.
    size: usize,
    /// The claim of the buffer, and the bytes that count towards it.
    claimed: Option<(u64, usize)>,
    pool: Pool,
}

impl Buffer {
    /// Shares the bytes; the buffer returns to its pool when the last share is dropped.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// Waits for memory of its claim, until it has room for `bytes` in all. Its content stays.
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
            // The system moves pages of this size without copying them.
            let missing = bytes - self.bytes.len();
            self.bytes.reserve_exact(missing);
            return;
        }
        let claim = self.claimed.map(|(claim, _)| claim);
        let fill_max = self.pool.0.fill_max();
        let found = self.pool.lock().reuse(bytes, claim, fill_max);
        let mut larger = found.unwrap_or_else(|| Vec::with_capacity(bytes));
        larger.extend_from_slice(&self.bytes);
        self.size = larger.capacity();
        self.claimed = claim.map(|claim| (claim, self.size));
        let mut state = self.pool.lock();
        state.free.keep(std::mem::replace(&mut self.bytes, larger));
        state.shed(self.pool.0.bytes_max);
    }

    /// As [`Buffer::grow`], for a message of unknown length: even beyond its claim. False if other messages could no
    /// longer be completed.
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
        // Both grown would exceed three quarters of three quarters.
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
        assert_eq!(pool.lock().free.bytes(), 1 << 20);
        let large = pool.take(900 << 10);
        assert!(pool.lock().free.bytes() + large.capacity() <= 1 << 20);
    }

    #[test]
    fn a_buffer_grows_with_what_it_holds() {
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
