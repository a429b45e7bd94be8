//! Up to where records were given up: they have left by `.rejected`, and the position in Kafka does not know it.
//!
//! ```text
//! SINK/given_up      one line, the text of a position (see position.rs); replaced as a whole, and synced
//! ```

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use millstream_pipeline::failure::Failure;
use millstream_record::Position;
use millstream_sys::private;

use super::position::Committed;

/// What was given up of one channel.
pub(super) struct GivenUp {
    folder: PathBuf,
    channel: u128,
    position: Option<Position>,
}

impl GivenUp {
    /// Reads what an earlier run has left in the sink's folder.
    pub(super) fn open(folder: &Path, channel: u128) -> Result<Self, Failure> {
        let path = folder.join("given_up");
        let position = match fs::read_to_string(&path) {
            Ok(text) => Some(Committed::parse(text.trim_end())?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                let text = format!("cannot read {}: {error}", path.display());
                return Err(Failure::disk(text));
            }
        };
        let position = position.filter(|committed| committed.channel == channel);
        Ok(Self {
            folder: folder.to_owned(),
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
        let written = self.write(&committed.text());
        let told = |error| {
            let folder = self.folder.display();
            Failure::disk(format!("cannot write {folder}/given_up: {error}"))
        };
        written.map_err(told)?;
        self.position = Some(position);
        Ok(())
    }

    fn write(&self, text: &str) -> io::Result<()> {
        private::create_dir_all(&self.folder)?;
        let new = self.folder.join("given_up.new");
        let mut file = private::create(&new)?;
        writeln!(file, "{text}")?;
        file.sync_all()?;
        fs::rename(&new, self.folder.join("given_up"))?;
        fs::File::open(&self.folder)?.sync_all()
    }
}
