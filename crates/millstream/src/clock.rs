//! Watches the wall clock, and logs when it jumps.
//!
//! Records carry the time of the wall clock. So after a jump they go to other files than before, which an operator needs to know. Ages (of
//! channels, retries and rotation) are measured with clocks that never jump.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use millstream_pipeline::report::Reporter;
use millstream_record::Time;

/// The interval between two comparisons of the clocks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The smallest difference that counts as a jump. Time services correct smaller differences gradually.
const JUMP_MIN: Duration = Duration::from_secs(1);

/// Logs the jumps of the wall clock, at most one line for each direction in 10 s. Never returns.
pub async fn watch() {
    let reporter = Reporter::new("clock");
    let mut clocks = Clocks::new(Time::now(), Instant::now());
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let (wall, steady) = (Time::now(), Instant::now());
        let Some(jump) = clocks.compare(wall, steady) else {
            continue;
        };
        let (kind, way) = if jump.is_negative() {
            ("back", "back")
        } else {
            ("ahead", "ahead")
        };
        let now = Timestamp::from_nanosecond(i128::from(wall.0)).unwrap_or_default();
        reporter.warn(
            kind,
            format_args!(
                "the wall clock jumped {way} by {:#}, to {now:.0}: it was set, or this machine slept; records that are received from \
                 now on carry the new time",
                whole_seconds(jump)
            ),
        );
    }
}

/// The absolute value, rounded to whole seconds.
fn whole_seconds(jump: SignedDuration) -> SignedDuration {
    let half = SignedDuration::from_millis(500);
    SignedDuration::from_secs(jump.abs().saturating_add(half).as_secs())
}

/// The last readings of the wall clock and of a clock that never jumps.
struct Clocks {
    wall: Time,
    steady: Instant,
}

impl Clocks {
    fn new(wall: Time, steady: Instant) -> Self {
        Self { wall, steady }
    }

    /// How far the wall clock has jumped since the last reading; `None` if it has not jumped.
    fn compare(&mut self, wall: Time, steady: Instant) -> Option<SignedDuration> {
        let passed = steady.saturating_duration_since(self.steady);
        let passed = i64::try_from(passed.as_nanos()).unwrap_or(i64::MAX);
        let jump = wall.0.saturating_sub(self.wall.0).saturating_sub(passed);
        (self.wall, self.steady) = (wall, steady);
        let jump = SignedDuration::from_nanos(jump);
        (jump.unsigned_abs() >= JUMP_MIN).then_some(jump)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_is_reported_once_with_its_size_and_a_late_reading_is_no_jump() {
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let wall = |seconds: i64| Time::from_parts(1_000_000 + seconds, 0);
        let mut clocks = Clocks::new(wall(0), at(0));
        assert_eq!(clocks.compare(wall(1), at(1)), None);
        // The readings are an hour apart.
        assert_eq!(clocks.compare(wall(3601), at(3601)), None);
        let days = 3 * 24 * 3600;
        let jump = clocks.compare(wall(3602 + days), at(3602));
        assert_eq!(jump, Some(SignedDuration::from_secs(days)));
        assert_eq!(clocks.compare(wall(3603 + days), at(3603)), None);
        let back = clocks.compare(wall(3604), at(3604));
        assert_eq!(back, Some(SignedDuration::from_secs(-days)));
        assert_eq!(clocks.compare(wall(3605), at(3605)), None);
        let nearly = SignedDuration::from_millis(-1999);
        assert_eq!(whole_seconds(nearly), SignedDuration::from_secs(2));
    }
}
