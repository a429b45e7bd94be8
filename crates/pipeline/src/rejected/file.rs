//! A file of rejected records, as it is read: also while another process writes to it.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use millstream_wire::msgpack::skip;

use super::EXTENSION;
use crate::reject::Rejected;

/// What is read of a file at once.
const READ_BYTES: u64 = 1 << 20;

/// A file of rejected records.
#[derive(Debug)]
pub struct RejectedFile(fs::File);

impl RejectedFile {
    /// All such files of a directory, in order of name; none if there is no such directory.
    pub fn all(directory: &Path) -> io::Result<Vec<PathBuf>> {
        let entries = match fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let paths: io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.path())).collect();
        let mut paths = paths?;
        paths.retain(|path| path.extension().is_some_and(|name| name == EXTENSION));
        paths.sort();
        Ok(paths)
    }

    /// Opens a file to read it.
    pub fn open(path: &Path) -> io::Result<Self> {
        fs::File::open(path).map(Self)
    }

    /// Gives all whole records to `each`, until that fails; then returns the number of bytes behind the last one: the part of
    /// a record that a kill has left there, or that is being written just now. `None` is given for a value that is no
    /// rejected record.
    pub fn read<E: From<io::Error>>(
        &mut self,
        mut each: impl FnMut(Option<Rejected<'_>>) -> Result<(), E>,
    ) -> Result<u64, E> {
        self.values(|value| each(Rejected::read(value)))
            .map(|(_, rest)| rest)
    }

    /// Gives all whole values to `each`; returns how many bytes they take and how many stand behind them.
    pub(super) fn values<E: From<io::Error>>(
        &mut self,
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(u64, u64), E> {
        let (mut whole, mut held) = (0, Vec::new());
        loop {
            if (&mut self.0).take(READ_BYTES).read_to_end(&mut held)? == 0 {
                return Ok((whole, held.len() as u64));
            }
            let mut at = 0;
            loop {
                let mut owed = 1;
                match skip(&held, at, &mut owed) {
                    Ok(next) if owed == 0 && next <= held.len() => {
                        each(held.get(at..next).unwrap_or_default())?;
                        at = next;
                    }
                    Ok(_) => break,
                    Err(_) => {
                        let end = self.0.metadata()?.len();
                        whole += at as u64;
                        return Ok((whole, end.saturating_sub(whole)));
                    }
                }
            }
            whole += at as u64;
            held.drain(..at);
        }
    }
}
