//! The sinks: one directory each, and one line each in the list below.

#[cfg(test)]
mod contributing;
mod directories;
mod discard;
mod file;
mod format;
mod forward;
mod hdfs;
mod http;
mod kafka;
mod object;
mod probe;
mod publish;
#[cfg(test)]
#[allow(dead_code, reason = "each sink uses what it needs of it")]
mod rig;
mod sending;
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
