//! Channels between producers and consumers, each in its own directory.

pub mod disk;
pub mod memory;

use millstream_pipeline::node::Component;

/// All channels.
pub const COMPONENTS: &[Component] = &[disk::COMPONENT, memory::COMPONENT];
