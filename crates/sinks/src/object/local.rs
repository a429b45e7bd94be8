//! `file://`: a local directory as the destination. An output in use is a file with a temporary name. A rename to the final name
//! publishes it.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `encode -> [write] -> settle`

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use millstream_pipeline::failure::Failure;
use millstream_sys::disk::{HostDisk, OutputMode};

use crate::{
    directories::{Directories, directory_of},
    publish::{OCCUPIED, Place, Published, Put, Store, blocked, too_long},
};

/// A local directory.
pub(super) struct Local {
    root: PathBuf,
    directories: Directories,
    /// Counts the files created by `put_if_absent`, so that their temporary names are unique.
    puts: u64,
}

/// A file in use.
pub(super) struct InUse {
    path: PathBuf,
    file: File,
}

impl Local {
    pub(super) fn new(root: &str) -> Self {
        Self {
            root: PathBuf::from(root),
            directories: Directories::of_outputs(OutputMode::Umask),
            puts: 0,
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Creates the directory of `path` durably. A directory that was removed in the meantime is created again.
    fn make_directory(&mut self, path: &Path) -> io::Result<()> {
        let directory = directory_of(path);
        if !directory.is_dir() {
            self.directories.forget();
        }
        self.directories.make(&HostDisk, directory)
    }
}

impl Store for Local {
    type Output = InUse;

    async fn create(&mut self, place: &Place) -> Result<InUse, Failure> {
        let path = self.at(&place.in_use);
        let made = self
            .make_directory(&path)
            .and_then(|()| File::create(&path));
        let file = made.map_err(|error| trouble("create", &path, &error))?;
        Ok(InUse { path, file })
    }

    async fn append(&mut self, output: &mut InUse, bytes: &[u8]) -> Result<(), Failure> {
        let written = output.file.write_all(bytes);
        written.map_err(|error| trouble("write", &output.path, &error))
    }

    fn held(&self, _: &InUse) -> usize {
        0
    }

    async fn finish(&mut self, InUse { path, file }: InUse) -> Result<String, Failure> {
        let synced = file
            .sync_all()
            .and_then(|()| sync_directory(directory_of(&path)));
        synced.map_err(|error| trouble("sync", &path, &error))?;
        Ok(String::new())
    }

    async fn publish(&mut self, place: &Place, _: &str) -> Result<Published, Failure> {
        let (from, to) = (self.at(&place.in_use), self.at(&place.path()));
        let published = self.make_directory(&to).and_then(|()| {
            // A rename would replace the existing file. No other process creates a file with this name between this check and the
            // rename.
            if to.exists() && from.exists() {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, OCCUPIED));
            }
            match fs::rename(&from, &to) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    // If the target exists, an earlier attempt has renamed the file. The sync below makes the new name durable, in
                    // case that attempt was killed before its sync.
                    if !to.exists() {
                        return Ok(Published::Gone);
                    }
                }
                renamed => renamed?,
            }
            sync_directory(directory_of(&to))?;
            Ok(Published::Done)
        });
        published.map_err(|error| trouble("publish", &to, &error))
    }

    async fn withdraw(&mut self, place: &Place) -> Result<(), Failure> {
        self.delete(&place.path()).await
    }

    async fn misfit(&mut self, place: &Place) -> Result<Option<String>, Failure> {
        let path = self.at(&place.directory);
        let is_blocked = match fs::metadata(&path) {
            Ok(found) => !found.is_dir(),
            Err(error) => error.kind() == io::ErrorKind::NotADirectory,
        };
        let why = is_blocked.then(|| blocked(&path.display().to_string()));
        Ok(too_long(&place.directory).or(why))
    }

    async fn drop_in_use(&mut self, chain: &str) -> Result<(), Failure> {
        let directory = format!("{chain}/open");
        for name in self.list(&directory).await? {
            self.delete(&format!("{directory}/{name}")).await?;
        }
        Ok(())
    }

    async fn put_if_absent(&mut self, path: &str, bytes: &[u8]) -> Result<Put, Failure> {
        let path = self.at(path);
        self.puts += 1;
        let new = path.with_extension(format!("new-{}-{}", std::process::id(), self.puts));
        let put = self.make_directory(&path).and_then(|()| {
            let mut file = File::create(&new)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            // A hard link fails if the name exists. A rename without replacement is not available everywhere.
            let linked = fs::hard_link(&new, &path);
            fs::remove_file(&new)?;
            sync_directory(directory_of(&path))?;
            match linked {
                Ok(()) => Ok(Put::Made),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Put::Exists),
                Err(error) => Err(error),
            }
        });
        put.map_err(|error| trouble("create", &path, &error))
    }

    async fn list(&mut self, directory: &str) -> Result<Vec<String>, Failure> {
        let directory = self.at(directory);
        let list = || -> io::Result<Vec<String>> {
            let entries = match fs::read_dir(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                entries => entries?,
            };
            entries
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect()
        };
        list().map_err(|error| trouble("list", &directory, &error))
    }

    async fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, Failure> {
        let path = self.at(path);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(trouble("read", &path, &error)),
        }
    }

    async fn delete(&mut self, path: &str) -> Result<(), Failure> {
        let path = self.at(path);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|error| trouble("remove", &path, &error)),
        }
    }
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn trouble(verb: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::disk(format!("cannot {verb} {}: {error}", path.display()))
}
