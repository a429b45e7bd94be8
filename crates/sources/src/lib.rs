//! The sources: one directory each, and one line each in the list below.

use millstream_pipeline::node::Component;

mod compressed;
mod connection;
#[cfg(test)]
mod contributing;
mod flight;
mod flume;
mod forward;
mod framing;
mod fuse;
mod generate;
mod http;
mod journald;
mod kafka;
mod rest;
#[cfg(test)]
mod rig;
mod stdin;
mod syslog;
mod tagging;
mod tail;

pub use fuse::abandon_left;

/// All sources.
pub const COMPONENTS: &[Component] = &[
    flume::COMPONENT,
    forward::COMPONENT,
    fuse::COMPONENT,
    generate::COMPONENT,
    http::COMPONENT,
    journald::COMPONENT,
    kafka::COMPONENT,
    stdin::COMPONENT,
    syslog::COMPONENT,
    tail::COMPONENT,
];
