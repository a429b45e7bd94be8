//! The encoding of origins in frames, and of tailed files in the headers of segments.
//!
//! ```text
//! origin of a chunk                         origin of a file              an orderly close of a connection
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
//!                                               24   8   hash of its first bytes
//! ```
//!
//! If a processor has changed the tag of a batch, the tag under which a chunk arrived differs from the tag of the frame. The origin of
//! such a chunk begins with 4 instead of 1. After the id, it also holds the length of the chunk's tag (4 bytes) and the tag in UTF-8.
//! Frames of format versions before 4 have no such origins: their chunks count as if they had arrived under the tag of the frame.

use bytes::Bytes;
use millstream_record::{ChunkOrigin, FileId, FileOrigin, Origin, Tag};
use millstream_state::Fields;

const CHUNK: u8 = 1;
const FILE: u8 = 2;
const CLOSED: u8 = 3;
const RETAGGED: u8 = 4;

/// Appends origins, and connections that had an orderly close. `tag` is the tag of the frame.
pub(super) fn encode_origins(out: &mut Vec<u8>, origins: &[Origin], closed: &[u64], tag: &str) {
    for origin in origins {
        match origin {
            Origin::Chunk(chunk) => {
                let chunk_tag = Some(chunk.tag.as_str()).filter(|own| *own != tag);
                out.push(chunk_tag.map_or(CHUNK, |_| RETAGGED));
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
                if let Some(tag) = chunk_tag {
                    let tag_bytes = u32::try_from(tag.len()).unwrap_or(u32::MAX);
                    out.extend_from_slice(&tag_bytes.to_le_bytes());
                    out.extend_from_slice(tag.as_bytes());
                }
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

/// Reads `count` origins and closed connections. `tag` is the tag of the frame.
pub(super) fn decode_origins(
    fields: &mut Fields<'_>,
    count: u32,
    tag: &Tag,
) -> Option<(Vec<Origin>, Vec<u64>)> {
    let (mut origins, mut closed) = (Vec::new(), Vec::new());
    for _ in 0..count {
        match fields.u8()? {
            CHUNK => origins.push(Origin::Chunk(decode_chunk(fields, tag)?)),
            RETAGGED => {
                let chunk = decode_chunk(fields, tag)?;
                let tag_bytes = usize::try_from(fields.u32()?).ok()?;
                let tag = std::str::from_utf8(fields.take(tag_bytes)?).ok()?.into();
                origins.push(Origin::Chunk(ChunkOrigin { tag, ..chunk }));
            }
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

fn decode_chunk(fields: &mut Fields<'_>, tag: &Tag) -> Option<ChunkOrigin> {
    let connection = fields.u64()?;
    let (length, checksum) = (fields.u32()?, fields.u32()?);
    let (start, end, records) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let id_bytes = usize::try_from(fields.u32()?).ok()?;
    Some(ChunkOrigin {
        id: Bytes::copy_from_slice(fields.take(id_bytes)?),
        tag: tag.clone(),
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
