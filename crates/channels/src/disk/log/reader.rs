//! The reader: one consumer of a disk channel, named after its sink.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> [read back] -> process -> encode -> write -> settle`
//!
//! A reader returns everything that is kept, in order. While it follows closely, it takes the batches from memory; otherwise it reads them
//! from the disk. The cursor stores the position up to which the sink has settled. A new consumer begins at the oldest frame.

use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
};

use millstream_pipeline::{
    channel::{Behind, Bounds, Then},
    tags::TagFilter,
};
use millstream_record::{Batch, Pool, Position};
use millstream_sys::disk::File;

use super::{
    Error, Skipped,
    cursor::Cursor,
    directory::LogDirectory,
    index::{Index, Published},
    read_ahead::{Fetched, ReadAhead},
    segment::Segment,
};

/// An item of a reader.
#[derive(Debug)]
pub enum Item {
    /// The batch at this position.
    Batch(Position, Batch),
    /// Positions that the reader will never hand out.
    Lost(Lost),
}

/// Positions that a consumer will never see, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The last position before the gap.
    pub after: Position,
    /// The first position after the gap.
    pub before: Position,
    /// The damaged file that held the missing positions; `None` if they are no longer in the channel.
    pub damaged: Option<PathBuf>,
}

/// One consumer of a channel.
pub struct Reader {
    index: Arc<Index>,
    /// A reader writes its cursor, so the channel stays locked as long as a reader exists.
    _lock: Arc<dyn File>,
    name: String,
    cursor: Arc<Mutex<Cursor>>,
    /// The position to which an operator or the option `behind` has moved the consumer. No batch at or below it is handed out again.
    floor: Option<Position>,
    hot_bytes: usize,
    /// Everything at or below this position was handed out or skipped.
    position: Position,
    ahead: ReadAhead,
    /// Batches that were handed out and are not settled. Used only if the writer may skip batches for this consumer (`behind`,
    /// `max_age`); otherwise empty.
    in_flight: VecDeque<(Position, Skipped)>,
    may_skip: bool,
}

/// Where the next batch comes from.
enum Next {
    Memory(Position, Batch),
    /// A segment, the offset of the frame and the end of the kept frames.
    Disk(Arc<Segment>, u64, u64),
    Nothing,
}

impl Reader {
    /// Attaches a reader to the consumer `name`, which has none.
    pub(super) fn attach(
        index: Arc<Index>,
        directory: &LogDirectory,
        (name, behind): (&str, Behind),
        pool: Pool,
        hot_bytes: usize,
    ) -> Result<Self, Error> {
        let (position, cursor, may_skip) = {
            let mut published = index.lock();
            let skips_all = !published.max_age.is_zero();
            let consumer = published.consumers.attach(name, behind)?;
            let may_skip = behind.then == Then::Skip || skips_all;
            (consumer.position, Arc::clone(&consumer.cursor), may_skip)
        };
        let floor = {
            let mut cursor = lock(&cursor);
            // An error is ignored, because only the command `channel forget` reads this flag. If the disk is failing, the next commit fails
            // too, and that is reported.
            let _ = cursor.set_configured(true);
            cursor.floor()
        };
        Ok(Self {
            index,
            _lock: Arc::clone(&directory.lock),
            name: name.to_owned(),
            cursor,
            floor,
            hot_bytes,
            position,
            ahead: ReadAhead::new(directory.channel, pool),
            in_flight: VecDeque::new(),
            may_skip,
        })
    }

    /// Counts only batches with these tags as skipped (`None`: all tags).
    #[must_use]
    pub fn with_tags(self, tags: Option<TagFilter>) -> Self {
        if let Some(consumer) = self.index.lock().consumers.get_mut(&self.name) {
            consumer.tags = tags;
        }
        self
    }

