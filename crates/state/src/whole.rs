//! A state that is stored as a whole: one file, replaced atomically.

use std::path::{Path, PathBuf};
use std::{io, sync::Arc};

use millstream_sys::disk::Disk;

use crate::{
    Error, Format,
    replace::{create_directory, directory, read, replace},
    seal::{self, Seal},
};

/// A state in one file. After a crash the file is the old one or the new one, never a mixture and never empty.
///
/// Storing it costs two syncs (the file and its directory). For a small state that is stored often, or that must be
/// stored on a full disk, see [`crate::Slots`].
pub struct WholeFile {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    format: Format,
    /// Whether the directory exists and its name is durable.
    has_directory: bool,
}

impl WholeFile {
    /// Sets the path and format of the file, without reading or writing it.
    pub fn new(disk: Arc<dyn Disk>, path: PathBuf, format: Format) -> Self {
        Self {
            disk,
            path,
            format,
            has_directory: false,
        }
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the stored body; `None` if there is no file.
    ///
    /// `older` converts a file that is not of the current version to the current body. If the file is not of an older
    /// version either, `older` returns `None`, and `load` fails with [`Error::Damaged`].
    pub fn load(
        &self,
        older: impl FnOnce(&[u8]) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let Some(bytes) = read(&*self.disk, &self.path, &self.format)? else {
            return Ok(None);
        };
        match seal::open_block(self.format.magic, self.format.version, &bytes) {
            Seal::Current((_, body)) if seal::OVERHEAD_BYTES + body.len() == bytes.len() => {
                Ok(Some(body.to_vec()))
            }
            Seal::Newer(found) => Err(self.format.newer(&self.path, found)),
            _ => match older(&bytes) {
                Some(body) => Ok(Some(body)),
                None => Err(self.damaged("its checksum is wrong")),
            },
        }
    }

    /// The body of a file of an older version; `None` if the bytes are not of that version.
    pub fn body_of<'a>(&self, version: u32, bytes: &'a [u8]) -> Option<&'a [u8]> {
        match seal::open_block(self.format.magic, version, bytes) {
            Seal::Current((_, body)) if seal::OVERHEAD_BYTES + body.len() == bytes.len() => {
                Some(body)
            }
            _ => None,
        }
    }

    /// The error for a body that is valid but that its owner cannot interpret.
    pub fn damaged(&self, why: impl Into<String>) -> Error {
        self.format.damaged(&self.path, why)
    }

    /// Replaces the stored body. It survives a power cut when this returns. Blocks.
    pub fn store(&mut self, body: &[u8]) -> Result<(), Error> {
        let bytes = seal::block(self.format.magic, self.format.version, 0, body);
        self.format.check_length(&self.path, bytes.len() as u64)?;
        self.try_store(&bytes)
            .map_err(Error::io("write", &self.path))
    }

    fn try_store(&mut self, bytes: &[u8]) -> io::Result<()> {
        let directory = directory(&self.path);
        if !self.has_directory {
            create_directory(&*self.disk, directory)?;
            self.has_directory = true;
        }
        let written = replace(&*self.disk, &self.path, bytes);
        // The directory may have been removed.
        self.has_directory = written.is_ok();
        written
    }
}
