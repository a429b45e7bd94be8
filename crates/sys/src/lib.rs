//! System calls that std does not offer, and the disk as a trait, so that tests can simulate power cuts.
//!
//! This is the only crate with `unsafe` code.

pub mod accounts;
pub mod allocator;
pub mod checksum;
pub mod child;
pub mod datagrams;
pub mod disk;
pub mod exit;
pub mod fuse;
pub mod inherited;
pub mod last_words;
pub mod no_room;
pub mod private;
pub mod random;
pub mod signals;
pub mod thread_time;
pub mod unsent;
pub mod wake;
pub mod writeback;
