//! How far the files of a source are behind.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use millstream_pipeline::tables::ROWS_MAX;
use tokio::time::Instant;

use super::{common::TailMeters, identity::Inode, tracked::Tracked};

/// How often the largest lags are looked for.
const LAG_EVERY: Duration = Duration::from_secs(1);

/// Reports the files that are furthest behind, as long as any is.
#[derive(Debug, Default)]
pub(super) struct LagReport {
    at: Option<Instant>,
}

impl LagReport {
    /// When to look next; None while nothing is behind.
    pub(super) fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Files were found: looks at once.
    pub(super) fn look_now(&mut self) {
        self.at = Some(Instant::now());
    }

    /// A position has moved: looks soon.
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
