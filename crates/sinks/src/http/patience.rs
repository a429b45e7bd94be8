//! How long the sink waits for a server that refuses whole requests, for example because a table or an index does not exist yet.

use std::{
    cell::RefCell,
    collections::HashMap,
    time::{Duration, Instant},
};

/// More refusals than this are not told apart. There is one for each URL, or for each missing index.
const KNOWN_MAX: usize = 1024;

/// The refusals that the sink waits for, each by its URL or its reason.
#[derive(Debug)]
pub(super) struct Patience {
    limit: Duration,
    since: RefCell<HashMap<String, Seen>>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    first: Instant,
    last: Instant,
}

impl Patience {
    /// `limit`: how long a refusal is retried before records are rejected.
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            since: RefCell::default(),
        }
    }

    /// Notes a refusal. Returns whether the wait for it is over. A refusal that was not seen for the limit counts as a new one.
    pub(super) fn is_over(&self, what: &str) -> bool {
        if self.limit.is_zero() {
            return true;
        }
        let now = Instant::now();
        let mut since = self.since.borrow_mut();
        if since.len() >= KNOWN_MAX && !since.contains_key(what) {
            since.clear();
        }
        let new = Seen {
            first: now,
            last: now,
        };
        let seen = since.entry(what.to_owned()).or_insert(new);
        let is_old = now - seen.last > self.limit && now - seen.first > self.limit * 2;
        if is_old {
            *seen = new;
        }
        seen.last = now;
        now - seen.first >= self.limit
    }

    /// Notes that the server has accepted something.
    pub(super) fn accepted(&self, what: &str) {
        self.since.borrow_mut().remove(what);
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;

    #[test]
    fn a_refusal_is_waited_for_once_until_something_is_accepted() {
        let patience = Patience::new(Duration::from_millis(50));
        assert!(!patience.is_over("/a"));
        sleep(Duration::from_millis(60));
        assert!(patience.is_over("/a") && patience.is_over("/a"));
        assert!(!patience.is_over("/b"));
        patience.accepted("/a");
        assert!(!patience.is_over("/a"));
        assert!(Patience::new(Duration::ZERO).is_over("/a"));
    }

    #[test]
    fn an_old_refusal_is_waited_for_again() {
        let patience = Patience::new(Duration::from_millis(20));
        assert!(!patience.is_over("/a"));
        sleep(Duration::from_millis(60));
        assert!(!patience.is_over("/a"));
    }
}
