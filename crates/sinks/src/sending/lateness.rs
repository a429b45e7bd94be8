//! The meter `behind_seconds`: the age of the oldest record that a sink has taken but not delivered.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use millstream_pipeline::meters::Meter;

/// The age of each lane's oldest record; the meter shows the maximum. All lanes of a sink share it.
#[derive(Debug, Default)]
pub(crate) struct Lateness(Mutex<BTreeMap<usize, Duration>>);

impl Lateness {
    /// Notes the age of the oldest record in flight on `lane` and updates the meter.
    pub(crate) fn report(&self, lane: usize, age: Duration, meter: &Meter) {
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.insert(lane, age);
        meter.set(lanes.values().max().map_or(0, Duration::as_secs));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_meter_shows_the_lane_with_the_oldest_record() {
        let (lateness, meter) = (Lateness::default(), Meter::default());
        lateness.report(0, Duration::from_secs(5), &meter);
        lateness.report(1, Duration::from_secs(3), &meter);
        assert_eq!(meter.get(), 5);
        lateness.report(0, Duration::ZERO, &meter);
        assert_eq!(meter.get(), 3);
    }
}
