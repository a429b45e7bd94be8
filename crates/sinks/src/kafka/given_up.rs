//! Up to where records were given up: they have left by `.rejected`, and the position in Kafka does not know it.
//!
//! ```text
//! SINK/given_up      one line: the text of a position (see position.rs), a space and its CRC-32C in hex; replaced as a
//!                    whole, and synced
//! ```
//! Earlier versions wrote no checksum.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use crc_fast::{CrcAlgorithm::Crc32Iscsi, checksum};
use millstream_pipeline::{failure::Failure, state};
use millstream_record::Position;
use millstream_sys::private;

use super::position::Committed;

/// A larger file is damaged.
const FILE_BYTES_MAX: u64 = 4096;
/// What helps when it cannot be used.
const REMEDY: &str = "restore it from a backup, or remove it and restart Millstream: records that have left by the port \
                      `.rejected` may then leave by it again";

/// What was given up of one channel.
pub(super) struct GivenUp {
    directory: PathBuf,
    channel: u128,
    position: Option<Position>,
}

impl GivenUp {
    /// Reads what an earlier run has left in the sink's directory.
    pub(super) fn open(directory: &Path, channel: u128) -> Result<Self, Failure> {
        let path = directory.join("given_up");
        let position = match state::read(&path, FILE_BYTES_MAX, REMEDY)? {
            Some(bytes) => Some(parse(&bytes).ok_or_else(|| {
                Failure::state(format!("{} is damaged; {REMEDY}", path.display()))
            })?),
            None => None,
        };
        let position = position.filter(|committed| committed.channel == channel);
        Ok(Self {
            directory: directory.to_owned(),
            channel,
            position: position.map(|committed| committed.position),
        })
    }

    pub(super) fn position(&self) -> Option<Position> {
        self.position
    }

    /// Notes it for the next start, before it is settled.
    pub(super) fn store(&mut self, position: Position) -> Result<(), Failure> {
        let committed = Committed {
            channel: self.channel,
            position,
            owner: 0,
        };
        let text = committed.text();
        let written = self.write(&format!("{text} {:08x}", crc(&text)));
        let told = |error| {
            let directory = self.directory.display();
            Failure::disk(format!("cannot write {directory}/given_up: {error}"))
        };
        written.map_err(told)?;
        self.position = Some(position);
        Ok(())
    }

    fn write(&self, text: &str) -> io::Result<()> {
        private::create_dir_all(&self.directory)?;
        let new = self.directory.join("given_up.new");
        let mut file = private::create(&new)?;
        writeln!(file, "{text}")?;
        file.sync_all()?;
        fs::rename(&new, self.directory.join("given_up"))?;
        fs::File::open(&self.directory)?.sync_all()
    }
}

fn crc(text: &str) -> u32 {
    // The algorithm is one of 32 bits.
    checksum(Crc32Iscsi, text.as_bytes()) as u32
}

/// What stands in the file; `None` if it is damaged.
fn parse(bytes: &[u8]) -> Option<Committed> {
    // A line counts with its end only: a file that was cut looks like one of an earlier version.
    let line = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
    let before = Committed::parse(line).ok();
    if let Some(committed) = before.filter(|committed| committed.text() == line) {
        return Some(committed);
    }
    let (text, sum) = line.rsplit_once(' ')?;
    let is_whole = sum.len() == 8 && u32::from_str_radix(sum, 16).ok()? == crc(text);
    Committed::parse(text).ok().filter(|_| is_whole)
}

#[cfg(test)]
mod tests {
    use millstream_pipeline::failure::Who;

    use super::*;

    #[test]
    fn a_damaged_note_is_never_read_as_another_position() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("given_up");
        let position = Position { epoch: 3, seq: 412 };
        let mut given_up = GivenUp::open(directory.path(), 7).unwrap();
        given_up.store(position).unwrap();
        assert_eq!(
            GivenUp::open(directory.path(), 7).unwrap().position(),
            Some(position)
        );
        let whole = fs::read(&path).unwrap();
        let refused = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let failure = GivenUp::open(directory.path(), 7).err();
            failure.unwrap_or_else(|| panic!("{} was read", String::from_utf8_lossy(bytes)))
        };
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                // Hexadecimal digits may change their case.
                if !damaged.eq_ignore_ascii_case(&whole) {
                    assert_eq!(refused(&damaged).who, Who::State);
                }
            }
            assert!(refused(&whole[..at]).message.contains("remove it"));
        }
        let before = whole[..whole.len() - 10].to_vec();
        fs::write(&path, [before, b"\n".to_vec()].concat()).unwrap();
        assert_eq!(
            GivenUp::open(directory.path(), 7).unwrap().position(),
            Some(position)
        );
    }
}
