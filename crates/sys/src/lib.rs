//! The system as we use it: what std does not offer, and the disk behind a trait so that tests can take its power away.
//! And, with the feature `librdkafka`, one call of that library which its binding makes dear.

pub mod datagrams;
pub mod disk;
pub mod fuse;
#[cfg(feature = "librdkafka")]
pub mod kafka;
pub mod unsent;
pub mod wake;
pub mod writeback;
