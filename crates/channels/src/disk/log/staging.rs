//! Frames in memory: numbered, encoded, and waiting to be written or published (made visible to readers).

use std::collections::{VecDeque, vec_deque};

use bytes::Bytes;
use millstream_record::{Batch, FileOrigin, Origin, Position, Time};

use super::{
    frame::{ALIGNMENT, Kind, Stamp, encode_head},
    ids::IdRecord,
    window::seconds,
};

/// A frame in memory.
pub(super) struct StagedFrame {
    pub(super) head: Vec<u8>,
    pub(super) body: Bytes,
    pub(super) position: Position,
    pub(super) ends_group: bool,
    pub(super) ids: Vec<IdRecord>,
    pub(super) files: Vec<FileOrigin>,
    /// The batch to publish; `None` if it was published before and its frame is staged again after a failed sync.
    pub(super) batch: Option<Batch>,
    /// When this frame is kept, all entries of the window of chunk ids (window.rs) whose numbers are below `window_end` are kept, too.
    pub(super) window_end: u64,
}

impl StagedFrame {
    pub(super) fn bytes(&self) -> u64 {
        (self.head.len() as u64 + self.body.len() as u64).next_multiple_of(ALIGNMENT)
    }

    /// Whether the frame is kept already. It is staged again because a sync failed.
    pub(super) fn is_kept(&self) -> bool {
        self.batch.is_none()
    }
}

/// The space that a group takes in a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupSize {
    pub(super) bytes: u64,
    pub(super) ids: usize,
}

/// A generous size of the head of a frame: its tag, values and origins.
const HEAD_BYTES: u64 = 16 << 10;

impl GroupSize {
    /// The largest usual size of a group of one batch without chunk ids, whose body has `bytes` bytes.
    pub(super) fn of_body(bytes: u64) -> Self {
        let bytes = bytes + HEAD_BYTES;
        Self { bytes, ids: 0 }
    }
}

/// The effects of dropping staged frames.
#[derive(Default)]
pub(super) struct Dropped {
    pub(super) records: u64,
    /// Connections whose orderly close the frames would have stored.
    pub(super) closed: Vec<u64>,
}

/// The effects of withdrawing staged groups.
#[derive(Default)]
pub struct Withdrawn {
    /// The numbers of the frames that were removed, in order.
    seqs: Vec<u64>,
    /// Connections whose orderly close the frames would have stored.
    pub(super) closed: Vec<u64>,
}

impl Withdrawn {
    /// The new number of the frame that had the number `seq`.
    pub fn renumbered(&self, seq: u64) -> u64 {
        seq - self.seqs.iter().filter(|removed| **removed <= seq).count() as u64
    }
}

/// The connections whose orderly close a frame stores.
fn closed_by(frame: &StagedFrame) -> impl Iterator<Item = u64> + '_ {
    frame.ids.iter().filter_map(|id| match id {
        IdRecord::Closed { connection, .. } => Some(*connection),
        IdRecord::Chunk { .. } | IdRecord::Part { .. } => None,
    })
}

/// The frames that are not published yet, and the position of the next one.
pub(super) struct Staging {
    epoch: u32,
    next_seq: u64,
    /// The newest keep time.
    keep_time: Time,
    /// Frames that are not written yet.
    staged: VecDeque<StagedFrame>,
    /// Frames that are written to the open segment and not published.
    written: Vec<StagedFrame>,
}

impl Staging {
    /// `next` is the position of the first frame.
    pub(super) fn new(next: Position, keep_time: Time) -> Self {
        Self {
            epoch: next.epoch,
            next_seq: next.seq,
            keep_time,
            staged: VecDeque::new(),
            written: Vec::new(),
        }
    }

    pub(super) fn keep_time(&self) -> Time {
        self.keep_time
    }

    /// Advances the keep time to `now`; it never goes back.
    pub(super) fn advance(&mut self, now: Time) -> Time {
        self.keep_time = self.keep_time.max(now);
        self.keep_time
    }

    /// The position of the next frame that is staged.
    fn next_position(&self) -> Position {
        Position {
            epoch: self.epoch,
            seq: self.next_seq,
        }
    }

    /// The position of the next frame that is written.
    pub(super) fn first_position(&self) -> Position {
        let first = self.staged.front();
        first.map_or(self.next_position(), |frame| frame.position)
    }

    /// The seq of the last frame that was staged.
    pub(super) fn last_seq(&self) -> u64 {
        self.next_seq - 1
    }

