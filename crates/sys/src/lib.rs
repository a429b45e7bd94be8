//! The system as we use it: what std does not offer, and the disk behind a trait so that tests can take its power away.

pub mod allocator;
pub mod checksum;
pub mod datagrams;
pub mod disk;
pub mod fuse;
pub mod private;
pub mod random;
pub mod unsent;
pub mod wake;
pub mod writeback;
