//! The owner of the position in Kafka: this process, or a successor that has fenced it.

use millstream_pipeline::failure::{Again, Failure};
use millstream_record::Position;

use super::{position::Committed, progress::Part};

/// Checks whether this process still owns the position of a channel's sink.
pub(super) struct Ownership {
    pub(super) channel: u128,
    pub(super) owner: u64,
    /// The owner at the last check. `None` before the first check; `Some(None)` if no position was committed at the last check. If
    /// the next check finds a different owner that is not this process, that owner has taken over in between.
    seen: Option<Option<u64>>,
}

impl Ownership {
    pub(super) fn new(channel: u128, owner: u64) -> Self {
        Self {
            channel,
            owner,
            seen: None,
        }
    }

    /// Checks the owner of the committed position. Fails if the owner is a successor, that is, neither this process nor the owner at
    /// the last check. The first check accepts any owner.
    pub(super) fn check(&mut self, committed: Option<&Committed>) -> Result<(), Failure> {
        let owner = committed.map(|committed| committed.owner);
        let known = owner.is_none_or(|owner| owner == self.owner);
        if !known && self.seen.is_some_and(|seen| seen != owner) {
            let text = "another process has taken over this sink's channel (a copy of this data_dir?); this one stops writing, \
                        so that nothing is written twice";
            return Err(Failure {
                again: Again::Never,
                ..Failure::us(text)
            });
        }
        self.seen = Some(owner);
        Ok(())
    }

    /// Whether the owner has been checked before.
    pub(super) fn has_checked(&self) -> bool {
        self.seen.is_some()
    }

    /// A position as this process commits it, with a part of what follows it.
    pub(super) fn commit(&self, position: Position, part: Option<Part>) -> Committed {
        Committed {
            channel: self.channel,
            position,
            owner: self.owner,
            part,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_that_appears_after_the_first_check_is_a_successor() {
        let position = Position { epoch: 1, seq: 2 };
        let committed = |owner| Ownership::new(7, owner).commit(position, None);
        let mut ours = Ownership::new(7, 1);
        ours.check(Some(&committed(9))).unwrap();
        ours.check(Some(&committed(9))).unwrap();
        ours.check(Some(&committed(1))).unwrap();
        let failure = ours.check(Some(&committed(9))).unwrap_err();
        assert_eq!(failure.again, Again::Never);
    }
}
