//! When batches were received, by position: about one mark per second. With it, the age of a backlog that is no longer in memory is
//! known to a second. Without it, only the keep times at the ends of segments are known, and with little traffic a segment may hold hours.

use std::collections::VecDeque;

use millstream_record::{Position, Time};

/// The distance between two marks at first, in nanoseconds.
const STEP: i64 = 1_000_000_000;
/// The maximum number of marks: 128 KiB. Beyond it, every second mark is dropped and the distance is doubled.
const MARKS_MAX: usize = 4096;

/// Some of the kept positions since the start, in order, each with the receive time of its batch.
pub(super) struct Marks {
    marks: VecDeque<(Position, Time)>,
    step: i64,
}

impl Default for Marks {
    fn default() -> Self {
        Self {
            marks: VecDeque::new(),
            step: STEP,
        }
    }
}

impl Marks {
    /// Whether a batch that has just been kept gets a mark.
    pub(super) fn is_due(&self, received: Time) -> bool {
        let last = self.marks.back();
        // The wall clock may also jump back.
        let step = self.step.unsigned_abs();
        last.is_none_or(|(_, last)| received.0.abs_diff(last.0) >= step)
    }

    /// Marks a batch that has just been kept. `settled`: every consumer has settled the batches up to this position.
    pub(super) fn add(&mut self, position: Position, received: Time, settled: Position) {
        // The last mark at or below `settled` tells about the batches after it.
        let done = self.marks.partition_point(|(at, _)| *at <= settled);
        self.marks.drain(..done.saturating_sub(1));
        if self.marks.len() < 2 {
            self.step = STEP;
        }
        if self.marks.len() >= MARKS_MAX {
            let mut number = 0;
            self.marks.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.step = self.step.saturating_mul(2);
        }
        self.marks.push_back((position, received));
    }

    /// About when the first batch after `position` was received, at most one step too early. `None` if it was kept before the first mark.
    pub(super) fn after(&self, position: Position) -> Option<Time> {
        let next = self.marks.partition_point(|(at, _)| *at <= position);
        let is_first = |(at, _): &&(Position, Time)| {
            at.epoch == position.epoch && at.seq == position.seq.saturating_add(1)
        };
        let exact = self.marks.get(next).filter(is_first);
        let before = || self.marks.get(next.checked_sub(1)?);
        exact.or_else(before).map(|(_, received)| *received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seq: u64) -> Position {
        Position { epoch: 1, seq }
    }

    fn note(marks: &mut Marks, seq: u64, received: Time, settled: u64) {
        if marks.is_due(received) {
            marks.add(at(seq), received, at(settled));
        }
    }

    fn second(number: u64) -> Time {
        Time(i64::try_from(number).unwrap() * STEP)
    }

    #[test]
    fn the_receive_time_of_any_batch_is_known_to_a_second() {
        let mut marks = Marks::default();
        // Twenty batches a second.
        for seq in 100..2000 {
            note(&mut marks, seq, Time(second(seq).0 / 20), 0);
        }
        assert_eq!(marks.after(at(98)), None);
        assert_eq!(marks.after(at(99)), Some(Time(second(100).0 / 20)));
        for seq in 101..2000 {
            let (exact, known) = (second(seq).0 / 20, marks.after(at(seq - 1)).unwrap().0);
            assert!((0..=STEP).contains(&(exact - known)), "{seq}");
        }
    }

    #[test]
    fn many_marks_take_bounded_memory_and_stay_proportionally_exact() {
        let mut marks = Marks::default();
        let all = 100_000;
        for seq in 1..=all {
            note(&mut marks, seq, second(seq), 0);
        }
        assert!(marks.marks.len() <= MARKS_MAX);
        let error = |marks: &Marks, seq: u64| second(seq).0 - marks.after(at(seq - 1)).unwrap().0;
        let most = second(all / (MARKS_MAX as u64 / 2) * 2).0;
        assert!((1..=all).all(|seq| (0..=most).contains(&error(&marks, seq))));
        // When the consumers have caught up, new marks are exact again.
        let caught_up = all + 1000;
        for seq in all + 1..=caught_up {
            note(&mut marks, seq, second(seq), seq - 1);
        }
        assert_eq!(error(&marks, caught_up), 0);
        assert!(marks.marks.len() < 4);
    }
}
