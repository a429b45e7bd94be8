//! The directory of a channel: its lock, its id and its file names.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_state::Fields;
use millstream_sys::disk::{Disk, File, Open};

use super::{
    ChannelId, Error,
    seal::{self, FORMAT_VERSION, SEAL_BYTES, Sealed},
    segment::{Segment, number_in},
};

const MAGIC: &[u8; 8] = b"MILLCHN\0";
/// Bytes of the file `channel`.
const FILE_BYTES: usize = SEAL_BYTES + 16;

/// The directory of an open channel.
pub(super) struct LogDirectory {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) path: PathBuf,
    pub(super) channel: ChannelId,
    /// Locked as long as the log or a reader is open.
    pub(super) lock: Arc<dyn File>,
}

impl LogDirectory {
    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Makes the names in the directory durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.disk.sync_directory(&self.path)
    }

    /// Free bytes of the disk; `u64::MAX` if the system does not report them.
    pub(super) fn free_bytes(&self) -> u64 {
        let space = self.disk.space(&self.path);
        space.map_or(u64::MAX, |space| space.free)
    }

    /// Checks that `newest`, the segment that is being written, is still in the directory. If no segment is open, checks the file `lock`
    /// instead. Fails with [`Error::Gone`] if the file was removed or replaced.
    pub(super) fn check(&self, newest: Option<&Segment>) -> Result<(), Error> {
        let is_there = match newest {
            Some(segment) => self.holds(&segment.path, &*segment.file),
            None => self.holds(&self.join("lock"), &*self.lock),
        };
        match is_there {
            true => Ok(()),
            false => Err(Error::Gone {
                path: self.path.clone(),
            }),
        }
    }

    /// Whether `path` is still the name of the open `file`. Also returns `true` on an error other than a missing name, because the next
    /// write reports a failing disk.
    fn holds(&self, path: &Path, file: &dyn File) -> bool {
        match (self.disk.metadata(path), file.metadata()) {
            (Ok(named), Ok(open)) => (named.device, named.inode) == (open.device, open.inode),
            (Err(error), _) => error.kind() != io::ErrorKind::NotFound,
            (_, Err(_)) => true,
        }
    }
}

/// Creates the directory and takes its lock.
pub(super) fn take_lock(disk: &dyn Disk, directory: &Path) -> Result<Arc<dyn File>, Error> {
    let failed = |error| Error::disk("opening the channel", directory, error);
    disk.create_directory(directory).map_err(failed)?;
    if let Some(parent) = directory.parent() {
        let here = parent.as_os_str().is_empty();
        let parent = if here { Path::new(".") } else { parent };
        disk.sync_directory(parent).map_err(failed)?;
    }
    let path = directory.join("lock");
    let lock = match disk.open(&path, Open::Create) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => disk.open(&path, Open::Write),
        other => other,
    };
    let lock = lock.map_err(failed)?;
    match lock.try_lock() {
        Ok(true) => Ok(lock),
        Ok(false) => Err(Error::Locked(directory.to_owned())),
        Err(error) => Err(failed(error)),
    }
}

/// The names in the directory.
pub(super) fn list(disk: &dyn Disk, directory: &Path) -> Result<Vec<String>, Error> {
    let names = disk
        .list(directory)
        .map_err(|error| Error::disk("listing the channel", directory, error))?;
    // Names that are not UTF-8 are left out: no file of a channel has such a name.
    Ok(names
        .into_iter()
        .filter_map(|name| name.into_string().ok())
        .collect())
}

/// Reads the file `channel`. If it is missing or damaged, creates it. If the directory holds no segments, the new file gets the id
/// `fresh`. Otherwise it gets `remembered`, the id in the record file of the channel (record.rs); without this id, the call fails.
///
/// ```text
/// offset bytes
///      0   8   magic "MILLCHN" and 0
///      8   4   format version
///     12   4   CRC-32C of the version and the id (seal.rs)
///     16  16   channel id
/// ```
pub(super) fn identify(
    disk: &dyn Disk,
    directory: &Path,
    names: &[String],
    fresh: ChannelId,
    remembered: Option<ChannelId>,
) -> Result<ChannelId, Error> {
    let path = directory.join("channel");
    let failed = |error| Error::disk("opening the channel", &path, error);
    if let Some(channel) = read_identity(disk, &path)? {
        return Ok(channel);
    }
    let holds_segments = names.iter().any(|name| number_in(name, ".seg").is_some());
    let fresh = match remembered {
        Some(channel) if holds_segments => channel,
        None if holds_segments => return Err(Error::NoIdentity(path)),
        _ => fresh,
    };
    let mut out = seal::begin(MAGIC);
    out.extend_from_slice(&fresh.0);
    seal::seal(&mut out);
    millstream_state::replace(disk, &path, &out).map_err(failed)?;
    Ok(fresh)
}

/// Whether a sibling of `directory` holds the channel. If so, the directory was renamed, and the channel is not lost.
pub(super) fn was_moved(disk: &dyn Disk, directory: &Path, channel: ChannelId) -> bool {
    let Some(beside) = directory.parent() else {
        return false;
    };
    let names = disk.list(beside).unwrap_or_default();
    names.iter().any(|name| {
        let identity = read_identity(disk, &beside.join(name).join("channel"));
        matches!(identity, Ok(Some(id)) if id == channel)
    })
}

/// The id in the file `channel`; `None` if the file is missing or damaged.
pub(super) fn read_identity(disk: &dyn Disk, path: &Path) -> Result<Option<ChannelId>, Error> {
    let failed = |error| Error::disk("opening the channel", path, error);
    let mut bytes = Vec::new();
    match disk.open(path, Open::Read) {
        Ok(file) => file.read_at(&mut bytes, FILE_BYTES, 0).map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    match seal::check(MAGIC, &bytes) {
        Sealed::Whole => {
            let id = bytes
                .get(SEAL_BYTES..)
                .and_then(|rest| Fields::new(rest).array());
            Ok(id.map(ChannelId))
        }
        Sealed::Newer(found) => Err(Error::Newer {
            path: path.to_owned(),
            found,
            known: FORMAT_VERSION,
        }),
        Sealed::Damaged => Ok(None),
    }
}
