//! The protocol of the Linux kernel on `/dev/fuse`: the part that a tree of files needs.
//!
//! In the path of a batch (ARCHITECTURE.md), this module decodes writes to a mounted directory. Specification:
//! `include/uapi/linux/fuse.h`, major version 7. Numbers are in native byte order, because both ends run on one machine. A node
//! is a file or a directory. One read returns one request, one write sends one answer. Requests come from the kernel, but are
//! validated nevertheless. This module does no I/O and has no state.
//!
//! ```text
//! request                                        answer
//! offset bytes                                   offset bytes
//!      0   4   total length                           0   4   total length
//!      4   4   operation                              4   4   0, or a negated error number
//!      8   8   unique: repeated in the answer         8   8   unique
//!     16   8   node                                  16   -   body
//!     24   4   user of the process
//!     28   4   group of the process
//!     32   4   id of its thread, 0 if Millstream cannot see it
//!     36   4   (extensions, padding)
//!     40   -   body, by the operation
//! ```

mod fields;
mod reply;
mod request;

#[cfg(test)]
mod tests;

pub use reply::{
    Attributes, Entries, FileSystem, attributes, created, entry, header, init, opened, resend,
    sought, statistics, written,
};
pub use request::{Header, Malformed, Operation, Request, SetAttributes, TimeSet};

/// The major version of the protocol.
pub const MAJOR: u32 = 7;
/// The minor version. It supports all capabilities below.
pub const MINOR: u32 = 36;
/// The offset of the data in a request of [`Operation::Write`].
pub const WRITE_DATA_AT: usize = 80;
/// The node of the mount point itself.
pub const ROOT: u64 = 1;

/// Flags of INIT. In the request, they are the capabilities that the kernel offers; in the answer, those that Millstream wants.
pub mod capability {
    /// Writes of more than one page.
    pub const BIG_WRITES: u32 = 1 << 5;
    /// Concurrent lookups and listings of a directory.
    pub const PARALLEL_DIROPS: u32 = 1 << 18;
    /// Requests of more than 32 pages.
    pub const MAX_PAGES: u32 = 1 << 22;
    /// The kernel need not query security attributes before every write.
    pub const HANDLE_KILLPRIV_V2: u32 = 1 << 28;
}

/// Flags of OPEN's answer: how the kernel treats the file.
pub mod open_flag {
    /// Every read and write is sent immediately and bypasses the page cache.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// The kernel sends no FLUSH when a file is closed.
    pub const NO_FLUSH: u32 = 1 << 5;
}
