//! Calls fdatasync on many files, several at a time: the file system then commits its journal once for all of them.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `encode -> write -> [settle]`

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use millstream_sys::disk::File;

/// Fewer files than this are synced one after the other: starting threads would cost as much time as they save.
const FILES_MIN: usize = 8;
/// Number of files that are synced at a time.
const THREADS: usize = 16;

/// Syncs all files. An error names the first file that failed, by its index.
pub(super) fn sync_all(files: &[Arc<dyn File>]) -> Result<(), (usize, io::Error)> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    let work = || {
        while let Some((place, file)) = next_of(files, &next) {
            if let Err(error) = file.sync() {
                failed
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get_or_insert((place, error));
                return;
            }
        }
    };
    if files.len() < FILES_MIN {
        work();
    } else {
        thread::scope(|scope| {
            for _ in 1..THREADS.min(files.len()) {
                // If no thread can be started, the current thread does all the work.
                let _ = thread::Builder::new()
                    .name("file-sync".to_owned())
                    .spawn_scoped(scope, work);
            }
            work();
        });
    }
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        None => Ok(()),
        Some(failed) => Err(failed),
    }
}

fn next_of<'a>(
    files: &'a [Arc<dyn File>],
    next: &AtomicUsize,
) -> Option<(usize, &'a Arc<dyn File>)> {
    let place = next.fetch_add(1, Ordering::Relaxed);
    Some((place, files.get(place)?))
}
