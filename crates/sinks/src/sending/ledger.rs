//! The numbers in flight, and the checkpoints that wait for them.
//!
//! Everything that a sink sends as a whole (a chunk, a request) gets a number when its batch is taken. Numbers finish in any order.
//! The ledger releases checkpoints in order, each only when every number before it is finished.

use std::collections::VecDeque;

use millstream_record::Time;

/// The numbers in flight and the waiting checkpoints of type `C`.
#[derive(Debug)]
pub(crate) struct Ledger<C> {
    /// Every number below is finished.
    floor: u64,
    /// From `floor` on: the receive time of each number's oldest record, `None` when the number is finished.
    in_flight: VecDeque<Option<Time>>,
    /// Waiting checkpoints, each with the first number after it.
    checkpoints: VecDeque<(u64, C)>,
}

impl<C> Ledger<C> {
    pub(crate) fn new() -> Self {
        Self {
            floor: 0,
            in_flight: VecDeque::new(),
            checkpoints: VecDeque::new(),
        }
    }

    /// Returns a new number for records of which the oldest was received at `received`.
    pub(crate) fn begin(&mut self, received: Time) -> u64 {
        self.in_flight.push_back(Some(received));
        self.next() - 1
    }

    /// Marks a number as finished: everything it stands for is acknowledged or rejected.
    pub(crate) fn finish(&mut self, number: u64) {
        let place = number.checked_sub(self.floor);
        let slot = place.and_then(|place| self.in_flight.get_mut(usize::try_from(place).ok()?));
        if let Some(slot) = slot {
            *slot = None;
        }
        while let Some(None) = self.in_flight.front() {
            self.in_flight.pop_front();
            self.floor += 1;
        }
    }

    /// Marks every number as finished.
    pub(crate) fn finish_all(&mut self) {
        self.floor = self.next();
        self.in_flight.clear();
    }

    /// Adds a checkpoint after all current numbers.
    pub(crate) fn checkpoint(&mut self, checkpoint: C) {
        self.checkpoints.push_back((self.next(), checkpoint));
    }

    /// Removes and returns the next checkpoint before which every number is finished.
    pub(crate) fn ready(&mut self) -> Option<C> {
        match self.checkpoints.front() {
            Some((until, _)) if *until <= self.floor => self
                .checkpoints
                .pop_front()
                .map(|(_, checkpoint)| checkpoint),
            _ => None,
        }
    }

    /// The first waiting checkpoint after `number`; `None` if it has not arrived yet.
    pub(crate) fn checkpoint_of(&mut self, number: u64) -> Option<&mut C> {
        let mut checkpoints = self.checkpoints.iter_mut();
        let waiting = checkpoints.find(|(until, _)| number < *until);
        waiting.map(|(_, checkpoint)| checkpoint)
    }

    /// When the oldest record in flight was received.
    pub(crate) fn oldest(&self) -> Option<Time> {
        // The front is never finished: `finish` removes it.
        self.in_flight.front().copied().flatten()
    }

    /// Number of entries: from the oldest unfinished number to the newest.
    pub(crate) fn span(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether nothing is in flight and no checkpoint waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.in_flight.is_empty() && self.checkpoints.is_empty()
    }

    fn next(&self) -> u64 {
        self.floor + self.in_flight.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_waits_for_everything_before_it_and_for_nothing_after_it() {
        let mut ledger = Ledger::new();
        let (first, second) = (ledger.begin(Time(1)), ledger.begin(Time(2)));
        ledger.checkpoint("a");
        let third = ledger.begin(Time(3));
        ledger.checkpoint("b");
        ledger.finish(second);
        ledger.finish(third);
        assert_eq!(ledger.ready(), None);
        assert_eq!(ledger.oldest(), Some(Time(1)));
        ledger.finish(first);
        assert_eq!(ledger.ready(), Some("a"));
        assert_eq!(ledger.ready(), Some("b"));
        assert!(ledger.is_empty());
    }

    #[test]
    fn finishing_a_number_twice_changes_nothing() {
        let mut ledger = Ledger::<()>::new();
        let (first, second) = (ledger.begin(Time(1)), ledger.begin(Time(2)));
        ledger.finish(first);
        ledger.finish(first);
        assert_eq!(ledger.oldest(), Some(Time(2)));
        ledger.finish(second);
        ledger.finish(99);
        assert!(ledger.is_empty());
    }

    #[test]
    fn the_checkpoint_of_a_number_is_the_first_one_after_it() {
        let mut ledger = Ledger::new();
        let first = ledger.begin(Time(1));
        ledger.checkpoint("a");
        let second = ledger.begin(Time(2));
        assert_eq!(ledger.checkpoint_of(first), Some(&mut "a"));
        assert_eq!(ledger.checkpoint_of(second), None);
    }

    #[test]
    fn finishing_all_releases_every_checkpoint_and_numbers_continue() {
        let mut ledger = Ledger::new();
        let first = ledger.begin(Time(1));
        ledger.checkpoint("a");
        ledger.finish_all();
        assert_eq!(ledger.ready(), Some("a"));
        assert!(ledger.begin(Time(2)) > first);
    }
}
