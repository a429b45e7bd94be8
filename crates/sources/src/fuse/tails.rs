//! Unfinished lines of all open files take a part of the memory and no more.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Unfinished bytes of all open files together.
#[derive(Debug)]
pub(super) struct Tails {
    pub bytes: AtomicUsize,
    pub bytes_max: usize,
}

impl Tails {
    pub(super) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn change(&self, before: usize, after: usize) {
        if after >= before {
            self.add(after - before);
        } else {
            self.bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    pub(super) fn are_full(&self, more: usize) -> bool {
        self.bytes.load(Ordering::Relaxed).saturating_add(more) > self.bytes_max
    }
}
