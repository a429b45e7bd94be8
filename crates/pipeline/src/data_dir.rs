//! The directory of all durable state: owned by one process, with a format version.

use std::{fs, io, io::Read, path::Path, sync::Arc};

use millstream_sys::{
    disk::{Disk, File, HostDisk, Open},
    no_room::Lack,
    private,
};

use crate::failure::Failure;

/// The version of the directory's layout that this program writes and reads.
const FORMAT: u32 = 1;
/// The text in front of the version number in the version file.
const FORMAT_WORDS: &str = "millstream data_dir, format ";
/// The maximum number of bytes that are read from the version file.
const FORMAT_BYTES_MAX: u64 = 256;

/// Holds the lock of a `data_dir`. The system releases it when the process ends.
pub struct DataDir {
    _locks: Vec<Arc<dyn File>>,
    unusable: Option<String>,
}

/// Why a directory was not opened.
enum NotOpened {
    /// Another process has it, or another version wrote it: nothing may start.
    Refused(Failure),
    /// It cannot be written. Nodes that need no disk can run without it.
    Unusable(io::Error),
}

impl From<io::Error> for NotOpened {
    fn from(error: io::Error) -> Self {
        Self::Unusable(error)
    }
}

impl DataDir {
    /// Creates the directory if it is missing, locks it and checks its version. If it cannot be written, returns a value that says so
    /// ([`DataDir::unusable`]).
    ///
    /// Two locks exclude other processes: that of the directory, which a process can take that may not write, and that of the file `lock`
    /// in it, which exists on each file system.
    pub fn open(directory: &Path) -> Result<Self, Failure> {
        let mut locks = Vec::new();
        let unusable = match open(directory, &mut locks) {
            Ok(()) => None,
            Err(NotOpened::Refused(failure)) => return Err(failure),
            Err(NotOpened::Unusable(error)) => {
                let remedy = match Lack::of(&error, directory) {
                    Some(lack) => lack.remedy(),
                    None => "set `data_dir` to a directory this user may write",
                };
                let place = directory.display();
                Some(format!("cannot use data_dir {place}: {error}; {remedy}"))
            }
        };
        Ok(Self {
            _locks: locks,
            unusable,
        })
    }

    /// Why the directory cannot be used; `None` if it can.
    pub fn unusable(&self) -> Option<&str> {
        self.unusable.as_deref()
    }
}

/// Opens a directory, and adds its locks to `locks`.
fn open(directory: &Path, locks: &mut Vec<Arc<dyn File>>) -> Result<(), NotOpened> {
    // The parent directories get the default permissions, so that other users can enter them.
    let created = match directory.parent() {
        Some(above) => fs::create_dir_all(above),
        None => Ok(()),
    };
    let created = created.and_then(|()| HostDisk.create_directory(directory));
    // A process that may not write must not run beside one that may. Where the directory cannot be locked (NFS), the file below can.
    if let Ok(opened) = HostDisk.open(directory, Open::Read) {
        match opened.try_lock() {
            Ok(false) => return Err(NotOpened::Refused(taken(directory))),
            Ok(true) => locks.push(opened),
            Err(_) => {}
        }
    }
    created?;
    let path = directory.join("lock");
    if !path.exists() {
        private::write(&path, b"")?;
    }
    let lock = match HostDisk.open(&path, Open::Write) {
        Err(error) => {
            // An older program holds only this lock.
            let read = HostDisk.open(&path, Open::Read);
            if let Ok(false) = read.and_then(|lock| lock.try_lock()) {
                return Err(NotOpened::Refused(taken(directory)));
            }
            return Err(error.into());
        }
        Ok(lock) => lock,
    };
    if !lock.try_lock()? {
        return Err(NotOpened::Refused(taken(directory)));
    }
    locks.push(lock);
    check_format(directory)?.map_err(NotOpened::Refused)?;
    if let Err(error) = private::restrict(directory) {
        // This is not an error, because the directory (such as a mounted volume) may belong to another user who allows this user to
        // write. Everything that is created in it is private.
        tracing::warn!(
            "cannot remove other users' access to data_dir {}: {error}; make this user its owner",
            directory.display()
        );
    }
    Ok(())
}

/// The failure of a start beside another process.
fn taken(directory: &Path) -> Failure {
    Failure::config(format!(
        "data_dir {} belongs to another running Millstream; stop it, or set another `data_dir`",
        directory.display()
    ))
}

fn check_format(directory: &Path) -> io::Result<Result<(), Failure>> {
    let path = directory.join("format");
    let text = match fs::File::open(&path) {
        Ok(file) => {
            let mut bytes = Vec::new();
            file.take(FORMAT_BYTES_MAX).read_to_end(&mut bytes)?;
            String::from_utf8_lossy(&bytes).into_owned()
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            private::write(&path, format!("{FORMAT_WORDS}{FORMAT}\n").as_bytes())?;
            fs::File::open(&path)?.sync_all()?;
            fs::File::open(directory)?.sync_all()?;
            return Ok(Ok(()));
        }
        Err(error) => return Err(error),
    };
    let version = text
        .strip_prefix(FORMAT_WORDS)
        .and_then(|rest| rest.trim().parse::<u32>().ok());
    Ok(match version {
        Some(FORMAT) => Ok(()),
        Some(other) => Err(Failure::config(format!(
            "data_dir {} has format {other}, this program reads format {FORMAT}; run the version that wrote it",
            directory.display()
        ))),
        None => Err(Failure::config(format!(
            "{} does not say which format the directory has. If it is not a data_dir of Millstream, set another `data_dir`; if \
             it is one, the file is damaged: write the line `{FORMAT_WORDS}{FORMAT}` into it",
            path.display()
        ))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_dir_belongs_to_one_process() {
        let directory = tempfile::tempdir().unwrap();
        let first = DataDir::open(directory.path()).unwrap();
        let text = DataDir::open(directory.path()).err().unwrap().message;
        assert!(text.contains("another running Millstream"), "{text}");
        drop(first);
        DataDir::open(directory.path()).unwrap();
    }

    /// The lock of the directory alone excludes another process: on a read-only file system there may be no file to lock.
    #[test]
    fn a_directory_that_cannot_be_written_is_unusable_and_still_belongs_to_one_process() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("data");
        fs::create_dir(&place).unwrap();
        // No file can have this name now, as if nothing could be created.
        fs::create_dir(place.join("lock")).unwrap();
        let first = DataDir::open(&place).unwrap();
        let why = first.unusable().unwrap();
        assert!(why.starts_with("cannot use data_dir"), "{why}");
        let text = DataDir::open(&place).err().unwrap().message;
        assert!(text.contains("another running Millstream"), "{text}");
        drop(first);
        fs::remove_dir(place.join("lock")).unwrap();
        assert_eq!(DataDir::open(&place).unwrap().unusable(), None);
        fs::write(directory.path().join("file"), "").unwrap();
        let below_a_file = directory.path().join("file/data");
        assert!(DataDir::open(&below_a_file).unwrap().unusable().is_some());
    }

    #[test]
    fn a_newer_format_is_refused_with_both_numbers() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(
            directory.path().join("format"),
            format!("{FORMAT_WORDS}7\n"),
        )
        .unwrap();
        let text = DataDir::open(directory.path()).err().unwrap().message;
        assert!(
            text.contains("format 7") && text.contains("format 1"),
            "{text}"
        );
    }
}
