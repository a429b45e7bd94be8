//! Sifting: removes from a group the records that the channel already holds.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> [keep] -> read back -> process -> encode -> write -> settle`
//!
//! A sender that lost an acknowledgement sends a chunk again, and a source that restarts may read a file again from an offset that the
//! channel has already passed. Such repeats are cut out of the batch before it is staged.

use bytes::{Bytes, BytesMut};
use millstream_record::{Batch, ChunkOrigin, FileOrigin, Origin, Values};
use millstream_wire::split::before_mark;

use super::{
    Error,
    file_table::FileTable,
    frame::HEAD_BYTES_MAX,
    ids::IdRecord,
    repeats::{Admission, GroupKeys, Repeats},
};

/// The maximum size of a group in bytes. One chunk of a peer is at most 256 MiB long after decompression.
const GROUP_BYTES_MAX: u64 = 1 << 30;

/// A piece of a body that the channel already holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct KnownPiece {
    start: u32,
    end: u32,
    records: u32,
}

/// The result of sifting a group: its parts (batches) without the repeats.
#[derive(Default)]
pub(super) struct Sifted {
    /// The new parts, each with the ids of its chunks.
    pub(super) parts: Vec<(Batch, Vec<IdRecord>)>,
    /// The file origins of the new parts.
    pub(super) files: Vec<FileOrigin>,
    /// Whether part of the group repeats a frame that is staged and not yet kept.
    pub(super) is_pending: bool,
}

/// Sifts the parts of one group.
pub(super) struct Sifter<'a> {
    repeats: &'a mut Repeats,
    files: &'a FileTable,
    /// The keep time of the group, in seconds.
    seconds: u32,
    keys: GroupKeys,
    sifted: Sifted,
}

impl<'a> Sifter<'a> {
    pub(super) fn new(repeats: &'a mut Repeats, files: &'a FileTable, seconds: u32) -> Self {
        Self {
            repeats,
            files,
            seconds,
            keys: GroupKeys::default(),
            sifted: Sifted::default(),
        }
    }

    pub(super) fn sift(mut self, group: Vec<Batch>) -> Sifted {
        for batch in group {
            let mut ids = Vec::new();
            if let Some(batch) = self.sift_batch(batch, &mut ids) {
                self.sifted.parts.push((batch, ids));
            }
            self.keys.end_part();
        }
        self.sifted
    }

    /// Removes from a batch the records that are already kept; `None` if nothing is left.
    fn sift_batch(&mut self, mut batch: Batch, ids: &mut Vec<IdRecord>) -> Option<Batch> {
        if batch.origins.is_empty() {
            return Some(batch);
        }
        let mut known = Vec::new();
        let mut origins = Vec::with_capacity(batch.origins.len());
        for origin in std::mem::take(&mut batch.origins) {
            match origin {
                Origin::Chunk(chunk) if self.is_new(&chunk, ids) => {
                    origins.push(Origin::Chunk(chunk));
                }
                Origin::Chunk(ChunkOrigin {
                    start,
                    end,
                    records,
                    ..
                }) => known.push(KnownPiece {
                    start,
                    end,
                    records,
                }),
                Origin::File(file) => match self.sift_file(&file, &batch) {
                    FilePart::New => {
                        self.sifted.files.push(file);
                        origins.push(Origin::File(file));
                    }
                    FilePart::NewFrom(begin, piece) => {
                        known.push(piece);
                        self.sifted.files.push(file);
                        origins.push(Origin::File(FileOrigin { begin, ..file }));
                    }
                    FilePart::Known => return None,
                },
            }
        }
        let nothing_is_new = !known.is_empty() && origins.is_empty();
        batch.origins = origins;
        if !known.is_empty() {
            cut_out(&mut batch, &mut known);
        }
        (!nothing_is_new || !batch.is_empty()).then_some(batch)
    }

    fn is_new(&mut self, chunk: &ChunkOrigin, ids: &mut Vec<IdRecord>) -> bool {
        match self.repeats.admit(chunk, self.seconds, &mut self.keys) {
            Admission::New(id) => {
                ids.extend(id);
                return true;
            }
            Admission::Pending => self.sifted.is_pending = true,
            Admission::Kept => {}
        }
        self.repeats.count += 1;
        false
    }

    fn sift_file(&mut self, file: &FileOrigin, batch: &Batch) -> FilePart {
        let Some(next) = self.files.next(&file.file) else {
            return FilePart::New;
        };
        // An empty batch only sets the offset, because the file is new or was truncated.
        if (batch.is_empty() && file.begin == file.next) || file.begin >= next {
            return FilePart::New;
        }
        if file.next <= next {
            self.sifted.is_pending |= self.files.is_staged(&file.file);
            return FilePart::Known;
        }
        // If it is unknown which records are kept, the batch is stored whole: a duplicate is better than a loss.
        let Some((bytes, records)) = before_mark(batch, file, next) else {
            return FilePart::New;
        };
        let piece = KnownPiece {
            start: 0,
            // A body is smaller than 4 GiB.
            end: bytes as u32,
            records,
        };
        FilePart::NewFrom(next, piece)
    }
}

