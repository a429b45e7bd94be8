//! The sources: one folder each, and one line each in the list below.

use millstream_pipeline::node::Component;

mod forward;
mod framing;
#[cfg(test)]
mod rig;
mod tail;

/// All sources.
pub const COMPONENTS: &[Component] = &[forward::COMPONENT, tail::COMPONENT];
