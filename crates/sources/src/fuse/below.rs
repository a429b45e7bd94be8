//! The plain directory below the mount: the directory at the mount point, which a mount hides. Programs write to it while nothing
//! is mounted.
//!
//! The plain directory has the same subdirectories as the tree (the names that the mount shows). At the start, the tree gets the
//! subdirectories of the plain directory. Later changes to directories in the tree are repeated in the plain directory. If a
//! repeated change fails, the program that requested the change gets no error. `follow.rs` ships the files in the plain
//! directory, as far as `given.rs` allows.
//!
//! Every name is looked up from the open directory. A symbolic link is never followed, and no other file system is entered:
//! what lies there does not belong to the mount.

use std::{
    ffi::OsStr,
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::{MetadataExt, PermissionsExt, chown},
    },
    path::{Component, Path, PathBuf},
};

use millstream_pipeline::failure::Failure;
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, ResolveFlags},
    io::Errno,
};

/// Directories that are nested deeper than this are not scanned.
const DEPTH_MAX: usize = 64;
/// How a directory is opened on the way to a file: it need not be readable.
const ON_THE_WAY: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// How a file is opened. A pipe at this name must not block the open.
const TO_READ: OFlags = OFlags::NOFOLLOW
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// The plain directory, opened before the mount hid it.
#[derive(Debug)]
pub(super) struct Below {
    directory: fs::File,
    device: u64,
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
    /// The directories that could not be read, so that files in them are not among `files`.
    pub unreadable: Vec<PathBuf>,
}

impl AsFd for Below {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

impl Below {
    /// Opens the directory, and makes it if it does not exist. Must be called before the mount hides it.
    pub(super) fn make(mount: &Path) -> Result<Self, Failure> {
        let failed =
            |error: io::Error| Failure::disk(format!("cannot open {}: {error}", mount.display()));
        fs::create_dir_all(mount).map_err(failed)?;
        let metadata = fs::metadata(mount).map_err(failed)?;
        if !metadata.is_dir() {
            let text = format!("`mount`: {} is not a directory", mount.display());
            return Err(Failure::config(text));
        }
        Self::open(mount).map_err(failed)
    }

    /// The directory that an earlier program has opened.
    pub(super) fn left_by(directory: OwnedFd) -> Self {
        let directory = fs::File::from(directory);
        let device = directory.metadata().map_or(0, |metadata| metadata.dev());
        Self { directory, device }
    }

    /// Opens the directory if it exists.
    pub(super) fn open(mount: &Path) -> io::Result<Self> {
        let directory = fs::File::open(mount)?;
        let device = directory.metadata()?.dev();
        Ok(Self { directory, device })
    }

    /// The path of the directory, which is that of the mount point.
    pub(super) fn full(&self) -> io::Result<PathBuf> {
        fs::read_link(magic(self.directory.as_fd()))
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
        let open = self.enter(directory)?;
        let mut entries = fs::read_dir(magic(open.as_fd()))?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = directory.join(entry.file_name());
            // The entry may have been removed since it was listed.
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_file() && metadata.dev() == self.device {
                scanned.files.push(path);
            } else if metadata.is_dir() && depth < DEPTH_MAX {
                scanned.directories.push(Directory {
                    path: path.clone(),
                    mode: metadata.mode(),
                    uid: metadata.uid(),
                    gid: metadata.gid(),
                });
                // A directory that cannot be read stays in the result.
                if let Err(error) = self.scan_directory(&path, depth + 1, scanned)
                    && error.kind() == io::ErrorKind::PermissionDenied
                {
                    scanned.unreadable.push(path);
                }
            }
        }
        Ok(())
    }

    /// Opens a regular file to read it.
    pub(super) fn open_file(&self, path: &Path) -> io::Result<fs::File> {
        let (parent, name) = self.parent(path)?;
        let file = rustix::fs::openat(&parent, name, TO_READ, Mode::empty())?;
        let file = fs::File::from(file);
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.dev() != self.device {
            return Err(io::Error::other("it is no regular file of this directory"));
        }
        Ok(file)
    }

    /// The metadata of an entry. A symbolic link is not followed.
    pub(super) fn file_metadata(&self, path: &Path) -> io::Result<fs::Metadata> {
        let (parent, name) = self.parent(path)?;
        fs::symlink_metadata(magic(parent.as_fd()).join(name))
    }

