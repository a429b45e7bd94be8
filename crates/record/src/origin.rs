//! Origins: by them repeats of a sender are recognised, and a source knows where to resume after a restart.

use bytes::Bytes;

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
    /// The connection of the chunk: a number that is never reused, even across restarts.
    pub connection: u64,
    /// Length of the payload as received (before decompression), in bytes.
    pub length: u32,
    /// CRC-32C of the payload as received (before decompression).
    pub checksum: u32,
    /// The offset of its first byte in the batch's body.
    pub start: u32,
    /// The offset after its last byte in the batch's body.
    pub end: u32,
    /// The number of records between `start` and `end`.
    pub records: u32,
}

/// The identity of a tailed file. It survives a rename and distinguishes a reused inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
    /// Birth time in nanoseconds since 1970; 0 if the file system does not store it.
    pub birth: i64,
    /// Hash of its first bytes (see the source `tail`), 0 while it is too short.
    pub head: u64,
}

/// A part of a tailed file. The body of the batch holds exactly its bytes `begin..next`, or the records that were made from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOrigin {
    /// The file.
    pub file: FileId,
    /// The offset of the first byte that the batch holds.
    pub begin: u64,
    /// The offset of the first byte that it does not hold: where reading resumes.
    pub next: u64,
}
