//! When the positions are written.

use std::{path::PathBuf, time::Duration};

use millstream_pipeline::condition::{Condition, Trouble};
use tokio::time::Instant;

use super::{
    positions::{self, Positions},
    signal::StoreSignal,
};

/// Positions are written this long after the first of them moved, and after a failure.
const STORE_WAIT: Duration = Duration::from_secs(1);
/// The same behind a durable channel, where they only help to recognize files. Urgent ones are written at once, but not more
/// often than every [`STORE_WAIT`].
const STORE_WAIT_DURABLE: Duration = Duration::from_secs(10);
/// Positions are written this often even if nothing moves: they say when the source last ran.
const STORE_EVERY: Duration = Duration::from_secs(60);

/// The stored positions of a source.
pub(super) struct Store {
    directory: PathBuf,
    /// A durable channel keeps the offsets, too.
    durable: bool,
    /// There are stored positions.
    exists: bool,
    at: Option<Instant>,
    not_before: Instant,
    /// Holds while the positions cannot be written.
    failing: Condition,
}

impl Store {
    pub(super) fn new(directory: PathBuf, durable: bool, exists: bool, failing: Condition) -> Self {
        Self {
            directory,
            durable,
            exists,
            at: None,
            not_before: Instant::now(),
            failing,
        }
    }

    /// Whether there are stored positions.
    pub(super) fn exists(&self) -> bool {
        self.exists
    }

    /// When the positions are to be written.
    pub(super) fn at(&self) -> Option<Instant> {
        self.at
    }

    /// A position has moved. `urgent`: it must be stored before a copy of its file can be recognized.
    pub(super) fn moved(&mut self, urgent: bool) {
        let now = Instant::now();
        let at = match self.durable && self.exists {
            true if urgent => now.max(self.not_before),
            true => now + STORE_WAIT_DURABLE,
            false => now + STORE_WAIT,
        };
        self.at = Some(self.at.map_or(at, |before| before.min(at)));
    }

    /// A walk is over: the positions are written within a minute.
    pub(super) fn walked(&mut self) {
        self.at.get_or_insert(Instant::now() + STORE_EVERY);
    }

    /// The time has come. False if the positions must not be written yet.
    pub(super) fn begin(&mut self, signal: &StoreSignal) -> bool {
        self.at = None;
        self.not_before = Instant::now() + STORE_WAIT;
        // A file whose first position is not announced yet must not look like one that appeared later.
        if !self.exists && signal.is_announcing() {
            return false;
        }
        signal.clear_urgent();
        true
    }

    /// Writes the positions; retries later if that fails.
    pub(super) async fn write(&mut self, positions: Positions, signal: &StoreSignal) {
        let directory = self.directory.clone();
        let stored =
            tokio::task::spawn_blocking(move || positions::store(&directory, &positions)).await;
        match stored {
            Ok(Ok(())) => {
                self.exists = true;
                self.failing.clear();
            }
            Ok(Err(error)) => {
                let directory = self.directory.display();
                let text =
                    format_args!("cannot write the positions to {directory}: {error}; retrying");
                self.failing.raise(Trouble::Retrying, text);
                self.moved(signal.is_urgent());
            }
            Err(_) => self.moved(signal.is_urgent()),
        }
    }
}