    /// Returns the next item; `None` if there is none now. Also returns batches without records, which hold only origins.
    pub fn read(&mut self) -> Result<Option<Item>, Error> {
        loop {
            let (position, batch) = match self.ahead.pop() {
                Some(batch) => batch,
                None => match self.find_next() {
                    Next::Memory(position, batch) => (position, batch),
                    Next::Nothing => return Ok(None),
                    Next::Disk(segment, from, end) => {
                        let fetched = self.ahead.fetch(&segment, (from, end), self.position);
                        if let Fetched::Damage = fetched.map_err(|error| Error::Disk {
                            doing: "reading",
                            path: segment.path.clone(),
                            source: Arc::new(error),
                        })? {
                            self.index.lock().segments.mark_damaged(segment.number);
                        }
                        continue;
                    }
                },
            };
            if let Some(item) = self.hand_out(position, batch) {
                return Ok(Some(item));
            }
        }
    }

    /// Decides where the next batch comes from.
    fn find_next(&mut self) -> Next {
        let mut published = self.index.lock();
        let Some(consumer) = published.consumers.get_mut(&self.name) else {
            return Next::Nothing;
        };
        if consumer.skipped_to > self.position {
            self.position = consumer.skipped_to;
            self.ahead.next = None;
        }
        consumer.reader_at = Some(self.position);
        let position = self.position.max(consumer.position);
        let hot = published.hot.first_after(position);
        let hot = hot.map(|hot| (hot.position, hot.batch.clone(), hot.next));
        if hot.is_some() || published.kept <= position {
            published.cool(self.hot_bytes);
        }
        match hot {
            Some((position, batch, next)) => {
                self.ahead.next = Some(next);
                Next::Memory(position, batch)
            }
            None if published.kept <= position => Next::Nothing,
            None => find_on_disk(&published, self.ahead.next, position),
        }
    }

    /// Hands out a batch, or the gap in front of it. `None` if the batch was skipped. A batch without records is handed out too, because
    /// the consumer must settle the position of the batch.
    fn hand_out(&mut self, position: Position, batch: Batch) -> Option<Item> {
        if self.may_skip && self.is_skipped(position) {
            return None;
        }
        let after = self.position;
        if position.seq > after.seq + 1 {
            // The gap is reported once; then the batch follows.
            self.position = position.before();
            let damaged = self.ahead.put_back(position, batch);
            return Some(Item::Lost(Lost {
                after,
                before: position,
                damaged,
            }));
        }
        if self.may_skip && !self.claim(position, &batch) {
            return None;
        }
        self.position = position;
        Some(Item::Batch(position, batch))
    }

    /// Returns whether the writer has skipped this position. If so, the reader continues after everything that was skipped.
    fn is_skipped(&mut self, position: Position) -> bool {
        let skipped_to = {
            let published = self.index.lock();
            let consumer = published.consumers.get(&self.name);
            consumer.map_or_else(Position::default, |consumer| consumer.skipped_to)
        };
        if skipped_to > self.position {
            self.position = skipped_to;
            self.ahead.next = None;
        }
        position <= skipped_to
    }

    /// Claims a batch so that the writer does not skip it. Returns `false` if the writer has already skipped it.
    fn claim(&mut self, position: Position, batch: &Batch) -> bool {
        let mut published = self.index.lock();
        let Some(consumer) = published.consumers.get_mut(&self.name) else {
            return true;
        };
        if position <= consumer.skipped_to {
            return false;
        }
        consumer.reader_at = Some(position);
        let (tag, tags) = (batch.tag.as_str(), consumer.tags.as_ref());
        let size = Skipped::batch(batch.count, batch.len(), tag, tags);
        self.in_flight.push_back((position, size));
        true
    }

    /// The reader's position: all batches at or below it were handed out, were skipped, or are lost.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Calls `waker` when more is kept. Read again after this call, because a batch may have been kept just before it.
    pub fn wake(&self, waker: &Waker) {
        if let Some(consumer) = self.index.lock().consumers.get_mut(&self.name) {
            consumer.waker = Some(waker.clone());
        }
    }

