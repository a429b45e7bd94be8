//! Looks for evidence that the active position is about to end the process.
//!
//! A process that is killed while a position is active need not have been killed because of it: operators and machines kill, too, and
//! every moment of a busy path belongs to some position. So a death counts only with evidence. The process gives it by its last signal
//! (`millstream_sys::last_words`), or this thread notes it beforehand: the position has occupied its thread for a long time, or the
//! process has taken much memory.

use std::{
    fs,
    sync::{Arc, Mutex, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use millstream_config::machine::memory_bytes;

use super::Shared;

/// The interval between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// A position that has occupied its thread for this long may have hung it. Then a kill of the process may be due to it.
const HANGS: Duration = Duration::from_secs(1);
/// Since the position began, the memory of the process has grown by at least this.
const GROWTH: u64 = 256 << 20;
const PAGE_BYTES: u64 = 4096;

/// The position that occupies a thread now.
pub(super) struct Work {
    path: Weak<super::Path>,
    since: Instant,
    memory: u64,
    is_suspect: bool,
}

impl Work {
    pub(super) fn new(path: &Arc<super::Path>) -> Self {
        Self {
            path: Arc::downgrade(path),
            since: Instant::now(),
            memory: memory(),
            is_suspect: false,
        }
    }

    pub(super) fn is_of(&self, path: &Arc<super::Path>) -> bool {
        self.path.as_ptr() == Arc::as_ptr(path)
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.is_suspect
    }

    #[cfg(test)]
    pub(super) fn suspected(&mut self) {
        self.is_suspect = true;
    }

    /// Whether the position hangs, or the process may soon be killed for its memory. `limit` is the memory that it may use.
    fn is_dangerous(&self, limit: u64) -> bool {
        self.since.elapsed() >= HANGS || is_much(self.memory, memory(), limit)
    }
}

fn is_much(before: u64, now: u64, limit: u64) -> bool {
    now >= before.saturating_add(GROWTH) || now >= limit / 4 * 3
}

/// Starts the thread that looks at the work of all paths, unless it runs. It ends when no path is in probation.
pub(super) fn start(shared: &Arc<Shared>) {
    let mut has_watch = shared
        .has_watch
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if *has_watch {
        return;
    }
    let (watched, limit) = (Arc::downgrade(shared), memory_bytes());
    let thread = thread::Builder::new().name("probation".to_owned());
    // Without the thread, only deaths by a signal of the process itself count.
    *has_watch = thread.spawn(move || while look(&watched, limit) {}).is_ok();
}

/// Looks once. Returns false if there is nothing more to watch.
fn look(shared: &Weak<Shared>, limit: u64) -> bool {
    thread::sleep(LOOK_EVERY);
    let Some(shared) = shared.upgrade() else {
        return false;
    };
    {
        let mut has_watch = shared
            .has_watch
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if shared.in_probation() == 0 {
            *has_watch = false;
            return false;
        }
    }
    note(&shared.work, limit);
    true
}

/// Notes the evidence against the active position.
fn note(work: &Mutex<Option<Work>>, limit: u64) {
    let mut work = work.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(work) = &mut *work
        && !work.is_suspect
        && work.is_dangerous(limit)
        && let Some(path) = work.path.upgrade()
    {
        work.is_suspect = path.mark().suspect().is_ok();
    }
}

/// The memory of this process that belongs to no file, in bytes; 0 if the system does not tell.
fn memory() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut fields = text.split(' ').skip(1);
    let mut pages = || fields.next()?.parse::<u64>().ok();
    let (resident, shared) = (pages().unwrap_or(0), pages().unwrap_or(0));
    resident.saturating_sub(shared) * PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_dangerous_near_the_limit_and_after_a_jump() {
        const MIB: u64 = 1 << 20;
        assert!(memory() > MIB);
        assert!(!is_much(100 * MIB, 300 * MIB, 512 * MIB));
        assert!(is_much(100 * MIB, 384 * MIB, 512 * MIB));
        assert!(is_much(100 * MIB, 356 * MIB, 64 << 30));
    }
}
