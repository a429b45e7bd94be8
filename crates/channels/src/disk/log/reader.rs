//! The reader: one consumer of a disk channel, named after its sink.
//!
//! `read -> decode -> send -> keep -> [take] -> process -> encode -> write -> settle`
//!
//! It sees what is kept, in order, from the batches in memory while it follows closely and else by `read_at` into pooled
//! buffers, many small frames or one large one at a time. Every frame from the disk is checked; what does not fit is
//! damage, is named with the numbers it takes along, and reading goes on behind it. What sinks have settled is committed
//! to the cursor. A new consumer begins at the oldest frame that is there.

use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    task::Waker,
};

use bytes::Bytes;
use millstream_pipeline::{channel::Bounds, tags::TagFilter};
use millstream_record::{Batch, Pool, Position};
use millstream_sys::disk::File;

use super::{
    ChannelId, Error, Skipped,
    cursor::Cursor,
    frame::{Kind, Lengths, Misfit, Place, decode_head},
    index::{Index, State},
    segment::Segment,
    walk::Walk,
};

/// The least that is read at once: many small frames.
const READ_BYTES_MIN: u64 = 256 << 10;

/// What a reader gives.
#[derive(Debug)]
pub enum Item {
    /// The batch at this position.
    Batch(Position, Batch),
    /// Numbers that will never come.
    Lost(Lost),
}

/// Numbers that a consumer will never see, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The last position before the gap.
    pub after: Position,
    /// The first position behind it.
    pub before: Position,
    /// The file in which they stood, if it was damage; else they were dropped.
    pub damaged: Option<PathBuf>,
}

/// One consumer of a channel.
pub struct Reader {
    pub(super) index: Arc<Index>,
    /// Cursors are written as long as there are readers, so the channel is locked as long.
    pub(super) _lock: Arc<dyn File>,
    pub(super) channel: ChannelId,
    pub(super) name: String,
    pub(super) cursor: Arc<Mutex<Cursor>>,
    /// What an operator has passed it on to.
    pub(super) floor: Option<Position>,
    pub(super) pool: Pool,
    pub(super) hot_bytes: usize,
    /// Everything at or below has been handed out, or skipped.
    pub(super) position: Position,
    /// Where the next frame is looked for: segment and offset.
    pub(super) place: Option<(u64, u64)>,
    /// Read and not yet handed out.
    pub(super) ready: VecDeque<(Position, Batch)>,
    /// A file in which something did not fit, until the gap it leaves is known.
    pub(super) damaged: Option<PathBuf>,
    /// Bytes of the last frame that was read alone.
    pub(super) frame_bytes: u64,
    /// The writer may pass it over segments (`behind`).
    pub(super) skips: bool,
    /// If so: what was handed out and is not settled.
    pub(super) in_flight: VecDeque<(Position, Skipped)>,
}

/// What to do next, as the index says.
enum Step {
    Give(Position, Batch),
    Read(Arc<Segment>, u64, u64),
    Nothing,
}

impl Reader {
    /// Takes only these tags: what else is skipped is no loss.
    #[must_use]
    pub fn with_tags(self, tags: Option<TagFilter>) -> Self {
        if let Some(consumer) = self.index.lock().consumers.get_mut(&self.name) {
            consumer.tags = tags;
        }
        self
    }

    /// The next batch; `None` if there is none now. Batches without a byte (origins alone) are passed over.
    pub fn read(&mut self) -> Result<Option<Item>, Error> {
        loop {
            if let Some((position, batch)) = self.ready.pop_front() {
                match self.hand_out(position, batch) {
                    Some(item) => return Ok(Some(item)),
                    None => continue,
                }
            }
            match self.step() {
                Step::Give(position, batch) => {
                    if let Some(item) = self.hand_out(position, batch) {
                        return Ok(Some(item));
                    }
                }
                Step::Read(segment, from, end) => self.load(&segment, from, end)?,
                Step::Nothing => return Ok(None),
            }
        }
    }

    /// Everything at or below has been handed out, or will never come.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Calls `waker` once something more is kept. Look again after this: something may have been kept just before.
    pub fn wake(&self, waker: &Waker) {
        if let Some(consumer) = self.index.lock().consumers.get_mut(&self.name) {
            consumer.waker = Some(waker.clone());
        }
    }

    /// The sink knows better where it is (its own journal or transaction): goes on behind `position`. It does not know what
    /// it was passed over, by an operator or by `behind`, so that is not handed out again.
    pub fn seek(&mut self, position: Position) {
        let from = self.floor.map_or(position, |floor| position.max(floor));
        self.go_on(position, from);
    }

    /// The sink begins anew and has no position of its own: goes on behind what is settled.
    pub fn restart(&mut self) {
        // What is settled is in flight no more.
        self.go_on(Position::default(), self.settled());
    }

