//! Skipping: passing a consumer that is too far behind, and may skip (`behind`), over whole segments.
//!
//! What is skipped stays skipped: the cursor says so before a segment can be dropped, and the reader hands out nothing at
//! or below it again. The writer counts what the reader has not handed out, the reader what it has handed out and its sink
//! gives back unsettled ([`super::Reader::seek`]). Together they count each record that the sink will never settle once.

use std::sync::PoisonError;

use millstream_pipeline::tags::TagFilter;
use millstream_record::{Position, Time};

use super::{
    Error,
    commit::Log,
    consumers::cursor_name,
    frame::Kind,
    index::SkippedSegment,
    walk::{Walk, WalkError},
};

/// What was skipped for a consumer: only what its tags take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Records.
    pub records: u64,
    /// Bytes of their batches.
    pub bytes: u64,
}

impl Skipped {
    /// Adds what a batch holds, if the consumer takes it.
    pub(super) fn add(
        &mut self,
        (records, bytes): (u64, u64),
        tag: &str,
        tags: Option<&TagFilter>,
    ) {
        if tags.is_none_or(|tags| tags.takes(tag)) {
            self.records += records;
            self.bytes += bytes;
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

impl Log {
    /// Everything that was skipped for a consumer since the start.
    pub fn skipped(&self, name: &str) -> Skipped {
        let state = self.index.lock();
        let consumer = state.consumers.get(name);
        consumer.map_or_else(Skipped::default, |consumer| consumer.skipped)
    }

    /// Whether a consumer that was passed over segments has settled something since, and has at most half of what it may
    /// be behind before it.
    pub fn has_caught_up(&self, name: &str, now: Time) -> bool {
        let state = self.index.lock();
        let Some(consumer) = state.consumers.get(name) else {
            return true;
        };
        let backlog = state.bytes_after(consumer.position);
        let size = match consumer.behind.size {
            0 => self.options.size_max,
            size => size.min(self.options.size_max),
        };
        let age = i64::try_from(consumer.behind.age.as_nanos()).unwrap_or(i64::MAX);
        let oldest = state.oldest_after(consumer.position);
        let is_young =
            age == 0 || oldest.is_none_or(|oldest| now.0.saturating_sub(oldest.0) <= age / 2);
        let moves = backlog == 0 || consumer.position > consumer.skipped_to;
        moves && is_young && backlog <= size / 2
    }

    /// Passes a consumer over the oldest segment in which there is something before it; false if that is the newest one.
    pub(super) fn skip_segment(&mut self, name: &str) -> Result<bool, Error> {
        let Some(skipped) = self.index.lock().skip_segment(name) else {
            return Ok(false);
        };
        let mut cursor = skipped
            .cursor
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if skipped.to > cursor.position {
            let path = self.directory.join(cursor_name(name));
            cursor
                .pass_on(skipped.to)
                .map_err(|error| Error::disk("committing the cursor", &path, error))?;
        }
        drop(cursor);
        let counted = self.count(&skipped);
        if let Some(consumer) = self.index.lock().consumers.get_mut(name) {
            consumer.skipped += counted;
        }
        Ok(true)
    }

    /// Counts what stands in a segment by the heads of its frames. What is damaged cannot be counted.
    fn count(&self, skipped: &SkippedSegment) -> Skipped {
        let SkippedSegment { segment, tags, .. } = skipped;
        let mut counted = Skipped::default();
        let mut walk = Walk::new(segment, self.channel, segment.end());
        loop {
            match walk.next_head() {
                Ok(Some(found)) if found.head.kind == Kind::Batch => {
                    let head = found.head;
                    if is_between(head.position, skipped) {
                        let size = (u64::from(head.count), head.lengths.body as u64);
                        counted.add(size, head.tag.as_str(), tags.as_ref());
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
}

fn is_between(position: Position, skipped: &SkippedSegment) -> bool {
    position > skipped.after && position <= skipped.to
}
