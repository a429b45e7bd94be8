//! Decides when the positions are written.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use millstream_pipeline::condition::{Condition, Trouble};
use tokio::time::Instant;

use super::{
    positions::{Positions, PositionsFile},
    signal::StoreSignal,
};

/// The delay between the first change of a position and the write. Also the delay after a failed write.
const STORE_WAIT: Duration = Duration::from_secs(1);
/// Replaces [`STORE_WAIT`] if the source sends to a durable channel and stored positions exist, because the stored positions
/// then only help to recognize files. If a change is urgent, the positions are still written immediately, but at most once per
/// [`STORE_WAIT`].
const STORE_WAIT_DURABLE: Duration = Duration::from_secs(10);
/// The longest interval between two stores. Positions are written even if none has moved, because the time of the last scan
/// is stored with them.
const STORE_EVERY: Duration = Duration::from_secs(60);

/// The stored positions of a source.
pub(super) struct Store {
    /// Locked only by the thread that writes.
    file: Arc<Mutex<PositionsFile>>,
    /// Whether a durable channel keeps the offsets, too.
    durable: bool,
    /// Whether stored positions exist.
    exists: bool,
    at: Option<Instant>,
    not_before: Instant,
    /// Raised while the positions cannot be written.
    failing: Condition,
}

impl Store {
    pub(super) fn new(
        file: PositionsFile,
        durable: bool,
        exists: bool,
        failing: Condition,
    ) -> Self {
        Self {
            file: Arc::new(Mutex::new(file)),
            durable,
            exists,
            at: None,
            not_before: Instant::now(),
            failing,
        }
    }

    /// Whether stored positions exist.
    pub(super) fn exists(&self) -> bool {
        self.exists
    }

    /// When the positions are due to be written.
    pub(super) fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Notes that a position has moved. `urgent`: a copy of the file can be recognized only once the position is stored.
    pub(super) fn moved(&mut self, urgent: bool) {
        let now = Instant::now();
        let at = match self.durable && self.exists {
            true if urgent => now.max(self.not_before),
            true => now + STORE_WAIT_DURABLE,
            false => now + STORE_WAIT,
        };
        self.at = Some(self.at.map_or(at, |before| before.min(at)));
    }

    /// Notes that a scan is finished. The positions are then written within [`STORE_EVERY`].
    pub(super) fn walked(&mut self) {
        self.at.get_or_insert(Instant::now() + STORE_EVERY);
    }

    /// Begins a store that is due. Returns false if the positions must not be written yet.
    pub(super) fn begin(&mut self, signal: &StoreSignal) -> bool {
        self.at = None;
        self.not_before = Instant::now() + STORE_WAIT;
        // If the first positions were stored before every file is announced, the next run would assume that a file without an
        // announcement appeared after the first start.
        if !self.exists && signal.is_announcing() {
            return false;
        }
        signal.clear_urgent();
        true
    }

    /// Writes the positions. If that fails, reports it and makes another store due.
    pub(super) async fn write(&mut self, positions: Positions, signal: &StoreSignal) {
        let file = self.file.clone();
        let stored = tokio::task::spawn_blocking(move || {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            file.store(&positions)
        });
        match stored.await {
            Ok(Ok(())) => {
                self.exists = true;
                self.failing.clear();
            }
            Ok(Err(error)) => {
                let text = format_args!("{error}; retrying");
                self.failing.raise(Trouble::Retrying, text);
                self.moved(signal.is_urgent());
            }
            Err(_) => self.moved(signal.is_urgent()),
        }
    }
}
