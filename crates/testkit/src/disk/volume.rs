//! The whole disk: names, durable names and the pending changes between them, planned failures and the crash.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

use millstream_sys::disk::{Metadata, Space};

use super::{Call, Crash, inode::Inode};
use crate::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    File(usize),
    Directory,
}

/// A change of names that is not durable yet.
#[derive(Clone, Debug)]
enum Change {
    Add(PathBuf, Entry),
    Rename(PathBuf, PathBuf, Entry),
    Remove(PathBuf, Entry),
}

impl Change {
    fn in_directory(&self, directory: &Path) -> bool {
        let (Self::Add(path, _) | Self::Rename(_, path, _) | Self::Remove(path, _)) = self;
        path.parent() == Some(directory)
    }

    fn apply(self, names: &mut BTreeMap<PathBuf, Entry>) {
        match self {
            Self::Add(path, entry) => {
                names.insert(path, entry);
            }
            Self::Rename(from, to, entry) => {
                if names.get(&from) == Some(&entry) {
                    names.remove(&from);
                }
                names.insert(to, entry);
            }
            Self::Remove(path, entry) => {
                if names.get(&path) == Some(&entry) {
                    names.remove(&path);
                }
            }
        }
    }
}

/// Everything on the disk, and the failures and the crash that are planned.
#[derive(Clone)]
pub(super) struct Volume {
    random: Random,
    pub(super) calls: u64,
    pub(super) crash_at: Option<u64>,
    pub(super) crashed: bool,
    pub(super) boot: u64,
    pub(super) handles: u64,
    pub(super) failures: Vec<(Call, u32, i32)>,
    pub(super) capacity: u64,
    inodes: Vec<Inode>,
    /// The inodes that are symbolic links.
    links: BTreeSet<usize>,
    names: BTreeMap<PathBuf, Entry>,
    durable: BTreeMap<PathBuf, Entry>,
    pending: Vec<Change>,
}

impl Volume {
    pub(super) fn new(seed: u64) -> Self {
        let root = BTreeMap::from([(PathBuf::from("/"), Entry::Directory)]);
        Self {
            random: Random::new(seed),
            calls: 0,
            crash_at: None,
            crashed: false,
            boot: 0,
            handles: 0,
            failures: Vec::new(),
            capacity: u64::MAX,
            inodes: Vec::new(),
            links: BTreeSet::new(),
            names: root.clone(),
            durable: root,
            pending: Vec::new(),
        }
    }

    pub(super) fn restart(&mut self, crash: Crash) {
        self.boot += 1;
        self.crashed = false;
        self.crash_at = None;
        self.failures.clear();
        if crash == Crash::Power {
            let part = self.random.below(5);
            for change in std::mem::take(&mut self.pending) {
                if self.random.chance(part, 4) {
                    change.apply(&mut self.durable);
                }
            }
            self.names = self.durable.clone();
            let part = self.random.below(5);
            for inode in &mut self.inodes {
                inode.cut_power(part, &mut self.random);
            }
        }
        // Names below a directory that no longer exists are removed, too.
        let known = self.names.clone();
        self.names.retain(|path, _| {
            path.ancestors()
                .skip(1)
                .all(|directory| known.contains_key(directory))
        });
        for inode in &mut self.inodes {
            inode.locked_by = None;
        }
    }

    /// Counts a call, unless it is a read, and makes it fail if a test has planned that. Returns `Ok(true)` if the crash happens
    /// during this call.
    fn begin(&mut self, call: Call) -> io::Result<bool> {
        if self.crashed {
            return Err(io::Error::other("the machine has crashed"));
        }
        if call != Call::Read {
            let number = self.calls;
            self.calls += 1;
            if self.crash_at == Some(number) {
                self.crashed = true;
                return Ok(true);
            }
        }
        if let Some(failure) = self.failures.iter_mut().find(|failure| failure.0 == call) {
            let errno = failure.2;
            failure.1 -= 1;
            self.failures.retain(|failure| failure.1 > 0);
            return Err(io::Error::from_raw_os_error(errno));
        }
        Ok(false)
    }

