//! Third-party senders that the test binaries `line` and `faults` use.

#![allow(dead_code, reason = "each test binary uses some of them")]

pub mod flume_agent;
pub mod syslog_daemons;
