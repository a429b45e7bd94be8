//! Requests that wait for free space or for a sync, and the conditions under which they are cancelled.
//!
//! The kernel reports an interrupted request once, whatever the signal was. From then on the writer sleeps uninterruptibly until
//! it gets an answer: even SIGKILL does not end the wait. So after an interrupt, the source polls the state of the thread that
//! sent the request. Once a fatal signal is pending for that thread, the request is answered with EINTR. After any other signal
//! the request keeps waiting, as on other file systems.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

use super::process::is_dying;

/// The interval at which the thread of an interrupted request is polled.
const POLL: Duration = Duration::from_millis(50);

/// All waiting requests, by their unique number.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<HashMap<u64, Arc<Notify>>>);

impl Waiting {
    /// Handles the kernel's INTERRUPT for a request. Returns false if the request does not wait.
    pub(super) fn interrupt(&self, unique: u64) -> bool {
        let notify = self.lock().get(&unique).cloned();
        if let Some(notify) = &notify {
            notify.notify_one();
        }
        notify.is_some()
    }

    /// Waits until a request should be cancelled, because a fatal signal is pending for its thread or the thread is gone.
    pub(super) async fn given_up(&self, unique: u64, thread: u32) {
        let notify = Arc::new(Notify::new());
        self.lock().insert(unique, notify.clone());
        let _entry = Entry {
            waiting: self,
            unique,
        };
        notify.notified().await;
        while !is_dying(thread) {
            tokio::time::sleep(POLL).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a request from the table on drop.
struct Entry<'a> {
    waiting: &'a Waiting,
    unique: u64,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.waiting.lock().remove(&self.unique);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            // Thread 0 does not exist, so the request is cancelled immediately.
            let given_up = tokio::spawn(async move { waits.given_up(7, 0).await });
            tokio::task::yield_now().await;
            assert!(waiting.interrupt(7));
            given_up.await.unwrap();
            assert!(!waiting.interrupt(7));
        });
    }
}
