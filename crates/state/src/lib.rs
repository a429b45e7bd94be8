//! Durable state: the files in which components remember something across restarts and power cuts.
//!
//! | type            | file                                             | a store costs              | for                             |
//! |-----------------|--------------------------------------------------|----------------------------|---------------------------------|
//! | [`WholeFile`]   | replaced atomically                              | two syncs, free space      | state that changes as a whole   |
//! | [`Slots`]       | two slots of 4 KiB, allocated once               | one sync, no space         | a few fields, stored often      |
//! | [`Journal`]     | records, appended; replaced when it has grown; with a copy if wanted | no sync, or one | state that changes in small steps |
//! | [`Alternating`] | two files used alternately, allocated once       | one sync, no space         | small steps that a full disk must not stop |
//!
//! All of them write through [`millstream_sys::disk::Disk`]. So `testkit::trial::Trial` can test each component that uses them on
//! a simulated disk that loses power. All files begin with a magic, a version and a checksum (see `seal`), and are bounded in
//! size. The four types report errors as [`Error`], and all calls block. README.md shows how to convert a state file in another format.

mod alternating;
mod error;
mod fields;
mod frame;
mod journal;
mod replace;
mod seal;
mod slots;
mod whole;

use std::path::Path;

pub use alternating::{Alternating, Begun};
pub use error::Error;
pub use fields::Fields;
pub use frame::Record;
pub use journal::{Journal, JournalFormat, Records, Recovered};
pub use replace::{create_directory, replace};
pub use slots::{Slots, Stored};
pub use whole::WholeFile;

/// The format of a state file, and its largest size.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// The first eight bytes of the file; a different one for each kind of state.
    pub magic: &'static [u8; 8],
    /// The format version that is written; versions start at 1. A file with a higher version is refused.
    pub version: u32,
    /// The largest length of the file in bytes. A longer file is refused without reading it.
    pub bytes_max: u64,
    /// The operator's remedy for a damaged file, and its cost: "restore it from a backup, or remove it and ...".
    pub remedy: &'static str,
}

impl Format {
    fn newer(&self, path: &Path, found: u32) -> Error {
        Error::Newer {
            path: path.to_owned(),
            found,
            known: self.version,
        }
    }

    fn damaged(&self, path: &Path, why: impl Into<String>) -> Error {
        Error::Damaged {
            path: path.to_owned(),
            why: why.into(),
            remedy: self.remedy,
        }
    }

    /// Refuses to write a file that would be too large to be read again.
    fn check_length(&self, path: &Path, bytes: u64) -> Result<(), Error> {
        self.within(path, bytes, self.bytes_max)
    }

    fn within(&self, path: &Path, bytes: u64, bytes_max: u64) -> Result<(), Error> {
        match bytes <= bytes_max {
            true => Ok(()),
            false => Err(Error::Io {
                action: "write",
                path: path.to_owned(),
                error: std::io::ErrorKind::StorageFull.into(),
            }),
        }
    }
}
