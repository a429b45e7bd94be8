//! The sinks: one directory each, and one line each in the list below.

mod backoff;
mod batching;
#[cfg(test)]
mod contributing;
mod directories;
mod discard;
mod file;
mod format;
mod forward;
mod hdfs;
mod http;
mod ids;
mod kafka;
mod ledger;
mod object;
mod parts;
mod probe;
mod publish;
mod retry;
#[cfg(test)]
#[allow(dead_code, reason = "each sink uses what it needs of it")]
mod rig;
mod stdout;
mod syslog;

use millstream_pipeline::node::Component;

/// All sinks.
pub const COMPONENTS: &[Component] = &[
    discard::COMPONENT,
    file::COMPONENT,
    forward::COMPONENT,
    hdfs::COMPONENT,
    http::COMPONENT,
    kafka::COMPONENT,
    object::COMPONENT,
    stdout::COMPONENT,
    syslog::COMPONENT,
];
