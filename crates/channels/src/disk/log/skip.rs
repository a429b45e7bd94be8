//! Skips batches for a consumer: whole segments if it is too far behind (`behind: { then: skip }`), batches that are too old (`max_age`, and
//! `age` of `behind`), or everything up to a position that an operator names.
//!
//! Skipped batches stay skipped: the cursor is moved before a segment can be dropped, and the reader does not hand out these batches again.
//! The writer counts batches that the reader has not handed out. The reader counts batches that it has handed out and that its sink gave
//! back unsettled ([`super::Reader::seek`]). So every record that the sink will never settle is counted exactly once.

#[cfg(test)]
mod tests;

use std::sync::{Arc, PoisonError};

use millstream_pipeline::tags::TagFilter;
use millstream_record::{Position, Time};

use super::{
    ChannelId, Error,
    directory::LogDirectory,
    frame::Kind,
    index::{Index, Watch},
    segment::Segment,
    walk::{Walk, WalkError},
};

/// Records and bytes that were skipped for a consumer. Only batches whose tags the consumer takes count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Records.
    pub records: u64,
    /// Bytes of their batches.
    pub bytes: u64,
}

impl Skipped {
    /// Counts one batch; zero if the consumer does not take its tag.
    pub(super) fn batch(records: u32, bytes: usize, tag: &str, tags: Option<&TagFilter>) -> Self {
        match tags.is_none_or(|tags| tags.takes(tag)) {
            true => Self {
                records: u64::from(records),
                bytes: bytes as u64,
            },
            false => Self::default(),
        }
    }
}

impl std::ops::AddAssign for Skipped {
    fn add_assign(&mut self, more: Self) {
        self.records += more.records;
        self.bytes += more.bytes;
    }
}

impl std::ops::Sub for Skipped {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            records: self.records.saturating_sub(before.records),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }
}

/// Moves a consumer past the oldest segment that it has not settled. Returns false if this is the newest segment, or if the consumer is
/// unknown. Moves the cursor first: if that fails, the consumer has not moved, and no segment that the cursor still needs can be released.
pub(super) fn skip_segment(
    index: &Index,
    directory: &LogDirectory,
    name: &str,
) -> Result<bool, Error> {
    let published = index.lock();
    let Some(consumer) = published.consumers.get(name) else {
        return Ok(false);
    };
    let place = published.segments.below(consumer.position);
    let (Some(to), Some(segment)) = (
        published.segments.last_position(place),
        published.segments.get(place).cloned(),
    ) else {
        return Ok(false);
    };
    drop(published);
    pass(index, directory, name, (&segment, to))?;
    Ok(true)
}

/// Moves a consumer past the batches that were kept before `before`. Returns the keep time of the first batch that stays; `None` if there is
/// none. Reads the heads of the frames in the segment of that batch.
pub(super) fn skip_before(
    index: &Index,
    directory: &LogDirectory,
    name: &str,
    before: Time,
) -> Result<Option<Time>, Error> {
    loop {
        let published = index.lock();
        let Some(consumer) = published.consumers.get(name) else {
            return Ok(None);
        };
        let (after, segments) = (consumer.position, &published.segments);
        let place = segments.below(after);
        let (segment, newest) = (segments.get(place).cloned(), segments.since(place + 1));
        drop(published);
        let Some(segment) = segment else {
            return Ok(None);
        };
        if newest.is_some_and(|newest| newest < before) {
            if skip_segment(index, directory, name)? {
                continue;
            }
            return Ok(None);
        }
        let (old, young) = divide(&segment, directory.channel, after, before);
        if let Some(to) = old {
            pass(index, directory, name, (&segment, to))?;
        }
        return Ok(young);
    }
}

/// The last batch of a segment after `after` that was kept before `before`, and the keep time of the first one that was not.
fn divide(
    segment: &Segment,
    channel: ChannelId,
    after: Position,
    before: Time,
) -> (Option<Position>, Option<Time>) {
    let mut old = None;
    let mut walk = Walk::new(segment, channel, segment.end());
    loop {
        match walk.next_head() {
            Ok(Some(frame)) if frame.head.kind == Kind::Batch => {
                let head = frame.head;
                if head.position > after && head.keep_time >= before {
                    return (old, Some(head.keep_time));
                }
                if head.position > after {
                    old = Some(head.position);
                }
            }
            Err(WalkError::Misfit) => match walk.find_next() {
                Ok(Some((offset, _))) => walk.skip_to(offset),
                _ => return (old, None),
            },
            _ => return (old, None),
        }
    }
}