    /// Goes on behind `from`. The sink is done with what stands up to `done`; what it gives back and was skipped meanwhile
    /// is lost to it.
    fn go_on(&mut self, done: Position, from: Position) {
        self.ready.clear();
        self.place = None;
        let mut state = self.index.lock();
        let Some(consumer) = state.consumers.get_mut(&self.name) else {
            return;
        };
        let skipped_to = consumer.skipped_to;
        for (position, size) in self.in_flight.drain(..) {
            if position > done && position <= skipped_to {
                consumer.skipped += size;
            }
        }
        self.position = from.max(skipped_to);
        consumer.taken = Some(self.position);
        // Below the cursor: what is still there is held from here on.
        consumer.position = consumer.position.min(self.position);
    }

    /// Everything at or below `position` is settled. Durable when it returns; what is below every consumer can go.
    pub fn commit(&mut self, position: Position) -> Result<(), Error> {
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        if position > cursor.position {
            cursor.commit(position).map_err(|error| Error::Disk {
                doing: "committing the cursor",
                path: PathBuf::from(format!("{}.cursor", self.name)),
                source: error.into(),
            })?;
        }
        drop(cursor);
        while self
            .in_flight
            .front()
            .is_some_and(|(handed_out, _)| *handed_out <= position)
        {
            self.in_flight.pop_front();
        }
        let mut state = self.index.lock();
        if let Some(consumer) = state.consumers.get_mut(&self.name) {
            consumer.position = consumer.position.max(position);
        }
        if let Some(writer) = state.writer.take() {
            writer.wake();
        }
        Ok(())
    }

    /// The name of the consumer.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Everything at or below is settled, as the cursor says.
    pub fn settled(&self) -> Position {
        let state = self.index.lock();
        let consumer = state.consumers.get(&self.name);
        consumer.map_or(self.position, |consumer| consumer.position)
    }

    /// What the channel knows of this consumer for sure.
    pub fn bounds(&self) -> Bounds {
        let cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        Bounds {
            committed: cursor.committed(),
            kept: self.index.lock().kept,
        }
    }

    /// The newest position that is kept.
    pub fn kept(&self) -> Position {
        self.index.lock().kept
    }

    /// Bytes of all segments that are part of the log.
    pub fn used_bytes(&self) -> u64 {
        self.index.used_bytes()
    }

    /// Hands a batch out; first the gap in front of it, if there is one.
    fn hand_out(&mut self, position: Position, batch: Batch) -> Option<Item> {
        if self.skips && self.is_skipped(position) {
            return None;
        }
        let after = self.position;
        if position.seq > after.seq + 1 {
            let before = position;
            self.ready.push_front((position, batch));
            // The gap is given once: what is behind it follows it without one.
            self.position = Position {
                epoch: position.epoch,
                seq: position.seq - 1,
            };
            let damaged = self.damaged.take();
            return Some(Item::Lost(Lost {
                after,
                before,
                damaged,
            }));
        }
        if self.skips && !self.claim(position, &batch) {
            return None;
        }
        self.position = position;
        (!batch.is_empty()).then_some(Item::Batch(position, batch))
    }

    /// Whether the writer has passed the consumer over this position.
    fn is_skipped(&mut self, position: Position) -> bool {
        let state = self.index.lock();
        let consumer = state.consumers.get(&self.name);
        let skipped_to = consumer.map_or_else(Position::default, |consumer| consumer.skipped_to);
        drop(state);
        self.pass_on(skipped_to);
        position <= skipped_to
    }

    /// Takes a batch before the writer can skip it; false: it was skipped.
    fn claim(&mut self, position: Position, batch: &Batch) -> bool {
        let mut state = self.index.lock();
        let Some(consumer) = state.consumers.get_mut(&self.name) else {
            return true;
        };
        if position <= consumer.skipped_to {
            return false;
        }
        consumer.taken = Some(position);
        let mut size = Skipped::default();
        let held = (u64::from(batch.count), batch.len() as u64);
        size.add(held, batch.tag.as_str(), consumer.tags.as_ref());
        self.in_flight.push_back((position, size));
        true
    }

    /// Goes on behind what the writer has skipped.
    fn pass_on(&mut self, skipped_to: Position) {
        if skipped_to > self.position {
            self.position = skipped_to;
            self.place = None;
        }
    }

    /// Decides where the next batch comes from.
    fn step(&mut self) -> Step {
        let mut state = self.index.lock();
        let Some(consumer) = state.consumers.get_mut(&self.name) else {
            return Step::Nothing;
        };
        if consumer.skipped_to > self.position {
            self.position = consumer.skipped_to;
            self.place = None;
        }
        consumer.taken = Some(self.position);
        let position = self.position.max(consumer.position);
        if state.kept <= position {
            state.cool(self.hot_bytes);
            return Step::Nothing;
        }
        if position >= state.hot_after {
            let place = state.hot.partition_point(|hot| hot.position <= position);
            let found = state
                .hot
                .get(place)
                .map(|hot| (hot.position, hot.batch.clone(), hot.next));
            state.cool(self.hot_bytes);
            if let Some((position, batch, next)) = found {
                self.place = Some(next);
                return Step::Give(position, batch);
            }
        }
        find(&state, self.place, position)
    }

