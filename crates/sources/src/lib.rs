//! The sources: one folder each, and one line each in the list below.

use millstream_pipeline::node::Component;

mod connection;
mod flight;
mod forward;
mod framing;
mod generate;
#[cfg(test)]
mod rig;
mod stdin;
mod syslog;
mod tail;

/// All sources.
pub const COMPONENTS: &[Component] = &[
    forward::COMPONENT,
    generate::COMPONENT,
    stdin::COMPONENT,
    syslog::COMPONENT,
    tail::COMPONENT,
];
