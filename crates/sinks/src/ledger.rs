//! Which chunks are done, and which checkpoints wait for them.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> write -> [settle]`
//!
//! Chunks get numbers in the order in which their batches were taken and are done in any order. It promises that a checkpoint
//! comes out only when every chunk opened before it is done, and checkpoints in their order. It leaves settling to its user.

use std::collections::VecDeque;

use millstream_record::Time;

/// The open chunks and the waiting checkpoints; `C` is what a checkpoint is to its user.
#[derive(Debug)]
pub(crate) struct Ledger<C> {
    /// Every number below is done.
    floor: u64,
    /// From `floor` on: until when a chunk's oldest record dates back, None when it is done.
    open: VecDeque<Option<Time>>,
    /// Waiting checkpoints, each with the first number that it does not cover.
    checkpoints: VecDeque<(u64, C)>,
}

impl<C> Ledger<C> {
    pub(crate) fn new() -> Self {
        Self {
            floor: 0,
            open: VecDeque::new(),
            checkpoints: VecDeque::new(),
        }
    }

    /// The number of a new chunk whose oldest record was received at `received`.
    pub(crate) fn open(&mut self, received: Time) -> u64 {
        self.open.push_back(Some(received));
        self.next() - 1
    }

    /// A chunk is done: acked, or kept among the rejected.
    pub(crate) fn done(&mut self, number: u64) {
        let place = number.checked_sub(self.floor);
        let slot = place.and_then(|place| self.open.get_mut(usize::try_from(place).ok()?));
        if let Some(slot) = slot {
            *slot = None;
        }
        while let Some(None) = self.open.front() {
            self.open.pop_front();
            self.floor += 1;
        }
    }

    /// A checkpoint behind every chunk opened so far.
    pub(crate) fn checkpoint(&mut self, checkpoint: C) {
        self.checkpoints.push_back((self.next(), checkpoint));
    }

    /// The next checkpoint that can be settled.
    pub(crate) fn ready(&mut self) -> Option<C> {
        match self.checkpoints.front() {
            Some((until, _)) if *until <= self.floor => self
                .checkpoints
                .pop_front()
                .map(|(_, checkpoint)| checkpoint),
            _ => None,
        }
    }

    /// The oldest checkpoint that waits and covers chunk `number`.
    pub(crate) fn checkpoint_of(&mut self, number: u64) -> Option<&mut C> {
        let found = self
            .checkpoints
            .iter_mut()
            .find(|(until, _)| number < *until);
        found.map(|(_, checkpoint)| checkpoint)
    }

    /// When the oldest record of a chunk that is not done was received.
    pub(crate) fn oldest(&self) -> Option<Time> {
        // The front is never done; `done` sees to that.
        self.open.front().copied().flatten()
    }

    /// How many chunks it remembers: from the oldest that is not done to the newest.
    pub(crate) fn open_chunks(&self) -> usize {
        self.open.len()
    }

    /// Whether every chunk is done and every checkpoint has come out.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.checkpoints.is_empty()
    }

    fn next(&self) -> u64 {
        self.floor + self.open.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_waits_for_every_chunk_before_it_and_for_none_behind_it() {
        let mut ledger = Ledger::new();
        let (first, second) = (ledger.open(Time(1)), ledger.open(Time(2)));
        ledger.checkpoint("a");
        let third = ledger.open(Time(3));
        ledger.checkpoint("b");
        ledger.done(second);
        ledger.done(third);
        assert_eq!(ledger.ready(), None);
        assert_eq!(ledger.oldest(), Some(Time(1)));
        ledger.done(first);
        assert_eq!(ledger.ready(), Some("a"));
        assert_eq!(ledger.ready(), Some("b"));
        assert!(ledger.is_empty());
    }

    #[test]
    fn a_chunk_that_is_done_twice_changes_nothing() {
        let mut ledger = Ledger::<()>::new();
        let (first, second) = (ledger.open(Time(1)), ledger.open(Time(2)));
        ledger.done(first);
        ledger.done(first);
        assert_eq!(ledger.oldest(), Some(Time(2)));
        ledger.done(second);
        ledger.done(99);
        assert!(ledger.is_empty());
    }

    #[test]
    fn the_checkpoint_of_a_chunk_is_the_first_behind_it() {
        let mut ledger = Ledger::new();
        let first = ledger.open(Time(1));
        ledger.checkpoint("a");
        let second = ledger.open(Time(2));
        assert_eq!(ledger.checkpoint_of(first), Some(&mut "a"));
        assert_eq!(ledger.checkpoint_of(second), None);
    }
}