    /// Reads frames from `from` on, as many as one read brings.
    fn load(&mut self, segment: &Arc<Segment>, from: u64, end: u64) -> Result<(), Error> {
        let failed = |error| Error::Disk {
            doing: "reading",
            path: segment.path.clone(),
            source: Arc::new(error),
        };
        let want = READ_BYTES_MIN.max(self.frame_bytes).min(end - from);
        let want = usize::try_from(want).unwrap_or(usize::MAX);
        let mut buffer = self.pool.take(want);
        segment
            .file
            .read_at(&mut buffer, want, from)
            .map_err(failed)?;
        if let Some(lengths) = Lengths::peek(&buffer) {
            let total = lengths.total();
            if total > buffer.len() as u64 && total <= end - from {
                let have = buffer.len();
                let missing = usize::try_from(total).unwrap_or(usize::MAX) - have;
                segment
                    .file
                    .read_at(&mut buffer, missing, from + have as u64)
                    .map_err(failed)?;
            }
            self.frame_bytes = total.min(end - from);
        }
        let bytes = buffer.freeze();
        match self.take_frames(segment, &bytes, from) {
            Ok(next) => self.place = Some((segment.number, next)),
            Err((at, misfit)) => self.pass_over(segment, at, end, misfit).map_err(failed)?,
        }
        Ok(())
    }

    /// Takes the whole frames out of what was read; returns where the next one begins.
    fn take_frames(
        &mut self,
        segment: &Segment,
        bytes: &Bytes,
        from: u64,
    ) -> Result<u64, (u64, Misfit)> {
        let mut at = 0;
        loop {
            let offset = from + at as u64;
            let rest = &bytes[at..];
            if at > 0 && Lengths::peek(rest).is_none_or(|l| l.total() > rest.len() as u64) {
                // Cut off by the end of what was read, or no frame: the next read tells.
                return Ok(offset);
            }
            let place = Place {
                channel: self.channel,
                segment: segment.number,
                offset,
            };
            let head = decode_head(rest, &place).map_err(|misfit| (offset, misfit))?;
            if head.kind != Kind::Batch {
                return Ok(u64::MAX);
            }
            let lengths = head.lengths;
            let total = usize::try_from(lengths.total()).unwrap_or(usize::MAX);
            let body = at + lengths.head..at + lengths.head + lengths.body;
            let fits = bytes
                .get(body.clone())
                .is_some_and(|body| head.fits_body(body));
            if !fits {
                return Err((offset, Misfit::Body));
            }
            let position = head.position;
            let last = self.ready.back().map_or(self.position, |last| last.0);
            if position > last
                && let Some(batch) = head.batch(bytes.slice(body))
            {
                self.ready.push_back((position, batch));
            }
            at += total;
            if at >= bytes.len() {
                return Ok(from + at as u64);
            }
        }
    }

    /// Something kept does not fit: goes on at the next frame that does. The numbers tell what is lost.
    fn pass_over(
        &mut self,
        segment: &Arc<Segment>,
        at: u64,
        end: u64,
        _: Misfit,
    ) -> std::io::Result<()> {
        let shrunk = segment.end() < end;
        if shrunk {
            // The end moved back meanwhile (a failed sync): the frames stand in the next segment.
            self.place = Some((segment.number, at));
            return Ok(());
        }
        let place = Place {
            channel: self.channel,
            segment: segment.number,
            offset: at,
        };
        let first = Position {
            epoch: segment.first.epoch,
            seq: 0,
        };
        let mut walk = Walk::of_file(&*segment.file, place, first, end);
        let next = walk.find_next()?.map_or(end, |(offset, _)| offset);
        self.damaged = Some(segment.path.clone());
        self.index.lock().damaged.insert(segment.number);
        self.place = Some((segment.number, next));
        Ok(())
    }
}

/// The place of the next frame on the disk.
fn find(state: &State, place: Option<(u64, u64)>, position: Position) -> Step {
    let mut known = place.and_then(|(number, offset)| {
        let at = state
            .segments
            .iter()
            .position(|(segment, _)| segment.number == number)?;
        Some((at, offset))
    });
    loop {
        let (at, offset) = match known {
            Some(known) => known,
            None => match state.place_after(position) {
                Some(at) => (at, 0),
                None => return Step::Nothing,
            },
        };
        let Some((segment, _)) = state.segments.get(at) else {
            return Step::Nothing;
        };
        let from = offset.max(segment.start);
        if from < segment.end() {
            return Step::Read(Arc::clone(segment), from, segment.end());
        }
        known = Some((at + 1, 0));
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.index.lock();
        if let Some(consumer) = state.consumers.get_mut(&self.name) {
            consumer.taken = None;
            consumer.waker = None;
        }
        state.cool(self.hot_bytes);
    }
}
