//! The plain directory that the mount hides: where programs write while nobody is here.
//!
//! Its directories are those of the tree, in both directions: they are there when the mount is not. What goes wrong with that is
//! no error for anybody. Files in it are what follow.rs ships.

use std::{
    fs, io,
    os::{
        fd::AsRawFd,
        unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown},
    },
    path::{Path, PathBuf},
};

use millstream_pipeline::failure::Failure;

/// Directories below directories, at most: a guard against odd trees.
const DEPTH_MAX: usize = 64;

/// The directory, held open since before it was mounted over.
#[derive(Debug)]
pub(super) struct Below {
    directory: fs::File,
}

/// A directory that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundDirectory {
    pub path: PathBuf,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// What stands below.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Those above come before those below.
    pub directories: Vec<FoundDirectory>,
    /// Files, sorted.
    pub files: Vec<PathBuf>,
}

impl Below {
    /// Opens the directory; it must not be mounted over yet.
    pub(super) fn open(mount: &Path) -> Result<Self, Failure> {
        let failed =
            |error: io::Error| Failure::disk(format!("cannot open {}: {error}", mount.display()));
        fs::create_dir_all(mount).map_err(failed)?;
        let directory = fs::File::open(mount).map_err(failed)?;
        if !directory.metadata().map_err(failed)?.is_dir() {
            let text = format!("`mount`: {} is no directory", mount.display());
            return Err(Failure::config(text));
        }
        Ok(Self { directory })
    }

    /// A way to what stands there that does not lead through the mount.
    pub(super) fn path(&self, path: &Path) -> PathBuf {
        let mut full = PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd()));
        full.push(path);
        full
    }

    /// The directory itself.
    pub(super) fn metadata(&self) -> io::Result<fs::Metadata> {
        self.directory.metadata()
    }

    /// Everything that stands there; links and other things are left alone.
    pub(super) fn scan(&self) -> io::Result<Found> {
        let mut found = Found::default();
        self.scan_directory(Path::new(""), 0, &mut found)?;
        found.files.sort();
        Ok(found)
    }

    fn scan_directory(&self, directory: &Path, depth: usize, found: &mut Found) -> io::Result<()> {
        let mut entries = fs::read_dir(self.path(directory))?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = directory.join(entry.file_name());
            // It may be gone again.
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_file() {
                found.files.push(path);
            } else if metadata.is_dir() && depth < DEPTH_MAX {
                found.directories.push(FoundDirectory {
                    path: path.clone(),
                    mode: metadata.mode(),
                    uid: metadata.uid(),
                    gid: metadata.gid(),
                });
                // One that may not be read is there all the same.
                let _ = self.scan_directory(&path, depth + 1, found);
            }
        }
        Ok(())
    }

    pub(super) fn make_directory(&self, path: &Path, mode: u32) {
        let mut builder = fs::DirBuilder::new();
        let _ = builder.mode(mode & 0o7777).create(self.path(path));
    }

    /// Gives a directory the owner and the permissions that it has in the tree, as far as we may.
    pub(super) fn change_directory(&self, path: &Path, mode: u32, uid: u32, gid: u32) {
        let path = self.path(path);
        let _ = chown(&path, Some(uid), Some(gid));
        let _ = fs::set_permissions(&path, fs::Permissions::from_mode(mode & 0o7777));
    }

    pub(super) fn remove_directory(&self, path: &Path) {
        let _ = fs::remove_dir(self.path(path));
    }

    pub(super) fn rename_directory(&self, from: &Path, to: &Path) {
        let _ = fs::rename(self.path(from), self.path(to));
    }
}
