//! The files of a sink: opens them when needed, closes some so that others can be opened, and retires files that another process
//! has moved away.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `encode -> [write] -> settle`
//!
//! Guarantees: At most `open_files` files are open. Each file is locked while it is open, and synced before it is closed. Before a
//! write, the sink checks whether another process has renamed or removed the file, unless the last check was less than a second ago.

use std::{
    collections::BTreeSet,
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use millstream_pipeline::{
    failure::{Again, Failure},
    report::Reporter,
};
use millstream_record::Time;
use millstream_sys::disk::{Disk, File, Open, OutputMode};
use millstream_wire::compression::Codec;
use rustix::io::Errno;

use super::{failure::cannot, output::Output, outputs::Outputs, sync::sync_all};
use crate::directories::{Directories, directory_of};

/// How often the sink checks that an open file still has its name.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Cached pages are dropped only after this many new bytes: the call costs as much as writing a few pages.
const DROP_BYTES: u64 = 256 << 10;
/// The reasons why an existing entry of the file system cannot be an output.
const NOT_A_FILE: &str = "it is a pipe, a socket or a device";
const DIRECTORY: &str = "it is a directory, or below a file";

/// How files are opened and handled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handling {
    /// Maximum number of open files.
    pub(super) open_max: usize,
    /// Whether the channel redelivers records that are not committed.
    pub(super) durable: bool,
    /// Whether data is removed from the page cache once it is on disk.
    pub(super) drops_cache: bool,
    /// The permissions of new files.
    pub(super) mode: OutputMode,
    /// Whether an output replaces a `latest` link that has the output's name.
    pub(super) replaces_links: bool,
    /// The compression, if there is one.
    pub(super) codec: Option<Codec>,
}

/// The files of a sink.
pub(super) struct Files {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) outputs: Outputs,
    handling: Handling,
    reporter: Reporter,
    /// Number of open files.
    open: usize,
    /// Counts uses of files, to find the least recently used one.
    uses: u64,
    directories: Directories,
    /// Directories in which names have changed since the last commit.
    unsynced_directories: BTreeSet<PathBuf>,
    pub(super) now: Instant,
    /// Whether a sync has failed. If so, written data may be lost, and a later sync that succeeds proves nothing.
    pub(super) sync_failed: bool,
}

impl Files {
    pub(super) fn new(disk: Arc<dyn Disk>, reporter: Reporter, handling: Handling) -> Self {
        Self {
            disk,
            outputs: Outputs::default(),
            handling: Handling {
                open_max: handling.open_max.max(1),
                ..handling
            },
            reporter,
            open: 0,
            uses: 0,
            directories: Directories::of_outputs(handling.mode),
            unsynced_directories: BTreeSet::new(),
            now: Instant::now(),
            sync_failed: false,
        }
    }

    pub(super) fn handling(&self) -> Handling {
        self.handling
    }

    /// Returns the number of the output with this path. Adds the output if there is none.
    pub(super) fn of(&mut self, path: &[u8], since: Time) -> u32 {
        self.outputs.of(path, since, self.now)
    }

    /// Prepares a file for a write: opens it if needed and checks that it still has its name. If another process has moved the file
    /// away, a new file takes over its name and pending records. `id` then becomes the number of the new file, even if the new file
    /// cannot be opened yet.
    pub(super) fn ready(&mut self, id: &mut u32) -> Result<(), Failure> {
        let output = self.outputs.get(*id);
        if output.file.is_none() {
            if self.open(*id)? {
                return Ok(());
            }
        } else if self.now.duration_since(output.checked) < CHECK_EVERY || self.has_its_name(*id)? {
            self.uses += 1;
            self.outputs.get_mut(*id).used = self.uses;
            return Ok(());
        }
        self.let_go(*id)?;
        let old = self.outputs.get_mut(*id);
        let (path, chain, since) = (old.path.clone(), std::mem::take(&mut old.chain), old.since);
        *id = self.of(path.as_os_str().as_bytes(), since);
        self.outputs.get_mut(*id).chain = chain;
        self.reporter.info(
            "reopened",
            format_args!("{} was moved away; a new file is started", path.display()),
        );
        match self.open(*id)? {
            true => Ok(()),
            false => Err(Failure::us(format!(
                "{} is a different file each time it is opened",
                path.display()
            ))),
        }
    }

