//! The processors: one directory each, and one line each in the list below.

use millstream_pipeline::node::Component;

/// All processors.
pub const COMPONENTS: &[Component] = &[];
