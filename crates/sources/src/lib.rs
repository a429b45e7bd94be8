//! The sources: one folder each, and one line each in the list below.

use millstream_pipeline::node::Component;

/// All sources.
pub const COMPONENTS: &[Component] = &[];
