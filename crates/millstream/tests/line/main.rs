//! Every way into and out of Millstream, with real clients and servers on the other end.
//!
//! `make deps` installs the clients and servers. `make storm` runs the modules with kills at full length.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed step fails the test; a test prints what it measured"
)]

mod clients;
mod flume;
#[cfg(feature = "hdfs")]
mod hdfs;
mod http;
mod http_pages;
mod http_peers;
mod http_sink;
mod journald;
#[cfg(feature = "kafka")]
mod kafka_sink;
#[cfg(feature = "kafka")]
mod kafka_source;
mod logrotate;
mod many_files;
mod mount;
mod object;
#[path = "../peers/mod.rs"]
mod peers;
mod polling;
#[path = "../program/mod.rs"]
mod program;
mod receivers;
mod records;
mod repeats;
mod secured;
mod syslog;
mod syslog_senders;
mod syslog_sink;
mod syslog_ways;
