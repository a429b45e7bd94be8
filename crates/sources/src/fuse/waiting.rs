//! Requests that have to wait, and how they are given up.
//!
//! The kernel says once that a request is interrupted, whatever the signal was, and after that a writer waits so that not
//! even SIGKILL gets it out before we answer. So an interrupted request is looked after from then on: when its thread is
//! about to die it is answered with EINTR; any other signal finds it waiting, as on other file systems.

use std::{
    collections::HashMap,
    fs,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

/// How often an interrupted writer is looked after.
const LOOK: Duration = Duration::from_millis(50);
/// SIGKILL in the masks of /proc; every signal that ends a process becomes it.
const KILL_BIT: u64 = 1 << 8;

/// All requests that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<HashMap<u64, Arc<Notify>>>);

impl Waiting {
    /// The kernel says that a request is no longer waited for; whether it is one that waits.
    pub(super) fn interrupt(&self, unique: u64) -> bool {
        let found = self.lock().get(&unique).cloned();
        if let Some(notify) = &found {
            notify.notify_one();
        }
        found.is_some()
    }

    /// Returns when a request should be given up.
    pub(super) async fn given_up(&self, unique: u64, thread: u32) {
        let notify = Arc::new(Notify::new());
        self.lock().insert(unique, notify.clone());
        let _entry = Entry {
            waiting: self,
            unique,
        };
        notify.notified().await;
        while !is_dying(thread) {
            tokio::time::sleep(LOOK).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a request out of the table when its wait ends, however it does.
struct Entry<'a> {
    waiting: &'a Waiting,
    unique: u64,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.waiting.lock().remove(&self.unique);
    }
}

/// Whether a thread is about to die, or is not ours to see.
fn is_dying(thread: u32) -> bool {
    let Some(status) = status(thread) else {
        return true;
    };
    ["SigPnd:", "ShdPnd:"].iter().any(|name| {
        let mask = field(&status, name).and_then(|mask| u64::from_str_radix(mask, 16).ok());
        mask.is_none_or(|mask| mask & KILL_BIT != 0)
    })
}

/// The process that a thread belongs to.
pub(super) fn process_of(thread: u32) -> Option<u32> {
    field(&status(thread)?, "Tgid:")?.parse().ok()
}

fn status(thread: u32) -> Option<String> {
    // Thread ids are found there as process ids are.
    fs::read_to_string(format!("/proc/{thread}/status")).ok()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let value = status.lines().find_map(|line| line.strip_prefix(name));
    value.map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_known_to_live_and_whose_it_is() {
        let thread = std::process::id();
        assert!(!is_dying(thread));
        assert_eq!(process_of(thread), Some(thread));
        assert!(is_dying(0));
        assert_eq!(process_of(0), None);
    }

    #[test]
    fn only_requests_that_wait_can_be_interrupted() {
        let waiting = Arc::new(Waiting::default());
        assert!(!waiting.interrupt(7));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let waits = waiting.clone();
            // Thread 0 is nobody: it is given up at once.
            let given_up = tokio::spawn(async move { waits.given_up(7, 0).await });
            tokio::task::yield_now().await;
            assert!(waiting.interrupt(7));
            given_up.await.unwrap();
            assert!(!waiting.interrupt(7));
        });
    }
}
