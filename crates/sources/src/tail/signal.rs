//! Lets readers ask the run (`run.rs`) to store positions.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Notifies the run that positions have moved.
#[derive(Debug, Default)]
pub(super) struct StoreSignal {
    moved: Notify,
    urgent: AtomicBool,
    /// The number of readers that still have to announce the first position of their file. A durable channel must keep this
    /// position before any lines are sent.
    announcing: AtomicUsize,
}

impl StoreSignal {
    /// Waits until a position has moved since the last call.
    pub(super) async fn changed(&self) {
        self.moved.notified().await;
    }

    /// Notes that a position has moved.
    pub(super) fn moved(&self) {
        self.moved.notify_one();
    }

    /// Makes the next store urgent, because a file was truncated, or has no stored mark (a checksum by which copies are
    /// recognized).
    pub(super) fn set_urgent(&self) {
        self.urgent.store(true, Ordering::Relaxed);
    }

    /// Clears the urgency, because the positions are being stored.
    pub(super) fn clear_urgent(&self) {
        self.urgent.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_urgent(&self) -> bool {
        self.urgent.load(Ordering::Relaxed)
    }

    /// Notes that a reader will announce the first position of its file.
    pub(super) fn announcing(&self) {
        self.announcing.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a reader has announced the first position of its file, or does not need to.
    pub(super) fn announced(&self) {
        self.announcing.fetch_sub(1, Ordering::Relaxed);
        self.moved();
    }

    /// Whether an announcement is outstanding. While one is, the source must not store its first positions. Otherwise the next
    /// run would assume that a file without an announcement appeared after the first start, and would read this file from its
    /// beginning.
    pub(super) fn is_announcing(&self) -> bool {
        self.announcing.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_announced_position_asks_to_be_stored() {
        let signal = StoreSignal::default();
        signal.announcing();
        assert!(signal.is_announcing() && !signal.is_urgent());
        signal.announced();
        signal.changed().await;
        assert!(!signal.is_announcing());
        signal.set_urgent();
        assert!(signal.is_urgent());
        signal.clear_urgent();
        assert!(!signal.is_urgent());
    }
}
