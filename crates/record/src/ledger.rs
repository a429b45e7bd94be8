//! The bookkeeping of a pool: how much memory is in use, which buffers are free, and which requests wait.
//!
//! A request is granted if there is memory for it and all messages that are being received can still be completed
//! ([`crate::claims`]). The claim of a message is the maximum memory that the message may take. A method that may grant waiting requests
//! returns the tasks to wake. The caller wakes them after it has released the pool's lock.

use std::{
    collections::BTreeMap,
    task::Waker,
    time::{Duration, Instant},
};

use crate::{
    claims::{Ask, Claims},
    free::FreeList,
};

/// A message up to this size is small: it may use all memory for incoming data. Larger messages may use only three quarters
/// of this memory, so large messages that never complete cannot keep out small ones.
const SMALL_BYTES_MAX: usize = 256 << 10;
/// The pool reports that memory is short when a request has waited this long.
const SHORT_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Ledger {
    bytes_max: usize,
    /// The bytes in use; a buffer counts with its capacity.
    taken: usize,
    free: FreeList,
    claims: Claims,
    /// The number of the last claim or request.
    last: u64,
    /// Waiting requests, in order of arrival.
    waiting: BTreeMap<u64, Request>,
}

/// A request for memory.
#[derive(Debug)]
struct Request {
    wish: Wish,
    since: Instant,
    granted: bool,
    waker: Waker,
}

/// The memory that a request asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) bytes: usize,
    /// The claim of the message that requests the memory; `None` if the request belongs to no message.
    pub(crate) claim: Option<u64>,
}

/// The decision on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Granted,
    /// There is no memory left now.
    Full,
    /// If the request were granted, large messages would exceed their share, or not all messages could be completed.
    Unsafe,
}