    /// Stages the parts of a group. Its first frame also stores that the connections in `closed` had an orderly close.
    pub(super) fn stage(
        &mut self,
        parts: Vec<(Batch, Vec<IdRecord>)>,
        mut closed: Vec<u64>,
        window_end: u64,
    ) {
        let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        let seconds = seconds(self.keep_time);
        for (part, (batch, mut ids)) in (0..count).zip(parts) {
            let stamp = Stamp {
                kind: Kind::Batch,
                position: self.next_position(),
                keep_time: self.keep_time,
                part,
                parts: count,
            };
            self.next_seq += 1;
            let mut head = Vec::new();
            encode_head(&mut head, &stamp, Some(&batch), &closed);
            let closed = closed.drain(..).map(|connection| IdRecord::Closed {
                connection,
                seconds,
            });
            ids.splice(0..0, closed);
            self.staged.push_back(StagedFrame {
                head,
                body: batch.body.clone(),
                position: stamp.position,
                ends_group: part + 1 == count,
                ids,
                files: files_of(&batch.origins),
                batch: Some(batch),
                window_end,
            });
        }
    }

    /// The stamp of an end mark after the last frame.
    pub(super) fn end_stamp(&self, kind: Kind) -> Stamp {
        Stamp {
            kind,
            position: self.next_position(),
            keep_time: self.keep_time,
            part: 0,
            parts: 1,
        }
    }

    /// Whether no frame waits to be written.
    pub(super) fn is_empty(&self) -> bool {
        self.staged.is_empty()
    }

    /// Whether frames are written and not published.
    pub(super) fn has_unpublished(&self) -> bool {
        !self.written.is_empty()
    }

    /// Bytes that wait to be written.
    pub(super) fn bytes(&self) -> u64 {
        self.staged.iter().map(StagedFrame::bytes).sum()
    }

    /// Bytes that are written and not published.
    pub(super) fn unpublished_bytes(&self) -> u64 {
        self.written.iter().map(StagedFrame::bytes).sum()
    }

    /// The size of the first group; `None` if there is none. Groups are always staged whole. All frames that are kept already count as
    /// one group, because one segment must take all of them (see `Log::open_next`).
    pub(super) fn first_group(&self) -> Option<GroupSize> {
        let mut group = GroupSize { bytes: 0, ids: 0 };
        let mut frames = self.staged.iter().peekable();
        while let Some(frame) = frames.next() {
            group.bytes += frame.bytes();
            group.ids += frame.ids.len();
            if frame.ends_group && frames.peek().is_none_or(|next| !next.is_kept()) {
                return Some(group);
            }
        }
        None
    }

    /// Whether frames that are kept already are staged again. They come first, and the newest segment may hold the only other copy.
    pub(super) fn has_kept(&self) -> bool {
        self.staged.front().is_some_and(StagedFrame::is_kept)
    }

    /// The frames that wait to be written.
    pub(super) fn staged(&self) -> vec_deque::Iter<'_, StagedFrame> {
        self.staged.iter()
    }

    pub(super) fn staged_mut(&mut self) -> vec_deque::IterMut<'_, StagedFrame> {
        self.staged.iter_mut()
    }

    /// Notes that the first `count` frames are written, and returns them.
    pub(super) fn mark_written(&mut self, count: usize) -> &[StagedFrame] {
        let before = self.written.len();
        self.written.extend(self.staged.drain(..count));
        &self.written[before..]
    }

    /// Removes the written frames to publish them.
    pub(super) fn drain_written(&mut self) -> std::vec::Drain<'_, StagedFrame> {
        self.written.drain(..)
    }

    /// Stages frames of a failed segment again: the `published` frames, which were read back, and those that were not published
    /// yet.
    pub(super) fn restage(&mut self, published: Vec<StagedFrame>) {
        let frames = published.into_iter().chain(self.written.drain(..));
        let mut frames: VecDeque<_> = frames.collect();
        frames.append(&mut self.staged);
        self.staged = frames;
    }

    /// Removes the groups whose last frames have these numbers, and numbers the frames behind them anew. Leaves alone frames that are
    /// written or kept already.
    pub(super) fn withdraw(&mut self, last_seqs: &[u64]) -> Withdrawn {
        let kept = self.staged.iter().take_while(|frame| frame.is_kept());
        let frames = self.staged.split_off(kept.count());
        let mut withdrawn = Withdrawn::default();
        if let Some(first) = frames.front() {
            self.next_seq = first.position.seq;
        }
        let mut group = Vec::new();
        for frame in frames {
            let (seq, ends_group) = (frame.position.seq, frame.ends_group);
            group.push(frame);
            if !ends_group {
                continue;
            }
            let group = std::mem::take(&mut group);
            if last_seqs.contains(&seq) {
                let seqs = group.iter().map(|frame| frame.position.seq);
                withdrawn.seqs.extend(seqs);
                withdrawn.closed.extend(group.iter().flat_map(closed_by));
            } else {
                self.stage_again(group);
            }
        }
        withdrawn
    }

    /// Stages a group that was staged before, with the next numbers.
    fn stage_again(&mut self, group: Vec<StagedFrame>) {
        let count = u32::try_from(group.len()).unwrap_or(u32::MAX);
        for (part, mut frame) in (0..count).zip(group) {
            let stamp = Stamp {
                kind: Kind::Batch,
                position: self.next_position(),
                keep_time: self.keep_time,
                part,
                parts: count,
            };
            if frame.position != stamp.position {
                let closed: Vec<u64> = closed_by(&frame).collect();
                frame.head.clear();
                encode_head(&mut frame.head, &stamp, frame.batch.as_ref(), &closed);
                frame.position = stamp.position;
            }
            self.next_seq += 1;
            self.staged.push_back(frame);
        }
    }

    /// Drops the staged frames after `kept`. Frames at or below `kept`, which are staged again after a failed sync, stay staged.
    pub(super) fn drop_after(&mut self, kept: Position) -> Dropped {
        let mut dropped = Dropped::default();
        while let Some(frame) = self
            .staged
            .pop_back_if(|frame| frame.position.seq > kept.seq)
        {
            self.next_seq = frame.position.seq;
            dropped.closed.extend(closed_by(&frame));
            dropped.records += frame.batch.map_or(0, |batch| u64::from(batch.count));
        }
        dropped
    }
}

