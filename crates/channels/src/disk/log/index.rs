//! The state that the writer and the readers of a channel share: the segments, the newest kept position, the newest batches in memory, and
//! the position of every consumer. It has one lock, which is taken once per commit and once per batch read.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use millstream_pipeline::channel::Then;
use millstream_record::{FileId, Position, Time};

use super::{
    Options,
    ages::Marks,
    claims::Claims,
    consumers::{Consumer, Consumers},
    file_table::KeptFiles,
    hot::{HotBatch, HotBatches},
    segments::Segments,
};

/// Old batches are looked for at most this often in the time after which they are too old.
const LOOKS: i64 = 16;

/// The part of a log that the writer shares with its readers.
pub(super) struct Index {
    published: Mutex<Published>,
    /// Bytes of all segments. This number is outside the lock, because it is read once per batch.
    used_bytes: AtomicU64,
    /// The maximum number of bytes that all segments may take.
    size_max: AtomicU64,
}

/// The state behind the lock of the index.
#[derive(Default)]
pub(super) struct Published {
    pub(super) segments: Segments,
    pub(super) hot: HotBatches,
    /// When batches were received that are no longer in memory.
    marks: Marks,
    /// Everything at or below this position is kept.
    pub(super) kept: Position,
    pub(super) consumers: Consumers,
    pub(super) claims: Claims,
    /// The age beyond which batches are skipped for every consumer; zero: never.
    pub(super) max_age: Duration,
    /// Wakes the writer when a consumer has settled something.
    pub(super) writer: Option<Waker>,
}

/// A handle to the log for threads other than the writer's.
#[derive(Clone)]
pub struct Watch {
    pub(super) index: Arc<Index>,
    pub(super) files: KeptFiles,
}

impl Watch {
    /// Every tailed file, and the offset up to which it is kept.
    pub fn file_origins(&self) -> Vec<(FileId, u64)> {
        let files = self.files.lock();
        files.iter().map(|(file, next)| (*file, *next)).collect()
    }

    /// The offset up to which one tailed file is kept; `None` if the file is unknown.
    pub fn file_mark(&self, file: &FileId) -> Option<u64> {
        self.files.lock().get(file).copied()
    }

    /// The approximate number of bytes that this consumer has not settled; 0 if there is no such consumer.
    pub fn backlog_bytes(&self, consumer: &str) -> u64 {
        self.index.lock().backlog_bytes(consumer)
    }

    /// The approximate number of bytes that the slowest consumer has not settled.
    pub fn backlog_bytes_max(&self) -> u64 {
        let published = self.index.lock();
        let slowest = published.consumers.range().map(|(lowest, _)| lowest);
        slowest.map_or(0, |position| published.bytes_after(position))
    }

    /// (used, limit) in bytes: what the segments hold, and how much they may hold. The unwritten part of the newest segment is free.
    pub fn space(&self) -> (u64, u64) {
        let published = self.index.lock();
        let segments = &published.segments;
        let unwritten = segments
            .newest()
            .map_or(0, |newest| newest.bytes().saturating_sub(newest.end()));
        let used = segments.file_bytes().saturating_sub(unwritten);
        (used, self.index.size_max())
    }

    /// The age beyond which batches are skipped for every consumer; zero: never.
    pub fn max_age(&self) -> Duration {
        self.index.lock().max_age
    }

    /// Wakes all readers.
    pub fn wake_readers(&self) {
        self.index.lock().consumers.wake_readers();
    }
}