impl Ledger {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            taken: 0,
            free: FreeList::default(),
            claims: Claims::default(),
            last: 0,
            waiting: BTreeMap::new(),
        }
    }

    /// The bytes in use.
    pub(crate) fn taken(&self) -> usize {
        self.taken
    }

    /// Whether a request has been waiting for at least a second.
    pub(crate) fn is_short(&self) -> bool {
        let mut waiting = self.waiting.values().filter(|request| !request.granted);
        waiting
            .next()
            .is_some_and(|request| request.since.elapsed() >= SHORT_AFTER)
    }

    /// Counts bytes as taken, even beyond the bound.
    pub(crate) fn take(&mut self, bytes: usize) {
        self.taken += bytes;
    }

    /// Counts bytes as taken. Returns false, and counts nothing, if they would exceed the bound.
    pub(crate) fn charge(&mut self, bytes: usize) -> bool {
        if self.taken + bytes > self.bytes_max {
            return false;
        }
        self.taken += bytes;
        self.shed();
        true
    }

    /// Begins a message that may take up to `bytes`, and returns the number of its claim.
    pub(crate) fn begin_claim(&mut self, bytes: usize) -> u64 {
        let need = bytes.min(self.claims_max());
        let number = self.number();
        self.claims.begin(number, need);
        number
    }

    /// Lets a message take `bytes` more, even beyond its claim. Returns false if the message would exceed the memory for large messages, or
    /// if other messages could no longer be completed. Always returns true if the message may then hold at most [`SMALL_BYTES_MAX`].
    pub(crate) fn extend_claim(&mut self, claim: u64, bytes: usize) -> bool {
        let claims_max = self.claims_max();
        let is_small = self.claims.ask(claim, bytes).total() <= SMALL_BYTES_MAX;
        is_small || self.claims.extend(claim, bytes, claims_max)
    }

    /// Ends a message.
    pub(crate) fn end_claim(&mut self, claim: u64) -> Vec<Waker> {
        self.claims.end(claim);
        self.serve()
    }

    /// Grants a request if no other one waits and there is memory for it.
    pub(crate) fn grant_now(&mut self, wish: Wish) -> bool {
        let granted = self.waiting.is_empty() && self.decide(wish) == Verdict::Granted;
        if granted {
            self.shed();
        }
        granted
    }

    /// Adds a waiting request. Returns its number and the tasks to wake.
    pub(crate) fn wait(&mut self, wish: Wish, waker: Waker) -> (u64, Vec<Waker>) {
        let number = self.number();
        let request = Request {
            wish,
            since: Instant::now(),
            granted: false,
            waker,
        };
        self.waiting.insert(number, request);
        (number, self.serve())
    }

    /// Removes a request that was granted, and returns true. If the request still waits, returns false; `waker` is woken when the request
    /// is granted.
    pub(crate) fn poll(&mut self, number: u64, waker: &Waker) -> bool {
        match self.waiting.get_mut(&number) {
            Some(request) if !request.granted => {
                request.waker.clone_from(waker);
                false
            }
            _ => {
                self.waiting.remove(&number);
                self.shed();
                true
            }
        }
    }

    /// Removes a request and returns whether it was granted.
    pub(crate) fn cancel(&mut self, number: u64) -> bool {
        let request = self.waiting.remove(&number);
        request.is_some_and(|request| request.granted)
    }

    /// Gives back bytes that count as taken, the part of them that counts towards a claim, and their buffer.
    pub(crate) fn give_back(
        &mut self,
        bytes: usize,
        claimed: Option<(u64, usize)>,
        buffer: Option<Vec<u8>>,
    ) -> Vec<Waker> {
        self.taken = self.taken.saturating_sub(bytes);
        if let Some((claim, bytes)) = claimed {
            self.claims.give_back(claim, bytes);
        }
        if let Some(buffer) = buffer {
            self.keep(buffer);
        }
        self.serve()
    }

    /// Removes and returns a free buffer that fits. `bytes` already count as taken; this method also counts the rest of the buffer's
    /// capacity. A message gets a buffer that is larger than its request only while at most half of the memory for incoming data is taken.
    pub(crate) fn reuse(&mut self, bytes: usize, claim: Option<u64>) -> Option<Vec<u8>> {
        let fitting = self.free.find(bytes)?;
        let beyond = fitting.capacity - bytes;
        if let Some(claim) = claim.filter(|_| beyond > 0) {
            let claims_max = self.claims_max();
            let plenty = self.taken + beyond <= self.fill_max() / 2;
            if !plenty || !self.claims.allows(claim, beyond, claims_max) {
                return None;
            }
            self.claims.take(claim, beyond);
        }
        self.taken += beyond;
        Some(self.free.take(fitting))
    }

    /// Keeps a buffer for reuse.
    pub(crate) fn keep(&mut self, buffer: Vec<u8>) {
        self.free.keep(buffer);
        self.shed();
    }

    /// Drops free buffers until the memory in use and the free buffers together are within the bound.
    pub(crate) fn shed(&mut self) {
        self.free.shrink(self.bytes_max.saturating_sub(self.taken));
    }

    /// The capacity of all free buffers.
    #[cfg(test)]
    pub(crate) fn free_bytes(&self) -> usize {
        self.free.bytes()
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The limit on the memory for incoming data.
    fn fill_max(&self) -> usize {
        self.bytes_max / 4 * 3
    }

    /// The part of the memory for incoming data that large messages may use.
    fn claims_max(&self) -> usize {
        self.fill_max() / 4 * 3
    }

    /// Grants a request if there is memory for it and all messages can still be completed.
    fn decide(&mut self, wish: Wish) -> Verdict {
        let claims_max = self.claims_max();
        if let Some(claim) = wish.claim
            && self.claims.ask(claim, wish.bytes).total() > SMALL_BYTES_MAX
            && !self.claims.allows(claim, wish.bytes, claims_max)
        {
            return Verdict::Unsafe;
        }
        // A request is granted even above the limit while all memory in use, except that of the request's message, is at most a quarter of
        // the bound. (A quarter is the part that is reserved for code that drains memory.) So one message can always continue.
        let own = wish.claim.map_or(0, |claim| self.claims.held(claim));
        let others = self.taken.saturating_sub(own);
        if others > self.fill_max() / 3 && self.taken + wish.bytes > self.fill_max() {
            return Verdict::Full;
        }
        if let Some(claim) = wish.claim {
            self.claims.take(claim, wish.bytes);
        }
        self.taken += wish.bytes;
        Verdict::Granted
    }

    /// Grants all requests that can be granted and returns the tasks to wake. The requests of messages that already hold
    /// memory are decided first, because these messages return their memory when they are complete. While one of these requests waits for
    /// free memory, requests that do not come from such a message wait, too. The check whether a request is safe looks at every message, so
    /// it is skipped if an easier request was already refused.
    fn serve(&mut self) -> Vec<Waker> {
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
                match self.decide(request.wish) {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(bytes: usize) -> Wish {
        Wish { bytes, claim: None }
    }

    #[test]
    fn requests_are_granted_in_order_of_arrival() {
        let mut ledger = Ledger::new(400);
        assert!(ledger.grant_now(wish(300)));
        let (first, _) = ledger.wait(wish(200), Waker::noop().clone());
        let (second, _) = ledger.wait(wish(50), Waker::noop().clone());
        // A later request does not overtake one that waits for memory.
        assert!(!ledger.grant_now(wish(1)));
        assert!(!ledger.poll(second, Waker::noop()));
        assert_eq!(ledger.give_back(300, None, None).len(), 2);
        assert!(ledger.poll(first, Waker::noop()) && ledger.poll(second, Waker::noop()));
        assert_eq!(ledger.taken(), 250);
    }

    #[test]
    fn a_cancelled_request_reports_whether_it_was_granted() {
        let mut ledger = Ledger::new(400);
        assert!(ledger.grant_now(wish(300)));
        let (number, _) = ledger.wait(wish(100), Waker::noop().clone());
        assert!(!ledger.cancel(number));
        let (number, _) = ledger.wait(wish(100), Waker::noop().clone());
        ledger.give_back(300, None, None);
        assert!(ledger.cancel(number));
    }
}
