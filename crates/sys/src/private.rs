//! Files and directories of a `data_dir`: only the user of the process may access them, independently of the umask.
//!
//! Files that are made through `disk::Disk` have these permissions anyway. This module is for code that uses `std::fs`.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io,
    io::Write,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

/// The permissions of a file.
pub const FILE_MODE: u32 = 0o600;
/// The permissions of a directory.
pub const DIRECTORY_MODE: u32 = 0o700;
/// The permissions of group and others.
const OTHERS: u32 = 0o077;

/// Makes a directory and its missing parents.
pub fn create_dir_all(path: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(path)
}

/// Options for opening a file that may have to be created.
#[must_use]
pub fn options() -> OpenOptions {
    let mut options = File::options();
    options.mode(FILE_MODE);
    options
}

/// Opens a file for writing; creates it if it is missing, and truncates it if it exists.
pub fn create(path: &Path) -> io::Result<File> {
    options().write(true).create(true).truncate(true).open(path)
}

/// Writes a whole file.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create(path)?.write_all(bytes)
}

/// Removes the permissions of group and others from a directory and everything in it. Does not follow symbolic links. Continues
/// after an error, and returns the first one with its path.
pub fn restrict(path: &Path) -> io::Result<()> {
    let failed =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let metadata = match fs::symlink_metadata(path) {
        // Another process has removed it meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(failed)?,
    };
    if metadata.is_symlink() {
        return Ok(());
    }
    let mut outcome = match metadata.mode() & OTHERS {
        0 => Ok(()),
        _ => fs::set_permissions(
            path,
            Permissions::from_mode(metadata.mode() & 0o7777 & !OTHERS),
        )
        .map_err(failed),
    };
    if metadata.is_dir() {
        for entry in fs::read_dir(path).map_err(failed)? {
            outcome = outcome.and(
                entry
                    .map_err(failed)
                    .and_then(|entry| restrict(&entry.path())),
            );
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn restricting_removes_access_of_others_and_does_not_follow_links() {
        let root = tempfile::tempdir().unwrap();
        let (inside, outside) = (root.path().join("a/b"), root.path().join("outside"));
        fs::create_dir_all(&inside).unwrap();
        let file = inside.join("file");
        for path in [&file, &outside] {
            fs::write(path, "x").unwrap();
            fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
        }
        fs::set_permissions(&inside, Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
        restrict(&root.path().join("a")).unwrap();
        let modes = [&root.path().join("a"), &inside, &file, &outside].map(|path| mode(path));
        assert_eq!(modes, [0o700, 0o700, 0o600, 0o644]);
    }

    #[test]
    fn new_files_and_directories_are_private() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("a/b");
        create_dir_all(&directory).unwrap();
        write(&directory.join("file"), b"x").unwrap();
        let modes =
            [&root.path().join("a"), &directory, &directory.join("file")].map(|path| mode(path));
        assert_eq!(modes, [0o700, 0o700, 0o600]);
    }
}
