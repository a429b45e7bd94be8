//! The sources: one folder each, and one line each in the list below.

mod forward;

use millstream_pipeline::node::Component;

/// All sources.
pub const COMPONENTS: &[Component] = &[forward::COMPONENT];
