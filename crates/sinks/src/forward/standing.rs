//! Whether servers work, as the operator sees it: conditions, and the log line when a server is back.

use std::{cell::Cell, fmt, rc::Rc};

use millstream_pipeline::{
    condition::{Condition, Trouble},
    report::Reporter,
};

/// What all servers of a lane share.
#[derive(Debug)]
pub(super) struct Working {
    /// How many servers are connected and have worked since they failed last.
    count: Cell<usize>,
    /// Holds while no server works, where any other server would do.
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

/// One server's standing.
#[derive(Debug)]
pub(super) struct Standing {
    address: String,
    reporter: Reporter,
    /// Records may have to wait for this server: its failure is a condition however well the others work.
    needed: bool,
    /// Holds while it keeps the sink from delivering.
    failing: Rc<Condition>,
    working: Rc<Working>,
    connected: Cell<bool>,
    /// It has failed, and nothing has proven since that it works.
    suspect: Cell<bool>,
    /// It is part of the lane's count.
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

    /// Whether there is a connection from now on.
    pub(super) fn set_connected(&self, connected: bool) {
        self.connected.set(connected);
        self.count();
    }

    /// The server is not needed now: that it does not work keeps nothing from being delivered.
    pub(super) fn excuse(&self) {
        if self.needed {
            self.failing.clear();
        }
    }

    /// The server has answered in a way that only a receiver which takes records does.
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

    /// The connection has lasted, without acks or with nothing to be acked: nothing is kept from being delivered.
    pub(super) fn lasted(&self, ack: bool) {
        if ack {
            // Only an ack proves more.
            self.failing.clear();
        } else {
            self.proven();
        }
    }

    /// The server has failed: raises the condition, or warns if another server delivers.
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
    fn a_server_that_records_wait_for_has_a_condition_of_its_own() {
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
