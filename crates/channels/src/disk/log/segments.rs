//! The segments of a log in order, and the lookup of positions in them.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use millstream_record::{Position, Time};

use super::segment::Segment;

/// All segments, the oldest first. The last one is being written, or was the last to be written before a stop.
#[derive(Default)]
pub(super) struct Segments {
    /// Each segment with the newest keep time before it.
    list: VecDeque<(Arc<Segment>, Time)>,
    /// Numbers of segments in which damage was found. They are renamed to `.bad` when they are released, and not reused.
    damaged: BTreeSet<u64>,
}

impl Segments {
    /// Appends a segment; `since` is the newest keep time before it.
    pub(super) fn push(&mut self, segment: Arc<Segment>, since: Time) {
        self.list.push_back((segment, since));
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn oldest(&self) -> Option<&Arc<Segment>> {
        self.list.front().map(|(segment, _)| segment)
    }

    pub(super) fn newest(&self) -> Option<&Arc<Segment>> {
        self.list.back().map(|(segment, _)| segment)
    }

    pub(super) fn get(&self, index: usize) -> Option<&Arc<Segment>> {
        self.list.get(index).map(|(segment, _)| segment)
    }

    /// The newest keep time before the segment at `index`.
    pub(super) fn since(&self, index: usize) -> Option<Time> {
        self.list.get(index).map(|(_, since)| *since)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.list.iter().map(|(segment, _)| segment)
    }

    /// The index of the segment with this number.
    pub(super) fn index_of(&self, number: u64) -> Option<usize> {
        self.iter().position(|segment| segment.number == number)
    }

    /// Bytes of all segment files.
    pub(super) fn file_bytes(&self) -> u64 {
        self.iter().map(|segment| segment.bytes()).sum()
    }

    /// The position of the last frame of the segment at `index`; `None` if the segment is empty or the newest one.
    pub(super) fn last_position(&self, index: usize) -> Option<Position> {
        let (segment, next) = (self.get(index)?, self.get(index + 1)?);
        let seq = next.first.seq.checked_sub(1)?;
        (seq >= segment.first.seq).then_some(Position {
            epoch: segment.first.epoch,
            seq,
        })
    }

    /// The number of segments that hold nothing after `position`. The newest segment is never counted. This number is also the index of the
    /// segment that holds the frame after `position`.
    pub(super) fn below(&self, position: Position) -> usize {
        (0..self.list.len().saturating_sub(1))
            .take_while(|index| {
                self.last_position(*index)
                    .is_none_or(|last| last <= position)
            })
            .count()
    }

    /// Removes the segments that hold nothing after `position`. Returns them, the oldest first, each with the newest keep time before
    /// it.
    pub(super) fn drain_below(&mut self, position: Position) -> VecDeque<(Arc<Segment>, Time)> {
        let rest = self.list.split_off(self.below(position));
        std::mem::replace(&mut self.list, rest)
    }

    /// Puts back segments that could not be released.
    pub(super) fn put_back(&mut self, mut oldest: VecDeque<(Arc<Segment>, Time)>) {
        oldest.append(&mut self.list);
        self.list = oldest;
    }

    pub(super) fn mark_damaged(&mut self, number: u64) {
        self.damaged.insert(number);
    }

    pub(super) fn is_damaged(&self, number: u64) -> bool {
        self.damaged.contains(&number)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use millstream_sys::disk::{Disk, Open};
    use millstream_testkit::SimulatedDisk;

    use super::*;

    #[test]
    fn a_segment_ends_where_the_next_one_begins_and_the_newest_is_never_released() {
        let disk = SimulatedDisk::new(1);
        let mut segments = Segments::default();
        // The third segment is empty.
        for (number, seq) in [(1, 1), (2, 11), (3, 21), (4, 21)] {
            let path = format!("/{number}");
            let file = disk.open(Path::new(&path), Open::Create).unwrap();
            let first = Position { epoch: 1, seq };
            let segment = Segment::new(number, first, path.into(), file, (100, 0, 50));
            segments.push(Arc::new(segment), Time(number as i64));
        }
        let below = |seq| segments.below(Position { epoch: 1, seq });
        assert_eq!([0, 9, 10, 19, 20, 99].map(below), [0, 0, 1, 1, 3, 3]);
        assert_eq!(segments.last_position(2), None);
        assert_eq!(segments.file_bytes(), 400);
        let released = segments.drain_below(Position { epoch: 1, seq: 12 });
        assert_eq!((released.len(), released[0].0.number), (1, 1));
        assert_eq!(segments.index_of(4), Some(2));
        segments.put_back(released);
        assert_eq!(
            (segments.index_of(1), segments.since(1)),
            (Some(0), Some(Time(2)))
        );
    }
}
