//! Finds the resource that a file system lacks when it takes no more: bytes, files (inodes), the quota of a user, or the permission to
//! write at all. Each has its own remedy.

use std::{
    io::{self, ErrorKind},
    path::Path,
};

use crate::disk::{Disk, HostDisk};

/// The missing resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// Free bytes.
    Bytes,
    /// Free inodes: the file system holds as many files as it can.
    Files,
    /// A part of the quota of the user or the directory.
    Quota,
    /// The file system is mounted read-only.
    Writable,
}

impl Lack {
    /// Returns what the file system of `path` lacks according to an error of one of its files. `None` if the error has another reason.
    pub fn of(error: &io::Error, path: &Path) -> Option<Self> {
        match error.kind() {
            ErrorKind::StorageFull if has_no_files(path) => Some(Self::Files),
            ErrorKind::StorageFull => Some(Self::Bytes),
            ErrorKind::QuotaExceeded => Some(Self::Quota),
            ErrorKind::ReadOnlyFilesystem => Some(Self::Writable),
            _ => None,
        }
    }

    /// The remedy, as the second part of a sentence.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Bytes => "free space on this file system",
            Self::Files => {
                "this file system has no free inodes (`df -i` shows it), so it takes no more files even if bytes are free: remove files that are not needed"
            }
            Self::Quota => {
                "the quota of this user or directory is used up: remove files that are not needed, or raise the quota"
            }
            Self::Writable => "mount this file system for writing",
        }
    }
}

/// The text of an error, with the remedy if the file system lacks something.
pub fn explained(error: &io::Error, path: &Path) -> String {
    match Lack::of(error, path) {
        Some(lack) => format!("{error}; {}", lack.remedy()),
        None => error.to_string(),
    }
}

/// Whether the file system of `path`, or of the closest directory above it that exists, has no free inodes.
fn has_no_files(path: &Path) -> bool {
    let mut spaces = path.ancestors().map(|path| HostDisk.space(path));
    let space = spaces.find_map(Result::ok);
    space.is_some_and(|space| space.free_files == Some(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_full_disk_has_its_own_remedy() {
        let here = Path::new("/proc/missing");
        for (errno, lack) in [
            (28, Some(Lack::Bytes)),
            (122, Some(Lack::Quota)),
            (30, Some(Lack::Writable)),
            (5, None),
        ] {
            let error = io::Error::from_raw_os_error(errno);
            assert_eq!(Lack::of(&error, here), lack, "{error}");
        }
    }
}
