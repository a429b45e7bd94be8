//! Conditions of nodes. A condition is a problem that keeps a node from its work now; it has a start and a reason.
//!
//! A log line reports an event; a condition reports that a problem lasts. `status` shows the conditions of every node, and
//! `/health` is unhealthy while one of them is serious. Each task, connection or server holds a separate [`Condition`] for each
//! thing that can go wrong with it, so two servers of one sink never clear each other's conditions.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    held::{Active, Conditions},
    report::Reporter,
};

pub use crate::held::{Held, Trouble};

impl Reporter {
    /// Returns a condition of this node that is not raised yet. `kind` is the kind of its log lines.
    pub fn condition(&self, kind: &'static str) -> Condition {
        let conditions = self.held().clone();
        Condition {
            id: conditions.next_id(),
            kind,
            holds: AtomicBool::new(false),
            conditions,
            reporter: self.clone(),
        }
    }
}

/// One thing that can go wrong with a task, connection or server. Dropping the value clears the condition.
#[derive(Debug)]
pub struct Condition {
    id: u64,
    kind: &'static str,
    /// Whether the condition is raised. The success path reads this without taking the lock.
    holds: AtomicBool,
    conditions: Conditions,
    reporter: Reporter,
}

impl Condition {
    /// Raises the condition and logs it as an error (at most one line of this kind in ten seconds). A condition that is raised
    /// already keeps its start and takes the new reason.
    pub fn raise(&self, trouble: Trouble, why: impl fmt::Display) {
        self.raise_since(trouble, Instant::now(), why);
    }

    /// Like [`Condition::raise`], for a problem that began at `begun` and is noticed only now.
    pub fn raise_since(&self, trouble: Trouble, begun: Instant, why: impl fmt::Display) {
        self.set(trouble, None, begun, why);
    }

    /// Like [`Condition::raise`], for a problem that the node with the name `cause` causes.
    pub fn raise_because(&self, trouble: Trouble, cause: Option<Arc<str>>, why: impl fmt::Display) {
        self.set(trouble, cause, Instant::now(), why);
    }

    fn set(
        &self,
        trouble: Trouble,
        cause: Option<Arc<str>>,
        begun: Instant,
        why: impl fmt::Display,
    ) {
        let why = why.to_string();
        self.reporter.error(self.kind, &why);
        let mut held = self.conditions.lock();
        self.holds.store(true, Ordering::Release);
        let since = held.get(&self.id).map_or(begun, |active| active.since);
        let active = Active {
            trouble,
            why,
            cause,
            since,
        };
        held.insert(self.id, active);
    }

    /// Clears the condition. Returns for how long it was raised; `None` if it was not raised.
    pub fn clear(&self) -> Option<Duration> {
        if !self.holds() {
            return None;
        }
        let mut held = self.conditions.lock();
        self.holds.store(false, Ordering::Release);
        let active = held.remove(&self.id);
        active.map(|active| active.since.elapsed())
    }

    /// Whether the condition is raised.
    pub fn holds(&self) -> bool {
        self.holds.load(Ordering::Acquire)
    }
}

impl Drop for Condition {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_conditions_of_one_kind_are_raised_and_cleared_independently() {
        let reporter = Reporter::new("out");
        let (a, b) = (reporter.condition("connect"), reporter.condition("connect"));
        a.raise(Trouble::Retrying, "a refuses connections");
        b.raise(Trouble::Retrying, "b refuses connections");
        assert!(a.clear().is_some());
        assert_eq!(a.clear(), None);
        let held = reporter.conditions();
        assert_eq!(held.len(), 1);
        assert_eq!(held[0].why, "b refuses connections");
        drop(b);
        assert_eq!(reporter.conditions(), []);
    }

    #[test]
    fn a_condition_that_is_raised_again_keeps_its_start_and_takes_the_new_reason() {
        let reporter = Reporter::new("out");
        let condition = reporter.condition("disk");
        condition.raise(Trouble::Blocked, "0 bytes are free");
        std::thread::sleep(Duration::from_millis(20));
        condition.raise(Trouble::Blocked, "3 bytes are free");
        let held = reporter.conditions();
        assert!(held[0].age >= Duration::from_millis(20));
        assert_eq!(held[0].why, "3 bytes are free");
    }
}
