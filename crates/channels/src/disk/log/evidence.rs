//! Finds out which positions of a channel are missing, by comparing its segments, cursors and record file.

use millstream_record::Position;

use super::{
    ChannelId,
    losses::{Loss, Missing},
    record::Summary,
};

/// The frames that a log holds, and its end according to other files.
pub(super) struct Evidence {
    pub(super) channel: ChannelId,
    /// The position of the oldest frame. If no segment has a frame, the position of the next frame. `None` if there is no segment.
    pub(super) oldest: Option<Position>,
    /// The position of the newest frame.
    pub(super) newest: Position,
    /// Gaps between frames. Each entry holds the last position before the gap, and the last missing position.
    pub(super) gaps: Vec<(Position, Position)>,
    /// The lowest and the highest position of all cursors.
    pub(super) cursors: Option<(Position, Position)>,
    pub(super) known: Option<Summary>,
}

impl Evidence {
    /// A lower bound of the position at which the log once ended.
    pub(super) fn end(&self) -> Position {
        let known = self.known.filter(|known| known.channel == self.channel);
        let known = known.map_or(self.newest, |known| known.end);
        let cursors = self.cursors.map_or(self.newest, |(_, highest)| highest);
        self.newest.max(known).max(cursors)
    }

    /// Without a sync per batch, a power cut may lose batches that consumers have already settled. These batches do not count as a loss. So
    /// if the last stop was not `clean` and the highest cursor is beyond the end of the log, this method lowers the highest position in
    /// `cursors` to the end of the log, and returns the previous position. Otherwise it returns `None`.
    pub(super) fn forgive_unsynced(&mut self, clean: bool) -> Option<Position> {
        let (_, highest) = self.cursors.as_mut()?;
        if clean || *highest <= self.newest {
            return None;
        }
        Some(std::mem::replace(highest, self.newest))
    }

    /// The losses that follow from this evidence.
    pub(super) fn losses(&self) -> Vec<Loss> {
        let of_this = self.known.filter(|known| known.channel == self.channel);
        let known = of_this.unwrap_or(Summary::of(self.channel));
        let mut losses = Vec::new();
        let mut add = |missing, after: Position, to: Position| {
            losses.push(Loss {
                missing,
                channel: self.channel,
                after,
                to,
                records: known.records_in(to.seq.saturating_sub(after.seq)),
            });
        };
        // Segments up to the lowest cursor may have been released.
        let released = self.cursors.map(|(lowest, _)| lowest);
        if let (Some(oldest), Some(released)) = (self.oldest, released)
            && oldest > released
            && oldest.seq > released.seq + 1
        {
            add(Missing::Oldest, released, oldest.before());
        }
        for (after, to) in &self.gaps {
            // A power cut may bring back a released segment, but not the segment after it. So a gap below the lowest cursor is not a loss.
            let after = released.unwrap_or_default().max(*after);
            // A new epoch continues the sequence numbers, so they can be compared across epochs.
            if to.seq > after.seq {
                add(Missing::Middle, after, *to);
            }
        }
        let end = self.end();
        if self.oldest.is_some() && end > self.newest {
            add(Missing::Newest, self.newest, end);
        } else if self.oldest.is_none() && end > Position::default() {
            let after = released.unwrap_or(known.settled);
            add(Missing::Newest, after.min(end), end);
        }
        losses
    }
}
