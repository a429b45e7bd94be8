//! Removes or renames files that were read (`when_done`).
//!
//! This is meant for directories into which programs put complete files. A file is done when it was read to its end and not
//! written for `rotate_wait`. Lines that are written to it later may not be read.

use std::{fs, io, path::Path};

use rustix::{fs::RenameFlags, io::Errno};
use schemars::JsonSchema;
use serde::Deserialize;

/// The suffix of the names of renamed files.
pub(super) const SUFFIX: &str = ".done";
/// The maximum number of names that are tried. The first names may be taken.
const NAMES_MAX: u32 = 10_000;

/// Action for a file that was read completely.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum WhenDone {
    /// The file stays.
    #[default]
    Keep,
    /// The file is removed.
    Delete,
    /// `.done` is appended to the name of the file. Files with this suffix are not read.
    Rename,
}

impl WhenDone {
    /// Removes or renames the file at `path`.
    pub(super) fn apply(self, path: &Path) -> io::Result<()> {
        match self {
            Self::Keep => Ok(()),
            Self::Delete => fs::remove_file(path),
            Self::Rename => rename(path),
        }
    }
}

/// Appends the suffix to the name. If that name is taken, inserts a number before the suffix.
fn rename(path: &Path) -> io::Result<()> {
    for number in 0..NAMES_MAX {
        let mut name = path.as_os_str().to_owned();
        if number > 0 {
            name.push(format!(".{number}"));
        }
        name.push(SUFFIX);
        let renamed = rustix::fs::renameat_with(
            rustix::fs::CWD,
            path,
            rustix::fs::CWD,
            Path::new(&name),
            RenameFlags::NOREPLACE,
        );
        match renamed {
            Err(Errno::EXIST) => {}
            // The file system does not support `RENAME_NOREPLACE`. Another program could take the name between the check and
            // the rename.
            Err(Errno::INVAL) if !Path::new(&name).exists() => return fs::rename(path, &name),
            renamed => return Ok(renamed?),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_file_never_replaces_another() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        for number in ["1", "2"] {
            fs::write(&path, number).unwrap();
            WhenDone::Rename.apply(&path).unwrap();
        }
        let text = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        assert_eq!((&*text("a.done"), &*text("a.1.done")), ("1", "2"));
        fs::write(&path, "3").unwrap();
        WhenDone::Keep.apply(&path).unwrap();
        WhenDone::Delete.apply(&path).unwrap();
        assert!(!path.exists());
    }
}