    /// Renames an entry within the directory. An entry at the new name is replaced.
    pub(super) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (self.parent(from)?, self.parent(to)?);
        Ok(rustix::fs::renameat(&from.0, from.1, &to.0, to.1)?)
    }

    /// Moves a file out of the directory, to a path at which nothing may exist yet.
    pub(super) fn move_out(&self, path: &Path, to: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let flags = RenameFlags::NOREPLACE;
        Ok(rustix::fs::renameat_with(&parent, name, CWD, to, flags)?)
    }

    pub(super) fn remove_file(&self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        Ok(rustix::fs::unlinkat(&parent, name, AtFlags::empty())?)
    }

    /// Returns whether the directory was made.
    pub(super) fn make_directory(&self, path: &Path, mode: u32) -> bool {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        let made = self
            .parent(path)
            .and_then(|(parent, name)| Ok(rustix::fs::mkdirat(&parent, name, mode)?));
        made.is_ok()
    }

    /// Gives a directory the owner and the permissions that it has in the tree. Ignores errors: the process may lack the right.
    pub(super) fn change_directory(&self, path: &Path, mode: u32, uid: u32, gid: u32) {
        let Ok(directory) = self.enter(path) else {
            return;
        };
        let path = magic(directory.as_fd());
        let _ = chown(&path, Some(uid), Some(gid));
        let _ = fs::set_permissions(&path, fs::Permissions::from_mode(mode & 0o7777));
    }

    pub(super) fn remove_directory(&self, path: &Path) {
        if let Ok((parent, name)) = self.parent(path) {
            let _ = rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR);
        }
    }

    pub(super) fn rename_directory(&self, from: &Path, to: &Path) {
        let _ = self.rename(from, to);
    }

    /// The directory of an entry, and the entry's name in it.
    fn parent<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let name = path.file_name().ok_or(Errno::INVAL)?;
        let parent = self.enter(path.parent().unwrap_or(Path::new("")))?;
        Ok((parent, name))
    }

    /// Opens a directory, without following a symbolic link or entering another file system.
    fn enter(&self, path: &Path) -> io::Result<OwnedFd> {
        let named = match path.as_os_str().is_empty() {
            true => Path::new("."),
            false => path,
        };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let mode = Mode::empty();
        match rustix::fs::openat2(&self.directory, named, ON_THE_WAY, mode, resolve) {
            // Linux before 5.6, or a filter of system calls that does not know this one.
            Err(Errno::NOSYS | Errno::PERM) => self.walk(path),
            entered => Ok(entered?),
        }
    }

    /// [`Below::enter`] without openat2. It does not notice another mount of the same file system.
    fn walk(&self, path: &Path) -> io::Result<OwnedFd> {
        let mut at = rustix::fs::openat(&self.directory, ".", ON_THE_WAY, Mode::empty())?;
        for part in path.components() {
            let Component::Normal(name) = part else {
                return Err(Errno::INVAL.into());
            };
            at = rustix::fs::openat(&at, name, ON_THE_WAY, Mode::empty())?;
            if fs::metadata(magic(at.as_fd()))?.dev() != self.device {
                return Err(Errno::XDEV.into());
            }
        }
        Ok(at)
    }
}

/// A path that leads to an open directory, wherever it is.
fn magic(directory: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_symbolic_link_below_the_mount_is_never_followed() {
        let place = tempfile::tempdir().unwrap();
        let (plain, other) = (place.path().join("plain"), place.path().join("other"));
        for directory in [&plain, &other] {
            fs::create_dir(directory).unwrap();
        }
        fs::write(other.join("private"), "private").unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o750)).unwrap();
        symlink(&other, plain.join("link")).unwrap();
        symlink(other.join("private"), plain.join("file")).unwrap();
        let below = Below::open(&plain).unwrap();
        let open = fs::File::open(&plain).unwrap();
        assert!(open.metadata().unwrap().is_dir());
        let scanned = below.scan().unwrap();
        assert!(scanned.files.is_empty() && scanned.directories.is_empty());
        assert!(below.open_file(Path::new("file")).is_err());
        assert!(below.walk(Path::new("link")).is_err());
        below.change_directory(Path::new("link"), 0o777, 1, 1);
        assert!(!below.make_directory(Path::new("link/made"), 0o700));
        below.remove_directory(Path::new("link"));
        assert!(below.remove_file(Path::new("link/private")).is_err());
        let untouched = fs::metadata(&other).unwrap();
        assert_eq!(untouched.mode() & 0o777, 0o750);
        assert_eq!(fs::read_dir(&other).unwrap().count(), 1);
        fs::create_dir(plain.join("real")).unwrap();
        assert!(below.walk(Path::new("real")).is_ok());
    }
}
