//! Creates the missing parent directories of a file, so that they survive a power cut.

use std::{
    collections::HashSet,
    io,
    path::{Path, PathBuf},
};

use millstream_sys::disk::{Disk, OutputMode};

/// Maximum number of directories that are remembered. Beyond this number, all directories are forgotten. Each is then checked
/// again when it is next used.
const KNOWN_MAX: usize = 4096;

/// Directories that are known to be durable: they and all their parents have been synced.
pub(crate) struct Directories {
    known: HashSet<PathBuf>,
    /// The permissions of new directories.
    mode: OutputMode,
}

impl Directories {
    /// Creates an empty set, for directories of output files. `mode`: the permissions of the files, which determine those of the
    /// directories.
    pub(crate) fn of_outputs(mode: OutputMode) -> Self {
        Self {
            known: HashSet::new(),
            mode,
        }
    }

    /// Creates `directory` and its missing parents. Syncs the name of each directory before it creates anything inside, so that a
    /// power cut cannot remove a directory that holds committed files. Syncs the names of existing directories, too: an earlier
    /// process may have created one and died before the sync.
    pub(crate) fn make(&mut self, disk: &dyn Disk, directory: &Path) -> io::Result<()> {
        let mut missing = Vec::new();
        let mut at = Some(directory);
        while let Some(level) =
            at.filter(|level| !level.as_os_str().is_empty() && !self.known.contains(*level))
        {
            missing.push(level);
            at = level.parent();
        }
        if self.known.len() + missing.len() > KNOWN_MAX {
            self.known.clear();
        }
        for level in missing.into_iter().rev() {
            let new = !is_directory(disk, level)?;
            if new {
                disk.create_output_directory(level, self.mode)?;
            }
            let synced = level
                .parent()
                .map_or(Ok(()), |above| disk.sync_directory(above_or_here(above)));
            // This user may lack the permission to open the parent of an existing directory. The name is then not synced here: the
            // process that created the directory is responsible for that.
            match synced {
                Err(error) if new || error.kind() != io::ErrorKind::PermissionDenied => {
                    return Err(error);
                }
                _ => {}
            }
            self.known.insert(level.to_owned());
        }
        Ok(())
    }

    /// Forgets all directories, because one has vanished.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
    }
}

/// The directory of a file.
pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent().map_or(Path::new("/"), above_or_here)
}

/// Returns `.` for an empty path, which is the parent of a relative path with one part.
fn above_or_here(directory: &Path) -> &Path {
    if directory.as_os_str().is_empty() {
        Path::new(".")
    } else {
        directory
    }
}

/// Whether a directory exists. Any other kind of file with this name is an error.
fn is_directory(disk: &dyn Disk, directory: &Path) -> io::Result<bool> {
    match disk.metadata(directory) {
        Ok(found) if found.directory => Ok(true),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::NotADirectory,
            format!("{} is not a directory", directory.display()),
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
