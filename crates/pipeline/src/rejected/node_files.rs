//! The files of one node. A replay, which sends the records of these files again, first sets the files aside: it renames them, so that
//! new rejected records go to other files.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use millstream_config::{RejectedLimits, WhenRejectedFull};
use millstream_sys::disk::HostDisk;

use super::{PIECES, streams::Streams};

/// The files of one node. Clones share them. A node that leaves the graph and comes back writes rejected records from two chains, for as
/// long as batches pass through its old one. Both must share these files, because [`Streams`] removes bytes at the end of a file that it
/// has not written.
#[derive(Clone)]
pub struct NodeFiles(Arc<Shared>);

struct Shared {
    directory: PathBuf,
    streams: Mutex<Streams>,
    /// Whether a replay of these files runs.
    is_replayed: AtomicBool,
}

/// The right to replay the files of a node. Dropping it ends the replay.
pub(crate) struct Turn(NodeFiles);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.0.is_replayed.store(false, Ordering::Release);
    }
}

impl NodeFiles {
    /// The files of one node, in the directory that all nodes share.
    pub fn new(directory: PathBuf, node: &str, limits: &RejectedLimits) -> Self {
        let disk = Arc::new(HostDisk);
        let rotate_bytes = (limits.full == WhenRejectedFull::DropOldest)
            .then(|| limits.peer_max.as_bytes() / PIECES);
        Self(Arc::new(Shared {
            streams: Mutex::new(Streams::new(disk, directory.clone(), node, rotate_bytes)),
            directory,
            is_replayed: AtomicBool::new(false),
        }))
    }

    /// Whether there are other handles to these files.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    pub(super) fn directory(&self) -> &Path {
        &self.0.directory
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Streams> {
        let streams = self.0.streams.lock();
        streams.unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a replay; `None` while another one runs.
    pub(crate) fn begin(&self) -> Option<Turn> {
        let was_taken = self.0.is_replayed.swap(true, Ordering::AcqRel);
        (!was_taken).then(|| Turn(self.clone()))
    }

    /// Renames the files that hold at least one whole record, so that nothing more is appended to them. Returns these files and those of unfinished
    /// replays, the oldest first.
    pub(crate) fn set_aside(&self) -> io::Result<Vec<PathBuf>> {
        self.lock().set_aside()
    }

    /// Removes a file whose records are settled. `left` has the records that could not be sent; they are first appended to the
    /// node's current file. The last `partial` bytes of the file, an incomplete record, are first copied to another file.
    pub(crate) fn finish(&self, path: &Path, left: &[Vec<u8>], partial: u64) -> io::Result<()> {
        self.lock().finish(path, left, partial)
    }
}
