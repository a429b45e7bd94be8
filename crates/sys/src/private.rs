//! Files and directories of a `data_dir`: only this user may read or write them, whatever the umask is.
//!
//! What is written through `disk::Disk` has these permissions anyway; this is for the places that use `std::fs`.

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

/// Makes a directory and those above it that are missing.
pub fn create_dir_all(path: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(path)
}

/// How a file is opened that may be created.
#[must_use]
pub fn options() -> OpenOptions {
    let mut options = File::options();
    options.mode(FILE_MODE);
    options
}

/// Opens an empty file to write.
pub fn create(path: &Path) -> io::Result<File> {
    options().write(true).create(true).truncate(true).open(path)
}

/// Writes a whole file.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create(path)?.write_all(bytes)
}

/// Takes the permissions of group and others from everything in a directory and from the directory itself. Links are not followed.
/// Continues after a failure and returns the first one, with its path.
pub fn restrict(path: &Path) -> io::Result<()> {
    let failed =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let found = match fs::symlink_metadata(path) {
        // Another process has removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(failed)?,
    };
    if found.is_symlink() {
        return Ok(());
    }
    let mut outcome = match found.mode() & OTHERS {
        0 => Ok(()),
        _ => fs::set_permissions(
            path,
            Permissions::from_mode(found.mode() & 0o7777 & !OTHERS),
        )
        .map_err(failed),
    };
    if found.is_dir() {
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
    fn what_others_could_read_is_closed_to_them_and_links_are_left_alone() {
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
    fn what_is_made_is_private() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("a/b");
        create_dir_all(&directory).unwrap();
        write(&directory.join("file"), b"x").unwrap();
        let modes =
            [&root.path().join("a"), &directory, &directory.join("file")].map(|path| mode(path));
        assert_eq!(modes, [0o700, 0o700, 0o600]);
    }
}
