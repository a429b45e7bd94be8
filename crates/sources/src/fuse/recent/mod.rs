//! The written data that can be read back. Each file of the mount has a *spill*: a separate file with the data, in
//! `data_dir/sources/NAME/recent`. Its name is the number of the node.
//!
//! A spill also holds the name of its file (`head.rs`). So after a restart, and after a crash, the files are in the mount again,
//! with the same node numbers. Nothing of them is shipped again.
//!
//! The spills are bounded. Of a file, the last `file` bytes stay. If all spills together exceed `all`, or if the file system has
//! little free space, the data of the files that were written or read longest ago are dropped. Dropped data read as zeros, and
//! SEEK_DATA shows them as a hole. A spill that cannot be written never fails a `write`.

mod head;
mod spill;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    fs, io,
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use millstream_pipeline::{failure::Failure, meters::Meter, report::Reporter};
use millstream_record::Time;
use tokio::sync::{Notify, Semaphore};

use head::HEAD_BYTES;
pub(super) use head::Head;
pub(super) use spill::{Spill, mask};

/// The number of spills that are open at a time. Others are opened when they are needed.
const OPEN_MAX: usize = 128;
/// Data that is written behind its `write` may take this much memory, for all files together.
const BEHIND_BYTES: usize = 32 << 20;
/// While the file system has less free space than its tenth, but at most this, data are dropped and none are added.
const RESERVE_BYTES_MAX: u64 = 2 << 30;
/// After this many bytes, the free space is looked at again.
const LOOK_BYTES: u64 = 16 << 20;
/// The interval at which the bounds are checked.
const CHECK: Duration = Duration::from_secs(1);

/// The amount of written data that can be read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// The number of bytes at the end of each file that can be read back.
    pub file: u64,
    /// The maximum number of bytes of all files together.
    pub all: u64,
}

/// The spills of all files.
#[derive(Debug)]
pub(super) struct Recent {
    directory: PathBuf,
    limits: Mutex<Limits>,
    spills: Mutex<HashMap<u64, Weak<Spill>>>,
    /// The spills that are open, in the order in which they were opened.
    open: Mutex<VecDeque<Weak<Spill>>>,
    /// The numbers of spills to delete.
    unwanted: Mutex<Vec<u64>>,
    /// An upper bound of the bytes that all spills take.
    held: AtomicU64,
    /// Counts writes and reads, so that the spills can be sorted by their last use.
    clock: AtomicU64,
    /// The bytes until the free space is looked at again.
    unlooked: AtomicU64,
    /// Whether the file system has too little free space.
    is_short: AtomicBool,
    /// The memory for data that is written behind its `write`, in KiB.
    behind: Arc<Semaphore>,
    /// Wakes [`Recent::keep_bounds`].
    check: Notify,
    reporter: Reporter,
    bytes: Meter,
}

/// A file or symbolic link of an earlier run.
#[derive(Debug)]
pub(super) struct Restored {
    pub number: u64,
    pub head: Head,
    pub size: u64,
    /// The time of the last write.
    pub written: Time,
    pub spill: Arc<Spill>,
    /// The time of the last change. If two spills have the same path, the older one was being replaced.
    changed: (i64, i64),
}

