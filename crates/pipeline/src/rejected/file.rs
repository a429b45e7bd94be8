//! Reading a file of rejected records, also while another process writes to it.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_sys::disk::{Disk, File, HostDisk, Open};
use millstream_wire::msgpack::skip;

use super::EXTENSION;
use crate::reject::Rejected;

/// The bytes that are read of a file at a time.
const READ_BYTES: usize = 1 << 20;

/// A file of rejected records.
pub struct RejectedFile {
    file: Arc<dyn File>,
    /// The offset up to which the file was read.
    at: u64,
    /// The offset at which reading ends, if the file is not shorter.
    end: u64,
}

impl RejectedFile {
    /// The files of a directory, sorted by name; none if there is no such directory.
    pub fn all(directory: &Path) -> io::Result<Vec<PathBuf>> {
        let names = match HostDisk.list(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            names => names?,
        };
        let mut paths: Vec<_> = names.iter().map(|name| directory.join(name)).collect();
        paths.retain(|path| path.extension().is_some_and(|name| name == EXTENSION));
        Ok(paths)
    }

    /// Opens a file to read it.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_on(&HostDisk, path)
    }

    pub(super) fn open_on(disk: &dyn Disk, path: &Path) -> io::Result<Self> {
        let file = disk.open(path, Open::Read)?;
        let (at, end) = (0, u64::MAX);
        Ok(Self { file, at, end })
    }

    /// Reads no more than its first `bytes`.
    #[must_use]
    pub fn up_to(self, bytes: u64) -> Self {
        Self { end: bytes, ..self }
    }

    /// The number of bytes of the file that were read.
    pub fn bytes_read(&self) -> u64 {
        self.at
    }

    /// Passes all whole records to `each` until that fails. Returns the number of bytes behind the last whole record: a part of a
    /// record that a killed process left, or that another process is just writing. `each` receives `None` for a value that is not a
    /// rejected record.
    pub fn read<E: From<io::Error>>(
        &mut self,
        mut each: impl FnMut(Option<Rejected<'_>>) -> Result<(), E>,
    ) -> Result<u64, E> {
        self.values(|value| each(Rejected::read(value)))
            .map(|(_, partial)| partial)
    }

    /// Passes all whole values to `each`. Returns the number of their bytes, and of the bytes that follow them.
    pub(crate) fn values<E: From<io::Error>>(
        &mut self,
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(u64, u64), E> {
        let (mut whole, mut held) = (0, Vec::new());
        loop {
            let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
            let read = match left.min(READ_BYTES) {
                0 => 0,
                most => self.file.read_at(&mut held, most, self.at)?,
            };
            if read == 0 {
                return Ok((whole, held.len() as u64));
            }
            self.at += read as u64;
            let mut start = 0;
            loop {
                let mut owed = 1;
                match skip(&held, start, &mut owed) {
                    Ok(next) if owed == 0 && next <= held.len() => {
                        each(held.get(start..next).unwrap_or_default())?;
                        start = next;
                    }
                    Ok(_) => break,
                    Err(_) => {
                        let end = self.file.metadata()?.len;
                        whole += start as u64;
                        return Ok((whole, end.saturating_sub(whole)));
                    }
                }
            }
            whole += start as u64;
            held.drain(..start);
        }
    }
}
