//! What a run writes down: the positions, and how far its files are behind.

use std::{
    cmp::Reverse,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use millstream_pipeline::{condition::Trouble, tables::ROWS_MAX};
use tokio::time::Instant;

use super::{
    positions::{self, Positions},
    run::Run,
    tracked::Tracked,
};

/// Positions are written this long after the first of them moved, and after a failure.
const STORE_WAIT: Duration = Duration::from_secs(1);
/// The same behind a durable channel, where they only help to recognise files. If it is urgent, they are written at once,
/// but not more often than every [`STORE_WAIT`].
const STORE_WAIT_DURABLE: Duration = Duration::from_secs(10);
/// They are written this often also when nothing moves: they say when the source last ran.
pub(super) const STORE_EVERY: Duration = Duration::from_secs(60);
/// How often the largest lags are looked for.
const LAG_EVERY: Duration = Duration::from_secs(1);

impl Run {
    /// A position has moved.
    pub(super) fn moved(&mut self) {
        self.store_soon();
        self.lag_at.get_or_insert(Instant::now() + LAG_EVERY);
    }

    /// The files that are furthest behind, as long as any is.
    pub(super) fn look_at_lag(&mut self) {
        let lags = self.files.values().map(|tracked| {
            let lag = tracked.lag.load(Ordering::Relaxed);
            (lag, tracked)
        });
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
        self.common.lags.set(behind.into_iter().map(row).collect());
        self.common.lag_max.set(most);
        self.lag_at = (most > 0).then(|| Instant::now() + LAG_EVERY);
    }

    pub(super) fn store_soon(&mut self) {
        let now = Instant::now();
        let urgent = self.common.urgent.load(Ordering::Relaxed);
        let at = match self.common.durable && self.had_run {
            true if urgent => now.max(self.store_not_before),
            true => now + STORE_WAIT_DURABLE,
            false => now + STORE_WAIT,
        };
        self.store_at = Some(self.store_at.map_or(at, |before| before.min(at)));
    }

    /// Writes the positions. Behind a durable channel they are not what a restart goes by, but they hold the marks.
    pub(super) async fn store(&mut self) {
        self.store_at = None;
        self.store_not_before = Instant::now() + STORE_WAIT;
        // A file of which nobody knows yet where it begins must not look like one that appeared since.
        if !self.had_run && self.common.announcing.load(Ordering::Relaxed) > 0 {
            return;
        }
        self.common.urgent.store(false, Ordering::Relaxed);
        for tracked in self.files.values() {
            let state = tracked.state();
            if let Some((id, mark)) = state.settled {
                self.known.set(id, mark, &state.path);
            }
        }
        let positions = Positions {
            ran: self.ran,
            entries: self.known.entries(),
            truncated: self.common.heads.truncated(),
        };
        let directory = self.context.directory.clone();
        let stored =
            tokio::task::spawn_blocking(move || positions::store(&directory, &positions)).await;
        match stored {
            Ok(Ok(())) => {
                self.had_run = true;
                self.unstored.clear();
            }
            Ok(Err(error)) => {
                let directory = self.context.directory.display();
                let text =
                    format_args!("cannot write the positions to {directory}: {error}; retrying");
                self.unstored.raise(Trouble::Retrying, text);
                self.store_soon();
            }
            Err(_) => self.store_soon(),
        }
    }
}
