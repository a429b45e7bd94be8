//! Channels: what stands between producers and consumers. One directory each.

pub mod disk;
pub mod memory;

use millstream_pipeline::node::Component;

/// All channels.
pub const COMPONENTS: &[Component] = &[disk::COMPONENT, memory::COMPONENT];
