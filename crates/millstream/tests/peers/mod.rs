//! Programs written by others that both `line` and `faults` send records with.

#![allow(dead_code, reason = "each test binary uses some of them")]

pub mod flume_agent;
pub mod syslog_daemons;
