//! The table of open files.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use millstream_pipeline::meters::Meter;
use rustix::io::Errno;

use super::open_file::OpenFile;

/// All open files, by handle.
pub(super) struct OpenFiles {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<OpenFile>>>,
    count: Meter,
}

impl OpenFiles {
    /// An empty table. The gauge `count` shows the number of open files.
    pub(super) fn new(count: Meter) -> Self {
        Self {
            next: AtomicU64::default(),
            open: Mutex::default(),
            count,
        }
    }

    /// A table with these files. The next file gets the handle `next`.
    pub(super) fn kept(count: Meter, (next, files): (u64, Vec<(u64, OpenFile)>)) -> Self {
        let files = files.into_iter();
        let open: HashMap<_, _> = files
            .map(|(handle, file)| (handle, Arc::new(file)))
            .collect();
        count.set(open.len() as u64);
        Self {
            next: AtomicU64::new(next),
            open: Mutex::new(open),
            count,
        }
    }

    /// The next handle, and all open files by their handles.
    pub(super) fn all(&self) -> (u64, Vec<(u64, Arc<OpenFile>)>) {
        let open = self.lock();
        let files = open.iter().map(|(handle, file)| (*handle, file.clone()));
        (self.next.load(Ordering::Relaxed), files.collect())
    }

    pub(super) fn add(&self, file: OpenFile) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut open = self.lock();
        open.insert(number, Arc::new(file));
        self.count.set(open.len() as u64);
        number
    }

    pub(super) fn get(&self, number: u64) -> Result<Arc<OpenFile>, Errno> {
        self.lock().get(&number).cloned().ok_or(Errno::BADF)
    }

    pub(super) fn remove(&self, number: u64) -> Option<Arc<OpenFile>> {
        let mut open = self.lock();
        let file = open.remove(&number);
        self.count.set(open.len() as u64);
        file
    }

    /// The open files of one node of the tree.
    pub(super) fn of_node(&self, node: u64) -> Vec<Arc<OpenFile>> {
        let open = self.lock();
        let of_node = open.values().filter(|file| file.node() == node);
        of_node.cloned().collect()
    }

    /// The open files whose lines are joined (framing `multiline`).
    pub(super) fn joining(&self) -> Vec<Arc<OpenFile>> {
        let open = self.lock();
        open.values().filter(|file| file.joins()).cloned().collect()
    }

    /// Removes and returns all open files.
    pub(super) fn drain(&self) -> Vec<Arc<OpenFile>> {
        self.lock().drain().map(|(_, file)| file).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<OpenFile>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
