//! What this machine remembers of the chain: its id, and the last manifest whose outputs are surely published.
//!
//! ```text
//! data_dir/sinks/NAME/published      "CRC ID NUMBER\n": CRC-32C of what follows it, 32 hexadecimal digits, a decimal number
//! ```
//! Earlier versions wrote no checksum.
//! Without it the newest manifest is finished once more at the next start; by then somebody may have taken its outputs away,
//! and nobody could tell that from outputs that were never published.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use crc_fast::{CrcAlgorithm::Crc32Iscsi, checksum};
use millstream_pipeline::{failure::Failure, state};
use millstream_sys::private;

const NAME: &str = "published";
/// A larger note is damaged.
const FILE_BYTES_MAX: u64 = 4096;

/// The note of one sink.
pub(super) struct Note {
    directory: PathBuf,
    /// What it says: the chain's id and the number of the manifest.
    pub(super) said: Option<(u128, u64)>,
}

impl Note {
    /// Reads it; one that is not there or not whole says nothing.
    pub(super) fn open(directory: &Path) -> Self {
        // One that cannot be read says nothing, too.
        let bytes = state::read(&directory.join(NAME), FILE_BYTES_MAX, "")
            .ok()
            .flatten();
        let said = bytes.and_then(|bytes| parse(&bytes));
        Self {
            directory: directory.to_owned(),
            said,
        }
    }

    /// Whether the outputs of this manifest are surely published.
    pub(super) fn says(&self, id: u128, number: u64) -> bool {
        self.said == Some((id, number))
    }

    /// Everything up to this manifest is published.
    pub(super) fn write(&mut self, id: u128, number: u64) -> Result<(), Failure> {
        let path = self.directory.join(NAME);
        let new = self.directory.join("published.new");
        let write = || -> io::Result<()> {
            private::create_dir_all(&self.directory)?;
            let mut file = private::create(&new)?;
            let text = format!("{id:032x} {number}");
            writeln!(file, "{:08x} {text}", crc(&text))?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&self.directory)?.sync_all()
        };
        write()
            .map_err(|error| Failure::disk(format!("cannot write {}: {error}", path.display())))?;
        self.said = Some((id, number));
        Ok(())
    }
}

fn crc(text: &str) -> u32 {
    // The algorithm is one of 32 bits.
    checksum(Crc32Iscsi, text.as_bytes()) as u32
}

/// What a note says; `None` if it is damaged: another number would call outputs published that are not.
fn parse(bytes: &[u8]) -> Option<(u128, u64)> {
    // A line counts with its end only: a note that was cut looks like one of an earlier version.
    let line = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
    let text = match line.split_once(' ')? {
        (sum, text) if sum.len() == 8 => {
            let is_whole = u32::from_str_radix(sum, 16).ok()? == crc(text);
            is_whole.then_some(text)?
        }
        _ => line,
    };
    let (id, number) = text.split_once(' ')?;
    let said = (u128::from_str_radix(id, 16).ok()?, number.parse().ok()?);
    (id.len() == 32).then_some(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_note_says_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(NAME);
        Note::open(directory.path()).write(0xabc, 417).unwrap();
        assert!(Note::open(directory.path()).says(0xabc, 417));
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                let said = parse(&damaged);
                assert!(
                    said.is_none() || said == Some((0xabc, 417)),
                    "bit {bit} of {at}"
                );
            }
            assert_eq!(parse(&whole[..at]), None, "{at}");
        }
        fs::write(&path, format!("{:032x} 417\n", 0xabc)).unwrap();
        assert!(Note::open(directory.path()).says(0xabc, 417));
    }
}