/// How much of a batch from a file is new.
enum FilePart {
    New,
    /// The batch is new from this byte of the file on. The channel already holds the piece of the body before this byte.
    NewFrom(u64, KnownPiece),
    Known,
}

/// Removes pieces from a body, and shifts the origins that follow them.
fn cut_out(batch: &mut Batch, known: &mut [KnownPiece]) {
    known.sort_unstable();
    let mut body = BytesMut::with_capacity(batch.len());
    let mut at = 0;
    for piece in known.iter() {
        if let Some(new) = batch.body.get(at..piece.start as usize) {
            body.extend_from_slice(new);
        }
        at = at.max((piece.end as usize).min(batch.body.len()));
        batch.count = batch.count.saturating_sub(piece.records);
    }
    body.extend_from_slice(&batch.body[at..]);
    // Origins and pieces are both in the order of the body.
    let mut known = known.iter().peekable();
    let mut removed = 0;
    for origin in &mut batch.origins {
        if let Origin::Chunk(chunk) = origin {
            while let Some(piece) = known.next_if(|piece| piece.end <= chunk.start) {
                removed += piece.end - piece.start;
            }
            chunk.start = chunk.start.saturating_sub(removed);
            chunk.end = chunk.end.saturating_sub(removed);
        }
    }
    batch.body = Bytes::from(body);
}

/// Refuses a group that is too large to store. Also refuses a group if one of its frames would have a head that is too large to be
/// read back.
pub(super) fn check_size(group: &[Batch]) -> Result<(), Error> {
    let (mut bytes, mut head_max) = (0, 0);
    for batch in group {
        let origins: usize = batch.origins.iter().map(origin_bytes).sum();
        let head = batch.tag.as_str().len() + values_bytes(&batch.values) + origins;
        bytes += (batch.len() + head) as u64;
        head_max = head_max.max(head);
    }
    if bytes > GROUP_BYTES_MAX {
        return Err(Error::TooLarge { bytes });
    }
    if head_max > HEAD_BYTES_MAX / 2 {
        let bytes = head_max as u64;
        return Err(Error::TooLarge { bytes });
    }
    Ok(())
}

/// An upper bound of the bytes that an origin takes in a head.
fn origin_bytes(origin: &Origin) -> usize {
    match origin {
        Origin::Chunk(chunk) => 64 + chunk.id.len() + chunk.tag.as_str().len(),
        Origin::File(_) => 64,
    }
}

fn values_bytes(values: &Values) -> usize {
    let values = values.iter();
    values
        .map(|(name, value)| name.len() + value.len() + 8)
        .sum()
}

#[cfg(test)]
mod tests {
    use millstream_record::{Encoding, FileId};

    use super::*;
    use crate::disk::log::{ChannelId, Dedupe, tests::batch};

    #[test]
    fn a_file_that_is_read_from_an_earlier_byte_continues_where_the_channel_ends() {
        let file = FileId {
            device: 1,
            inode: 2,
            birth: 3,
            head: 4,
        };
        let origin = |begin, next| FileOrigin { file, begin, next };
        let mut files = FileTable::default();
        files.write(&origin(0, 4));
        let mut repeats = Repeats::new(ChannelId([1; 16]), Dedupe::default());
        let mut sift = |begin, next, body: &'static [u8], encoding| {
            let part = Batch {
                body: Bytes::from_static(body),
                count: 3,
                encoding,
                origins: vec![Origin::File(origin(begin, next))],
                ..batch(0, 8)
            };
            let mut sifted = Sifter::new(&mut repeats, &files, 0).sift(vec![part]);
            sifted.parts.pop().map(|(part, _)| (part.body, part.count))
        };
        let new = |body: &'static [u8], count| Some((Bytes::from_static(body), count));
        let lines = Encoding::Lines;
        assert_eq!(sift(0, 6, b"a\nb\nc\n", lines), new(b"c\n", 1));
        assert_eq!(sift(0, 4, b"a\nb\n", lines), None);
        assert_eq!(sift(4, 8, b"c\nd\n", lines), new(b"c\nd\n", 3));
        // The batch is stored whole if the known part ends in the middle of a line, or if the records are not the bytes of the file.
        assert_eq!(sift(1, 6, b"\nb2c\n", lines), new(b"\nb2c\n", 3));
        let packed = Encoding::Packed;
        let three = b"\x92\x01\x80\x92\x02\x80\x92\x03\x80";
        assert_eq!(sift(1, 10, three, packed), new(three, 3));
        // The offsets count records.
        assert_eq!(sift(2, 5, three, packed), new(&three[6..], 1));
    }
}
