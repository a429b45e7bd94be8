//! The time until a channel or its disk is full, if both fill up as fast as in the last minute.

use std::collections::VecDeque;

/// The samples that decide, one per second.
const SAMPLES: usize = 60;
/// With fewer samples nothing is foretold.
const SAMPLES_MIN: usize = 15;
/// A longer time is not shown, because it is too uncertain.
const SECONDS_MAX: f32 = 24.0 * 3600.0;

/// Whether the channel or its disk is full first, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Full {
    /// The time until then.
    pub seconds: u64,
    /// `channel` or `disk`.
    pub of: &'static str,
}

/// The space of a channel.
#[derive(Clone, Copy, Default)]
pub struct Space {
    /// The meters `used_bytes` and `size_max_bytes`.
    pub used: Option<u64>,
    /// See `used`.
    pub limit: Option<u64>,
    /// The free bytes of the disk.
    pub free: Option<u64>,
}

impl Space {
    /// `backlogs` and `frees` are samples, one per second: what the channel's slowest consumer has not settled, and what the disk has free.
    pub fn full_in(self, backlogs: &VecDeque<f32>, frees: &VecDeque<f32>) -> Option<Full> {
        let backlog = *backlogs.back()?;
        let (used, limit) = (self.used? as f32, self.limit? as f32);
        let grows = growth(backlogs);
        // A partly settled segment still takes its whole size: what is taken lies between the backlog and the size of the files.
        let room = (limit - (used + backlog) / 2.0).max(0.0);
        let channel = grows.map(|rate| (room / rate, "channel"));
        let shrinks: VecDeque<f32> = frees.iter().map(|free| -free).collect();
        let disk = growth(&shrinks).zip(self.free);
        let disk = disk.map(|(rate, free)| (free as f32 / rate, "disk"));
        let (seconds, of) = channel
            .into_iter()
            .chain(disk)
            .min_by(|a, b| a.0.total_cmp(&b.0))?;
        (seconds <= SECONDS_MAX).then_some(Full {
            seconds: seconds as u64,
            of,
        })
    }
}

/// The growth per second in the last minute. `None` if the samples do not grow throughout, or were higher before: a sink that delivers at
/// intervals makes its backlog rise and fall.
fn growth(samples: &VecDeque<f32>) -> Option<f32> {
    let count = samples.len().min(SAMPLES);
    let last = *samples.back()?;
    if count < SAMPLES_MIN || samples.iter().any(|earlier| *earlier > last) {
        return None;
    }
    let third = count / 3;
    let mean = |from_end: usize| {
        let part = samples.iter().rev().skip(from_end).take(third);
        part.sum::<f32>() / third as f32
    };
    let [end, middle, begin] = [0, third, 2 * third].map(mean);
    let rate = (end - begin) / (2 * third) as f32;
    (begin < middle && middle < end && rate > 0.0).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: f32 = (1u64 << 30) as f32;

    fn space(used: f32, free: f32) -> Space {
        Space {
            used: Some(used as u64),
            limit: Some(10 << 30),
            free: Some(free as u64),
        }
    }

    fn line(begin: f32, step: f32) -> VecDeque<f32> {
        (0..120u16).map(|at| begin + step * f32::from(at)).collect()
    }

    #[test]
    fn the_channel_or_its_disk_is_named_with_the_time_until_it_is_full() {
        let step = GIB / 100.0;
        let backlogs = line(0.0, step);
        let used = *backlogs.back().unwrap();
        // 10 GiB minus 1.19 GiB, at a hundredth of a GiB per second.
        let frees = line(50.0 * GIB, -step);
        let full = space(used, 50.0 * GIB).full_in(&backlogs, &frees).unwrap();
        assert_eq!(full.of, "channel");
        assert!(full.seconds.abs_diff(881) < 3, "{full:?}");
        let frees = line(3.19 * GIB, -step);
        let full = space(used, 2.0 * GIB).full_in(&backlogs, &frees).unwrap();
        assert_eq!(full.of, "disk");
        assert!(full.seconds.abs_diff(200) < 3, "{full:?}");
        // Another program fills the disk.
        let full = space(0.0, 2.0 * GIB)
            .full_in(&line(0.0, 0.0), &frees)
            .unwrap();
        assert_eq!((full.of, full.seconds.abs_diff(200) < 3), ("disk", true));
    }

    #[test]
    fn nothing_is_foretold_without_steady_growth() {
        let flat = line(GIB, 0.0);
        let full = |backlogs: &VecDeque<f32>| space(GIB, GIB).full_in(backlogs, &flat);
        assert_eq!(full(&flat), None);
        assert_eq!(full(&line(GIB, -1000.0)), None);
        assert_eq!(full(&VecDeque::new()), None);
        // A sink that publishes every 90 seconds.
        for phase in 0..90 {
            let teeth = (0..300)
                .map(|at| ((at + phase) % 90) as f32 * 1e6)
                .collect();
            let is_peak = (300 + phase - 1) % 90 == 89;
            assert!(full(&teeth).is_none() || is_peak, "{phase}");
        }
        // A day and more is not foretold.
        assert_eq!(full(&line(0.0, 1.0)), None);
    }
}
