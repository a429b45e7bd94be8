//! Origins: what a source needs to know again when its sender repeats itself or when it starts anew.

use bytes::Bytes;

/// Where records came from, as far as they can come again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A chunk of the forward protocol that carries an id.
    Chunk(ChunkOrigin),
    /// A part of a tailed file.
    File(FileOrigin),
}

/// A chunk with an id. It is a repeat of another when id, tag, length and checksum are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkOrigin {
    /// The option `chunk`, as the MessagePack value that the sender wrote (any type), so that it is told apart byte for
    /// byte.
    pub id: Bytes,
    /// The connection it came on: a number that is never used twice, also across restarts.
    pub connection: u64,
    /// Bytes of the payload as received (before decompression).
    pub length: u32,
    /// CRC-32C of the payload as received (before decompression).
    pub checksum: u32,
    /// Its first byte in the batch's body.
    pub start: u32,
    /// The byte after its last in the batch's body.
    pub end: u32,
    /// How many records stand between `start` and `end`.
    pub records: u32,
}

/// The identity of a tailed file: it survives a rename and tells a reused inode apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
    /// Birth time in nanoseconds since 1970, 0 where the file system keeps none.
    pub birth: i64,
    /// Hash of its first bytes (see the source `tail`), 0 while it is too short.
    pub head: u64,
}

/// A part of a tailed file. The body of the batch holds exactly its bytes `begin..next`, or what was made of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOrigin {
    /// Which file.
    pub file: FileId,
    /// The offset of the first byte in the file that the batch holds.
    pub begin: u64,
    /// The offset of the first byte that it does not hold: where reading goes on.
    pub next: u64,
}