    /// Opens (or creates) and locks a file. Returns false if the output is in the journal and its name now belongs to another
    /// file or to none.
    pub(super) fn open(&mut self, id: u32) -> Result<bool, Failure> {
        if self.outputs.get(id).file.is_some() {
            return Ok(true);
        }
        while self.open >= self.handling.open_max {
            self.close_some()?;
        }
        let output = self.outputs.get(id);
        let (path, entered, inode) = (output.path.clone(), output.entered, output.inode);
        if self.handling.replaces_links && !entered {
            self.remove_link(&path)?;
        }
        let file = match self.disk.open(&path, Open::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && entered => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.create(&path)?,
            other => other.map_err(|error| cannot("open", &path, &error))?,
        };
        let found = file
            .metadata()
            .map_err(|error| cannot("look at", &path, &error))?;
        if entered && found.inode != inode {
            return Ok(false);
        }
        if !found.file {
            return Err(cannot("write", &path, &NOT_A_FILE));
        }
        lock(&*file, &path)?;
        let output = self.outputs.get_mut(id);
        if !output.named {
            self.name_changed_in(directory_of(&path));
        }
        let output = self.outputs.get_mut(id);
        output.attach(file, found, self.handling.codec)?;
        self.uses += 1;
        self.open += 1;
        (output.checked, output.used) = (self.now, self.uses);
        if output.cut {
            let text = format_args!(
                "{} does not end with a whole gzip member or zstd frame: it was damaged or another process cut it; it is put aside",
                path.display()
            );
            self.reporter.error("short", text);
        }
        Ok(true)
    }

    /// Removes a `latest` link at the path of an output: a write through the link would go to another output.
    fn remove_link(&mut self, path: &Path) -> Result<(), Failure> {
        let Ok(target) = self.disk.read_link(path) else {
            return Ok(());
        };
        self.disk
            .remove(path)
            .map_err(|error| cannot("remove the link", path, &error))?;
        self.reporter.warn(
            "latest",
            format_args!(
                "{} was a link to {} and is now an output: choose a `latest` that is not a `path`",
                path.display(),
                target.display()
            ),
        );
        Ok(())
    }

    /// Returns the reason why no file can have this name, or None if a file can have it. The name must be that of an output without an
    /// open file. The answer depends only on the name and on what already exists under it. If there is another obstacle (permissions,
    /// locks, a full disk), the records wait until an operator has removed the obstacle.
    pub(super) fn misfit(&self, path: &Path) -> Option<String> {
        let why = match self.disk.metadata(path) {
            Ok(found) if found.file => return None,
            Ok(found) if !found.directory => NOT_A_FILE,
            Ok(_) => DIRECTORY,
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => DIRECTORY,
            Err(error) if error.kind() == io::ErrorKind::InvalidFilename => {
                "the name is too long for its file system"
            }
            Err(_) => self.dangling(path)?,
        };
        Some(format!("cannot write {}: {why}", path.display()))
    }

