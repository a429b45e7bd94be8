//! Requests that wait for free space or for a sync, and the conditions under which they are cancelled.
//!
//! The kernel reports an interrupted request once, whatever the signal was. From then on the writer sleeps uninterruptibly until
//! it gets an answer: even SIGKILL does not end the wait. So after an interrupt, the source polls the state of the thread that
//! sent the request. Once a signal that will end the process is pending for that thread, the request is answered with EINTR.
//! After any other signal the request keeps waiting, as on other file systems.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::{
    alias::{first_free, node_of},
    process::is_dying,
};

/// The first and the longest interval at which the thread of an interrupted request is polled. The interval doubles, so that many
/// interrupted requests that wait for a long time cost little.
const POLL: Duration = Duration::from_millis(20);
const POLL_MAX: Duration = Duration::from_millis(320);
/// A write that waits for longer than this may wait for very long.
pub(super) const SOON: Duration = Duration::from_millis(10);

/// All waiting requests, by their unique number.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    requests: Mutex<HashMap<u64, Request>>,
    /// Notified when a request no longer waits.
    ended: Notify,
}

/// A waiting request.
#[derive(Debug)]
struct Request {
    /// The number to which the request goes: a node or its alias.
    number: u64,
    since: Instant,
    /// Notified when the kernel interrupts the request.
    interrupted: Arc<Notify>,
}

impl Waiting {
    /// Handles the kernel's INTERRUPT for a request. Returns false if the request does not wait.
    pub(super) fn interrupt(&self, unique: u64) -> bool {
        let requests = self.lock();
        let request = requests.get(&unique);
        if let Some(request) = request {
            request.interrupted.notify_one();
        }
        request.is_some()
    }

    /// Waits until a request should be cancelled, because a fatal signal is pending for its thread or the thread is gone.
    pub(super) async fn given_up(&self, unique: u64, number: u64, thread: u32) {
        let interrupted = Arc::new(Notify::new());
        let request = Request {
            number,
            since: Instant::now(),
            interrupted: interrupted.clone(),
        };
        self.lock().insert(unique, request);
        let _entry = Entry {
            waiting: self,
            unique,
        };
        interrupted.notified().await;
        let mut interval = POLL;
        while !is_dying(thread) {
            tokio::time::sleep(interval).await;
            interval = POLL_MAX.min(interval * 2);
        }
    }

    /// The number under which the kernel gets to know a node: the first one to which no waiting request goes. `None` if a request
    /// to the node has begun to wait just now, unless `is_urgent`.
    pub(super) fn number_of(&self, node: u64, is_urgent: bool) -> Option<u64> {
        let requests = self.lock();
        let mut of_node = requests.values().filter(|it| node_of(it.number) == node);
        if !is_urgent && of_node.any(|request| request.since.elapsed() < SOON) {
            return None;
        }
        let is_used = |number| requests.values().any(|request| request.number == number);
        Some(first_free(node, is_used))
    }

    /// Waits until a request no longer waits.
    pub(super) async fn one_ended(&self) {
        self.ended.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Request>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.waiting.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_requests_that_wait_can_be_interrupted() {
        let waiting = Arc::new(Waiting::default());
        assert!(!waiting.interrupt(7));
        let waits = waiting.clone();
        // Thread 0 does not exist, so the request is cancelled immediately.
        let given_up = tokio::spawn(async move { waits.given_up(7, 20, 0).await });
        tokio::task::yield_now().await;
        assert!(waiting.interrupt(7));
        given_up.await.unwrap();
        assert!(!waiting.interrupt(7));
    }

    #[tokio::test]
    async fn a_file_gets_another_number_while_a_write_to_it_waits() {
        let waiting = Arc::new(Waiting::default());
        let waits = waiting.clone();
        let write = tokio::spawn(async move { waits.given_up(7, 20, 1).await });
        tokio::task::yield_now().await;
        assert_eq!(waiting.number_of(20, false), None);
        let alias = waiting.number_of(20, true).unwrap();
        assert_eq!((alias != 20, node_of(alias)), (true, 20));
        assert_eq!(waiting.number_of(21, false), Some(21));
        tokio::time::sleep(SOON).await;
        assert_eq!(waiting.number_of(20, false), Some(alias));
        write.abort();
        waiting.one_ended().await;
        assert_eq!(waiting.number_of(20, false), Some(20));
    }
}
