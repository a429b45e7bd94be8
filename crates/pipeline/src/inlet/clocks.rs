//! Measures how long a consumer takes to settle its checkpoints.

use std::{collections::VecDeque, time::Duration};

use millstream_record::Time;
use tokio::time::Instant;

use crate::meters::{NodeMeters, Since, histogram::Histogram};

/// The times of one checkpoint.
#[derive(Debug, Default)]
pub(super) struct Stamps {
    /// When its first batch arrived.
    pub(super) begun: Option<Instant>,
    /// When the checkpoint was handed out.
    pub(super) made: Option<Instant>,
    /// When the oldest of its batches was received.
    received: Option<Time>,
}

impl Stamps {
    /// Adds a batch that a source received at `received`.
    pub(super) fn add(&mut self, received: Time) {
        let oldest = self.received.get_or_insert(received);
        *oldest = received.min(*oldest);
    }
}

/// The clocks of one inlet.
pub(super) struct Clocks {
    write: Histogram,
    end_to_end: Histogram,
    /// The age of the oldest batch that was taken and is not settled. While there is no such batch, a durable channel sets a metric of
    /// the same name to the age of the oldest record that waits for the consumer.
    oldest: Since,
    /// For each unsettled checkpoint, the oldest first: when its first batch arrived here, and when a source had received that
    /// batch. The last entry may belong to the next checkpoint, whose batches are still arriving.
    begun: VecDeque<(Instant, Time)>,
}

impl Clocks {
    pub(super) fn new(meters: &NodeMeters) -> Self {
        Self {
            write: meters.histogram("write_seconds"),
            end_to_end: meters.histogram("end_to_end_seconds"),
            oldest: meters.age("unsettled_age_seconds"),
            begun: VecDeque::new(),
        }
    }

    /// Forgets all checkpoints: the consumer restarts and will not settle them.
    pub(super) fn start_over(&mut self) {
        self.begun.clear();
        self.show();
    }

    /// Notes that the first batch of the next checkpoint has arrived. Returns the current time.
    pub(super) fn begin(&mut self, stamps: &mut Stamps, received: Time) -> Instant {
        let now = Instant::now();
        stamps.begun = Some(now);
        self.begun.push_back((now, received));
        if self.begun.len() == 1 {
            self.show();
        }
        now
    }

    /// Notes that a checkpoint, and with it every earlier one, is settled.
    pub(super) fn settle(&mut self, stamps: &Stamps) {
        if let Some(begun) = stamps.begun {
            let settled = self.begun.partition_point(|(other, _)| *other <= begun);
            self.begun.drain(..settled);
        }
        self.show();
        if let Some(made) = stamps.made {
            self.write.observe(made.elapsed());
        }
        if let Some(received) = stamps.received {
            self.end_to_end.observe(age(received));
        }
    }

    fn show(&self) {
        let oldest = self.begun.front();
        self.oldest.set(oldest.map(|(_, received)| age(*received)));
    }
}

/// Returns the time since `received`; zero if the wall clock has jumped back.
fn age(received: Time) -> Duration {
    let nanoseconds = Time::now().0.saturating_sub(received.0);
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meters::Meters;

    #[test]
    fn the_age_is_that_of_the_oldest_checkpoint_until_it_is_settled() {
        let meters = Meters::default();
        let mut clocks = Clocks::new(&meters.of("out"));
        let seconds = || meters.value("out", "unsettled_age_seconds");
        let ago = |seconds: i64| Time(Time::now().0 - seconds * 1_000_000_000);
        let (mut first, mut second) = (Stamps::default(), Stamps::default());
        clocks.begin(&mut first, ago(9000));
        first.add(ago(9000));
        first.made = Some(Instant::now());
        assert!(seconds() >= 8999);
        clocks.begin(&mut second, ago(100));
        second.made = Some(Instant::now());
        assert!(seconds() >= 8999);
        clocks.settle(&first);
        assert!((99..5000).contains(&seconds()));
        clocks.settle(&second);
        assert_eq!(seconds(), 0);
        let counts = meters.histograms().into_iter();
        let counts: Vec<_> = counts.map(|(_, name, it)| (name, it.count())).collect();
        assert_eq!(counts, [("end_to_end_seconds", 1), ("write_seconds", 2)]);
        // A checkpoint that a failed run dropped is settled with the next one.
        clocks.begin(&mut first, ago(9000));
        clocks.begin(&mut second, ago(100));
        clocks.settle(&second);
        assert_eq!(seconds(), 0);
        clocks.begin(&mut first, ago(9000));
        clocks.start_over();
        assert_eq!(seconds(), 0);
        // The wall clock has jumped back.
        clocks.begin(&mut first, ago(-9000));
        assert_eq!(seconds(), 0);
    }
}
