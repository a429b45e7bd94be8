//! What the readers of a source share with its run.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use millstream_pipeline::{meters::Meter, tables::Table};
use tokio::sync::{Notify, Semaphore};

use super::{heads::Heads, options::Options, reader::Ended, watch::Alarms};

/// What the readers of a source share.
pub(super) struct Common {
    pub options: Arc<Options>,
    /// A durable channel keeps the positions.
    pub durable: bool,
    pub heads: Heads,
    pub alarms: Option<Alarms>,
    /// Told when a position has moved.
    pub dirty: Notify,
    /// The positions are to be stored soon: of a file no mark is stored, or one was truncated.
    pub urgent: AtomicBool,
    /// Told when a reader does not find its file under its name.
    pub scan_wanted: Notify,
    pub lag: Meter,
    /// The largest lag of a file.
    pub lag_max: Meter,
    /// The files that are furthest behind.
    pub lags: Table,
    pub open_files: Meter,
    pub truncated: Meter,
    pub too_long: Meter,
    pub unreadable: Meter,
    /// Lines in which something was not of the text's encoding.
    pub garbled: Meter,
    /// Bytes of holes that were passed over.
    pub holes: Meter,
    /// Files that were removed or renamed.
    pub done: Meter,
    /// The right to inflate a file.
    pub inflating: Arc<Semaphore>,
    /// Files whose first position is not kept yet.
    pub announcing: AtomicUsize,
    pub ends: Mutex<Vec<Ended>>,
    pub ended: Notify,
}

impl Common {
    pub(super) fn announcing(&self) {
        self.announcing.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn announced(&self) {
        self.announcing.fetch_sub(1, Ordering::Relaxed);
        self.dirty.notify_one();
    }

    pub(super) fn end(&self, ended: Ended) {
        self.ends
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(ended);
        self.ended.notify_one();
    }
}

/// Tells of the end of a reader, also when it panics.
pub(super) struct EndGuard {
    pub common: Arc<Common>,
    pub ended: Option<Ended>,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        if let Some(ended) = self.ended.take() {
            self.common.end(ended);
        }
    }
}
