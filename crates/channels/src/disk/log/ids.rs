//! The id file of a closed segment, `NNNNNNNNNN.ids`: the keys of its chunks, by which repeats are recognized (window.rs).
//!
//! ```text
//! offset bytes
//!      0   8   magic "MILLIDS" and 0
//!      8   4   format version
//!     12   4   CRC-32C of the version and all that follows (seal.rs)
//!     16  16   channel id
//!     32   8   number of the segment
//!     40   4   N: number of entries
//!     44   4   0
//!     48  32N  per entry:
//!              0  16   key of the chunk; zeros for a closed connection
//!             16   8   number of the connection; of a part of a position its mark (repeats.rs)
//!             24   4   keep time, seconds since 1970
//!             28   4   1: a chunk with a shared id (key.rs); 2: a chunk with a unique id; 3: an orderly close of a connection;
//!                      4: a part of a position of another Millstream's channel
//! ```
//!
//! The file is written and synced when its segment closes, and removed when all its ids have left the window (the ids of recent chunks). So
//! a start reads 32 bytes per chunk instead of the whole segment, and the ids outlive the segment.

use std::{
    io::{self, IoSlice},
    path::Path,
};

use millstream_state::Fields;
use millstream_sys::disk::{Disk, Open};

use super::{
    ChannelId,
    key::Key,
    seal::{self, SEAL_BYTES, Sealed},
};

const MAGIC: &[u8; 8] = b"MILLIDS\0";
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 32;
/// A file that is larger than this (8 million entries) counts as damaged.
const FILE_BYTES_MAX: usize = 256 << 20;

/// An entry of an id file. The frames of the segment hold the same data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdRecord {
    /// A chunk that is kept.
    Chunk {
        key: Key,
        connection: u64,
        seconds: u32,
        /// Whether the id of the chunk is unique. A chunk with a unique id needs no proof that its acknowledgement arrived (window.rs).
        proved: bool,
    },
    /// A part of a position of another Millstream's channel.
    Part { key: Key, mark: u64, seconds: u32 },
    /// The peer closed the connection in an orderly way after it had received all acknowledgements.
    Closed { connection: u64, seconds: u32 },
}

/// The name of the id file of a segment.
pub(super) fn ids_name(segment: u64) -> String {
    format!("{segment:010}.ids")
}

/// Bytes of an id file with this many entries.
pub(super) fn ids_bytes(entries: usize) -> u64 {
    (HEADER_BYTES + entries * ENTRY_BYTES) as u64
}

/// Writes and syncs the id file. Its name becomes durable together with the name of the next segment, whose header
/// refers to the file.
pub(super) fn write_ids(
    disk: &dyn Disk,
    path: &Path,
    channel: &ChannelId,
    segment: u64,
    records: &[IdRecord],
) -> io::Result<()> {
    let mut out = seal::begin(MAGIC);
    out.reserve(HEADER_BYTES + records.len() * ENTRY_BYTES);
    out.extend_from_slice(&channel.0);
    out.extend_from_slice(&segment.to_le_bytes());
    let count = u32::try_from(records.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    for record in records {
        let (key, connection, seconds, kind) = match record {
            IdRecord::Chunk {
                key,
                connection,
                seconds,
                proved,
            } => (key.0, connection, seconds, 1 + u32::from(*proved)),
            IdRecord::Closed {
                connection,
                seconds,
            } => ([0; 16], connection, seconds, 3),
            IdRecord::Part { key, mark, seconds } => (key.0, mark, seconds, 4),
        };
        out.extend_from_slice(&key);
        out.extend_from_slice(&connection.to_le_bytes());
        out.extend_from_slice(&seconds.to_le_bytes());
        out.extend_from_slice(&kind.to_le_bytes());
    }
    seal::seal(&mut out);
    // A crash before the header of the next segment was written may have left a file with the same name.
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.open(path, Open::Create)?;
    file.write_at(&[IoSlice::new(&out)], 0)?;
    file.sync()
}

/// Reads an id file; `None` if it is missing, damaged, or belongs to another channel or segment.
pub(super) fn read_ids(
    disk: &dyn Disk,
    path: &Path,
    channel: &ChannelId,
    segment: u64,
) -> io::Result<Option<Vec<IdRecord>>> {
    let file = match disk.open(path, Open::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let length = usize::try_from(file.metadata()?.len).unwrap_or(usize::MAX);
    if length > FILE_BYTES_MAX {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.read_at(&mut bytes, length, 0)?;
    Ok(decode(&bytes, channel, segment))
}

fn decode(bytes: &[u8], channel: &ChannelId, segment: u64) -> Option<Vec<IdRecord>> {
    let Sealed::Whole = seal::check(MAGIC, bytes) else {
        return None;
    };
    let mut fields = Fields::new(bytes.get(SEAL_BYTES..)?);
    if fields.array()? != channel.0 || fields.u64()? != segment {
        return None;
    }
    let count = fields.u32()?;
    fields.take(4)?;
    let mut records = Vec::new();
    for _ in 0..count {
        let (key, connection, seconds) = (Key(fields.array()?), fields.u64()?, fields.u32()?);
        records.push(match fields.u32()? {
            kind @ (1 | 2) => IdRecord::Chunk {
                key,
                connection,
                seconds,
                proved: kind == 2,
            },
            3 => IdRecord::Closed {
                connection,
                seconds,
            },
            4 => IdRecord::Part {
                key,
                mark: connection,
                seconds,
            },
            _ => return None,
        });
    }
    Some(records)
}
