//! Whether servers work, as the operator sees it: conditions (lasting problems, shown by `/status`), and the log line when a
//! server is back.

use std::{cell::Cell, fmt, rc::Rc};

use millstream_pipeline::{
    condition::{Condition, Trouble},
    report::Reporter,
};

/// The working servers of a lane.
#[derive(Debug)]
pub(super) struct Working {
    /// Number of servers that are connected and not suspect (see `Standing::suspect`).
    count: Cell<usize>,
    /// Raised while no server works. Used only if any server may deliver any record. Otherwise, each server has a separate
    /// condition.
    failing: Rc<Condition>,
}

impl Working {
    pub(super) fn new(reporter: &Reporter) -> Self {
        Self {
            count: Cell::new(0),
            failing: Rc::new(reporter.condition("server")),
        }
    }
}

/// Whether one server works, and how its failures are reported.
#[derive(Debug)]
pub(super) struct Standing {
    address: String,
    reporter: Reporter,
    /// Records may have to wait for this server, so its failure is a condition even if all other servers work.
    needed: bool,
    /// Raised while this server's failure keeps the sink from delivering.
    failing: Rc<Condition>,
    working: Rc<Working>,
    connected: Cell<bool>,
    /// The server has failed, and has not proven since then that it works.
    suspect: Cell<bool>,
    /// Whether [`Working::count`] includes this server.
    counted: Cell<bool>,
}

impl Standing {
    pub(super) fn new(
        address: &str,
        needed: bool,
        working: Rc<Working>,
        reporter: Reporter,
    ) -> Self {
        Self {
            address: address.to_owned(),
            failing: match needed {
                true => Rc::new(reporter.condition("server")),
                false => working.failing.clone(),
            },
            reporter,
            needed,
            working,
            connected: Cell::new(false),
            suspect: Cell::new(false),
            counted: Cell::new(false),
        }
    }

    /// Sets whether the server is connected.
    pub(super) fn set_connected(&self, connected: bool) {
        self.connected.set(connected);
        self.count();
    }

    /// Clears the condition because the server is not needed at the moment: its failure delays no record.
    pub(super) fn excuse(&self) {
        if self.needed {
            self.failing.clear();
        }
    }

    /// Notes that the server works: it has acked a chunk or proven that it has the shared key. Without acks, the proof is that
    /// its connection has lasted.
    pub(super) fn proven(&self) {
        if self.suspect.replace(false) {
            let address = &self.address;
            self.reporter.info(
                "connected",
                format_args!("server {address} is connected again"),
            );
            self.count();
        }
        self.failing.clear();
    }

    /// Notes that a connection has lasted without a failure while no ack was due: no record is delayed.
    pub(super) fn lasted(&self, ack: bool) {
        if ack {
            // The server stays suspect until it acks a chunk.
            self.failing.clear();
        } else {
            self.proven();
        }
    }

    /// Notes a failure: raises the condition, or only warns if another server can deliver.
    pub(super) fn failed(&self, why: impl fmt::Display) {
        self.suspect.set(true);
        self.set_connected(false);
        if !self.needed && self.working.count.get() > 0 {
            return self.reporter.warn("server", why);
        }
        self.failing.raise(Trouble::Retrying, why);
    }

    fn count(&self) {
        let works = self.connected.get() && !self.suspect.get();
        let before = self.counted.replace(works);
        let count = self.working.count.get() + usize::from(works);
        self.working.count.set(count - usize::from(before));
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        let count = self.working.count.get();
        self.working
            .count
            .set(count - usize::from(self.counted.get()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_a_condition_only_while_no_other_server_works() {
        let reporter = Reporter::new("out");
        let working = Rc::new(Working::new(&reporter));
        let server = |address| Standing::new(address, false, working.clone(), reporter.clone());
        let (a, b) = (server("a"), server("b"));
        a.set_connected(true);
        b.failed("b is gone");
        assert_eq!(reporter.conditions(), []);
        a.failed("a is gone");
        assert_eq!(reporter.conditions().len(), 1);
        b.set_connected(true);
        b.proven();
        assert_eq!(reporter.conditions(), []);
        drop(b);
        a.failed("a is gone");
        assert_eq!(reporter.conditions().len(), 1);
    }

    #[test]
    fn a_server_that_records_wait_for_has_a_separate_condition() {
        let reporter = Reporter::new("out");
        let working = Rc::new(Working::new(&reporter));
        let server = |address| Standing::new(address, true, working.clone(), reporter.clone());
        let (a, b) = (server("a"), server("b"));
        a.set_connected(true);
        b.failed("b is gone");
        assert_eq!(reporter.conditions().len(), 1);
        b.excuse();
        assert_eq!(reporter.conditions(), []);
    }
}
