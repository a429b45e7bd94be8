//! The files of a node that were set aside to be sent again.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{Store, streams::Streams};

/// Sets the files of a node aside, and removes them. Clones share the files.
#[derive(Clone)]
pub struct Aside(pub(super) Arc<Store>);

/// The turn of one replay. It ends when this is dropped.
pub(crate) struct Turn(Arc<Store>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.is_replayed.store(false, Ordering::Release);
    }
}

impl Aside {
    /// Begins a replay; `None` while another one runs.
    pub(crate) fn begin(&self) -> Option<Turn> {
        let taken: &AtomicBool = &self.0.is_replayed;
        let was_taken = taken.swap(true, Ordering::AcqRel);
        (!was_taken).then(|| Turn(self.0.clone()))
    }

    /// Renames the files with records, so that nothing is appended to them; returns them and those of replays that have not ended, the
    /// oldest first. Files with a part of a record stay.
    pub(crate) fn set_aside(&self) -> io::Result<Vec<PathBuf>> {
        self.streams(Streams::set_aside)
    }

    /// Removes a file whose records are settled. `left` are records that could not be sent: they are kept as new ones. A file that ends with a part of a
    /// record is only renamed.
    pub(crate) fn finish(&self, path: &Path, left: &[Vec<u8>], is_torn: bool) -> io::Result<()> {
        self.streams(|streams| streams.finish(path, left, is_torn))
    }

    fn streams<T>(&self, work: impl FnOnce(&mut Streams) -> io::Result<T>) -> io::Result<T> {
        let streams = self.0.streams.lock();
        work(&mut streams.unwrap_or_else(PoisonError::into_inner))
    }
}
