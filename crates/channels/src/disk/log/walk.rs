//! Walking the frames of one segment in order, head by head or whole, as a start, a repair and `verify` do.

use std::io;

use bytes::Bytes;
use millstream_record::{Origin, Position};
use millstream_sys::disk::File;

use super::{
    ChannelId,
    frame::{ALIGNMENT, Head, Lengths, Misfit, Place, decode_head},
    ids::IdRecord,
    key::{Identity, Keys, identity},
    segment::Segment,
    window::seconds,
};

/// What is read at once: many small heads, or most of one large frame.
const READ_BYTES: u64 = 256 << 10;

/// While a frame is looked for, so many times the bytes of the segment are read at most to prove that what looks like a
/// head is none. The old frames of a recycled segment take less than one.
const PROOF_FACTOR: u64 = 8;

/// Why a walk cannot go on.
#[derive(Debug)]
pub(super) enum WalkError {
    /// The disk refused to read.
    Disk(io::Error),
    /// What stands here is no frame of this place, or not the next one.
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

/// A frame that was found.
pub(super) struct Found {
    pub(super) head: Head,
    pub(super) head_bytes: Vec<u8>,
    /// Empty when only heads are walked.
    pub(super) body: Bytes,
}

/// A walk over one segment. It borrows nothing but the file.
pub(super) struct Walk<'a> {
    file: &'a dyn File,
    place: Place,
    end: u64,
    /// The next frame's position must not be below; and must be this once a frame was seen.
    expected: Position,
    strict: bool,
    buffer: Vec<u8>,
    buffer_at: u64,
}

impl<'a> Walk<'a> {
    /// From the first frame of a segment to `end`.
    pub(super) fn new(segment: &'a Segment, channel: ChannelId, end: u64) -> Self {
        let place = Place {
            channel,
            segment: segment.number,
            offset: segment.start,
        };
        Self::of_file(&*segment.file, place, segment.first, end)
    }

    /// From `place` to `end`; the first frame has the position `first`, if any is right.
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

    /// Where the next frame begins, or should.
    pub(super) fn offset(&self) -> u64 {
        self.place.offset
    }

    /// Goes on at `offset`, with whatever position the frame there has, if it is not below what was seen.
    pub(super) fn skip_to(&mut self, offset: u64) {
        self.place.offset = offset;
        self.strict = false;
    }

    /// The next frame without its body.
    pub(super) fn next_head(&mut self) -> Result<Option<Found>, WalkError> {
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
        Ok(Some(Found {
            head,
            head_bytes,
            body: Bytes::new(),
        }))
    }

    /// The next frame with its body, which fits its checksum.
    pub(super) fn next_whole(&mut self) -> Result<Option<Found>, WalkError> {
        let (offset, expected, strict) = (self.place.offset, self.expected, self.strict);
        let Some(mut found) = self.next_head()? else {
            return Ok(None);
        };
        let body_at = offset + found.head.lengths.head as u64;
        let fits = self
            .fill(body_at, found.head.lengths.body)?
            .filter(|body| found.head.fits_body(body));
        match fits {
            Some(body) => found.body = Bytes::copy_from_slice(body),
            None => {
                (self.place.offset, self.expected, self.strict) = (offset, expected, strict);
                return Err(WalkError::Misfit);
            }
        }
        Ok(Some(found))
    }

    /// The offset of the next head behind the current place that fits its own place, whatever its number; `None` up to the end.
    pub(super) fn find_next(&mut self) -> io::Result<Option<(u64, Head)>> {
        let expected = self.expected;
        self.find(|position| position.epoch == expected.epoch && position.seq >= expected.seq)
    }

    fn find(&mut self, fits: impl Fn(Position) -> bool) -> io::Result<Option<(u64, Head)>> {
        // A body may hold what looks like heads, each as long as it pleases: proving them all wrong has to end.
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

    /// As [`Walk::find_next`], with any epoch and number.
    pub(super) fn find_any(&mut self) -> io::Result<Option<(u64, Head)>> {
        self.find(|_| true)
    }

    /// Looks on behind `offset`, without taking what stands there for a frame that was seen.
    pub(super) fn look_behind(&mut self, offset: u64) {
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

    /// `bytes` bytes of the file at `offset`; `None` if it ends before.
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
        Ok(self.buffer.get(start..).and_then(|rest| rest.get(..bytes)))
    }
}

/// What a frame says about repeats.
pub(super) fn ids_of(keys: &mut Keys, head: &Head) -> Vec<IdRecord> {
    let seconds = seconds(head.keep_time);
    let closed = head.closed.iter().map(|connection| IdRecord::Closed {
        connection: *connection,
        seconds,
    });
    let mut ids: Vec<IdRecord> = closed.collect();
    for origin in &head.origins {
        if let Origin::Chunk(chunk) = origin {
            ids.push(IdRecord::Chunk {
                key: keys.key(chunk, &head.tag, head.graph),
                connection: chunk.connection,
                seconds,
                proved: identity(&chunk.id) == Identity::Unique,
            });
        }
    }
    ids
}
