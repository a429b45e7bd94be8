//! Times with nanoseconds.

use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970-01-01T00:00:00Z; from 1677 to 2262.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub i64);

impl Time {
    /// The current time of the wall clock.
    pub fn now() -> Self {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
    }

    /// From whole seconds and nanoseconds (0 to 999,999,999). A time out of range becomes the nearest one in range.
    pub fn from_parts(seconds: i64, nanos: u32) -> Self {
        Self(
            seconds
                .saturating_mul(1_000_000_000)
                .saturating_add(i64::from(nanos)),
        )
    }

    /// Whole seconds, rounded down.
    pub fn seconds(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }

    /// The nanoseconds within the second.
    pub fn subsec_nanos(self) -> u32 {
        u32::try_from(self.0.rem_euclid(1_000_000_000)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::Time;

    #[test]
    fn times_before_1970_round_down() {
        assert_eq!(Time::from_parts(-1, 5).seconds(), -1);
        assert_eq!(Time::from_parts(-1, 5).subsec_nanos(), 5);
    }
}
