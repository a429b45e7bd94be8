//! The readers that have ended, for `run.rs` to collect.

use std::sync::{Arc, Mutex, PoisonError};

use millstream_record::FileId;
use tokio::sync::Notify;

use super::identity::{Inode, Mark, Seen};

/// How a reader ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    /// The inode that the reader read.
    pub inode: Inode,
    /// Where reading resumes. None if nothing was sent and no earlier position is known.
    pub left_at: Option<(FileId, Mark)>,
    /// The length of the file, if more of it is expected, because the source stops. None if the reader is done with the file.
    pub left: Option<u64>,
    /// False if the reader panicked.
    pub in_order: bool,
    /// The state of a file that needs no reader until it changes: a compressed file that was read completely, or a renamed file of
    /// which only unwritten bytes are left.
    pub read: Option<Seen>,
    /// Whether the file was overwritten, so that it must not be read again.
    pub overwritten: bool,
}

/// The readers that ended since `run.rs` last called [`Ends::drain`].
#[derive(Debug, Default)]
pub(super) struct Ends {
    ended: Mutex<Vec<Ended>>,
    added: Notify,
}

impl Ends {
    /// Waits until a reader has ended since the last call.
    pub(super) async fn changed(&self) {
        self.added.notified().await;
    }

    /// Removes and returns the readers that have ended since the last call.
    pub(super) fn drain(&self) -> Vec<Ended> {
        std::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, ended: Ended) {
        self.ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(ended);
        self.added.notify_one();
    }
}

/// Reports the end of a reader when the guard is dropped. So the end is reported even if the reader panics.
pub(super) struct EndGuard {
    ends: Arc<Ends>,
    ended: Option<Ended>,
}

impl EndGuard {
    /// Reports `panicked` on drop, unless [`EndGuard::finish`] is called.
    pub(super) fn new(ends: Arc<Ends>, panicked: Ended) -> Self {
        Self {
            ends,
            ended: Some(panicked),
        }
    }

    /// Reports how the reader returned.
    pub(super) fn finish(mut self, ended: Ended) {
        self.ended = Some(ended);
    }
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        if let Some(ended) = self.ended.take() {
            self.ends.add(ended);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(in_order: bool) -> Ended {
        Ended {
            inode: Inode {
                device: 1,
                number: 2,
                birth: 3,
            },
            left_at: None,
            left: None,
            in_order,
            read: None,
            overwritten: false,
        }
    }

    #[tokio::test]
    async fn the_ends_of_readers_that_panic_and_return_are_reported() {
        let ends = Arc::new(Ends::default());
        drop(EndGuard::new(ends.clone(), end(false)));
        EndGuard::new(ends.clone(), end(false)).finish(end(true));
        ends.changed().await;
        let in_order: Vec<_> = ends.drain().iter().map(|ended| ended.in_order).collect();
        assert_eq!(in_order, [false, true]);
        assert!(ends.drain().is_empty());
    }
}