/// The origins that are parts of files.
pub(super) fn files_of(origins: &[Origin]) -> Vec<FileOrigin> {
    let files = origins.iter().filter_map(|origin| match origin {
        Origin::File(file) => Some(*file),
        Origin::Chunk(_) => None,
    });
    files.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::log::tests::batch;

    #[test]
    fn frames_that_were_not_durable_are_staged_again_in_order_and_only_new_ones_are_dropped() {
        let mut staging = Staging::new(Position { epoch: 2, seq: 7 }, Time(0));
        for number in 0..3 {
            staging.stage(vec![(batch(number, 10), Vec::new())], vec![number], 0);
        }
        assert_eq!(staging.mark_written(2).len(), 2);
        assert_eq!(staging.first_position(), Position { epoch: 2, seq: 9 });
        staging.restage(Vec::new());
        let order: Vec<u64> = staging.staged().map(|frame| frame.position.seq).collect();
        assert_eq!(order, [7, 8, 9]);
        assert!(!staging.has_kept());
        let dropped = staging.drop_after(Position { epoch: 2, seq: 7 });
        assert_eq!((dropped.records, dropped.closed), (2, vec![2, 1]));
        assert_eq!((staging.last_seq(), staging.is_empty()), (7, false));
    }

    #[test]
    fn withdrawn_groups_leave_no_gap_in_the_numbers() {
        let mut staging = Staging::new(Position { epoch: 2, seq: 7 }, Time(0));
        // The groups have the frames 7; 8, 9; 10; 11. The frame 7 is written.
        let parts = |number| (batch(number, 10), Vec::new());
        staging.stage(vec![parts(0)], vec![70], 0);
        staging.stage(vec![parts(1), parts(2)], vec![80], 0);
        staging.stage(vec![parts(3)], vec![100], 0);
        staging.stage(vec![parts(4)], Vec::new(), 0);
        staging.mark_written(1);
        let expected = {
            let mut staging = Staging::new(Position { epoch: 2, seq: 8 }, Time(0));
            staging.stage(vec![parts(3)], vec![100], 0);
            staging.staged().next().unwrap().head.clone()
        };
        let withdrawn = staging.withdraw(&[9, 11]);
        let left: Vec<_> = staging.staged().map(|frame| frame.position.seq).collect();
        assert_eq!((left, staging.last_seq()), (vec![8], 8));
        assert_eq!(staging.staged().next().unwrap().head, expected);
        assert_eq!(withdrawn.closed, [80]);
        let seqs = [7, 10].map(|seq| withdrawn.renumbered(seq));
        assert_eq!(seqs, [7, 8]);
        assert!(staging.withdraw(&[]).seqs.is_empty());
    }

    #[test]
    fn frames_that_are_kept_and_staged_again_count_as_one_group() {
        let mut staging = Staging::new(Position { epoch: 2, seq: 7 }, Time(0));
        for number in 0..3 {
            staging.stage(vec![(batch(number, 10), Vec::new())], Vec::new(), 0);
        }
        let group = staging.first_group().unwrap().bytes;
        staging.mark_written(2);
        // Two frames were published and read back.
        let mut published: Vec<_> = staging.drain_written().collect();
        published.iter_mut().for_each(|frame| frame.batch = None);
        staging.restage(published);
        assert!(staging.has_kept());
        assert_eq!(staging.first_group().unwrap().bytes, 2 * group);
        staging.mark_written(2);
        assert!(!staging.has_kept());
        assert_eq!(staging.first_group().unwrap().bytes, group);
    }
}
