//! What the writer and the readers of one channel share: which segments there are, what of them is kept, the newest
//! batches in memory, and where every consumer is. One lock, taken once per commit and once per batch read.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
};

use millstream_pipeline::{channel::Behind, tags::TagFilter};
use millstream_record::{Batch, FileId, Position, Time};

use super::{Skipped, claims::Claims, cursor::Cursor, segment::Segment};

/// Batches in memory, whatever their size: each may hold a pooled buffer far larger than itself.
const HOT_BATCHES_MAX: usize = 256;

/// A kept batch in memory.
pub(super) struct Hot {
    pub(super) position: Position,
    pub(super) batch: Batch,
    /// Where the next frame begins: segment and offset.
    pub(super) next: (u64, u64),
}

/// One consumer: an open cursor, and a reader if it is attached.
pub(super) struct Consumer {
    pub(super) cursor: Arc<Mutex<Cursor>>,
    /// Everything at or below is settled, or skipped.
    pub(super) position: Position,
    /// What the attached reader has taken.
    pub(super) taken: Option<Position>,
    pub(super) behind: Behind,
    /// Which tags it takes; None: all.
    pub(super) tags: Option<TagFilter>,
    /// Everything at or below was skipped or settled before: the reader hands out nothing of it again.
    pub(super) skipped_to: Position,
    /// What was skipped since the start.
    pub(super) skipped: Skipped,
    pub(super) waker: Option<Waker>,
}

/// A segment that a consumer was passed over.
pub(super) struct SkippedSegment {
    pub(super) segment: Arc<Segment>,
    /// The reader has handed out everything at or below.
    pub(super) after: Position,
    /// The last position that is skipped.
    pub(super) to: Position,
    pub(super) tags: Option<TagFilter>,
    pub(super) cursor: Arc<Mutex<Cursor>>,
}

#[derive(Default)]
pub(super) struct State {
    /// The log, the oldest first; the last one is being written, or was at the last stop.
    pub(super) segments: VecDeque<(Arc<Segment>, Time)>,
    pub(super) hot: VecDeque<Hot>,
    pub(super) hot_bytes: usize,
    /// The batches in memory are all that is kept beyond this.
    pub(super) hot_after: Position,
    /// Everything at or below is kept.
    pub(super) kept: Position,
    pub(super) consumers: BTreeMap<String, Consumer>,
    pub(super) claims: Claims,
    /// Segments in which damage was found: they are put aside and not used again.
    pub(super) damaged: BTreeSet<u64>,
    /// Who wants to know that a consumer has moved.
    pub(super) writer: Option<Waker>,
}

#[derive(Default)]
pub(super) struct Index {
    state: Mutex<State>,
    /// Bytes of all segments that are part of the log: asked for once per batch, so without the lock.
    used_bytes: AtomicU64,
    /// Where reading of every tailed file goes on, as far as it is kept.
    files: Mutex<HashMap<FileId, u64>>,
}

/// What others than the writer may ask of a log, from any thread.
#[derive(Clone)]
pub struct Watch(pub(super) Arc<Index>);

impl Watch {
    /// Where reading of every tailed file goes on: what is kept of it ends there.
    pub fn file_origins(&self) -> Vec<(FileId, u64)> {
        let files = self.0.files();
        files.iter().map(|(file, next)| (*file, *next)).collect()
    }

    /// Wakes all readers, so that they look again.
    pub fn wake_readers(&self) {
        self.0.lock().wake_readers();
    }
}

impl Index {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here can panic half way, so a poisoned lock is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn files(&self) -> MutexGuard<'_, HashMap<FileId, u64>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// To be called when segments came or went.
    pub(super) fn count_used(&self, state: &State) {
        let used = state
            .segments
            .iter()
            .map(|(segment, _)| segment.bytes())
            .sum();
        self.used_bytes.store(used, Ordering::Relaxed);
    }
}

impl State {
    /// Adds a batch that has just been kept.
    pub(super) fn show(&mut self, hot: Hot, hot_bytes_max: usize) {
        self.kept = hot.position;
        self.hot_bytes += hot.batch.len();
        self.hot.push_back(hot);
        self.cool(hot_bytes_max);
    }

    /// Lets go of batches in memory that are too much, or that every attached reader has taken.
    pub(super) fn cool(&mut self, hot_bytes_max: usize) {
        let taken = self
            .consumers
            .values()
            .filter_map(|consumer| consumer.taken)
            .min()
            .unwrap_or(self.kept);
        while let Some(first) = self.hot.front() {
            if first.position > taken
                && self.hot_bytes <= hot_bytes_max
                && self.hot.len() <= HOT_BATCHES_MAX
            {
                break;
            }
            self.hot_bytes -= first.batch.len();
            self.hot_after = first.position;
            self.hot.pop_front();
        }
    }

