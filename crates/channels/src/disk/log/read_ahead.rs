//! Reads frames from segments, several with each read.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> [read back] -> process -> encode -> write -> settle`
//!
//! Every frame is checked. Bytes that are not the expected frame (a misfit) are damage, and reading continues at the next valid frame.

use std::{collections::VecDeque, io, path::PathBuf};

use bytes::Bytes;
use millstream_record::{Batch, Pool, Position};

use super::{
    ChannelId,
    frame::{Kind, Lengths, Place, decode_head},
    segment::Segment,
    walk::Walk,
};

/// One read fetches at least this many bytes, which may be many small frames.
const READ_BYTES_MIN: u64 = 256 << 10;

/// Batches that were read from the disk and not handed out yet.
pub(super) struct ReadAhead {
    channel: ChannelId,
    pool: Pool,
    /// Segment and offset of the next frame; `None` if it must be looked up by its position.
    pub(super) next: Option<(u64, u64)>,
    batches: VecDeque<(Position, Batch)>,
    /// The file in which damage was found. `None` again after the resulting gap in the positions is reported.
    damaged: Option<PathBuf>,
    /// Bytes of the frame at the start of the last read.
    frame_bytes: u64,
}

/// The result of a read.
pub(super) enum Fetched {
    Batches,
    /// The segment is damaged.
    Damage,
}

impl ReadAhead {
    pub(super) fn new(channel: ChannelId, pool: Pool) -> Self {
        Self {
            channel,
            pool,
            next: None,
            batches: VecDeque::new(),
            damaged: None,
            frame_bytes: 0,
        }
    }

    /// Forgets everything that was read.
    pub(super) fn clear(&mut self) {
        self.batches.clear();
        self.next = None;
    }

    pub(super) fn pop(&mut self) -> Option<(Position, Batch)> {
        self.batches.pop_front()
    }

    /// Puts back a batch that follows a gap, and returns the damaged file that explains the gap, if there is one.
    pub(super) fn put_back(&mut self, position: Position, batch: Batch) -> Option<PathBuf> {
        self.batches.push_front((position, batch));
        self.damaged.take()
    }

    /// Reads frames of a segment from offset `from` on, but not beyond `end`, where the kept frames end. Leaves out frames at or below
    /// `position`, because they were handed out already.
    pub(super) fn fetch(
        &mut self,
        segment: &Segment,
        (from, end): (u64, u64),
        position: Position,
    ) -> io::Result<Fetched> {
        let want = READ_BYTES_MIN.max(self.frame_bytes).min(end - from);
        let want = usize::try_from(want).unwrap_or(usize::MAX);
        let mut buffer = self.pool.take(want);
        segment.file.read_at(&mut buffer, want, from)?;
        if let Some(lengths) = Lengths::peek(&buffer) {
            let total = lengths.total();
            let have = buffer.len() as u64;
            if total > have && total <= end - from {
                let missing = usize::try_from(total - have).unwrap_or(usize::MAX);
                segment.file.read_at(&mut buffer, missing, from + have)?;
            }
            self.frame_bytes = total.min(end - from);
        }
        match self.decode(segment, &buffer.freeze(), from, position) {
            Ok(next) => self.next = Some((segment.number, next)),
            // A failed sync has moved the end of this segment back. The frames after the new end are written again to the next segment.
            Err(misfit) if segment.end() < end => self.next = Some((segment.number, misfit)),
            Err(misfit) => {
                self.skip_damage(segment, misfit, end)?;
                return Ok(Fetched::Damage);
            }
        }
        Ok(Fetched::Batches)
    }

    /// Decodes the complete frames in `bytes`, and returns the offset of the next frame. The error is the offset of a misfit.
    fn decode(
        &mut self,
        segment: &Segment,
        bytes: &Bytes,
        from: u64,
        position: Position,
    ) -> Result<u64, u64> {
        let mut at = 0;
        loop {
            let offset = from + at as u64;
            let frame = &bytes[at..];
            if at > 0 && Lengths::peek(frame).is_none_or(|l| l.total() > frame.len() as u64) {
                // The rest is an incomplete frame or no frame. The next read shows which.
                return Ok(offset);
            }
            let place = Place {
                channel: self.channel,
                segment: segment.number,
                offset,
            };
            let head = decode_head(frame, &place).map_err(|_| offset)?;
            if head.kind != Kind::Batch {
                return Ok(u64::MAX);
            }
            let lengths = head.lengths;
            let total = usize::try_from(lengths.total()).unwrap_or(usize::MAX);
            let body = at + lengths.head..at + lengths.head + lengths.body;
            let fits = bytes.get(body.clone());
            if !fits.is_some_and(|body| head.fits_body(body)) {
                return Err(offset);
            }
            let (found, last) = (head.position, self.batches.back());
            if found > last.map_or(position, |(last, _)| *last)
                && let Some(batch) = head.batch(bytes.slice(body))
            {
                self.batches.push_back((found, batch));
            }
            at += total;
            if at >= bytes.len() {
                return Ok(from + at as u64);
            }
        }
    }

    /// Continues at the next valid frame. The gap in the positions then shows the loss.
    fn skip_damage(&mut self, segment: &Segment, misfit: u64, end: u64) -> io::Result<()> {
        let place = Place {
            channel: self.channel,
            segment: segment.number,
            offset: misfit,
        };
        let lowest = Position {
            epoch: segment.first.epoch,
            seq: 0,
        };
        let mut walk = Walk::of_file(&*segment.file, place, lowest, end);
        let next = walk.find_next()?.map_or(end, |(offset, _)| offset);
        self.damaged = Some(segment.path.clone());
        self.next = Some((segment.number, next));
        Ok(())
    }
}