    /// Explains why a path does not exist if a dangling symbolic link is the reason.
    fn dangling(&self, path: &Path) -> Option<&'static str> {
        let above = usize::from(self.handling.replaces_links);
        let is_link = |at: &&Path| self.disk.read_link(at).is_ok();
        // Any other error, such as a missing permission, may be temporary.
        let is_missing = |at: &&Path| {
            let error = self.disk.metadata(at).err();
            error.is_some_and(|error| {
                error.kind() == io::ErrorKind::NotFound
                    || error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
            })
        };
        path.ancestors()
            .skip(above)
            .take_while(is_missing)
            .any(|at| is_link(&at))
            .then_some("a symbolic link leads to nothing; remove it, or create its target")
    }

    /// Creates the directory of a path.
    pub(super) fn make_directory(&mut self, path: &Path) -> Result<(), Failure> {
        let directory = directory_of(path);
        self.directories
            .make(&*self.disk, directory)
            .map_err(|error| cannot("create the directory", directory, &error))
    }

    fn create(&mut self, path: &Path) -> Result<Arc<dyn File>, Failure> {
        for attempt in 0.. {
            self.make_directory(path)?;
            match self.disk.open(path, Open::Output(self.handling.mode)) {
                // Another process has removed the directory in the meantime, so the second attempt creates it again.
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempt == 0 => {
                    self.directories.forget()
                }
                other => return other.map_err(|error| cannot("create", path, &error)),
            }
        }
        unreachable!("the second attempt returns")
    }

    /// Closes the least recently used quarter of the open files.
    fn close_some(&mut self) -> Result<(), Failure> {
        let open = self
            .outputs
            .iter()
            .filter(|(_, output)| output.file.is_some());
        let mut open: Vec<_> = open.map(|(id, output)| (output.used, id)).collect();
        open.sort_unstable();
        let oldest = open.into_iter().map(|(_, id)| id);
        let oldest: Vec<u32> = oldest.take(self.handling.open_max.div_ceil(4)).collect();
        self.close(&oldest)
    }

    /// Closes files. They are synced first, because otherwise the next commit would have to open them again for the sync.
    pub(super) fn close(&mut self, ids: &[u32]) -> Result<(), Failure> {
        self.sync(ids)?;
        for id in ids {
            let output = self.outputs.get_mut(*id);
            if self.handling.drops_cache {
                output.drop_cache(output.length, 1);
            }
            if output.file.take().is_some() {
                self.open -= 1;
            }
        }
        Ok(())
    }

    /// Removes an output that has left the journal or never entered it.
    pub(super) fn remove(&mut self, id: u32) {
        let removed = self.outputs.remove(id);
        self.open -= usize::from(removed.is_some_and(|output| output.file.is_some()));
    }

    /// Calls fdatasync on those of the files that were written since their last fdatasync.
    pub(super) fn sync(&mut self, ids: &[u32]) -> Result<(), Failure> {
        let mut unsynced = Vec::new();
        let mut files = Vec::new();
        for id in ids {
            let output = self.outputs.get(*id);
            if let Some(file) = output.file.as_ref().filter(|_| output.unsynced) {
                unsynced.push(*id);
                files.push(Arc::clone(file));
            }
        }
        if let Err((place, error)) = sync_all(&files) {
            self.sync_failed = true;
            let path = &self.outputs.get(unsynced[place]).path;
            return Err(cannot("sync", path, &error));
        }
        for id in unsynced {
            let output = self.outputs.get_mut(id);
            output.unsynced = false;
            if self.handling.drops_cache {
                output.drop_cache(output.length, DROP_BYTES);
            }
        }
        Ok(())
    }

    /// Waits until bytes `start..end` of a file are on disk.
    pub(super) fn wait_for_disk(&mut self, id: u32, start: u64, end: u64) -> Result<(), Failure> {
        let output = self.outputs.get_mut(id);
        if !output.unsynced {
            return Ok(());
        }
        if let Err(error) = output.wait_for_disk(start, end) {
            self.sync_failed = true;
            return Err(cannot("sync", &output.path, &error));
        }
        if self.handling.drops_cache {
            output.drop_cache(end, DROP_BYTES);
        }
        Ok(())
    }

    /// Notes that a name in `directory` has changed, so that the next commit syncs the directory.
    pub(super) fn name_changed_in(&mut self, directory: &Path) {
        self.unsynced_directories.insert(directory.to_owned());
    }

    /// Syncs the directories in which names have changed.
    pub(super) fn sync_directories(&mut self) -> Result<(), Failure> {
        while let Some(directory) = self.unsynced_directories.first() {
            match self.disk.sync_directory(directory) {
                // The directory was removed together with its files. The next check of the names of these files notices that.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other.map_err(|error| cannot("sync the directory", directory, &error))?,
            }
            self.unsynced_directories.pop_first();
        }
        Ok(())
    }

    /// Whether a file still has its name.
    fn has_its_name(&mut self, id: u32) -> Result<bool, Failure> {
        let output = self.outputs.get_mut(id);
        let same = match self.disk.metadata(&output.path) {
            Ok(found) => (found.inode, found.device) == (output.inode, output.device),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(cannot("look at", &output.path, &error)),
        };
        output.checked = self.now;
        Ok(same)
    }

    /// Retires a file that another process renamed or removed: syncs its data and closes it. The file leaves the journal with the
    /// next commit.
    fn let_go(&mut self, id: u32) -> Result<(), Failure> {
        let output = self.outputs.get(id);
        let path = output.path.clone();
        if self.handling.durable && output.length != output.committed && !self.survives(output)? {
            let message = format!(
                "{} was removed; what was written to it in the last second is written again",
                path.display()
            );
            let mut failure = Failure::disk(message);
            failure.again = Again::Now;
            return Err(failure);
        }
        self.close(&[id])?;
        // The new name of the file has to be durable before another file can take the old name.
        let directory = directory_of(&path);
        match self.disk.sync_directory(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.directories.forget(),
            other => other.map_err(|error| cannot("sync the directory", directory, &error))?,
        }
        self.outputs.retire(id);
        Ok(())
    }

    /// Whether a file that has lost its name still has another name. A closed file is searched for only in its directory.
    fn survives(&self, output: &Output) -> Result<bool, Failure> {
        match &output.file {
            Some(file) => file
                .is_linked()
                .map_err(|error| cannot("look at", &output.path, &error)),
            None => Ok(find_inode(&*self.disk, directory_of(&output.path), output.inode).is_some()),
        }
    }
}

/// Returns the path in `directory` of the file with this inode, if there is one.
pub(super) fn find_inode(disk: &dyn Disk, directory: &Path, inode: u64) -> Option<PathBuf> {
    let names = disk.list(directory).ok()?;
    let mut paths = names.into_iter().map(|name| directory.join(name));
    paths.find(|path| {
        disk.metadata(path)
            .is_ok_and(|found| found.inode == inode && !found.directory)
    })
}

/// Locks a file, so that only one sink writes to it.
pub(super) fn lock(file: &dyn File, path: &Path) -> Result<(), Failure> {
    match file.try_lock() {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::disk(format!(
            "{} is being written by another sink or process, which holds its lock: use a different path for each",
            path.display()
        ))),
        // This file system has no locks.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
        Err(error) => Err(cannot("lock", path, &error)),
    }
}
