//! Reading a whole file up to its bound, and replacing a file atomically.

use std::{
    io::{self, IoSlice},
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_sys::disk::{Disk, File, Open};

use crate::{Error, Format};

/// Reads a whole file; `None` if there is none. A file beyond the bound is refused without reading it, because a sparse file takes no space
/// on the disk, but its full length in memory.
pub(crate) fn read(
    disk: &dyn Disk,
    path: &Path,
    format: &Format,
) -> Result<Option<Vec<u8>>, Error> {
    let file = match disk.open(path, Open::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(Error::io("read", path))?,
    };
    let length = file.metadata().map_err(Error::io("read", path))?.len;
    let bytes = bounded(path, length, format)?;
    let mut buffer = Vec::new();
    file.read_at(&mut buffer, bytes, 0)
        .map_err(Error::io("read", path))?;
    Ok(Some(buffer))
}

/// Converts the length of a file to `usize`. Returns an error if the length exceeds the bound.
pub(crate) fn bounded(path: &Path, length: u64, format: &Format) -> Result<usize, Error> {
    let in_memory = usize::try_from(length).ok();
    in_memory
        .filter(|_| length <= format.bytes_max)
        .ok_or_else(|| Error::TooLarge {
            path: path.to_owned(),
            bytes: length,
            bytes_max: format.bytes_max,
            remedy: format.remedy,
        })
}

/// A new file under a temporary name, which replaces another one when it is renamed.
pub(crate) struct Replacement {
    pub(crate) file: Arc<dyn File>,
    temporary: PathBuf,
}

impl Replacement {
    /// Writes and syncs `bytes` under the temporary name of `path`, `PATH.new`.
    pub(crate) fn write(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<Self> {
        let temporary = path.with_added_extension("new");
        match disk.remove(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = disk.open(&temporary, Open::Create)?;
        let written = file
            .write_at(&[IoSlice::new(bytes)], 0)
            .and_then(|()| file.sync());
        if let Err(error) = written {
            // Frees the space of the file, because the disk may be full.
            let _ = disk.remove(&temporary);
            return Err(error);
        }
        Ok(Self { file, temporary })
    }

    /// Gives the file its final name. The caller syncs the directory.
    pub(crate) fn rename(self, disk: &dyn Disk, path: &Path) -> io::Result<Arc<dyn File>> {
        disk.rename(&self.temporary, path)?;
        Ok(self.file)
    }
}

/// Replaces the file `path` atomically: after a crash it has its old bytes or `bytes`. Leaves at most `PATH.new` behind, which the
/// next call removes.
pub fn replace(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    Replacement::write(disk, path, bytes)?.rename(disk, path)?;
    disk.sync_directory(directory(path))
}

/// The directory of a file.
pub(crate) fn directory(path: &Path) -> &Path {
    or_here(path.parent().unwrap_or(Path::new("")))
}

/// Creates `directory` and all levels above it that are missing, and makes their names durable. Also syncs the names of levels that exist
/// already, because an earlier run may have created a level and died before its name was durable.
pub fn create_directory(disk: &dyn Disk, directory: &Path) -> io::Result<()> {
    let mut levels: Vec<_> = directory.ancestors().collect();
    levels.retain(|level| !level.as_os_str().is_empty());
    for level in levels.into_iter().rev() {
        let is_new = disk.metadata(level).is_err();
        if is_new {
            disk.create_directory(level)?;
        }
        let Some(above) = level.parent() else {
            continue;
        };
        match disk.sync_directory(or_here(above)) {
            // An existing level may be in a directory that this user may not open, or on a read-only file system. The process that
            // created it is responsible for syncing it.
            Err(error) if !is_new && cannot_be_synced(&error) => {}
            synced => synced?,
        }
    }
    Ok(())
}

fn cannot_be_synced(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, PermissionDenied, ReadOnlyFilesystem, Unsupported};
    let kinds = [
        PermissionDenied,
        InvalidInput,
        ReadOnlyFilesystem,
        Unsupported,
    ];
    kinds.contains(&error.kind())
}

fn or_here(path: &Path) -> &Path {
    match path.as_os_str().is_empty() {
        true => Path::new("."),
        false => path,
    }
}