    /// [`Volume::begin`] for an atomic call. If the crash happens during the call, the call takes effect completely (`Ok`) or not
    /// at all.
    fn begin_whole(&mut self, call: Call) -> io::Result<()> {
        match self.begin(call)? {
            false => Ok(()),
            true if self.random.chance(1, 2) => Ok(()),
            true => Err(io::Error::other("the machine crashes")),
        }
    }

    /// Ends a call. Returns an error if the crash happened during it.
    fn end(&self) -> io::Result<()> {
        if self.crashed {
            return Err(io::Error::other("the machine crashes"));
        }
        Ok(())
    }

    pub(super) fn find(&self, path: &Path) -> io::Result<usize> {
        match self.names.get(path) {
            Some(Entry::File(inode)) => Ok(*inode),
            Some(Entry::Directory) => Err(io::Error::from_raw_os_error(21)), // EISDIR
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn parent_is_there(&self, path: &Path) -> io::Result<()> {
        match path
            .parent()
            .and_then(|directory| self.names.get(directory))
        {
            Some(Entry::Directory) => Ok(()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn change(&mut self, change: Change) -> io::Result<()> {
        change.clone().apply(&mut self.names);
        self.pending.push(change);
        self.end()
    }

    pub(super) fn create(&mut self, path: &Path) -> io::Result<usize> {
        self.parent_is_there(path)?;
        if self.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.begin_whole(Call::Name)?;
        self.inodes.push(Inode::default());
        let inode = self.inodes.len() - 1;
        self.change(Change::Add(path.to_owned(), Entry::File(inode)))?;
        Ok(inode)
    }

    pub(super) fn create_directory(&mut self, path: &Path) -> io::Result<()> {
        self.parent_is_there(path)?;
        match self.names.get(path) {
            Some(Entry::Directory) => return Ok(()),
            Some(Entry::File(_)) => return Err(io::ErrorKind::AlreadyExists.into()),
            None => {}
        }
        self.begin_whole(Call::Name)?;
        self.change(Change::Add(path.to_owned(), Entry::Directory))
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let inode = self.find(from)?;
        self.parent_is_there(to)?;
        self.begin_whole(Call::Name)?;
        self.change(Change::Rename(
            from.to_owned(),
            to.to_owned(),
            Entry::File(inode),
        ))
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        let inode = self.find(path)?;
        self.begin_whole(Call::Name)?;
        self.change(Change::Remove(path.to_owned(), Entry::File(inode)))
    }

    /// Creates a symbolic link. It is a file that holds its target; no call follows it.
    pub(super) fn symlink(&mut self, target: &Path, link: &Path) -> io::Result<()> {
        let inode = self.create(link)?;
        self.inodes[inode].write(target.as_os_str().as_encoded_bytes(), 0);
        self.inodes[inode].sync();
        self.links.insert(inode);
        Ok(())
    }

    pub(super) fn read_link(&self, link: &Path) -> io::Result<PathBuf> {
        let inode = self.find(link)?;
        if !self.links.contains(&inode) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut target = Vec::new();
        self.inodes[inode].read(&mut target, usize::MAX, 0);
        Ok(String::from_utf8_lossy(&target).into_owned().into())
    }

    pub(super) fn sync_directory(&mut self, path: &Path) -> io::Result<()> {
        if self.names.get(path) != Some(&Entry::Directory) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.begin_whole(Call::SyncDirectory)?;
        for change in std::mem::take(&mut self.pending) {
            if change.in_directory(path) {
                change.apply(&mut self.durable);
            } else {
                self.pending.push(change);
            }
        }
        self.end()
    }

    pub(super) fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        if self.names.get(directory) != Some(&Entry::Directory) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(self
            .names
            .keys()
            .filter(|path| path.parent() == Some(directory))
            .filter_map(|path| path.file_name().map(ToOwned::to_owned))
            .collect())
    }

    pub(super) fn read(
        &mut self,
        inode: usize,
        buffer: &mut Vec<u8>,
        bytes: usize,
        offset: u64,
    ) -> io::Result<usize> {
        self.begin(Call::Read)?;
        Ok(self.inodes[inode].read(buffer, bytes, place(offset)))
    }

    /// The bytes that all files take together, without those of the file `except`.
    fn taken(&self, except: Option<usize>) -> u64 {
        let mut named: Vec<usize> = self
            .names
            .values()
            .filter_map(|entry| match entry {
                Entry::File(inode) => Some(*inode),
                Entry::Directory => None,
            })
            .collect();
        named.sort_unstable();
        named.dedup();
        let others = named.iter().filter(|named| Some(**named) != except);
        others.map(|named| self.inodes[*named].room()).sum()
    }

    /// Whether `inode` may take `bytes` bytes in total.
    fn has_room(&self, inode: usize, bytes: u64) -> bool {
        bytes <= self.inodes[inode].room()
            || self.taken(Some(inode)).saturating_add(bytes) <= self.capacity
    }

    pub(super) fn space(&self) -> Space {
        Space {
            total: self.capacity,
            free: self.capacity.saturating_sub(self.taken(None)),
            free_files: None,
        }
    }

    pub(super) fn write(&mut self, inode: usize, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.begin(Call::Write)? {
            let part = self.random.below(bytes.len() as u64 + 1);
            self.inodes[inode].write(&bytes[..place(part)], place(offset));
            return self.end();
        }
        if !self.has_room(inode, offset + bytes.len() as u64) {
            return Err(io::Error::from_raw_os_error(28)); // ENOSPC
        }
        self.inodes[inode].write(bytes, place(offset));
        Ok(())
    }

    pub(super) fn allocate(&mut self, inode: usize, bytes: u64) -> io::Result<()> {
        self.begin_whole(Call::Allocate)?;
        if !self.has_room(inode, bytes) {
            return Err(io::Error::from_raw_os_error(28)); // ENOSPC
        }
        self.inodes[inode].allocate(bytes);
        self.end()
    }

    pub(super) fn truncate(&mut self, inode: usize, bytes: u64) -> io::Result<()> {
        self.begin_whole(Call::Name)?;
        self.inodes[inode].resize(place(bytes));
        self.end()
    }

    pub(super) fn sync(&mut self, inode: usize) -> io::Result<()> {
        match self.begin(Call::Sync) {
            Ok(false) => self.inodes[inode].sync(),
            Ok(true) => {
                // The crash happens during the write-back. A power cut then decides which sectors survive.
                if self.random.chance(1, 2) {
                    self.inodes[inode].sync();
                }
            }
            Err(error) if !self.crashed => {
                self.inodes[inode].sync_in_part(&mut self.random);
                return Err(error);
            }
            Err(error) => return Err(error),
        }
        self.end()
    }

    /// Makes nothing durable. If it fails, sectors are lost as in a failed sync.
    pub(super) fn finish_writeback(&mut self, inode: usize) -> io::Result<()> {
        let begun = self.begin_whole(Call::Sync);
        if begun.is_err() && !self.crashed {
            self.inodes[inode].sync_in_part(&mut self.random);
        }
        begun.and_then(|()| self.end())
    }

    pub(super) fn metadata(&self, inode: usize) -> io::Result<Metadata> {
        Ok(Metadata {
            len: self.inodes[inode].len() as u64,
            device: 1,
            inode: inode as u64,
            directory: false,
            file: true,
        })
    }

    pub(super) fn metadata_of(&self, path: &Path) -> io::Result<Metadata> {
        match self.names.get(path) {
            Some(Entry::File(inode)) => self.metadata(*inode),
            Some(Entry::Directory) => Ok(Metadata {
                len: 0,
                device: 1,
                inode: u64::MAX,
                directory: true,
                file: false,
            }),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub(super) fn try_lock(&mut self, inode: usize, handle: u64) -> bool {
        let held = &mut self.inodes[inode].locked_by;
        if held.is_none() {
            *held = Some(handle);
        }
        *held == Some(handle)
    }

    pub(super) fn unlock(&mut self, inode: usize, handle: u64) {
        let held = &mut self.inodes[inode].locked_by;
        if *held == Some(handle) {
            *held = None;
        }
    }

    pub(super) fn damage(&mut self, path: &Path, offset: u64) -> bool {
        match self.find(path) {
            Ok(inode) => self.inodes[inode].damage(place(offset)),
            Err(_) => false,
        }
    }
}

/// Converts an offset to an index. The files of tests are small.
fn place(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}
