//! Walks through the frames of one segment in order, for a start, a repair and `verify`.

use std::io;

use bytes::Bytes;
use millstream_record::Position;
use millstream_sys::disk::File;

use super::{
    ChannelId,
    frame::{ALIGNMENT, Head, Lengths, Misfit, Place, decode_head},
    segment::Segment,
};

/// One read fetches at least this many bytes: many small heads, or most of one large frame.
const READ_BYTES: u64 = 256 << 10;

/// A search for the next frame checks bytes that look like heads. Together, these checks may read at most the size of the segment
/// multiplied by this. The limit is ample, because the heads of all old frames in a recycled segment take less than the size of the
/// segment.
const PROOF_FACTOR: u64 = 8;

/// Why a walk cannot continue.
#[derive(Debug)]
pub(super) enum WalkError {
    /// A read failed.
    Disk(io::Error),
    /// The bytes are not a valid frame for this place, or the frame does not follow the previous one.
    Misfit,
}

impl From<Misfit> for WalkError {
    fn from(_: Misfit) -> Self {
        Self::Misfit
    }
}

impl From<io::Error> for WalkError {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

/// A valid frame.
pub(super) struct WalkedFrame {
    pub(super) head: Head,
    pub(super) head_bytes: Vec<u8>,
    /// Empty if only the head was read.
    pub(super) body: Bytes,
}

/// A walk over one segment.
pub(super) struct Walk<'a> {
    file: &'a dyn File,
    place: Place,
    end: u64,
    /// The position of the next frame. Unless the walk is strict, the frame may also have a later position.
    expected: Position,
    strict: bool,
    buffer: Vec<u8>,
    buffer_at: u64,
}

impl<'a> Walk<'a> {
    /// Begins a walk from the first frame of a segment to `end`.
    pub(super) fn new(segment: &'a Segment, channel: ChannelId, end: u64) -> Self {
        let place = Place {
            channel,
            segment: segment.number,
            offset: segment.start,
        };
        Self::of_file(&*segment.file, place, segment.first, end)
    }

    /// Begins a walk from `place` to `end`. `first`: the expected position of the first frame.
    pub(super) fn of_file(file: &'a dyn File, place: Place, first: Position, end: u64) -> Self {
        Self {
            file,
            place,
            end,
            expected: first,
            strict: true,
            buffer: Vec::new(),
            buffer_at: 0,
        }
    }

    /// Where the next frame should begin.
    pub(super) fn offset(&self) -> u64 {
        self.place.offset
    }

    /// Continues at `offset`. The frame there may have the expected position or any later one.
    pub(super) fn skip_to(&mut self, offset: u64) {
        self.place.offset = offset;
        self.strict = false;
    }

    /// The next frame without its body; `None` at the end.
    pub(super) fn next_head(&mut self) -> Result<Option<WalkedFrame>, WalkError> {
        if self.place.offset >= self.end {
            return Ok(None);
        }
        let head = self.head_here()?;
        let expected = self.expected;
        if head.position.epoch != expected.epoch
            || head.position.seq < expected.seq
            || (self.strict && head.position.seq != expected.seq)
        {
            return Err(WalkError::Misfit);
        }
        if self.place.offset + head.lengths.total() > self.end {
            return Err(WalkError::Misfit);
        }
        let start = usize::try_from(self.place.offset - self.buffer_at).unwrap_or(usize::MAX);
        let head_bytes = self.buffer[start..start + head.lengths.head].to_vec();
        self.accept(&head);
        Ok(Some(WalkedFrame {
            head,
            head_bytes,
            body: Bytes::new(),
        }))
    }

    /// The next frame with its body; `None` at the end.
    pub(super) fn next_whole(&mut self) -> Result<Option<WalkedFrame>, WalkError> {
        let (offset, expected, strict) = (self.place.offset, self.expected, self.strict);
        let Some(mut frame) = self.next_head()? else {
            return Ok(None);
        };
        let body_at = offset + frame.head.lengths.head as u64;
        let fits = self
            .fill(body_at, frame.head.lengths.body)?
            .filter(|body| frame.head.fits_body(body));
        match fits {
            Some(body) => frame.body = Bytes::copy_from_slice(body),
            None => {
                (self.place.offset, self.expected, self.strict) = (offset, expected, strict);
                return Err(WalkError::Misfit);
            }
        }
        Ok(Some(frame))
    }

    /// Searches for the next valid head after the current offset. The head must have the expected position or a later one. Returns the
    /// offset of the head, and the head; `None` if there is none up to the end.
    pub(super) fn find_next(&mut self) -> io::Result<Option<(u64, Head)>> {
        let expected = self.expected;
        self.find(|position| position.epoch == expected.epoch && position.seq >= expected.seq)
    }

    fn find(&mut self, fits: impl Fn(Position) -> bool) -> io::Result<Option<(u64, Head)>> {
        // A body may hold many bytes that look like long heads. The budget bounds the time to check them.
        let mut budget = PROOF_FACTOR * self.end;
        let mut at = (self.place.offset + 1).next_multiple_of(ALIGNMENT);
        while at < self.end {
            let here = Place {
                offset: at,
                ..self.place
            };
            if let Some(bytes) = self.fill(at, 16)?
                && let Some(lengths) = Lengths::peek(bytes)
                && {
                    budget = budget.saturating_sub(lengths.head as u64);
                    budget > 0
                }
                && let Some(head) = self.read_head(&here)?
                && fits(head.position)
            {
                return Ok(Some((at, head)));
            }
            at += ALIGNMENT;
        }
        Ok(None)
    }

    /// Like [`Walk::find_next`], but accepts any position.
    pub(super) fn find_any(&mut self) -> io::Result<Option<(u64, Head)>> {
        self.find(|_| true)
    }

    /// Moves to `offset` to search after it. The frame there does not count as walked.
    pub(super) fn search_behind(&mut self, offset: u64) {
        self.place.offset = offset;
    }

    fn accept(&mut self, head: &Head) {
        self.place.offset += head.lengths.total();
        self.expected = Position {
            epoch: head.position.epoch,
            seq: head.position.seq + 1,
        };
        self.strict = true;
    }

    fn head_here(&mut self) -> Result<Head, WalkError> {
        let here = self.place;
        self.read_head(&here)?.ok_or(WalkError::Misfit)
    }

    fn read_head(&mut self, here: &Place) -> io::Result<Option<Head>> {
        let Some(lengths) = self.fill(here.offset, 16)?.and_then(Lengths::peek) else {
            return Ok(None);
        };
        if here.offset + lengths.total() > self.end {
            return Ok(None);
        }
        let head = self.fill(here.offset, lengths.head)?;
        Ok(head.and_then(|head| decode_head(head, here).ok()))
    }

    /// `bytes` bytes of the file at `offset`; `None` if the file or the range of the walk ends before the last of them.
    fn fill(&mut self, offset: u64, bytes: usize) -> io::Result<Option<&[u8]>> {
        let have = self.buffer_at..self.buffer_at + self.buffer.len() as u64;
        if offset < have.start || offset + bytes as u64 > have.end {
            self.buffer.clear();
            self.buffer_at = offset;
            let left = self.end.saturating_sub(offset);
            let want = READ_BYTES.max(bytes as u64).min(left);
            let want = usize::try_from(want).unwrap_or(bytes);
            self.file.read_at(&mut self.buffer, want, offset)?;
        }
        let start = usize::try_from(offset - self.buffer_at).unwrap_or(usize::MAX);
        Ok(self.buffer.get(start..).and_then(|from| from.get(..bytes)))
    }
}
