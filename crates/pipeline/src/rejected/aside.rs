//! Sets the files of a node aside for a replay (their records are sent again): renames them, so that new rejected records go to other
//! files.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{Store, streams::Streams};

/// Renames the files of a node for a replay, and removes them afterwards. Clones share the files.
#[derive(Clone)]
pub struct Aside(pub(super) Arc<Store>);

/// The right to replay the files of a node. Dropping it ends the replay.
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

    /// Renames the files that hold records, so that nothing more is appended to them. Returns these files and those of unfinished replays,
    /// the oldest first. Leaves out files with `.torn-` in their names.
    pub(crate) fn set_aside(&self) -> io::Result<Vec<PathBuf>> {
        self.streams(Streams::set_aside)
    }

    /// Removes a file whose records are settled. `left` has the records that could not be sent; they are first appended to the
    /// node's current file. If the file ends with an incomplete record (`is_torn`), it is renamed instead of removed.
    pub(crate) fn finish(&self, path: &Path, left: &[Vec<u8>], is_torn: bool) -> io::Result<()> {
        self.streams(|streams| streams.finish(path, left, is_torn))
    }

    fn streams<T>(&self, work: impl FnOnce(&mut Streams) -> io::Result<T>) -> io::Result<T> {
        let streams = self.0.streams.lock();
        work(&mut streams.unwrap_or_else(PoisonError::into_inner))
    }
}
