//! Divides a frame of the channel that does not fit one transaction.
//!
//! A transaction then commits, with the position of the last checkpoint, how many bytes of a later
//! frame Kafka has. The next session reads the frame from the beginning, and leaves these bytes out.
//! Processors between the channel and the sink must make the same bytes of the frame again, so the
//! bytes are compared by their checksum.

use std::cmp::Ordering;

use millstream_record::Position;
use millstream_sys::checksum::Crc32c;

/// The content of Kafka beyond the position of a checkpoint: all frames before `position`, and the
/// first bytes that processors make of the frame at `position`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) position: Position,
    pub(super) bytes: u64,
    /// The checksum of these bytes.
    pub(super) sum: u32,
}

impl Part {
    /// The same, without bytes of the frame at `position`.
    pub(super) fn before_frame(self) -> Self {
        // The checksum of no bytes is 0.
        Self {
            bytes: 0,
            sum: 0,
            ..self
        }
    }
}

/// The frame is not the one whose first bytes Kafka has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Changed;

/// Follows the bytes of the frames that are read.
#[derive(Default)]
pub(super) struct Progress {
    /// The content of Kafka, until all of it was read.
    done: Option<Part>,
    /// The frame that was read last, how much of it was read, and the checksum of that.
    position: Option<Position>,
    bytes: u64,
    sum: Crc32c,
    /// Whether bytes are counted although Kafka has nothing, because frames may be divided.
    divides: bool,
}

impl Progress {
    pub(super) fn new(done: Option<Part>, divides: bool) -> Self {
        Self {
            done,
            divides,
            ..Self::default()
        }
    }

    /// Begins to read `body`, the next bytes of the frame at `position`. Returns how many of them
    /// Kafka has.
    pub(super) fn skip(&mut self, position: Position, body: &[u8]) -> Result<usize, Changed> {
        if self.position.replace(position) != Some(position) {
            (self.bytes, self.sum) = (0, Crc32c::default());
        }
        let Some(done) = self.done else {
            return Ok(0);
        };
        let (left, same) = match position.cmp(&done.position) {
            Ordering::Less => return Ok(body.len()),
            Ordering::Equal => {
                let left = usize::try_from(done.bytes - self.bytes).unwrap_or(usize::MAX);
                let Some(known) = body.get(..left) else {
                    return Ok(body.len());
                };
                (left, self.sum_with(known) == done.sum)
            }
            // The frame has ended too early.
            Ordering::Greater => (0, done.bytes == 0),
        };
        self.done = None;
        if same { Ok(left) } else { Err(Changed) }
    }

    /// Notes that `body` was read.
    pub(super) fn pass(&mut self, body: &[u8]) {
        if self.divides || self.done.is_some() {
            self.bytes += body.len() as u64;
            self.sum.update(body);
        }
    }

    /// The content of Kafka beyond a checkpoint at `position`.
    pub(super) fn beyond(&mut self, position: Position) -> Result<Option<Part>, Changed> {
        match self.done {
            Some(done) if done.position <= position => {
                self.done = None;
                if done.bytes == 0 {
                    Ok(None)
                } else {
                    Err(Changed)
                }
            }
            done => Ok(done),
        }
    }

    /// Forgets what Kafka has of frames up to `position`, because these are not read.
    pub(super) fn begins_after(&mut self, position: Option<Position>) {
        self.done = self.done.filter(|done| Some(done.position) > position);
    }

    /// The part that ends with `known`, the first bytes of the body that is being read.
    pub(super) fn part(&self, known: &[u8]) -> Option<Part> {
        Some(Part {
            position: self.position?,
            bytes: self.bytes + known.len() as u64,
            sum: self.sum_with(known),
        })
    }

    fn sum_with(&self, more: &[u8]) -> u32 {
        let mut sum = self.sum;
        sum.update(more);
        sum.value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seq: u64) -> Position {
        Position { epoch: 1, seq }
    }

    /// The part of the frame 2 that ends after `known`.
    fn part(known: &[u8]) -> Option<Part> {
        let mut progress = Progress::new(None, true);
        assert_eq!(progress.skip(at(2), b""), Ok(0));
        progress.part(known)
    }

    #[test]
    fn the_known_bytes_are_left_out_however_the_frame_arrives() {
        for pieces in [
            &[&b"abcdef"[..]][..],
            &[b"ab", b"cdef"],
            &[b"abc", b"d", b"ef"],
        ] {
            let mut progress = Progress::new(part(b"abc"), false);
            assert_eq!(progress.skip(at(1), b"xyz"), Ok(3));
            progress.pass(b"xyz");
            assert_eq!(progress.beyond(at(1)), Ok(part(b"abc")));
            let mut skipped = 0;
            for piece in pieces {
                skipped += progress.skip(at(2), piece).unwrap();
                progress.pass(piece);
            }
            assert_eq!(skipped, 3);
            assert_eq!(progress.beyond(at(2)), Ok(None));
            assert_eq!(progress.skip(at(3), b"abc"), Ok(0));
        }
    }

    #[test]
    fn another_content_is_noticed_before_anything_is_committed_with_it() {
        // Other bytes, too few bytes, none at all.
        let mut progress = Progress::new(part(b"abc"), false);
        assert_eq!(progress.skip(at(2), b"abd"), Err(Changed));
        let mut progress = Progress::new(part(b"abc"), false);
        assert_eq!(progress.skip(at(2), b"ab"), Ok(2));
        progress.pass(b"ab");
        assert_eq!(progress.beyond(at(2)), Err(Changed));
        let mut progress = Progress::new(part(b"abc"), false);
        assert_eq!(progress.skip(at(2), b"ab"), Ok(2));
        progress.pass(b"ab");
        assert_eq!(progress.skip(at(3), b"c"), Err(Changed));
        let mut progress = Progress::new(part(b"abc"), false);
        assert_eq!(progress.skip(at(3), b"abc"), Err(Changed));
        // The whole frame is written again.
        let mut progress = Progress::new(part(b""), false);
        assert_eq!(progress.skip(at(1), b"abc"), Ok(3));
        assert_eq!(progress.skip(at(3), b"abc"), Ok(0));
    }
}
