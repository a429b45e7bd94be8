//! Histograms of latencies: fixed buckets, each an atomic that is touched once per batch.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// The upper bounds of the buckets; one more bucket holds everything above. The bounds suit short latencies (a batch in memory) as well as
/// long ones (a destination that answers after minutes).
pub const BOUNDS: [Duration; 16] = [
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2500),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
    Duration::from_secs(300),
];

const BUCKETS: usize = BOUNDS.len() + 1;

/// Counts durations by length. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Histogram(Arc<Buckets>);

#[derive(Debug, Default)]
struct Buckets {
    counts: [AtomicU64; BUCKETS],
    nanoseconds: AtomicU64,
}

/// The content of a histogram when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The number of durations in each bucket. The bucket with index `n` counts the durations above bound `n - 1` and up to bound `n`. The
    /// last bucket counts the durations above all bounds.
    pub counts: [u64; BUCKETS],
    /// The sum of all durations.
    pub sum: Duration,
}

impl Histogram {
    /// Counts one duration. A duration equal to a bound belongs to that bound's bucket.
    pub fn observe(&self, duration: Duration) {
        let bucket = BOUNDS.partition_point(|bound| *bound < duration);
        self.0.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.0.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Reads all counts.
    pub fn read(&self) -> Reading {
        let mut counts = [0; BUCKETS];
        for (count, bucket) in counts.iter_mut().zip(&self.0.counts) {
            *count = bucket.load(Ordering::Relaxed);
        }
        Reading {
            counts,
            sum: Duration::from_nanos(self.0.nanoseconds.load(Ordering::Relaxed)),
        }
    }
}

impl Reading {
    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_equal_to_a_bound_is_counted_in_the_bucket_of_that_bound() {
        let histogram = Histogram::default();
        for milliseconds in [0, 1, 2, 3, 600_000] {
            histogram.observe(Duration::from_millis(milliseconds));
        }
        let reading = histogram.clone().read();
        assert_eq!(reading.counts[..4], [2, 1, 1, 0]);
        assert_eq!(reading.counts[BUCKETS - 1], 1);
        assert_eq!(reading.count(), 5);
        assert_eq!(reading.sum, Duration::from_millis(600_006));
    }

    #[test]
    fn the_bounds_are_in_ascending_order() {
        assert!(BOUNDS.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
