//! Estimates the CPU time of a task.

use std::time::Duration;

use millstream_sys::thread_time;

use crate::meters::{Meter, TimeMeter};

/// The task measures at least every batch of this number. The number is prime, so that a regular order of small and large batches
/// rarely has an effect on the sample: only if it repeats after a multiple of this number.
const EVERY_MAX: u64 = 31;

/// Estimates the CPU time of a task from a sample of its batches, because measuring every batch would double the time for small ones.
/// A measured batch also stands for the batches that were not measured since the last one.
#[derive(Debug)]
pub(super) struct CpuTime {
    meter: TimeMeter,
    /// The number of batches since the last measured batch.
    since: u64,
    /// The number of batches from one measured batch to the next. It grows from 1, so that the estimate is also good for a few batches.
    every: u64,
}

impl CpuTime {
    pub(super) fn new(meter: Meter) -> Self {
        Self {
            meter: TimeMeter::new(meter),
            since: 0,
            every: 1,
        }
    }

    /// Begins a batch. Returns the CPU time of the thread if the batch is measured.
    pub(super) fn begin(&mut self) -> Option<Duration> {
        self.since += 1;
        (self.since >= self.every).then(thread_time::of_this_thread)
    }

    /// Ends a measured batch, which began at `began`.
    pub(super) fn end(&mut self, began: Duration) {
        self.count(thread_time::of_this_thread().saturating_sub(began));
    }

    fn count(&mut self, used: Duration) {
        let nanos = u64::try_from(used.as_nanos()).unwrap_or(0);
        self.meter.add(nanos.saturating_mul(self.since));
        self.since = 0;
        self.every = EVERY_MAX.min(self.every + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_of_batches_stands_for_all_of_them() {
        let meter = Meter::default();
        let mut cpu = CpuTime::new(meter.clone());
        let mut measured = 0;
        for batch in 1..=10_000_u64 {
            if cpu.begin().is_some() {
                measured += 1;
                // Two of three batches are small.
                let micros = if batch % 3 == 0 { 10 } else { 1 };
                cpu.count(Duration::from_micros(micros));
            }
            if batch == 1 {
                assert_eq!(meter.get(), 1);
            }
        }
        assert!((300..400).contains(&measured), "{measured}");
        let estimate = meter.get();
        assert!((36_000..44_000).contains(&estimate), "{estimate}");
    }
}
