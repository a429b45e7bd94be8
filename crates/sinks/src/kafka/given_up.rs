//! Stores the position up to which records were given up, that is, rejected because Kafka did not accept them within
//! `retry.give_up`. The position in Kafka does not cover these records.
//!
//! ```text
//! SINK/given_up      the text of a position (see position.rs), as a `millstream_state::WholeFile`
//! ```
//! Before version 3 the file was one line of text: the position and, in version 2, its CRC-32C in hex.

use std::{path::Path, sync::Arc};

use millstream_pipeline::failure::Failure;
use millstream_record::Position;
use millstream_state::{Format, WholeFile};
use millstream_sys::{
    checksum::crc32c,
    disk::{Disk, HostDisk},
};

use super::position::Committed;

const FORMAT: Format = Format {
    magic: b"MILLGVUP",
    version: 3,
    bytes_max: 4096,
    remedy: "restore it from a backup, or remove it and restart Millstream: records that went to the port `.rejected` may \
             then go there again",
};

/// The position up to which the records of one channel were given up.
pub(super) struct GivenUp {
    file: WholeFile,
    channel: u128,
    position: Option<Position>,
}

impl GivenUp {
    /// Reads the position that an earlier run stored in the sink's directory. Ignores the position of another channel.
    pub(super) fn open(directory: &Path, channel: u128) -> Result<Self, Failure> {
        Self::open_on(Arc::new(HostDisk), directory, channel)
    }

    fn open_on(disk: Arc<dyn Disk>, directory: &Path, channel: u128) -> Result<Self, Failure> {
        let file = WholeFile::new(disk, directory.join("given_up"), FORMAT);
        let stored = match file.load(older)? {
            Some(body) => Some(parse(&body).ok_or_else(|| file.damaged("it holds no position"))?),
            None => None,
        };
        let position = stored.filter(|stored| stored.channel == channel);
        Ok(Self {
            file,
            channel,
            position: position.map(|stored| stored.position),
        })
    }

    pub(super) fn position(&self) -> Option<Position> {
        self.position
    }

    /// Stores the position for the next start. Call it before the position is settled.
    pub(super) fn store(&mut self, position: Position) -> Result<(), Failure> {
        let committed = Committed {
            channel: self.channel,
            position,
            owner: 0,
            part: None,
        };
        self.file.store(committed.text().as_bytes())?;
        self.position = Some(position);
        Ok(())
    }
}

fn parse(body: &[u8]) -> Option<Committed> {
    Committed::parse(std::str::from_utf8(body).ok()?).ok()
}

/// Converts a file of version 1 or 2.
fn older(bytes: &[u8]) -> Option<Vec<u8>> {
    // The newline is required. Without it, a truncated file of version 2 could look like one of version 1.
    let line = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
    let is_position =
        |text: &str| Committed::parse(text).is_ok_and(|committed| committed.text() == text);
    if is_position(line) {
        return Some(line.into());
    }
    let (text, sum) = line.rsplit_once(' ')?;
    let is_whole = sum.len() == 8 && u32::from_str_radix(sum, 16).ok()? == crc32c(text.as_bytes());
    (is_whole && is_position(text)).then(|| text.into())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use millstream_pipeline::failure::Who;
    use millstream_testkit::trial::{DIRECTORY, DurableState, Trial};

    use super::*;

    const POSITION: Position = Position { epoch: 3, seq: 412 };
    /// A file of version 2.
    const GOLDEN: &str =
        "millstream 1 00000000000000000000000000000007 3.412 0000000000000000 eba8bfd9\n";

    fn position_in(directory: &Path) -> Option<Position> {
        GivenUp::open(directory, 7).unwrap().position()
    }

    #[test]
    fn a_damaged_file_is_never_read_as_another_position() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("given_up");
        let mut given_up = GivenUp::open(directory.path(), 7).unwrap();
        given_up.store(POSITION).unwrap();
        assert_eq!(position_in(directory.path()), Some(POSITION));
        let refused = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let failure = GivenUp::open(directory.path(), 7).err();
            failure.unwrap_or_else(|| panic!("{} was read", String::from_utf8_lossy(bytes)))
        };
        for whole in [fs::read(&path).unwrap(), GOLDEN.into()] {
            for at in 0..whole.len() {
                for bit in 0..8 {
                    let mut damaged = whole.clone();
                    damaged[at] ^= 1 << bit;
                    // In text, a changed bit may only change the case of a hexadecimal digit, and then the value is the same.
                    if whole != GOLDEN.as_bytes() || !damaged.eq_ignore_ascii_case(&whole) {
                        assert_eq!(refused(&damaged).who, Who::State);
                    }
                }
                assert!(refused(&whole[..at]).message.contains("remove it"));
            }
        }
    }

    #[test]
    fn files_of_versions_1_and_2_are_read_and_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("given_up");
        let version_1 = format!("{}\n", &GOLDEN[..GOLDEN.len() - 10]);
        for old in [version_1.as_str(), GOLDEN] {
            fs::write(&path, old).unwrap();
            assert_eq!(position_in(directory.path()), Some(POSITION));
            let mut given_up = GivenUp::open(directory.path(), 7).unwrap();
            given_up.store(POSITION).unwrap();
            assert!(fs::read(&path).unwrap().starts_with(FORMAT.magic));
            assert_eq!(position_in(directory.path()), Some(POSITION));
            assert_eq!(GivenUp::open(directory.path(), 8).unwrap().position(), None);
        }
    }

    impl DurableState for GivenUp {
        fn open(disk: Arc<dyn Disk>) -> Result<Self, String> {
            Self::open_on(disk, Path::new(DIRECTORY), 7).map_err(|failure| failure.message)
        }

        fn number(&self) -> u64 {
            self.position.map_or(0, |position| position.seq)
        }

        fn advance(&mut self, seq: u64) -> Result<(), String> {
            self.store(Position { epoch: 3, seq })
                .map_err(|failure| failure.message)
        }
    }

    #[test]
    fn a_stored_position_survives_power_cuts_and_failing_disks() {
        Trial::default().run::<GivenUp>();
    }
}
