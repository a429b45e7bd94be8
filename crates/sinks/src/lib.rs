//! The sinks: one folder each, and one line each in the list below.

use millstream_pipeline::node::Component;

/// All sinks.
pub const COMPONENTS: &[Component] = &[];
