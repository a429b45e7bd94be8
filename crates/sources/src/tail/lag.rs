//! Reports the lags of the files of a source. The lag of a file is its number of unread bytes.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use millstream_pipeline::tables::ROWS_MAX;
use tokio::time::Instant;

use super::{identity::Inode, source_state::TailMeters, tracked::Tracked};

/// The interval at which the largest lags are determined.
const LAG_EVERY: Duration = Duration::from_secs(1);

/// Reports the files with the largest lags.
#[derive(Debug, Default)]
pub(super) struct LagReport {
    at: Option<Instant>,
}

impl LagReport {
    /// When [`LagReport::look`] is due. None while no file has unread bytes.
    pub(super) fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Makes the next look due now, because files were found.
    pub(super) fn look_now(&mut self) {
        self.at = Some(Instant::now());
    }

    /// Makes the next look due within a second, because a position has moved.
    pub(super) fn look_soon(&mut self) {
        self.at.get_or_insert(Instant::now() + LAG_EVERY);
    }

    /// Reports the largest lags.
    pub(super) fn look(&mut self, files: &HashMap<Inode, Arc<Tracked>>, meters: &TailMeters) {
        let lags = files
            .values()
            .map(|tracked| (tracked.lag.load(Ordering::Relaxed), tracked));
        let mut behind: Vec<_> = lags.filter(|(lag, _)| *lag > 0).collect();
        if behind.len() > ROWS_MAX {
            behind.select_nth_unstable_by_key(ROWS_MAX - 1, |(lag, _)| Reverse(*lag));
            behind.truncate(ROWS_MAX);
        }
        let most = behind.iter().map(|(lag, _)| *lag).max().unwrap_or(0);
        let row = |(lag, tracked): (u64, &Arc<Tracked>)| {
            let path = tracked.state().path.to_string_lossy().into_owned();
            (path, lag)
        };
        meters.lags.set(behind.into_iter().map(row).collect());
        meters.lag_max.set(most);
        self.at = (most > 0).then(|| Instant::now() + LAG_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use millstream_pipeline::meters::Meters;

    use super::*;

    #[test]
    fn the_largest_lag_is_reported_until_everything_is_read() {
        let meters = TailMeters::new(&Meters::default().of("in"));
        let inode = |number| Inode {
            device: 1,
            number,
            birth: 0,
        };
        let files: HashMap<_, _> = (0..3)
            .map(|number| {
                let inode = inode(number);
                (
                    inode,
                    Tracked::new(inode, format!("/{number}").into(), None),
                )
            })
            .collect();
        files[&inode(1)].lag.store(7, Ordering::Relaxed);
        let mut report = LagReport::default();
        report.look(&files, &meters);
        assert_eq!(meters.lag_max.get(), 7);
        assert!(report.at().is_some());
        files[&inode(1)].lag.store(0, Ordering::Relaxed);
        report.look(&files, &meters);
        assert_eq!((meters.lag_max.get(), report.at()), (0, None));
    }
}
