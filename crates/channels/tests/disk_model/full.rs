//! The simulated disk, which is full for two calls: for a sync, and for a later call.

use std::{
    ffi::OsString,
    io::{self, IoSlice},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use millstream_sys::disk::{Disk, File, Metadata, Open, Space};
use millstream_testkit::{Call, SimulatedDisk};

#[derive(Default)]
struct Plan {
    /// The number of syncs that succeed before one fails. `None`: no sync fails.
    syncs: Option<u64>,
    /// The number of calls that succeed after the failed sync, before another call fails.
    calls: u64,
    /// The number of that other call.
    second: Option<u64>,
    is_over: bool,
}

#[derive(Clone)]
pub struct FullDisk {
    disk: SimulatedDisk,
    plan: Arc<Mutex<Plan>>,
}

impl FullDisk {
    pub fn new(disk: &SimulatedDisk) -> Self {
        Self {
            disk: disk.clone(),
            plan: Arc::default(),
        }
    }

    /// The sync after `syncs` syncs fails, and the call after `calls` further calls.
    pub fn fail(&self, syncs: u64, calls: u64) {
        *self.plan.lock().unwrap() = Plan {
            syncs: Some(syncs),
            calls,
            ..Plan::default()
        };
    }

    pub fn clear(&self) {
        *self.plan.lock().unwrap() = Plan::default();
    }

    /// Whether the sync has failed.
    pub fn has_failed(&self) -> bool {
        let plan = self.plan.lock().unwrap();
        plan.second.is_some() || plan.is_over
    }

    /// Whether both calls have failed.
    pub fn is_over(&self) -> bool {
        self.plan.lock().unwrap().is_over
    }

    /// Makes the next call fail if that is planned.
    fn before(&self, call: Call) {
        let mut plan = self.plan.lock().unwrap();
        let (number, syncs) = (self.disk.calls(), plan.syncs);
        let is_full = match syncs {
            None if plan.second == Some(number) => {
                plan.second = None;
                plan.is_over = true;
                true
            }
            Some(0) if call == Call::Sync => {
                plan.syncs = None;
                plan.second = Some(number + 1 + plan.calls);
                true
            }
            Some(left) if call == Call::Sync => {
                plan.syncs = Some(left - 1);
                false
            }
            _ => false,
        };
        if is_full {
            self.disk.fail(call, 1, 28); // ENOSPC
        }
    }
}

impl Disk for FullDisk {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>> {
        if how == Open::Create {
            self.before(Call::Name);
        }
        Ok(Arc::new(FullFile {
            file: self.disk.open(path, how)?,
            disk: self.clone(),
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.before(Call::Name);
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.before(Call::Name);
        self.disk.remove(path)
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.disk.create_directory(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.before(Call::SyncDirectory);
        self.disk.sync_directory(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        self.disk.list(directory)
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.disk.metadata(path)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.disk.space(path)
    }

    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        self.disk.symlink(target, link)
    }

    fn read_link(&self, link: &Path) -> io::Result<PathBuf> {
        self.disk.read_link(link)
    }
}

struct FullFile {
    file: Arc<dyn File>,
    disk: FullDisk,
}

impl File for FullFile {
    fn read_at(&self, buffer: &mut Vec<u8>, bytes: usize, offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, bytes, offset)
    }

    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.disk.before(Call::Write);
        self.file.write_at(parts, offset)
    }

    fn write_uncached_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.disk.before(Call::Write);
        self.file.write_uncached_at(parts, offset)
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.disk.before(Call::Allocate);
        self.file.allocate(bytes)
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.disk.before(Call::Name);
        self.file.truncate(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.before(Call::Sync);
        self.file.sync()
    }

    fn finish_writeback(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.file.finish_writeback(offset, bytes)
    }

    fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.file.try_lock()
    }
}
