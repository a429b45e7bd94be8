//! The directory of all durable state: owned by one process, with a format version.

use std::{fs, io, io::Read, path::Path, sync::Arc};

use millstream_sys::{
    disk::{Disk, File, HostDisk, Open},
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
    _lock: Arc<dyn File>,
}

impl DataDir {
    /// Creates the directory if it is missing, locks it and checks its version.
    pub fn open(directory: &Path) -> Result<Self, Failure> {
        let place = directory.display();
        let fail = |error: io::Error| {
            Failure::disk(format!("cannot use data_dir {place}: {error}; set `data_dir` to a directory this user may write"))
                .never_again()
        };
        // The parent directories get the default permissions, so that other users can enter them.
        if let Some(above) = directory.parent() {
            fs::create_dir_all(above).map_err(fail)?;
        }
        HostDisk.create_directory(directory).map_err(fail)?;
        let path = directory.join("lock");
        if !path.exists() {
            private::write(&path, b"").map_err(fail)?;
        }
        let lock = HostDisk.open(&path, Open::Write).map_err(fail)?;
        if !lock.try_lock().map_err(fail)? {
            let text = format!(
                "data_dir {place} belongs to another running Millstream; stop it, or set another `data_dir`"
            );
            return Err(Failure::config(text));
        }
        check_format(directory).map_err(fail)??;
        if let Err(error) = private::restrict(directory) {
            // This is not an error, because the directory (such as a mounted volume) may belong to another user who allows this user to
            // write. Everything that is created in it is private.
            tracing::warn!(
                "cannot remove other users' access to data_dir {place}: {error}; make this user its owner"
            );
        }
        Ok(Self { _lock: lock })
    }
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
