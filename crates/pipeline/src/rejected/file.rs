//! Reads files of rejected records, even while another process writes to them.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_sys::disk::{Disk, File, HostDisk, Open};
use millstream_wire::msgpack::skip;

use super::EXTENSION;
use crate::reject::Rejected;

/// The number of bytes per read.
const READ_BYTES: usize = 1 << 20;

/// A file of rejected records.
pub struct RejectedFile {
    file: Arc<dyn File>,
    /// The offset up to which the file was read.
    at: u64,
    /// The offset at which reading ends, even if the file is longer.
    end: u64,
}

impl RejectedFile {
    /// Returns the files of a directory, sorted by name; an empty list if the directory does not exist.
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

    /// Limits reading to the first `bytes` bytes of the file.
    #[must_use]
    pub fn up_to(self, bytes: u64) -> Self {
        Self { end: bytes, ..self }
    }

    /// Returns the number of bytes that were read so far.
    pub fn bytes_read(&self) -> u64 {
        self.at
    }

    /// Passes all whole records to `each` until `each` fails. Returns the number of bytes after the last whole record: they belong to
    /// a record that a killed process left incomplete, or that another process is writing now. `each` receives `None` for a value that
    /// is not a rejected record, and joined records one by one.
    pub fn read<E: From<io::Error>>(
        &mut self,
        mut each: impl FnMut(Option<Rejected<'_>>) -> Result<(), E>,
    ) -> Result<u64, E> {
        let read = self.values(|value| match Rejected::read(value) {
            Some(rejected) => rejected
                .split()
                .into_iter()
                .map(Some)
                .try_for_each(&mut each),
            None => each(None),
        });
        read.map(|(_, partial)| partial)
    }

    /// Passes all whole values to `each`. Returns the number of bytes of these values, and the number of bytes after the last one.
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