    /// Continues after `position`, which the sink has stored itself (in its journal or transaction), even if the cursor differs.
    /// Batches that an operator or `behind` has skipped meanwhile are not handed out again.
    pub fn seek(&mut self, position: Position) {
        let from = self.floor.map_or(position, |floor| position.max(floor));
        self.continue_after(from, position);
    }

    /// Continues after the settled position, for a sink that starts again and stores no position.
    pub fn restart(&mut self) {
        // Every batch in flight is unsettled, so the sink gives all of them back.
        self.continue_after(self.settled(), Position::default());
    }

    /// Continues after `from`. The sink is done with everything up to `done`, and gives back the later batches in flight. If the writer has
    /// skipped some of these batches meanwhile, the skipped ones are not handed out again and count as skipped.
    fn continue_after(&mut self, from: Position, done: Position) {
        self.ahead.clear();
        let mut published = self.index.lock();
        let Some(consumer) = published.consumers.get_mut(&self.name) else {
            return;
        };
        let skipped_to = consumer.skipped_to;
        for (position, size) in self.in_flight.drain(..) {
            if position > done && position <= skipped_to {
                consumer.skipped += size;
            }
        }
        self.position = from.max(skipped_to);
        consumer.reader_at = Some(self.position);
        // If the new position is below the cursor, the frames after the new position that still exist are not released from now on.
        consumer.position = consumer.position.min(self.position);
    }

    /// Settles everything at or below `position`. The cursor is durable when this returns. The log may then release the segments that every
    /// consumer has settled.
    pub fn commit(&mut self, position: Position) -> Result<(), Error> {
        let mut cursor = lock(&self.cursor);
        if position > cursor.position {
            cursor.commit(position)?;
        }
        drop(cursor);
        let in_flight = &mut self.in_flight;
        while in_flight.pop_front_if(|(at, _)| *at <= position).is_some() {}
        let mut published = self.index.lock();
        if let Some(consumer) = published.consumers.get_mut(&self.name) {
            consumer.position = consumer.position.max(position);
        }
        if let Some(writer) = published.writer.take() {
            writer.wake();
        }
        Ok(())
    }

    /// The name of the consumer.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The position at or below which everything is settled or skipped.
    pub fn settled(&self) -> Position {
        let published = self.index.lock();
        let consumer = published.consumers.get(&self.name);
        consumer.map_or(self.position, |consumer| consumer.position)
    }

    /// The last position that the consumer has committed, and the newest kept one.
    pub fn bounds(&self) -> Bounds {
        Bounds {
            committed: lock(&self.cursor).committed(),
            kept: self.kept(),
        }
    }

    /// The newest position that is kept.
    pub fn kept(&self) -> Position {
        self.index.lock().kept
    }

    /// Bytes of all segments of the log.
    pub fn used_bytes(&self) -> u64 {
        self.index.used_bytes()
    }

    /// The maximum number of bytes that all segments may take.
    pub fn size_max(&self) -> u64 {
        self.index.size_max()
    }
}

/// Finds the frame after `position`. `next` is the segment and offset at which the reader expects this frame, if it has read the previous
/// one.
fn find_on_disk(published: &Published, next: Option<(u64, u64)>, position: Position) -> Next {
    let segments = &published.segments;
    let expected = next.and_then(|(number, offset)| Some((segments.index_of(number)?, offset)));
    let (mut index, mut offset) = expected.unwrap_or_else(|| (segments.below(position), 0));
    while let Some(segment) = segments.get(index) {
        let from = offset.max(segment.start);
        if from < segment.end() {
            return Next::Disk(Arc::clone(segment), from, segment.end());
        }
        (index, offset) = (index + 1, 0);
    }
    Next::Nothing
}

fn lock(cursor: &Mutex<Cursor>) -> MutexGuard<'_, Cursor> {
    cursor.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut published = self.index.lock();
        if let Some(consumer) = published.consumers.get_mut(&self.name) {
            consumer.reader_at = None;
            consumer.waker = None;
        }
        published.cool(self.hot_bytes);
    }
}
