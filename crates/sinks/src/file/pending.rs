//! What waits to be written: pieces of text, each bound for one file.
//!
//! `take -> [encode] -> write -> settle`
//!
//! One buffer takes what is encoded for all files together; lines that go out as they came in are shared, not copied.
//! The pieces of a file are linked, so that thousands of files need neither a buffer each nor a sort. Nothing waits for
//! long: it is written when a mebibyte has come together (four for several files), when nothing more is ready, and at every cut.

use std::{io::IoSlice, ops::Range};

use bytes::Bytes;

/// So much is written together: half of it costs a third more per byte (hot-paths.md, section A), and it stays in the L2
/// cache.
pub(super) const WRITE_BYTES: usize = 1 << 20;
/// Less than this is not worth a write of its own on a busy stream, and goes through the page cache: the kernel would read
/// the last page again for the next few lines.
pub(super) const GATHER_BYTES: usize = 256 << 10;
/// So much becomes one compressed piece: a fraction of it reaches the disk, and larger ones are not smaller for it.
pub(super) const PIECE_BYTES: usize = 4 << 20;
/// A buffer that one large batch has blown up beyond this is let go after it.
const KEEP_BYTES_MAX: usize = 24 << 20;
/// No further piece.
const END: u32 = u32::MAX;

/// Where the bytes of a piece are.
enum Data {
    /// In the buffer.
    Encoded(Range<usize>),
    /// In the batch they came in.
    Shared(Bytes),
}

struct Piece {
    data: Data,
    next: u32,
}

/// The pieces of one file, in order.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chain {
    /// (first, last) piece.
    ends: Option<(u32, u32)>,
    pub(super) bytes: u64,
    pub(super) records: u64,
}

impl Chain {
    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_none()
    }
}

/// All pieces.
#[derive(Default)]
pub(super) struct Pending {
    /// Takes what is encoded: append to it, then say with [`Pending::encoded`] whose it is.
    pub(super) buffer: Vec<u8>,
    pieces: Vec<Piece>,
    shared_bytes: usize,
}

impl Pending {
    /// How much waits.
    pub(super) fn bytes(&self) -> usize {
        self.buffer.len() + self.shared_bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The bytes of the buffer from `start` on are for the file of `chain`.
    pub(super) fn encoded(&mut self, chain: &mut Chain, start: usize, records: u64) {
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
        self.push(chain, Data::Encoded(start..end));
    }

    /// These bytes are for the file of `chain`.
    pub(super) fn shared(&mut self, chain: &mut Chain, bytes: Bytes, records: u64) {
        chain.bytes += bytes.len() as u64;
        chain.records += records;
        self.shared_bytes += bytes.len();
        self.push(chain, Data::Shared(bytes));
    }

    fn push(&mut self, chain: &mut Chain, data: Data) {
        // A write is due long before there are so many.
        let place = u32::try_from(self.pieces.len()).unwrap_or(END - 1);
        self.pieces.push(Piece { data, next: END });
        chain.ends = match chain.ends {
            None => Some((place, place)),
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

    /// Everything is written.
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        self.shared_bytes = 0;
        self.buffer.clear();
        if self.buffer.capacity() > KEEP_BYTES_MAX {
            self.buffer = Vec::new();
        }
    }
}
