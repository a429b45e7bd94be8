//! A local note about the chain of manifests, the files that name the outputs to publish. The note holds the id of the chain, and
//! the number of the last manifest whose outputs are known to be published.
//!
//! ```text
//! SINK/published     "ID NUMBER" (32 hexadecimal digits, a decimal number), as a `millstream_state::WholeFile`
//! ```
//! In versions 1 and 2 the file was this text and a newline. In version 2, the CRC-32C of the text (in hexadecimal) and a space
//! preceded the text.
//!
//! Without the note the next start publishes the newest manifest once more. By then a reader may have removed the outputs of that
//! manifest, and the sink could conclude that they were never published.

use std::{path::Path, sync::Arc};

use millstream_pipeline::failure::Failure;
use millstream_state::{Format, WholeFile};
use millstream_sys::{
    checksum::crc32c,
    disk::{Disk, HostDisk},
};

const FORMAT: Format = Format {
    magic: b"MILLPUBL",
    version: 3,
    bytes_max: 4096,
    // A damaged note is not reported: it counts as missing.
    remedy: "",
};

/// The note of one sink.
pub(super) struct Note {
    file: WholeFile,
    /// The chain's id and the number of the manifest; None if there is no valid note.
    pub(super) said: Option<(u128, u64)>,
}

impl Note {
    /// Reads the note. A damaged or unreadable note counts as missing.
    pub(super) fn open(directory: &Path) -> Self {
        Self::open_on(Arc::new(HostDisk), directory)
    }

    fn open_on(disk: Arc<dyn Disk>, directory: &Path) -> Self {
        let file = WholeFile::new(disk, directory.join("published"), FORMAT);
        let body = file.load(older).ok().flatten();
        let said = body.and_then(|body| parse(std::str::from_utf8(&body).ok()?));
        Self { file, said }
    }

    /// Whether the outputs of this manifest are known to be published.
    pub(super) fn says(&self, id: u128, number: u64) -> bool {
        self.said == Some((id, number))
    }

    /// Notes that the outputs of this manifest and of all earlier ones are published.
    pub(super) fn write(&mut self, id: u128, number: u64) -> Result<(), Failure> {
        self.file.store(format!("{id:032x} {number}").as_bytes())?;
        self.said = Some((id, number));
        Ok(())
    }
}

fn parse(text: &str) -> Option<(u128, u64)> {
    let (id, number) = text.split_once(' ')?;
    let said = (u128::from_str_radix(id, 16).ok()?, number.parse().ok()?);
    (id.len() == 32).then_some(said)
}

/// Converts a file of version 1 or 2. Returns None if the file is damaged, because with a wrong number, unpublished outputs would
/// count as published.
fn older(bytes: &[u8]) -> Option<Vec<u8>> {
    // A line without a newline is truncated, and a truncated number would be a wrong one.
    let line = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
    let text = match line.split_once(' ')? {
        (sum, text) if sum.len() == 8 => {
            let is_whole = u32::from_str_radix(sum, 16).ok()? == crc32c(text.as_bytes());
            is_whole.then_some(text)?
        }
        _ => line,
    };
    parse(text).map(|_| text.into())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use millstream_testkit::trial::{DIRECTORY, DurableState, Trial};

    use super::*;

    /// A note of version 2.
    const GOLDEN: &str = "91263cf5 00000000000000000000000000000abc 417\n";

    #[test]
    fn a_damaged_note_counts_as_missing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("published");
        Note::open(directory.path()).write(0xabc, 417).unwrap();
        assert!(Note::open(directory.path()).says(0xabc, 417));
        for whole in [fs::read(&path).unwrap(), GOLDEN.into()] {
            let said = |bytes: &[u8]| {
                fs::write(&path, bytes).unwrap();
                Note::open(directory.path()).said
            };
            assert_eq!(said(&whole), Some((0xabc, 417)));
            for at in 0..whole.len() {
                for bit in 0..8 {
                    let mut damaged = whole.clone();
                    damaged[at] ^= 1 << bit;
                    let said = said(&damaged);
                    assert!(
                        said.is_none() || said == Some((0xabc, 417)),
                        "bit {bit} of {at}"
                    );
                }
                assert_eq!(said(&whole[..at]), None, "{at}");
            }
        }
    }

    #[test]
    fn notes_of_versions_1_and_2_are_read_and_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("published");
        for old in [&GOLDEN[9..], GOLDEN] {
            fs::write(&path, old).unwrap();
            let mut note = Note::open(directory.path());
            assert!(note.says(0xabc, 417));
            note.write(0xabc, 418).unwrap();
            assert!(fs::read(&path).unwrap().starts_with(FORMAT.magic));
            assert!(Note::open(directory.path()).says(0xabc, 418));
        }
    }

    impl DurableState for Note {
        fn open(disk: Arc<dyn Disk>) -> Result<Self, String> {
            Ok(Self::open_on(disk, Path::new(DIRECTORY)))
        }

        fn number(&self) -> u64 {
            self.said.map_or(0, |(_, number)| number)
        }

        fn advance(&mut self, number: u64) -> Result<(), String> {
            self.write(0xabc, number).map_err(|failure| failure.message)
        }
    }

    #[test]
    fn a_note_survives_power_cuts_and_failing_disks() {
        Trial::default().run::<Note>();
    }
}
