//! Which files may be open at the same time.
//!
//! The number of files that a process may open is limited (`RLIMIT_NOFILE`), and connections, segments, outputs and the API need
//! some, too. So every tailed file needs a turn to be open (`millstream_net::open_files`). If no turn is left, readers that have
//! nothing to read close their files, and readers of long files close them from time to time, so that the others get their turn.

use std::{
    pin::pin,
    sync::{
        LazyLock, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use millstream_net::open_files::{self, OpenFilePermit};
use tokio::sync::Notify;

/// While readers wait, a file is closed after this time even if there is more to read.
pub(super) const TURN: Duration = Duration::from_secs(2);
/// How often a reader that waits asks again. Turns that connections do not need become free without a notice.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// The readers of all sources that wait for a turn.
static WAITING: LazyLock<Waiting> = LazyLock::new(Waiting::default);

#[derive(Debug, Default)]
struct Waiting {
    readers: AtomicUsize,
    /// Notified once per reader that waits, for one reader that can close its file.
    wanted: Notify,
}

/// Counts a reader while it waits.
struct Queued;

impl Queued {
    fn new() -> Self {
        WAITING.readers.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        WAITING.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The right to have one file open.
#[derive(Debug)]
pub(super) struct Turn {
    _permit: OpenFilePermit,
    since: Instant,
}

impl Turn {
    fn new(permit: OpenFilePermit) -> Self {
        Self {
            _permit: permit,
            since: Instant::now(),
        }
    }

    /// A turn, if one is free.
    pub(super) fn now() -> Option<Self> {
        open_files::try_open().map(Self::new)
    }

    /// Waits for a turn.
    pub(super) async fn wait() -> Self {
        let _queued = Queued::new();
        let mut permit = pin!(open_files::open());
        loop {
            WAITING.wanted.notify_one();
            tokio::select! {
                permit = &mut permit => return Self::new(permit),
                () = tokio::time::sleep(ASK_EVERY) => {}
            }
            if let Some(turn) = Self::now() {
                return turn;
            }
        }
    }

    /// Whether the file has been open long enough.
    pub(super) fn is_over(&self) -> bool {
        self.since.elapsed() >= TURN
    }
}

/// Whether a reader waits for a turn.
pub(super) fn are_wanted() -> bool {
    WAITING.readers.load(Ordering::Relaxed) > 0
}

/// Waits until another reader needs a turn.
pub(super) async fn wanted() {
    loop {
        WAITING.wanted.notified().await;
        if are_wanted() {
            return;
        }
    }
}

/// The files of one source that wait for a turn.
#[derive(Debug, Default)]
pub(super) struct WaitingFiles {
    now: AtomicUsize,
    /// When a file last began to wait.
    last: Mutex<Option<Instant>>,
    changed: Notify,
}

impl WaitingFiles {
    /// Notes that a file waits until the result is dropped.
    pub(super) fn begin(&self) -> WaitingFile<'_> {
        self.now.fetch_add(1, Ordering::Relaxed);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.changed.notify_one();
        WaitingFile(self)
    }

    /// Waits until a file has begun to wait.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The number of files that wait now.
    pub(super) fn now(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    /// Whether no file has waited for `time`.
    pub(super) fn is_over(&self, time: Duration) -> bool {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        self.now() == 0 && last.is_none_or(|last| last.elapsed() >= time)
    }
}

/// A file that waits for a turn.
#[derive(Debug)]
pub(super) struct WaitingFile<'a>(&'a WaitingFiles);

impl Drop for WaitingFile<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_that_wait_are_counted_until_they_have_their_turn() {
        let files = WaitingFiles::default();
        assert!(files.is_over(Duration::ZERO));
        let waiting = files.begin();
        assert_eq!(files.now(), 1);
        assert!(!files.is_over(Duration::ZERO));
        drop(waiting);
        assert!(files.is_over(Duration::ZERO) && !files.is_over(Duration::from_secs(60)));
    }

    #[tokio::test]
    async fn a_free_turn_is_taken_without_waiting() {
        let turn = Turn::now().unwrap();
        assert!(!turn.is_over());
        assert!(!are_wanted());
    }
}
