//! The plain directory below the mount: the directory at the mount point, which a mount hides. Programs write to it while nothing
//! is mounted.
//!
//! The plain directory has the same subdirectories as the tree (the names that the mount shows). At the start, the tree gets the
//! subdirectories of the plain directory. Later changes to directories in the tree are repeated in the plain directory. If a
//! repeated change fails, the program that requested the change gets no error. `follow.rs` ships the files in the plain
//! directory.

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown},
    },
    path::{Path, PathBuf},
};

use millstream_pipeline::failure::Failure;

/// Directories that are nested deeper than this are not scanned.
const DEPTH_MAX: usize = 64;

/// The plain directory, opened before the mount hid it.
#[derive(Debug)]
pub(super) struct Below {
    directory: fs::File,
}

/// A directory that a scan found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Directory {
    pub path: PathBuf,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// The result of a scan.
#[derive(Debug, Default)]
pub(super) struct Scanned {
    /// The directories. Each one precedes its subdirectories.
    pub directories: Vec<Directory>,
    /// The regular files, sorted by path.
    pub files: Vec<PathBuf>,
}

impl AsFd for Below {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

impl Below {
    /// Opens the directory. Must be called before the mount hides it.
    pub(super) fn open(mount: &Path) -> Result<Self, Failure> {
        let failed =
            |error: io::Error| Failure::disk(format!("cannot open {}: {error}", mount.display()));
        fs::create_dir_all(mount).map_err(failed)?;
        let directory = fs::File::open(mount).map_err(failed)?;
        if !directory.metadata().map_err(failed)?.is_dir() {
            let text = format!("`mount`: {} is not a directory", mount.display());
            return Err(Failure::config(text));
        }
        Ok(Self { directory })
    }

    /// The directory that an earlier program has opened.
    pub(super) fn left_by(directory: OwnedFd) -> Self {
        Self {
            directory: directory.into(),
        }
    }

    /// A path to an entry of the plain directory. The path leads through the open directory, because the path through the mount
    /// point leads to the mount.
    pub(super) fn path(&self, path: &Path) -> PathBuf {
        let mut full = PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd()));
        full.push(path);
        full
    }

    /// The metadata of the plain directory itself.
    pub(super) fn metadata(&self) -> io::Result<fs::Metadata> {
        self.directory.metadata()
    }

    /// Lists all directories and regular files. Ignores everything else.
    pub(super) fn scan(&self) -> io::Result<Scanned> {
        let mut scanned = Scanned::default();
        self.scan_directory(Path::new(""), 0, &mut scanned)?;
        scanned.files.sort();
        Ok(scanned)
    }

    fn scan_directory(
        &self,
        directory: &Path,
        depth: usize,
        scanned: &mut Scanned,
    ) -> io::Result<()> {
        let mut entries = fs::read_dir(self.path(directory))?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = directory.join(entry.file_name());
            // The entry may have been removed since it was listed.
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_file() {
                scanned.files.push(path);
            } else if metadata.is_dir() && depth < DEPTH_MAX {
                scanned.directories.push(Directory {
                    path: path.clone(),
                    mode: metadata.mode(),
                    uid: metadata.uid(),
                    gid: metadata.gid(),
                });
                // A directory that cannot be read stays in the result.
                let _ = self.scan_directory(&path, depth + 1, scanned);
            }
        }
        Ok(())
    }

    pub(super) fn make_directory(&self, path: &Path, mode: u32) {
        let mut builder = fs::DirBuilder::new();
        let _ = builder.mode(mode & 0o7777).create(self.path(path));
    }

    /// Gives a directory the owner and the permissions that it has in the tree. Ignores errors: the process may lack the right.
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
