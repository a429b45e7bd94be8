//! Origins: they identify records that a sender repeats, and show a source where to resume after a restart.

use bytes::Bytes;

use crate::Tag;

/// Where records came from, if they can arrive again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A chunk of the forward protocol that carries an id.
    Chunk(ChunkOrigin),
    /// A part of a tailed file.
    File(FileOrigin),
}

/// A chunk with an id. It repeats another chunk if id, tag, length and checksum are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkOrigin {
    /// The option `chunk`, as the MessagePack value that the sender wrote (of any type), so that ids are compared byte
    /// by byte.
    pub id: Bytes,
    /// The tag under which the chunk arrived. Processors may have given its records another tag.
    pub tag: Tag,
    /// The connection of the chunk: a number that is never reused, even across restarts.
    pub connection: u64,
    /// Length of the payload as received (before decompression), in bytes.
    pub length: u32,
    /// CRC-32C of the payload as received (before decompression).
    pub checksum: u32,
    /// The offset of the chunk's first byte in the batch's body.
    pub start: u32,
    /// The offset after the chunk's last byte in the batch's body.
    pub end: u32,
    /// The number of records between `start` and `end`.
    pub records: u32,
}

/// The identity of a tailed file. It stays the same after a rename, and changes when the inode is reused for another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
    /// Birth time in nanoseconds since 1970; 0 if the file system does not store it.
    pub birth: i64,
    /// Hash of the file's first bytes (see the source `tail`); 0 while the file is too short.
    pub head: u64,
}

/// A part of a tailed file. The body of the batch holds exactly the bytes `begin..next` of the file, or the records that were made from
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOrigin {
    /// The file.
    pub file: FileId,
    /// The offset of the first byte that the batch holds.
    pub begin: u64,
    /// The offset after the last byte that the batch holds: reading resumes here.
    pub next: u64,
}