    /// The position of the last frame of the segment at `place`, if another one follows it; `None` for an empty one.
    fn last_of(&self, place: usize) -> Option<Position> {
        let (segment, next) = (
            &self.segments.get(place)?.0,
            &self.segments.get(place + 1)?.0,
        );
        let seq = next.first.seq.checked_sub(1)?;
        (seq >= segment.first.seq).then_some(Position {
            epoch: segment.first.epoch,
            seq,
        })
    }

    /// Whether every consumer has settled everything; not if there is none, because a new one begins at the oldest frame.
    pub(super) fn is_settled(&self) -> bool {
        self.slowest()
            .is_some_and(|(_, slowest)| slowest.position >= self.kept)
    }

    /// How many of the oldest segments are below `position`. The newest is never among them.
    pub(super) fn below(&self, position: Position) -> usize {
        (0..self.segments.len().saturating_sub(1))
            .take_while(|place| self.last_of(*place).is_none_or(|last| last <= position))
            .count()
    }

    /// The place of the segment in which the frame after `position` stands.
    pub(super) fn place_after(&self, position: Position) -> Option<usize> {
        (!self.segments.is_empty()).then(|| self.below(position))
    }

    /// Bytes that are kept beyond `position`, about: within a segment frames count as equally large.
    pub(super) fn bytes_after(&self, position: Position) -> u64 {
        let from = self.below(position);
        let mut bytes = 0;
        for (place, (segment, _)) in self.segments.iter().enumerate().skip(from) {
            let used = segment.end().saturating_sub(segment.start);
            let last = self.last_of(place).unwrap_or(self.kept).seq;
            let frames = (last + 1).saturating_sub(segment.first.seq);
            let read = (position.seq + 1).saturating_sub(segment.first.seq);
            let left = frames.saturating_sub(read);
            if left >= frames {
                bytes += used;
            } else {
                bytes += used / frames.max(1) * left;
            }
        }
        bytes
    }

    /// The keep time before which everything beyond `position` lies, at the earliest: that of its segment's head.
    pub(super) fn oldest_after(&self, position: Position) -> Option<Time> {
        if self.kept <= position {
            return None;
        }
        // The head holds the newest keep time before the segment, so the next segment's head is never too early.
        let place = self.below(position);
        self.segments.get(place + 1).map(|(_, time)| *time)
    }

    /// When the oldest frame beyond `position` was kept. Where it is no longer in memory, this is when its segment began: it is
    /// no older. `None` if there is no such frame.
    pub(super) fn kept_since(&self, position: Position) -> Option<Time> {
        if self.kept <= position {
            return None;
        }
        if position >= self.hot_after {
            let taken = self.hot.partition_point(|hot| hot.position <= position);
            return self.hot.get(taken).map(|hot| hot.batch.received);
        }
        let place = self.place_after(position)?;
        self.segments.get(place).map(|(_, time)| *time)
    }

    /// Moves a consumer on over a whole segment, so that at least the first of what it holds can go.
    pub(super) fn skip_segment(&mut self, name: &str) -> Option<SkippedSegment> {
        let position = self.consumers.get(name)?.position;
        let place = self.below(position);
        let to = self.last_of(place)?;
        let segment = Arc::clone(&self.segments.get(place)?.0);
        let consumer = self.consumers.get_mut(name)?;
        consumer.position = to;
        consumer.skipped_to = to;
        Some(SkippedSegment {
            segment,
            after: position.max(consumer.taken.unwrap_or_default()),
            to,
            tags: consumer.tags.clone(),
            cursor: Arc::clone(&consumer.cursor),
        })
    }

    /// The consumer that is furthest behind.
    pub(super) fn slowest(&self) -> Option<(&String, &Consumer)> {
        self.consumers
            .iter()
            .min_by_key(|(_, consumer)| consumer.position)
    }

    /// The lowest and the highest position of all consumers.
    pub(super) fn cursors(&self) -> Option<(Position, Position)> {
        let positions = self.consumers.values().map(|consumer| consumer.position);
        Some((positions.clone().min()?, positions.max()?))
    }

    /// Wakes all readers.
    pub(super) fn wake_readers(&mut self) {
        for consumer in self.consumers.values_mut() {
            if let Some(waker) = consumer.waker.take() {
                waker.wake();
            }
        }
    }
}
