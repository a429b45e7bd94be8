//! The files of a sink: found by name, opened at need, closed for others, let go when somebody has moved them away.
//!
//! `take -> encode -> [write] -> settle`
//!
//! Promises that at most `open_files` are open, that each is locked while it is, that a file is synced before it is
//! closed, and that a file that was renamed or removed by somebody else is noticed within a second of the next write.

use std::{
    collections::{BTreeSet, HashMap},
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use millstream_pipeline::{failure::Failure, report::Reporter};
use millstream_record::Time;
use millstream_sys::disk::{Disk, File, Open, OutputMode};

use super::{output::Output, sync::sync_all, table::HEAD_BYTES, trouble};
use crate::directories::{Directories, directory_of};

/// How often is looked whether a file still stands under its name.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What stands under the name of an output and cannot be one.
const NO_FILE: &str = "it is a pipe, a socket or a device";

pub(super) struct Files {
    pub(super) disk: Arc<dyn Disk>,
    reporter: Reporter,
    open_max: usize,
    /// What is not committed can be read again from the channel.
    durable: bool,
    outputs: Vec<Option<Output>>,
    free: Vec<u32>,
    names: HashMap<Box<[u8]>, u32, foldhash::fast::RandomState>,
    open: usize,
    uses: u64,
    directories: Directories,
    /// What the option `latest` makes is replaced by outputs of the same name.
    replaces_links: bool,
    /// The permissions of new files.
    pub(super) mode: OutputMode,
    /// Directories whose names have changed since the last commit.
    pub(super) unsynced_directories: BTreeSet<PathBuf>,
    /// Files that the next commit looks at.
    pub(super) changed: Vec<u32>,
    pub(super) now: Instant,
    /// A sync has failed: what was written may be gone, and a second sync that works would prove nothing.
    pub(super) sync_failed: bool,
    /// What is on the disk does not stay in the page cache.
    pub(super) lets_go: bool,
}

impl Files {
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        reporter: Reporter,
        open_max: usize,
        durable: bool,
        lets_go: bool,
        mode: OutputMode,
        replaces_links: bool,
    ) -> Self {
        Self {
            disk,
            reporter,
            open_max: open_max.max(1),
            durable,
            outputs: Vec::new(),
            free: Vec::new(),
            names: HashMap::default(),
            open: 0,
            uses: 0,
            directories: Directories::of_outputs(mode),
            mode,
            replaces_links,
            unsynced_directories: BTreeSet::new(),
            changed: Vec::new(),
            now: Instant::now(),
            sync_failed: false,
            lets_go,
        }
    }

    /// So many are open at most.
    pub(super) fn open_max(&self) -> usize {
        self.open_max
    }

    /// Takes a file over that an earlier run knew, under its old number.
    pub(super) fn adopt(&mut self, id: u32, output: Output) {
        while self.outputs.len() <= id as usize {
            self.free
                .push(u32::try_from(self.outputs.len()).unwrap_or(u32::MAX));
            self.outputs.push(None);
        }
        self.free.retain(|free| *free != id);
        self.names
            .insert(output.path.as_os_str().as_bytes().into(), id);
        self.outputs[id as usize] = Some(output);
    }

    /// Whether there is a file with this name.
    pub(super) fn is_known(&self, path: &[u8]) -> bool {
        self.names.contains_key(path)
    }

    /// The number of the file with this name; a new one if it is not known. `keep` is the time of the batch that asks.
    pub(super) fn of(&mut self, path: &[u8], keep: Time) -> u32 {
        match self.names.get(path) {
            Some(id) => *id,
            None => self.insert(path, keep),
        }
    }

    #[cold]
    fn insert(&mut self, path: &[u8], keep: Time) -> u32 {
        let output = Output::new(Path::new(OsStr::from_bytes(path)), keep, self.now);
        let id = self.free.pop().unwrap_or_else(|| {
            self.outputs.push(None);
            u32::try_from(self.outputs.len() - 1).unwrap_or(u32::MAX)
        });
        self.outputs[id as usize] = Some(output);
        self.names.insert(path.into(), id);
        id
    }

    pub(super) fn get(&self, id: u32) -> &Output {
        self.outputs[id as usize]
            .as_ref()
            .expect("a number is used only until its file is removed")
    }

    pub(super) fn get_mut(&mut self, id: u32) -> &mut Output {
        self.outputs[id as usize]
            .as_mut()
            .expect("a number is used only until its file is removed")
    }

    /// All files with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Output)> {
        (0..)
            .zip(&self.outputs)
            .filter_map(|(id, output)| Some((id, output.as_ref()?)))
    }

    /// Forgets a file: it has left the journal, or never entered it.
    pub(super) fn remove(&mut self, id: u32) {
        let Some(output) = self.outputs[id as usize].take() else {
            return;
        };
        self.open -= usize::from(output.file.is_some());
        self.forget_name(&output.path, id);
        self.free.push(id);
    }

    fn forget_name(&mut self, path: &Path, id: u32) {
        let name = path.as_os_str().as_bytes();
        if self.names.get(name) == Some(&id) {
            self.names.remove(name);
        }
    }

    /// The next commit has to look at it.
    pub(super) fn mark_changed(&mut self, id: u32) {
        let output = self.get_mut(id);
        if !output.changed {
            output.changed = true;
            self.changed.push(id);
        }
    }

    /// Opens a file for what waits for it, unless it is open, and sees to it that it stands under its name. Returns
    /// another number when it does not any more: a new file takes its place, and what waits goes there.
    pub(super) fn ready(&mut self, id: u32) -> Result<u32, Failure> {
        let (now, output) = (self.now, self.get(id));
        if output.file.is_none() {
            if self.open(id)? {
                return Ok(id);
            }
        } else if now.duration_since(output.checked) < LOOK_EVERY || self.stands(id)? {
            self.uses += 1;
            self.get_mut(id).used = self.uses;
            return Ok(id);
        }
        self.let_go(id)?;
        let old = self.get_mut(id);
        let (path, chain, since) = (old.path.clone(), std::mem::take(&mut old.chain), old.since);
        let new = self.of(path.as_os_str().as_bytes(), since);
        self.get_mut(new).chain = chain;
        self.reporter.info(
            "reopened",
            format_args!("{} was moved away; a new one is begun", path.display()),
        );
        match self.open(new)? {
            true => Ok(new),
            false => Err(Failure::us(format!(
                "{} is another file each time it is opened",
                path.display()
            ))),
        }
    }

    /// Opens (or makes) a file and locks it. False: another file stands under the name of one that we know.
    pub(super) fn open(&mut self, id: u32) -> Result<bool, Failure> {
        if self.get(id).file.is_some() {
            return Ok(true);
        }
        while self.open >= self.open_max {
            self.close_some()?;
        }
        let output = self.get(id);
        let (path, entered) = (output.path.clone(), output.entered);
        if self.replaces_links && !entered {
            self.remove_link(&path)?;
        }
        let file = match self.disk.open(&path, Open::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && entered => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.create(&path)?,
            other => other.map_err(|error| trouble("open", &path, &error))?,
        };
        let found = file
            .metadata()
            .map_err(|error| trouble("look at", &path, &error))?;
        if entered && found.inode != self.get(id).inode {
            return Ok(false);
        }
        if !found.file {
            return Err(trouble("write", &path, &NO_FILE));
        }
        lock(&*file, &path)?;
        if !self.get(id).named {
            self.unsynced_directories
                .insert(directory_of(&path).to_owned());
        }
        let (now, uses) = (self.now, self.uses + 1);
        let output = self.get_mut(id);
        if !entered {
            (output.device, output.inode) = (found.device, found.inode);
            (output.length, output.committed) = (found.len, found.len);
            output.cached_from = found.len;
        }
        let head = usize::try_from(output.length)
            .unwrap_or(HEAD_BYTES)
            .min(HEAD_BYTES);
        if output.head.len() < head {
            output.head.clear();
            file.read_at(&mut output.head, head, 0)
                .map_err(|error| trouble("read", &path, &error))?;
        }
        (output.file, output.checked, output.used) = (Some(file), now, uses);
        self.uses = uses;
        self.open += 1;
        Ok(true)
    }

    /// An output is not written through a link of the option `latest`, which leads to another output.
    fn remove_link(&mut self, path: &Path) -> Result<(), Failure> {
        let Ok(target) = self.disk.read_link(path) else {
            return Ok(());
        };
        self.disk
            .remove(path)
            .map_err(|error| trouble("remove the link", path, &error))?;
        self.reporter.warn(
            "latest",
            format_args!(
                "{} was a link to {} and is an output now: choose a `latest` that is no `path`",
                path.display(),
                target.display()
            ),
        );
        Ok(())
    }

    /// Why no file can stand under a name that is not known yet, if so.
    pub(super) fn misfit(&self, path: &Path) -> Option<String> {
        let why = match self.disk.metadata(path) {
            Ok(found) if found.file => return None,
            Ok(found) if !found.directory => NO_FILE,
            Ok(_) => "it is a directory, or below a file",
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                "it is a directory, or below a file"
            }
            Err(_) => self.dangling(path)?,
        };
        Some(format!("cannot write {}: {why}", path.display()))
    }

    /// What is wrong with the links on the way to something that cannot be found, if anything is.
    fn dangling(&self, path: &Path) -> Option<&'static str> {
        let above = usize::from(self.replaces_links);
        let is_link = |at: &&Path| self.disk.read_link(at).is_ok();
        let is_missing = |at: &&Path| self.disk.metadata(at).is_err();
        path.ancestors()
            .skip(above)
            .take_while(is_missing)
            .any(|at| is_link(&at))
            .then_some("a symbolic link leads to nothing; remove it, or make what it leads to")
    }

    fn create(&mut self, path: &Path) -> Result<Arc<dyn File>, Failure> {
        let directory = directory_of(path);
        for attempt in 0.. {
            self.directories
                .make(&*self.disk, directory)
                .map_err(|error| trouble("make the directory", directory, &error))?;
            match self.disk.open(path, Open::Output(self.mode)) {
                // The directory was there a while ago: it is made anew.
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempt == 0 => {
                    self.directories.forget()
                }
                other => return other.map_err(|error| trouble("create", path, &error)),
            }
        }
        unreachable!("the second attempt returns")
    }

    /// Closes the quarter of the files that was used longest ago.
    fn close_some(&mut self) -> Result<(), Failure> {
        let open = self.iter().filter(|(_, output)| output.file.is_some());
        let mut open: Vec<_> = open.map(|(id, output)| (output.used, id)).collect();
        open.sort_unstable();
        let oldest: Vec<u32> = open
            .into_iter()
            .map(|(_, id)| id)
            .take(self.open_max.div_ceil(4))
            .collect();
        self.close(&oldest)
    }

    /// Syncs files, for the next commit would have to open them again, and closes them.
    pub(super) fn close(&mut self, ids: &[u32]) -> Result<(), Failure> {
        self.sync(ids)?;
        for id in ids {
            let lets_go = self.lets_go;
            let output = self.get_mut(*id);
            if lets_go {
                output.let_go_of_pages(output.length, 1);
            }
            if output.file.take().is_some() {
                self.open -= 1;
            }
        }
        Ok(())
    }

    /// fdatasync of those that have anything to sync.
    pub(super) fn sync(&mut self, ids: &[u32]) -> Result<(), Failure> {
        let mut unsynced = Vec::new();
        let mut files = Vec::new();
        for id in ids {
            let output = self.get(*id);
            if let Some(file) = output.file.as_ref().filter(|_| output.unsynced) {
                unsynced.push(*id);
                files.push(Arc::clone(file));
            }
        }
        if let Err((place, error)) = sync_all(&files) {
            self.sync_failed = true;
            return Err(trouble("sync", &self.get(unsynced[place]).path, &error));
        }
        unsynced.into_iter().for_each(|id| self.synced(id));
        Ok(())
    }

    /// Whether a file still stands under its name.
    fn stands(&mut self, id: u32) -> Result<bool, Failure> {
        let now = self.now;
        let output = self.get(id);
        let stands = match self.disk.metadata(&output.path) {
            Ok(found) => (found.inode, found.device) == (output.inode, output.device),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(trouble("look at", &output.path, &error)),
        };
        self.get_mut(id).checked = now;
        Ok(stands)
    }

    /// A file has been renamed or removed: what it holds is synced, and it leaves with the next commit.
    fn let_go(&mut self, id: u32) -> Result<(), Failure> {
        let output = self.get(id);
        let path = output.path.clone();
        if self.durable && output.length != output.committed && !self.survives(output)? {
            let message = format!(
                "{} was removed; what it held of the last second is written again",
                path.display()
            );
            let mut failure = Failure::disk(message);
            failure.again = millstream_pipeline::failure::Again::Now;
            return Err(failure);
        }
        self.close(&[id])?;
        // The new name has to be durable before another file can take the old one.
        match self.disk.sync_directory(directory_of(&path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.directories.forget(),
            other => {
                other.map_err(|error| trouble("sync the directory", directory_of(&path), &error))?
            }
        }
        self.retire(id);
        Ok(())
    }

    /// The file does not stand under its name any more.
    pub(super) fn retire(&mut self, id: u32) {
        let output = self.get_mut(id);
        output.let_go = true;
        let path = output.path.clone();
        self.forget_name(&path, id);
        self.mark_changed(id);
    }

    /// Whether a file that is not under its name exists at all: under another name, or open with one anywhere.
    fn survives(&self, output: &Output) -> Result<bool, Failure> {
        match &output.file {
            Some(file) => file
                .is_linked()
                .map_err(|error| trouble("look at", &output.path, &error)),
            None => Ok(find_inode(&*self.disk, directory_of(&output.path), output.inode).is_some()),
        }
    }
}

/// The name in `directory` of the file with this inode.
pub(super) fn find_inode(disk: &dyn Disk, directory: &Path, inode: u64) -> Option<PathBuf> {
    let names = disk.list(directory).ok()?;
    let mut paths = names.into_iter().map(|name| directory.join(name));
    paths.find(|path| {
        disk.metadata(path)
            .is_ok_and(|found| found.inode == inode && !found.directory)
    })
}

/// Takes the lock: a file belongs to one sink.
pub(super) fn lock(file: &dyn File, path: &Path) -> Result<(), Failure> {
    match file.try_lock() {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::disk(format!(
            "{} is being written by another sink or process, which holds its lock: give each its own path",
            path.display()
        ))),
        // A file system without locks.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
        Err(error) => Err(trouble("lock", path, &error)),
    }
}
