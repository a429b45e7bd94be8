//! The types of channels between producers and consumers. The code of each type is in its own directory.

pub mod disk;
pub mod memory;

use millstream_pipeline::node::Component;

/// All channels.
pub const COMPONENTS: &[Component] = &[disk::COMPONENT, memory::COMPONENT];