impl Recent {
    /// Opens the directory, and finds the files of an earlier run. Deletes the spills of files that have no name, except for the
    /// nodes in `keep`. The gauge `bytes` shows the bytes that all spills take. Files are in the order of their last change.
    pub(super) fn open(
        directory: PathBuf,
        limits: Limits,
        keep: &[u64],
        reporter: Reporter,
        bytes: Meter,
    ) -> Result<(Arc<Self>, Vec<Restored>), Failure> {
        let failed = |error: io::Error| {
            let place = directory.display();
            let text = format!("{place}, which keeps written data readable: {error}");
            Failure::disk(text)
        };
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(&directory).map_err(failed)?;
        let private = fs::Permissions::from_mode(0o700);
        fs::set_permissions(&directory, private).map_err(failed)?;
        let recent = Arc::new(Self {
            directory: directory.clone(),
            limits: Mutex::new(limits),
            spills: Mutex::default(),
            open: Mutex::default(),
            unwanted: Mutex::default(),
            held: AtomicU64::new(0),
            clock: AtomicU64::new(0),
            unlooked: AtomicU64::new(0),
            is_short: AtomicBool::new(false),
            behind: Arc::new(Semaphore::new(BEHIND_BYTES >> 10)),
            check: Notify::new(),
            reporter,
            bytes,
        });
        let mut restored = Vec::new();
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let Some(number) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            match recent.restore(number) {
                Ok(Some(found)) => restored.push(found),
                Ok(None) if keep.contains(&number) => {}
                Ok(None) => lock(&recent.unwanted).push(number),
                Err(error) => {
                    let path = recent.path(number);
                    let text = format_args!("cannot read back {}: {error}", path.display());
                    recent.reporter.error("recent", text);
                }
            }
        }
        restored.sort_by_key(|found| (found.changed, found.number));
        for found in &restored {
            found.spill.note_use();
        }
        // Their numbers may be given to new files.
        recent.delete_unwanted();
        Ok((recent, restored))
    }

    fn limits(&self) -> Limits {
        *lock(&self.limits)
    }

    /// Changes the bounds.
    pub(super) fn change(&self, limits: Limits) {
        *lock(&self.limits) = limits;
        self.check.notify_one();
    }

    /// The spill of a node. Nothing is written yet.
    pub(super) fn spill(self: &Arc<Self>, number: u64) -> Arc<Spill> {
        let spill = Arc::new(Spill::new(number, self.clone()));
        lock(&self.spills).insert(number, Arc::downgrade(&spill));
        spill
    }

    /// Keeps the bounds: drops data, and deletes the spills of files that were removed. Never returns.
    pub(super) async fn keep_bounds(self: Arc<Self>) {
        loop {
            let recent = self.clone();
            let _ = tokio::task::spawn_blocking(move || recent.shed()).await;
            tokio::select! {
                () = self.check.notified() => {}
                () = tokio::time::sleep(CHECK) => {}
            }
        }
    }

    /// Keeps the bounds once.
    fn shed(&self) {
        self.delete_unwanted();
        self.look_at_free_space();
        let is_over = || self.held.load(Relaxed) > self.limits().all || self.is_short.load(Relaxed);
        if is_over() {
            let spills: Vec<_> = lock(&self.spills).values().cloned().collect();
            let mut spills: Vec<_> = spills.iter().filter_map(Weak::upgrade).collect();
            spills.sort_by_key(|spill| spill.last_use());
            for spill in &spills {
                spill.measure();
            }
            // Some space stays free, so that the next writes do not exceed the bound at once.
            let low = self.limits().all - self.limits().all / 8;
            if is_over() {
                for spill in spills {
                    if self.held.load(Relaxed) <= low && !self.is_short.load(Relaxed) {
                        break;
                    }
                    if spill.held() > 0 {
                        spill.drop_data();
                        self.look_at_free_space();
                    }
                }
            }
        }
        self.delete_unwanted();
        self.bytes.set(self.held.load(Relaxed));
    }

    fn delete_unwanted(&self) {
        let unwanted = std::mem::take(&mut *lock(&self.unwanted));
        for number in unwanted {
            let path = self.path(number);
            if let Err(error) = fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                let text = format_args!("cannot remove {}: {error}", path.display());
                self.reporter.error("recent", text);
            }
        }
    }

    /// Finds out whether the file system has too little free space. An error counts as enough: writes then show what is wrong.
    fn look_at_free_space(&self) {
        self.unlooked.store(0, Relaxed);
        let Ok(space) = rustix::fs::statvfs(&self.directory) else {
            return;
        };
        let reserve = (space.f_blocks * space.f_frsize / 10).min(RESERVE_BYTES_MAX);
        let is_short = space.f_bavail * space.f_frsize < reserve;
        if is_short && !self.is_short.swap(is_short, Relaxed) {
            self.check.notify_one();
            let text = format_args!(
                "the file system of {} has little free space: what is written to the mount is shipped, but reads as zeros",
                self.directory.display()
            );
            self.reporter.warn("recent", text);
        }
        self.is_short.store(is_short, Relaxed);
    }

    /// Notes that a spill is about to take more bytes. Returns false if the file system has too little free space for them.
    fn takes(&self, bytes: u64) -> bool {
        if self.unlooked.fetch_add(bytes, Relaxed) + bytes > LOOK_BYTES {
            self.look_at_free_space();
        }
        if self.is_short.load(Relaxed) {
            return false;
        }
        if self.held.fetch_add(bytes, Relaxed) + bytes > self.limits().all {
            self.check.notify_one();
        }
        true
    }

    /// Notes that a spill was opened. Closes the one that was opened first if too many are open.
    fn opened(&self, spill: Weak<Spill>) {
        let mut open = lock(&self.open);
        open.push_back(spill);
        let first = (open.len() > OPEN_MAX).then(|| open.pop_front());
        drop(open);
        if let Some(first) = first.flatten().and_then(|first| first.upgrade()) {
            first.close();
        }
    }

    /// Notes that a spill is no longer needed.
    fn dropped(&self, number: u64, is_unwanted: bool) {
        lock(&self.spills).remove(&number);
        if is_unwanted {
            lock(&self.unwanted).push(number);
            self.check.notify_one();
        }
    }

    /// The spill with this number, if it is in use.
    fn weak(&self, number: u64) -> Option<Weak<Spill>> {
        lock(&self.spills).get(&number).cloned()
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(number.to_string())
    }

    fn restore(self: &Arc<Self>, number: u64) -> io::Result<Option<Restored>> {
        let file = open(&self.path(number))?;
        let mut head = Vec::new();
        millstream_sys::disk::read_at(&file, &mut head, HEAD_BYTES as usize, 0)?;
        let Some(head) = Head::decode(&head) else {
            return Ok(None);
        };
        let metadata = file.metadata()?;
        let nanos = i32::try_from(metadata.mtime_nsec()).unwrap_or(0);
        let spill = self.spill(number);
        spill.measure_by(&metadata);
        Ok(Some(Restored {
            number,
            head,
            size: metadata.len().saturating_sub(HEAD_BYTES),
            written: Time::from_parts(metadata.mtime(), nanos.unsigned_abs()),
            spill,
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }))
    }
}

/// Opens or creates a spill.
fn open(path: &Path) -> io::Result<fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = fs::File::options();
    options.read(true).write(true).create(true).mode(0o600);
    options.open(path)
}

/// Locks. No code that holds one of these locks can panic between two changes.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes all bytes.
fn write_at(file: &fs::File, data: &[u8], offset: u64) -> io::Result<()> {
    file.write_all_at(data, offset)
}
