//! Appends to the files of rejected records, and syncs, rotates and removes them.
//!
//! The files stay readable. If a failed write leaves an incomplete record, the file is truncated to its last whole record before the next
//! one is written. If an earlier run left an incomplete record, the file is renamed unchanged, because a record appended after the
//! incomplete one could not be read.

use std::{
    collections::HashMap,
    io::{self, IoSlice},
    path::{Path, PathBuf},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use millstream_state::create_directory;
use millstream_sys::disk::{Disk, File, Open};

use super::{EXTENSION, RejectedFile, Usage};

/// The number of bytes that are copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// The files of one node.
pub(super) struct Streams {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    node: String,
    /// A file that has this many bytes is renamed, and the next record begins a new one.
    rotate_bytes: Option<u64>,
    /// For each file that this run has opened, its length up to the last kept record.
    ends: HashMap<PathBuf, u64>,
    /// Whether the directory exists and its own name is durable.
    has_directory: bool,
    /// Whether the directory must be synced, because this run, or possibly an earlier one, has created, renamed or removed a file.
    has_new_names: bool,
    /// The time and the number in the name of the last file that was renamed.
    last_aside: (u64, u64),
}

/// A file of the node.
struct Found {
    path: PathBuf,
    share: String,
    bytes: u64,
    /// When the file was renamed, in seconds, and its number within that second. The file that is being written counts as the
    /// youngest.
    age: (u64, u64),
}

impl Streams {
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        directory: PathBuf,
        node: &str,
        rotate_bytes: Option<u64>,
    ) -> Self {
        Self {
            disk,
            directory,
            node: node.to_owned(),
            rotate_bytes,
            ends: HashMap::new(),
            has_directory: false,
            has_new_names: true,
            last_aside: (0, 0),
        }
    }

    /// Creates the directory, unless it exists.
    pub(super) fn create_directory(&mut self) -> io::Result<()> {
        if !self.has_directory || self.disk.metadata(&self.directory).is_err() {
            create_directory(&*self.disk, &self.directory)?;
            self.has_directory = true;
        }
        Ok(())
    }

    /// The bytes that the node holds, by share.
    pub(super) fn usage(&self) -> io::Result<Usage> {
        let mut usage = Usage::default();
        for file in self.files()? {
            usage.add(&file.share, file.bytes);
        }
        Ok(usage)
    }

    fn files(&self) -> io::Result<Vec<Found>> {
        let mut files = Vec::new();
        let names = match self.disk.list(&self.directory) {
            // An operator has moved the directory away. The next rejected record creates it again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(files),
            names => names?,
        };
        for name in names {
            let name = name.to_string_lossy();
            if name.split('.').next() != Some(&*self.node) || !name.ends_with(EXTENSION) {
                continue;
            }
            let share = self.share_of(&name);
            let path = self.directory.join(&*name);
            match self.disk.metadata(&path) {
                Ok(found) => files.push(Found {
                    age: age(&name, &share),
                    path,
                    share,
                    bytes: found.len,
                }),
                // An operator has just moved the file away.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(files)
    }

    /// The share that a file of the node belongs to.
    fn share_of(&self, name: &str) -> String {
        match name.split('.').nth(1) {
            Some(peer) if peer.starts_with("peer-") => format!("{}.{peer}", self.node),
            _ => self.node.clone(),
        }
    }

    /// Removes the oldest file of a share, not counting empty files. Returns its path and its length in bytes; `None` if there is no file.
    pub(super) fn remove_oldest(&mut self, share: &str) -> io::Result<Option<(PathBuf, u64)>> {
        let mut files = self.files()?;
        files.retain(|file| file.share == share && file.bytes > 0);
        let Some(oldest) = files.into_iter().min_by_key(|file| file.age) else {
            return Ok(None);
        };
        self.disk.remove(&oldest.path)?;
        self.ends.remove(&oldest.path);
        self.has_new_names = true;
        Ok(Some((oldest.path, oldest.bytes)))
    }

    /// Appends records to the file of a share and syncs it. If an earlier run left an incomplete record at the end of the file, renames
    /// that file first, and returns its old and its new path.
    pub(super) fn append(
        &mut self,
        share: &str,
        records: &[&[u8]],
    ) -> io::Result<Option<(PathBuf, PathBuf)>> {
        let path = self.directory.join(format!("{share}.{EXTENSION}"));
        // A rename must be durable before a new file gets the old name.
        self.sync_names()?;
        let mut torn = None;
        if !self.ends.contains_key(&path) && self.is_torn(&path)? {
            torn = Some((path.clone(), self.put_aside(&path, "torn")?));
        }
        let file = self.open(&path)?;
        let length = file.metadata()?.len;
        // If the file is shorter than expected, an operator has moved it away. If it is longer, a failed write left an incomplete record.
        let start = self.ends.get(&path).map_or(length, |end| length.min(*end));
        self.ends.insert(path.clone(), start);
        if length > start {
            file.truncate(start)?;
        }
        let parts: Vec<_> = records.iter().map(|record| IoSlice::new(record)).collect();
        file.write_at(&parts, start)?;
        file.sync()?;
        self.sync_names()?;
        let end = start
            + records
                .iter()
                .map(|record| record.len() as u64)
                .sum::<u64>();
        self.ends.insert(path.clone(), end);
        if self.rotate_bytes.is_some_and(|bytes| end >= bytes) {
            // The records are kept already, so a failure of the rename is ignored. It is retried after the next records.
            let _ = self.put_aside(&path, "old");
        }
        Ok(torn)
    }

    /// Renames the files that hold whole records for a replay. Returns these files and the files of unfinished replays, the oldest first.
    pub(super) fn set_aside(&mut self) -> io::Result<Vec<PathBuf>> {
        let mut files = self.files()?;
        files.sort_by_key(|file| file.age);
        let mut aside = Vec::new();
        for Found { path, .. } in files {
            if name_of(&path).contains(".replay-") {
                aside.push(path);
            } else if self.has_records(&path)? {
                aside.push(self.put_aside(&path, "replay")?);
            }
        }
        Ok(aside)
    }

    /// Removes a file whose records were sent again. `left` has the records that could not be sent; they are first appended to the
    /// node's current file. The last `partial` bytes of the file, an incomplete record, are first copied to a file that is named `torn`.
    pub(super) fn finish(&mut self, path: &Path, left: &[Vec<u8>], partial: u64) -> io::Result<()> {
        if !left.is_empty() {
            let records: Vec<_> = left.iter().map(Vec::as_slice).collect();
            let node = self.node.clone();
            self.append(&node, &records)?;
        }
        let removed = match partial {
            0 => Ok(()),
            partial => self.copy_end(path, partial),
        };
        match removed.and_then(|()| self.disk.remove(path)) {
            // An operator has moved the file away.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
        self.has_new_names = true;
        self.sync_names()
    }

    /// Copies the last `bytes` bytes of a file, durably, to a new file that is named `torn`.
    fn copy_end(&mut self, path: &Path, bytes: u64) -> io::Result<()> {
        let from = self.disk.open(path, Open::Read)?;
        let aside = self.unused_path(path, "torn");
        let to = self.disk.open(&aside, Open::Create)?;
        self.has_new_names = true;
        let copied = copy(&*from, &*to, bytes).and_then(|()| self.sync_names());
        if copied.is_err() {
            // The next replay copies the bytes again. An error of the removal is ignored, because the error of the copy is more useful.
            let _ = self.disk.remove(&aside);
        }
        copied
    }

    fn open(&mut self, path: &Path) -> io::Result<Arc<dyn File>> {
        match self.disk.open(path, Open::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.has_new_names = true;
                self.disk.open(path, Open::Create)
            }
            file => file,
        }
    }

    fn sync_names(&mut self) -> io::Result<()> {
        if self.has_new_names {
            self.disk.sync_directory(&self.directory)?;
            self.has_new_names = false;
        }
        Ok(())
    }

    /// Whether a file ends with an incomplete record.
    fn is_torn(&self, path: &Path) -> io::Result<bool> {
        let mut file = match RejectedFile::open_on(&*self.disk, path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        let (_, partial) = file.values(|_| Ok::<_, io::Error>(()))?;
        Ok(partial > 0)
    }

    /// Whether a file holds at least one whole record.
    fn has_records(&self, path: &Path) -> io::Result<bool> {
        let mut file = match RejectedFile::open_on(&*self.disk, path) {
            // An operator has just moved the file away.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        // `Err(None)` ends the reading at the first record.
        match file.values(|_| Err(None)) {
            Ok(_) => Ok(false),
            Err(None) => Ok(true),
            Err(Some(error)) => Err(error),
        }
    }

    /// Returns an unused path in the share of a file. Its name contains the reason `why` and the time.
    fn unused_path(&mut self, path: &Path, why: &str) -> PathBuf {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_secs();
        let (last, number) = self.last_aside;
        let mut place = match now > last {
            true => (now, 0),
            false => (last, number + 1),
        };
        let share = self.share_of(&name_of(path));
        let path = |(time, number): (u64, u64)| {
            let name = format!("{share}.{why}-{time}-{number}.{EXTENSION}");
            self.directory.join(name)
        };
        while self.disk.metadata(&path(place)).is_ok() {
            place.1 += 1;
        }
        let unused = path(place);
        self.last_aside = place;
        unused
    }

    /// Renames a file to an unused name that contains the reason `why` and the time. Returns the new path.
    fn put_aside(&mut self, path: &Path, why: &str) -> io::Result<PathBuf> {
        let aside = self.unused_path(path, why);
        self.has_new_names = true;
        self.disk.rename(path, &aside)?;
        self.ends.remove(path);
        self.sync_names()?;
        Ok(aside)
    }
}

/// Copies the last `bytes` bytes of a file, and syncs the copy.
fn copy(from: &dyn File, to: &dyn File, bytes: u64) -> io::Result<()> {
    let start = from.metadata()?.len.saturating_sub(bytes);
    let mut copied = 0;
    loop {
        let mut part = Vec::new();
        let read = from.read_at(&mut part, COPY_BYTES, start + copied)?;
        if read == 0 {
            return to.sync();
        }
        to.write_at(&[IoSlice::new(&part)], copied)?;
        copied += read as u64;
    }
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Returns the time and the number in the name of a renamed file. A name of another form counts as the oldest.
fn age(name: &str, share: &str) -> (u64, u64) {
    let middle = name
        .strip_prefix(share)
        .and_then(|name| name.strip_suffix(EXTENSION));
    let Some(middle) = middle.map(|middle| middle.trim_matches('.')) else {
        return (0, 0);
    };
    if middle.is_empty() {
        return (u64::MAX, 0);
    }
    let mut words = middle.split('-').skip(1);
    let mut number = || words.next().and_then(|word| word.parse().ok());
    (number().unwrap_or(0), number().unwrap_or(0))
}
