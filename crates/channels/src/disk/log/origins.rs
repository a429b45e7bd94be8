//! Origins in frames, and the table of tailed files that stands whole at the head of every segment.
//!
//! ```text
//! origin of a chunk                         origin of a file              a connection closed in order
//! offset bytes                              offset bytes                  offset bytes
//!      0   1   1                                 0   1   2                     0   1   3
//!      1   8   connection                        1  32   file (below)          1   8   connection
//!      9   4   length of the payload            33   8   begin
//!     13   4   CRC-32C of the payload           41   8   next
//!     17   4   start in the body
//!     21   4   end in the body              a file
//!     25   4   records                           0   8   device
//!     29   4   L: bytes of the id                8   8   inode
//!     33   L   id                               16   8   birth, nanoseconds
//!                                               24   8   hash of its head
//! ```

use std::collections::HashMap;

use bytes::Bytes;
use millstream_record::{ChunkOrigin, FileId, FileOrigin, Origin};

use super::bytes::Fields;

const CHUNK: u8 = 1;
const FILE: u8 = 2;
const CLOSED: u8 = 3;

/// Appends origins and closed connections.
pub(super) fn encode_origins(out: &mut Vec<u8>, origins: &[Origin], closed: &[u64]) {
    for origin in origins {
        match origin {
            Origin::Chunk(chunk) => {
                out.push(CHUNK);
                out.extend_from_slice(&chunk.connection.to_le_bytes());
                let id_bytes = u32::try_from(chunk.id.len()).unwrap_or(u32::MAX);
                for field in [
                    chunk.length,
                    chunk.checksum,
                    chunk.start,
                    chunk.end,
                    chunk.records,
                    id_bytes,
                ] {
                    out.extend_from_slice(&field.to_le_bytes());
                }
                out.extend_from_slice(&chunk.id);
            }
            Origin::File(origin) => {
                out.push(FILE);
                encode_file(out, &origin.file);
                out.extend_from_slice(&origin.begin.to_le_bytes());
                out.extend_from_slice(&origin.next.to_le_bytes());
            }
        }
    }
    for connection in closed {
        out.push(CLOSED);
        out.extend_from_slice(&connection.to_le_bytes());
    }
}

/// Reads `count` of them.
pub(super) fn decode_origins(
    fields: &mut Fields<'_>,
    count: u32,
) -> Option<(Vec<Origin>, Vec<u64>)> {
    let (mut origins, mut closed) = (Vec::new(), Vec::new());
    for _ in 0..count {
        match fields.u8()? {
            CHUNK => origins.push(Origin::Chunk(decode_chunk(fields)?)),
            FILE => origins.push(Origin::File(FileOrigin {
                file: decode_file(fields)?,
                begin: fields.u64()?,
                next: fields.u64()?,
            })),
            CLOSED => closed.push(fields.u64()?),
            _ => return None,
        }
    }
    Some((origins, closed))
}

fn decode_chunk(fields: &mut Fields<'_>) -> Option<ChunkOrigin> {
    let connection = fields.u64()?;
    let (length, checksum) = (fields.u32()?, fields.u32()?);
    let (start, end, records) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let id_bytes = usize::try_from(fields.u32()?).ok()?;
    Some(ChunkOrigin {
        id: Bytes::copy_from_slice(fields.take(id_bytes)?),
        connection,
        length,
        checksum,
        start,
        end,
        records,
    })
}

pub(super) fn encode_file(out: &mut Vec<u8>, file: &FileId) {
    out.extend_from_slice(&file.device.to_le_bytes());
    out.extend_from_slice(&file.inode.to_le_bytes());
    out.extend_from_slice(&file.birth.to_le_bytes());
    out.extend_from_slice(&file.head.to_le_bytes());
}

pub(super) fn decode_file(fields: &mut Fields<'_>) -> Option<FileId> {
    Some(FileId {
        device: fields.u64()?,
        inode: fields.u64()?,
        birth: fields.i64()?,
        head: fields.u64()?,
    })
}

/// Tailed files that are remembered: 40 MB at the head of every segment, and far below what a head can hold. Beyond it
/// those go first that were found longest ago, by their inode's birth: they are read again if they are still there.
const FILES_MAX: usize = 1_000_000;

/// Where reading of every tailed file goes on.
#[derive(Debug, Default)]
pub(super) struct FileTable {
    /// As the frames that are written say: what the head of the next segment holds.
    written: HashMap<FileId, u64, foldhash::fast::RandomState>,
    /// What frames that are staged and not yet written will make of it.
    staged: HashMap<FileId, u64, foldhash::fast::RandomState>,
}

impl FileTable {
    /// The first byte of `file` that no frame holds, staged ones included.
    pub(super) fn next(&self, file: &FileId) -> Option<u64> {
        self.staged
            .get(file)
            .or_else(|| self.written.get(file))
            .copied()
    }

    /// How many files a segment's head holds.
    pub(super) fn len(&self) -> usize {
        self.written.len()
    }

    /// The table of a segment's head.
    pub(super) fn restore(&mut self, files: &[(FileId, u64)]) {
        self.written.extend(files.iter().copied());
    }

    pub(super) fn stage(&mut self, origin: &FileOrigin) {
        self.staged.insert(origin.file, origin.next);
    }

    /// A frame with this origin is written; returns what was there before.
    pub(super) fn write(&mut self, origin: &FileOrigin) -> Option<u64> {
        let before = self.written.insert(origin.file, origin.next);
        if self.written.len() > FILES_MAX {
            self.forget_oldest();
        }
        before
    }

    fn forget_oldest(&mut self) {
        let mut births: Vec<i64> = self.written.keys().map(|file| file.birth).collect();
        let middle = births.len() / 2;
        let (_, middle, _) = births.select_nth_unstable(middle);
        let oldest = *middle;
        self.written.retain(|file, _| file.birth > oldest);
    }

    /// The frames that moved these on are not durable after all.
    pub(super) fn undo(&mut self, moved: Vec<(FileId, Option<u64>)>) {
        for (file, before) in moved.into_iter().rev() {
            match before {
                Some(next) => self.written.insert(file, next),
                None => self.written.remove(&file),
            };
        }
    }

    /// Whether a staged frame has moved this file on.
    pub(super) fn is_staged(&self, file: &FileId) -> bool {
        self.staged.contains_key(file)
    }

    /// Nothing is staged any more.
    pub(super) fn settle(&mut self) {
        self.staged.clear();
    }

    pub(super) fn forget(&mut self, file: &FileId) {
        self.written.remove(file);
        self.staged.remove(file);
    }

    /// All written ones, sorted, so that the same run writes the same bytes.
    pub(super) fn sorted(&self) -> Vec<(FileId, u64)> {
        let mut all: Vec<_> = self
            .written
            .iter()
            .map(|(file, next)| (*file, *next))
            .collect();
        all.sort_unstable();
        all
    }
}