impl Index {
    pub(super) fn new(mut published: Published, options: &Options) -> Self {
        published.max_age = options.max_age;
        let index = Self {
            published: Mutex::new(published),
            used_bytes: AtomicU64::new(0),
            size_max: AtomicU64::new(options.size_max),
        };
        index.count_used(&index.lock());
        index
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Published> {
        // No holder can panic in the middle of a change, so the data is consistent even if the lock is poisoned.
        self.published
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of all segments.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// The maximum number of bytes that all segments may take.
    pub(super) fn size_max(&self) -> u64 {
        self.size_max.load(Ordering::Relaxed)
    }

    /// Uses other options.
    pub(super) fn change(&self, options: &Options) {
        self.size_max.store(options.size_max, Ordering::Relaxed);
        let mut published = self.lock();
        published.max_age = options.max_age;
        published.consumers.look_again();
    }

    /// Updates [`Index::used_bytes`] after segments were added, removed or truncated.
    pub(super) fn count_used(&self, published: &Published) {
        let used = published.segments.file_bytes();
        self.used_bytes.store(used, Ordering::Relaxed);
    }
}

impl Published {
    /// The approximate number of bytes that this consumer has not settled; 0 if there is no such consumer.
    pub(super) fn backlog_bytes(&self, name: &str) -> u64 {
        let consumer = self.consumers.get(name);
        consumer.map_or(0, |consumer| self.bytes_after(consumer.position))
    }

    /// Publishes a batch that has just been kept.
    pub(super) fn publish(&mut self, batch: HotBatch, hot_bytes_max: usize) {
        self.kept = batch.position;
        self.claims.count(&batch.batch);
        let received = batch.batch.received;
        if self.marks.is_due(received) {
            let settled = self.consumers.range();
            let settled = settled.map_or(batch.position, |(lowest, _)| lowest);
            self.marks.add(batch.position, received, settled);
        }
        self.hot.push(batch);
        self.cool(hot_bytes_max);
    }

    /// Drops batches from memory that every attached reader has handed out, and those beyond the limit.
    pub(super) fn cool(&mut self, hot_bytes_max: usize) {
        let read = self.consumers.lowest_reader().unwrap_or(self.kept);
        self.hot.cool(read, hot_bytes_max);
    }

    /// Whether every consumer has settled everything. Returns `false` if there is no consumer, because a new consumer would begin at the
    /// oldest frame.
    pub(super) fn is_settled(&self) -> bool {
        let range = self.consumers.range();
        range.is_some_and(|(lowest, _)| lowest >= self.kept)
    }

    /// The position before the oldest frame.
    pub(super) fn before_oldest(&self) -> Position {
        let oldest = self.segments.oldest();
        oldest.map_or(self.kept, |oldest| oldest.first.before())
    }

    /// The approximate number of bytes that are kept after `position`: within a segment all frames count as equally large.
    pub(super) fn bytes_after(&self, position: Position) -> u64 {
        let from = self.segments.below(position);
        let segments = self.segments.iter().enumerate().skip(from);
        let left = segments.map(|(index, segment)| {
            let bytes = segment.end().saturating_sub(segment.start);
            let last = self.segments.last_position(index).unwrap_or(self.kept).seq;
            let frames = (last + 1).saturating_sub(segment.first.seq);
            let read = (position.seq + 1).saturating_sub(segment.first.seq);
            match frames.saturating_sub(read) {
                left if left >= frames => bytes,
                left => bytes / frames.max(1) * left,
            }
        });
        left.sum()
    }

    /// An upper bound of the keep time of the oldest frame after `position`: the keep time of the last frame in the same segment. `None`
    /// if the frame is in the newest segment, or if there is no such frame.
    fn oldest_kept_before(&self, position: Position) -> Option<Time> {
        if self.kept <= position {
            return None;
        }
        self.segments.since(self.segments.below(position) + 1)
    }

    /// The receive time of the oldest frame after `position`. If the frame is no longer in memory, returns an approximation that is at
    /// most a second too early, or for frames from before the start: the newest keep time before the frame's segment. `None` if there is
    /// no such frame.
    pub(super) fn oldest_received(&self, position: Position) -> Option<Time> {
        if self.kept <= position {
            return None;
        }
        if position >= self.hot.after {
            let first = self.hot.first_after(position);
            return first.map(|hot| hot.batch.received);
        }
        let since = || self.segments.since(self.segments.below(position));
        self.marks.after(position).or_else(since)
    }

    /// The receive time of the oldest frame that the consumer has not settled, unless its reader has handed out frames that are
    /// not settled.
    pub(super) fn oldest_of(&self, name: &str) -> Option<Time> {
        let consumer = self.consumers.get(name)?;
        let has_taken = consumer.reader_at > Some(consumer.position);
        match has_taken {
            true => None,
            false => self.oldest_received(consumer.position),
        }
    }

    /// Whether the consumer is further behind than its option `behind` allows.
    pub(super) fn is_too_far_behind(&self, consumer: &Consumer, now: Time) -> bool {
        let (position, behind) = (consumer.position, consumer.behind);
        let age_max = nanos(behind.age);
        let oldest = self.oldest_kept_before(position);
        let is_old = |oldest: Time| now.0.saturating_sub(oldest.0) > age_max;
        (age_max > 0 && oldest.is_some_and(is_old))
            || (behind.size > 0 && self.bytes_after(position) > behind.size)
    }

    /// Whether batches may be skipped for a consumer.
    pub(super) fn may_skip(&self, consumer: &Consumer) -> bool {
        consumer.behind.then == Then::Skip || !self.max_age.is_zero()
    }

    /// The age beyond which batches are skipped for a consumer; zero: never.
    fn age_max(&self, consumer: &Consumer) -> Duration {
        let own = match consumer.behind.then {
            Then::Skip => consumer.behind.age,
            Then::Block => Duration::ZERO,
        };
        match (own.is_zero(), self.max_age.is_zero()) {
            (false, false) => own.min(self.max_age),
            (false, true) => own,
            (true, _) => self.max_age,
        }
    }

    /// If a consumer may have batches that are too old for it, returns the keep time before which they are.
    pub(super) fn too_old_before(&self, consumer: &Consumer, now: Time) -> Option<Time> {
        let age = nanos(self.age_max(consumer));
        if age == 0 || self.kept <= consumer.position || now < consumer.look_at {
            return None;
        }
        let before = Time(now.0.saturating_sub(age));
        let since = self.segments.since(self.segments.below(consumer.position));
        since.is_none_or(|since| since < before).then_some(before)
    }

    /// Notes that all batches that are too old were skipped for a consumer. `young`: the keep time of the first batch that stayed.
    pub(super) fn note_young(&mut self, name: &str, young: Option<Time>, now: Time) {
        let age = self
            .consumers
            .get(name)
            .map_or(Duration::ZERO, |of| self.age_max(of));
        let age = nanos(age);
        if let Some(consumer) = self.consumers.get_mut(name) {
            // Later batches are not older. A look reads the heads of a segment, so there are few.
            let old_at = young.unwrap_or(now).0.saturating_add(age);
            consumer.look_at = Time(old_at.max(now.0.saturating_add(age / LOOKS)));
        }
    }

    /// Whether a consumer that skipped segments has caught up. The consumer must have settled a batch since the skip, or have no backlog.
    /// In addition, it must be at most half as far behind as its option `behind` and `size_max` (the limit of the whole channel) allow.
    /// True for a consumer that does not exist.
    pub(super) fn has_caught_up(&self, name: &str, size_max: u64, now: Time) -> bool {
        let Some(consumer) = self.consumers.get(name) else {
            return true;
        };
        let backlog = self.bytes_after(consumer.position);
        let size = match consumer.behind.size {
            0 => size_max,
            size => size.min(size_max),
        };
        let age = nanos(self.age_max(consumer));
        let oldest = self.oldest_kept_before(consumer.position);
        let is_young =
            age == 0 || oldest.is_none_or(|oldest| now.0.saturating_sub(oldest.0) <= age / 2);
        let moves = backlog == 0 || consumer.position > consumer.skipped_to;
        moves && is_young && backlog <= size / 2
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}
