//! A simulated disk that keeps exactly what [`millstream_sys::disk::Disk`] promises, and nothing more.
//!
//! Written sectors and changed names are *pending* until the file or the directory is synced. A power cut keeps any subset of
//! the pending sectors (512 bytes each) and of the pending names. Of a kept sector, any version since the last sync may
//! survive, because the kernel may have written any of these versions. A kill loses nothing, because the page cache survives.
//! A test can make a call fail, or make the machine crash during a call. If the machine crashes during a write, a prefix of the
//! bytes is written. After a failed sync the sectors count as clean, as on Linux: some of them never reached the disk, and no
//! later sync writes them. A rename is atomic, as on journaling file systems, but its order relative to changes of other names
//! is not kept.

mod inode;
#[cfg(test)]
mod tests;
pub mod trial;
mod volume;

use std::{
    ffi::OsString,
    fmt,
    io::{self, IoSlice},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millstream_sys::disk::{Disk, File, Metadata, Open, Space};
use volume::Volume;

/// How the machine stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// SIGKILL or a panic: the page cache survives.
    Kill,
    /// A power cut: only synced data are certain to survive.
    Power,
}

/// The calls that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `File::write_at` and `File::write_uncached_at`.
    Write,
    /// `File::sync` and `File::finish_writeback`.
    Sync,
    /// `File::allocate`.
    Allocate,
    /// `Disk::sync_directory`.
    SyncDirectory,
    /// `Disk::open` that creates, `Disk::rename`, `Disk::remove`, `Disk::create_directory`, `Disk::symlink`, `File::truncate`.
    Name,
    /// `File::read_at`.
    Read,
}

/// The simulated disk. Clones share the same content.
#[derive(Clone)]
pub struct SimulatedDisk(Arc<Mutex<Volume>>);

impl SimulatedDisk {
    /// An empty disk with the directory `/`. `seed` determines all random choices, so a test should print it when it fails.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Volume::new(seed))))
    }

    /// The number of calls so far that change or sync something; they are numbered from 0.
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// Crashes in the call with this number. The call fails, and takes effect completely, in part or not at all. All later
    /// calls fail until [`SimulatedDisk::restart`].
    pub fn crash_at(&self, call: u64) {
        self.lock().crash_at = Some(call);
    }

    /// Whether the crash has happened.
    pub fn crashed(&self) -> bool {
        self.lock().crashed
    }

    /// Crashes the machine, unless it has crashed already, and restarts it. Open handles become invalid, locks are freed, and
    /// planned failures are forgotten.
    pub fn restart(&self, crash: Crash) {
        self.lock().restart(crash);
    }

    /// Makes the next `count` calls of this kind fail with this errno: 5 is EIO, 28 is ENOSPC.
    pub fn fail(&self, call: Call, count: u32, errno: i32) {
        let mut volume = self.lock();
        volume.failures.retain(|failure| failure.0 != call);
        if count > 0 {
            volume.failures.push((call, count, errno));
        }
    }

    /// Sets the size of the disk in bytes. It is unlimited at first.
    pub fn set_capacity(&self, bytes: u64) {
        self.lock().capacity = bytes;
    }

    /// Flips one bit of a file, on the disk and in the cache; returns false if there is no such byte.
    pub fn damage(&self, path: &Path, offset: u64) -> bool {
        self.lock().damage(path, offset)
    }

    /// A separate disk with the same content.
    #[must_use]
    pub fn copied(&self) -> Self {
        Self(Arc::new(Mutex::new(self.lock().clone())))
    }

    fn lock(&self) -> MutexGuard<'_, Volume> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SimulatedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimulatedDisk({} calls)", self.calls())
    }
}

impl Disk for SimulatedDisk {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>> {
        let mut volume = self.lock();
        let inode = match how {
            Open::Create | Open::Output(_) => volume.create(path)?,
            Open::Read | Open::Write => volume.find(path)?,
        };
        volume.handles += 1;
        Ok(Arc::new(SimulatedFile {
            disk: self.clone(),
            inode,
            handle: volume.handles,
            boot: volume.boot,
            writes: how != Open::Read,
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.lock().rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.lock().remove(path)
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.lock().create_directory(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.lock().sync_directory(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        self.lock().list(directory)
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.lock().metadata_of(path)
    }

    fn space(&self, _: &Path) -> io::Result<Space> {
        Ok(self.lock().space())
    }

    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        self.lock().symlink(target, link)
    }

    fn read_link(&self, link: &Path) -> io::Result<PathBuf> {
        self.lock().read_link(link)
    }
}

struct SimulatedFile {
    disk: SimulatedDisk,
    inode: usize,
    handle: u64,
    /// How often the machine had been restarted when the handle was opened. Handles from before a restart are invalid.
    boot: u64,
    writes: bool,
}

impl SimulatedFile {
    fn volume(&self) -> io::Result<MutexGuard<'_, Volume>> {
        let volume = self.disk.lock();
        if volume.boot == self.boot {
            Ok(volume)
        } else {
            Err(io::Error::other("this file was opened before the crash"))
        }
    }

    fn volume_to_write(&self) -> io::Result<MutexGuard<'_, Volume>> {
        if self.writes {
            self.volume()
        } else {
            Err(io::Error::from_raw_os_error(9)) // EBADF
        }
    }
}

impl File for SimulatedFile {
    fn read_at(&self, buffer: &mut Vec<u8>, bytes: usize, offset: u64) -> io::Result<usize> {
        self.volume()?.read(self.inode, buffer, bytes, offset)
    }

    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.volume_to_write()?.write(self.inode, &bytes, offset)
    }

    fn write_uncached_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.write_at(parts, offset)
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.volume_to_write()?.allocate(self.inode, bytes)
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.volume_to_write()?.truncate(self.inode, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.volume()?.sync(self.inode)
    }

    fn finish_writeback(&self, _offset: u64, _bytes: u64) -> io::Result<()> {
        self.volume()?.finish_writeback(self.inode)
    }

    fn metadata(&self) -> io::Result<Metadata> {
        self.volume()?.metadata(self.inode)
    }

    fn try_lock(&self) -> io::Result<bool> {
        Ok(self.volume()?.try_lock(self.inode, self.handle))
    }
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        if let Ok(mut volume) = self.volume() {
            volume.unlock(self.inode, self.handle);
        }
    }
}
