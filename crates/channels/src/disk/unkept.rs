//! The groups that the writer has staged and not kept yet, with the tokens of their senders.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> [keep] -> read back -> process -> encode -> write -> settle`
//!
//! The writer claims each group before it commits. While there is no space, it gives the claims back. A sender that does not want to
//! wait any longer can then withdraw its group.

use std::collections::VecDeque;

use millstream_pipeline::delivery::Token;
use millstream_record::{Batch, Origin};

use super::log::Log;

/// The groups, in the order in which they were staged.
#[derive(Default)]
pub(super) struct Unkept {
    groups: VecDeque<Group>,
    /// Whether the claims of the groups that may leave were given back.
    are_released: bool,
}

struct Group {
    /// The group is kept once all frames up to this seq (sequence number) are kept.
    seq: u64,
    token: Token,
    /// Whether the sender may withdraw the group after it was staged.
    may_leave: bool,
}

/// Whether a group can be removed after it was staged. A resend of a chunk (a batch with an id) may already wait for it.
pub(super) fn may_leave(batches: &[Batch]) -> bool {
    let mut origins = batches.iter().flat_map(|batch| &batch.origins);
    origins.all(|origin| matches!(origin, Origin::File(_)))
}

impl Unkept {
    /// Adds a group that was claimed and staged.
    pub(super) fn push(&mut self, seq: u64, token: Token, may_leave: bool) {
        self.groups.push_back(Group {
            seq,
            token,
            may_leave,
        });
    }

    /// Settles the tokens of the groups up to `kept`.
    pub(super) fn settle(&mut self, kept: u64) {
        // They are not sorted by seq. A group that consists only of repeats of kept records has seq 0.
        for _ in 0..self.groups.len() {
            if let Some(group) = self.groups.pop_front() {
                match group.seq <= kept {
                    true => group.token.settle(),
                    false => self.groups.push_back(group),
                }
            }
        }
    }

    /// Gives the claims back, because there is no space.
    pub(super) fn release(&mut self) {
        if !std::mem::replace(&mut self.are_released, true) {
            self.that_may_leave().for_each(Token::release_claim);
        }
    }

    /// Claims the groups again before the next commit. Drops those that were withdrawn.
    pub(super) fn claim(&mut self, log: &mut Log) {
        if !std::mem::take(&mut self.are_released) {
            return;
        }
        let all: Vec<Group> = std::mem::take(&mut self.groups).into();
        let is_there = |group: &Group| !group.may_leave || group.token.claim();
        let (there, gone): (Vec<_>, Vec<_>) = all.into_iter().partition(is_there);
        self.groups = there.into();
        if gone.is_empty() {
            return;
        }
        let seqs: Vec<u64> = gone.iter().map(|group| group.seq).collect();
        let withdrawn = log.withdraw(&seqs);
        for group in &mut self.groups {
            group.seq = withdrawn.renumbered(group.seq);
        }
    }

    /// Whether there is no such group.
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Drops all groups, which fails their receipts.
    pub(super) fn clear(&mut self) {
        self.groups.clear();
    }

    fn that_may_leave(&self) -> impl Iterator<Item = &Token> {
        let may_leave = self.groups.iter().filter(|group| group.may_leave);
        may_leave.map(|group| &group.token)
    }
}
