//! What this machine remembers of the chain: its id, and the last manifest whose outputs are surely published.
//!
//! ```text
//! data_dir/sinks/NAME/published      "ID NUMBER\n", 32 hexadecimal digits and a decimal number
//! ```
//! Without it the newest manifest is finished once more at the next start; by then somebody may have taken its outputs away,
//! and nobody could tell that from outputs that were never published.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use millstream_pipeline::failure::Failure;
use millstream_sys::private;

const NAME: &str = "published";

/// The note of one sink.
pub(super) struct Note {
    folder: PathBuf,
    /// What it says: the chain's id and the number of the manifest.
    pub(super) said: Option<(u128, u64)>,
}

impl Note {
    /// Reads it; one that is not there or not whole says nothing.
    pub(super) fn open(folder: &Path) -> Self {
        let text = fs::read_to_string(folder.join(NAME)).unwrap_or_default();
        let said = text.trim_end().split_once(' ').and_then(|(id, number)| {
            Some((u128::from_str_radix(id, 16).ok()?, number.parse().ok()?))
        });
        Self {
            folder: folder.to_owned(),
            said,
        }
    }

    /// Whether the outputs of this manifest are surely published.
    pub(super) fn says(&self, id: u128, number: u64) -> bool {
        self.said == Some((id, number))
    }

    /// Everything up to this manifest is published.
    pub(super) fn write(&mut self, id: u128, number: u64) -> Result<(), Failure> {
        let path = self.folder.join(NAME);
        let new = self.folder.join("published.new");
        let write = || -> io::Result<()> {
            private::create_dir_all(&self.folder)?;
            let mut file = private::create(&new)?;
            writeln!(file, "{id:032x} {number}")?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&self.folder)?.sync_all()
        };
        write()
            .map_err(|error| Failure::disk(format!("cannot write {}: {error}", path.display())))?;
        self.said = Some((id, number));
        Ok(())
    }
}
