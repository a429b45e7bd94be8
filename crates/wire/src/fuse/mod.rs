//! The protocol that the Linux kernel speaks on `/dev/fuse`, as far as a tree of files needs it.
//!
//! Hop: [decode] of what comes in by a mounted directory. Specification: `include/uapi/linux/fuse.h`, major 7. Numbers are
//! in the byte order of the machine: both ends run on it. One read gives one request, one write one answer. Everything is
//! checked before it is believed, though it is the kernel who writes here; no I/O, no state.
//!
//! ```text
//! request                                        answer
//! offset bytes                                   offset bytes
//!      0   4   length of all of it                    0   4   length of all of it
//!      4   4   operation                              4   4   0, or an error number below 0
//!      8   8   unique: repeated in the answer         8   8   unique
//!     16   8   node                                  16   -   body
//!     24   4   user of the process
//!     28   4   group of the process
//!     32   4   its thread's id, 0 if we cannot see it
//!     36   4   (extensions, padding)
//!     40   -   body, by the operation
//! ```

mod fields;
mod reply;
mod request;

#[cfg(test)]
mod tests;

pub use reply::{
    Attributes, Entries, FileSystem, attributes, created, entry, header, init, opened, statistics,
    written,
};
pub use request::{Header, Malformed, Operation, Request, SetAttributes, TimeSet};

/// The version of the protocol that the answers follow.
pub const MAJOR: u32 = 7;
/// Its minor version: what is asked for below came no later than with this one.
pub const MINOR: u32 = 36;
/// The first byte of what is written, in a request of [`Operation::Write`].
pub const WRITE_DATA_AT: usize = 80;
/// The node of the mount point itself.
pub const ROOT: u64 = 1;

/// Flags of the first exchange: what the kernel offers and what is asked for.
pub mod capability {
    /// O_TRUNC comes with OPEN.
    pub const ATOMIC_O_TRUNC: u32 = 1 << 3;
    /// Writes of more than one page.
    pub const BIG_WRITES: u32 = 1 << 5;
    /// Lookups and listings of one directory side by side.
    pub const PARALLEL_DIROPS: u32 = 1 << 18;
    /// Requests of more than 32 pages.
    pub const MAX_PAGES: u32 = 1 << 22;
    /// The kernel need not ask for capabilities before every write.
    pub const HANDLE_KILLPRIV_V2: u32 = 1 << 28;
}

/// How an opened file is to be treated by the kernel.
pub mod open_flag {
    /// Every read and write comes here, as it is made.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// No FLUSH at close.
    pub const NO_FLUSH: u32 = 1 << 5;
}
