//! Pending records: records that are encoded and not yet written. They wait in pieces; each piece belongs to one file.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read back -> process -> [encode] -> write -> settle`
//!
//! All files share one buffer for encoded text; lines that are written unchanged stay in the buffer of their batch and are not
//! copied. The pieces of a file form a linked list, so that thousands of files need neither a buffer each nor a sort. Without
//! compression, pieces do not wait long: they are written once there is a mebibyte of them (up to four mebibytes if they belong to
//! several files), when no other batch is ready, and at every checkpoint.

use std::{io::IoSlice, ops::Range};

use bytes::Bytes;

/// Size of a write. With half this size, writing a byte takes a third more CPU time; twice this size no longer fits into the L2
/// cache.
pub(super) const WRITE_BYTES: usize = 1 << 20;
/// On a busy stream, fewer bytes than this are not worth a separate write. If they are written anyway, they go through the page
/// cache: after an uncached write, the kernel would have to read the last page again for the next lines.
pub(super) const GATHER_BYTES: usize = 256 << 10;
/// Amount of text that is compressed at a time. A larger amount does not compress better.
pub(super) const PIECE_BYTES: usize = 4 << 20;
/// A buffer that grew beyond this for one large batch is freed afterwards.
const KEEP_BYTES_MAX: usize = 24 << 20;
/// Marks the last piece of a chain.
const END: u32 = u32::MAX;

/// Where the bytes of a piece are.
enum Data {
    /// In the buffer.
    Encoded(Range<usize>),
    /// In the batch that contained them.
    Shared(Bytes),
}

struct Piece {
    data: Data,
    next: u32,
}

/// The pieces of one file, in order.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chain {
    /// The indexes of the first and the last piece.
    ends: Option<(u32, u32)>,
    pub(super) bytes: u64,
    pub(super) records: u64,
}

impl Chain {
    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_none()
    }
}

/// The pieces of all files.
#[derive(Default)]
pub(super) struct Pending {
    /// Encoders append to this buffer; [`Pending::encoded`] then assigns the bytes to a file.
    pub(super) buffer: Vec<u8>,
    /// The files that have pieces.
    pub(super) waiting: Vec<u32>,
    pieces: Vec<Piece>,
    shared_bytes: usize,
}

impl Pending {
    /// Number of bytes that wait to be written.
    pub(super) fn bytes(&self) -> usize {
        self.buffer.len() + self.shared_bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Assigns to file `id` the bytes from `start` to the end of the buffer. `chain` holds the pieces of this file.
    pub(super) fn encoded(&mut self, id: u32, chain: &mut Chain, start: usize, records: u64) {
        let end = self.buffer.len();
        chain.bytes += (end - start) as u64;
        chain.records += records;
        if let Some((_, last)) = chain.ends
            && let Some(Piece {
                data: Data::Encoded(range),
                ..
            }) = self.pieces.get_mut(last as usize)
            && range.end == start
        {
            range.end = end;
            return;
        }
        self.push(id, chain, Data::Encoded(start..end));
    }

    /// Assigns these bytes, which stay shared, to file `id`, whose pieces are in `chain`.
    pub(super) fn shared(&mut self, id: u32, chain: &mut Chain, bytes: Bytes, records: u64) {
        chain.bytes += bytes.len() as u64;
        chain.records += records;
        self.shared_bytes += bytes.len();
        self.push(id, chain, Data::Shared(bytes));
    }

    fn push(&mut self, id: u32, chain: &mut Chain, data: Data) {
        // A write is due long before there are 2^32 pieces.
        let place = u32::try_from(self.pieces.len()).unwrap_or(END - 1);
        self.pieces.push(Piece { data, next: END });
        chain.ends = match chain.ends {
            None => {
                self.waiting.push(id);
                Some((place, place))
            }
            Some((first, last)) => {
                self.pieces[last as usize].next = place;
                Some((first, place))
            }
        };
    }

    /// The pieces of one file, in order.
    pub(super) fn parts(&self, chain: &Chain) -> Vec<IoSlice<'_>> {
        let mut parts = Vec::new();
        let mut at = chain.ends.map_or(END, |(first, _)| first);
        while let Some(piece) = self.pieces.get(at as usize) {
            parts.push(IoSlice::new(match &piece.data {
                Data::Encoded(range) => &self.buffer[range.clone()],
                Data::Shared(bytes) => bytes,
            }));
            at = piece.next;
        }
        parts
    }

    /// Removes all pieces, because everything was written.
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        self.shared_bytes = 0;
        self.buffer.clear();
        if self.buffer.capacity() > KEEP_BYTES_MAX {
            self.buffer = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_of_each_file_are_found_in_their_order() {
        let mut pending = Pending::default();
        let mut chains = [Chain::default(); 2];
        for (id, text) in [(0, "a"), (0, "b"), (1, "c"), (0, "d")] {
            let start = pending.buffer.len();
            pending.buffer.extend_from_slice(text.as_bytes());
            pending.encoded(id, &mut chains[id as usize], start, 1);
        }
        pending.shared(1, &mut chains[1], "e".into(), 1);
        let text = |chain: &Chain| -> Vec<u8> {
            let parts = pending.parts(chain);
            parts.iter().flat_map(|part| part.to_vec()).collect()
        };
        assert_eq!(
            (text(&chains[0]), text(&chains[1])),
            (b"abd".into(), b"ce".into())
        );
        assert_eq!((&pending.waiting[..], pending.bytes()), (&[0, 1][..], 5));
        assert_eq!(
            pending.parts(&chains[0]).len(),
            2,
            "adjacent text is one piece"
        );
        pending.clear();
        assert!(pending.is_empty());
    }
}