/// Moves a consumer to a position in the segment of the oldest batch that it has not settled.
fn pass(
    index: &Index,
    directory: &LogDirectory,
    name: &str,
    (segment, to): (&Segment, Position),
) -> Result<(), Error> {
    let cursor = match index.lock().consumers.get(name) {
        Some(consumer) => Arc::clone(&consumer.cursor),
        None => return Ok(()),
    };
    let mut cursor = cursor.lock().unwrap_or_else(PoisonError::into_inner);
    if to > cursor.position {
        cursor.pass_on(to)?;
    }
    drop(cursor);

    let mut published = index.lock();
    let Some(consumer) = published.consumers.get_mut(name) else {
        return Ok(());
    };
    // The reader may have handed out more batches meanwhile. It counts the batches that it has handed out, so only later ones are counted
    // here.
    let after = consumer
        .position
        .max(consumer.reader_at.unwrap_or_default());
    consumer.position = consumer.position.max(to);
    consumer.skipped_to = consumer.skipped_to.max(to);
    let tags = consumer.tags.clone();
    drop(published);

    let skipped = count(segment, directory.channel, (after, to), tags.as_ref());
    if let Some(consumer) = index.lock().consumers.get_mut(name) {
        consumer.skipped += skipped;
    }
    Ok(())
}

/// Moves a consumer past everything up to `to`. Moves the cursor first; if that fails, nothing has changed.
pub(super) fn skip_to(index: &Index, name: &str, to: Position) -> Result<(), Error> {
    let cursor = match index.lock().consumers.get(name) {
        Some(consumer) => Arc::clone(&consumer.cursor),
        None => return Err(Error::Consumer(name.to_owned())),
    };
    let mut cursor = cursor.lock().unwrap_or_else(PoisonError::into_inner);
    if to > cursor.position {
        cursor.pass_on(to)?;
    }
    drop(cursor);
    if let Some(consumer) = index.lock().consumers.get_mut(name) {
        consumer.position = consumer.position.max(to);
        consumer.skipped_to = consumer.skipped_to.max(to);
    }
    Ok(())
}

/// Counts the records up to `to` that a consumer has not settled. If batches may be skipped for it, leaves out the batches that the
/// reader has handed out: the reader counts these when the sink gives them back. Reads the head of every frame, so it is slow for a large backlog.
pub fn unsettled(watch: &Watch, channel: ChannelId, name: &str, to: Position) -> Skipped {
    let (after, tags, held) = {
        let published = watch.index.lock();
        let Some(consumer) = published.consumers.get(name) else {
            return Skipped::default();
        };
        let after = match published.may_skip(consumer) {
            false => consumer.position,
            true => consumer
                .position
                .max(consumer.reader_at.unwrap_or_default()),
        };
        let segments = &published.segments;
        let held = segments.below(after)..=segments.below(to);
        let held: Vec<_> = held.filter_map(|at| segments.get(at).cloned()).collect();
        (after, consumer.tags.clone(), held)
    };
    let mut all = Skipped::default();
    for segment in held {
        all += count(&segment, channel, (after, to), tags.as_ref());
    }
    all
}

/// Counts the records of a segment that are after `after` and not after `to`. Reads only the heads of the frames. Damaged frames are not
/// counted.
fn count(
    segment: &Segment,
    channel: ChannelId,
    (after, to): (Position, Position),
    tags: Option<&TagFilter>,
) -> Skipped {
    let mut counted = Skipped::default();
    let mut walk = Walk::new(segment, channel, segment.end());
    loop {
        match walk.next_head() {
            Ok(Some(frame)) if frame.head.kind == Kind::Batch => {
                let head = frame.head;
                if head.position > after && head.position <= to {
                    let tag = head.tag.as_str();
                    counted += Skipped::batch(head.count, head.lengths.body, tag, tags);
                }
            }
            Err(WalkError::Misfit) => match walk.find_next() {
                Ok(Some((offset, _))) => walk.skip_to(offset),
                _ => return counted,
            },
            _ => return counted,
        }
    }
}
