//! Directories that are created on the way to a file.

use std::{
    collections::HashSet,
    io,
    path::{Path, PathBuf},
};

use millstream_sys::disk::{Disk, OutputMode};

/// Remembers this many directories, then checks all of them again.
const KNOWN_MAX: usize = 4096;

/// Known directories: their names, and the names of all their parents, are durable.
pub(crate) struct Directories {
    known: HashSet<PathBuf>,
    /// The permissions of new directories.
    mode: OutputMode,
}

impl Directories {
    /// For output files; `mode` is their permissions, from which those of directories follow.
    pub(crate) fn of_outputs(mode: OutputMode) -> Self {
        Self {
            known: HashSet::new(),
            mode,
        }
    }

    /// Creates `directory` and its missing parents. Syncs each name before anything is created below it, even an existing one
    /// (an earlier start may have created it and died), so that a power cut cannot remove a directory from under committed
    /// files.
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
            // An existing directory may be in one that this user may not open. Then its name is not synced here: the process that
            // created it is responsible for that.
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

/// The parent of a relative path with one part is the working directory.
fn above_or_here(directory: &Path) -> &Path {
    if directory.as_os_str().is_empty() {
        Path::new(".")
    } else {
        directory
    }
}

/// Whether a directory exists. Any other kind of file with its name is an error.
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
