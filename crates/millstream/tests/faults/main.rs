//! Millstream under faults: it is killed, its state is damaged, disks are full or slow, peers are hostile, the clock jumps.
//!
//! `make test` runs a part of each test, `make storm` (`STORM=full`) runs them at full length.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed step fails the test; a test prints what it measured"
)]

mod bad_records;
mod clock;
mod cluster;
mod crowd;
mod damage;
mod edits;
mod fatal_records;
mod file_kills;
mod full_disk;
mod kills;
mod next_faults;
#[path = "../peers/mod.rs"]
mod peers;
mod processors;
#[path = "../program/mod.rs"]
mod program;
#[cfg(feature = "vrl")]
mod programs;
#[cfg(feature = "vrl")]
mod redaction;
mod reload;
mod reload_nodes;
mod renamed_sources;
mod restarts;
mod signals;
mod slow_disk;
mod stops;
mod unwritable;
mod upgrades;
