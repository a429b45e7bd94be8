//! The cursor of one consumer, `NAME.cursor`: everything at or below its position is settled or skipped.
//!
//! The file has two slots (`millstream_state::Slots`). It is allocated at full size when it is created, so that a commit succeeds even on a
//! full disk. If commits failed, no segment could be released, and the disk would stay full. Each slot holds:
//!
//! ```text
//! offset bytes
//!      0  16   channel id
//!     16   4   epoch
//!     20   4   flags: 1 = an operator or `behind` has moved the cursor at least once
//!                     2 = a sink was configured to read with this cursor at the last start
//!                     4 = the consumer has committed since an operator or `behind` moved the cursor
//!                     8 = the consumer has not committed since the cursor was created
//!     24   8   seq
//! ```
//!
//! `behind` is an option of a sink. It limits the sink's backlog; with `then: skip`, batches beyond the limit are skipped. A sink that
//! stores its own position resumes there and not at the cursor. If flag 1 is set, the sink does not resume below the cursor, because the
//! batches there were skipped.

use std::{
    io,
    path::{Path, PathBuf},
};

use millstream_record::Position;
use millstream_state::{Fields, Format, Slots, Stored};
use millstream_sys::disk::{Disk, Open};

use super::{
    ChannelId, Error,
    seal::{self, SEAL_BYTES, Sealed},
};

const FORMAT: Format = Format {
    magic: b"MILLCUR\0",
    version: 4,
    bytes_max: 8192,
    remedy: "remove it, and its consumer begins at the oldest batch",
};
/// Bytes of a slot up to version 3: seal, channel id (16), generation (8; incremented by every store), epoch (4), flags (4), seq (8).
const OLD_SLOT_BYTES: usize = 56;
const PASSED_ON: u32 = 1;
const CONFIGURED: u32 = 2;
const SINCE: u32 = 4;
const FRESH: u32 = 8;
/// An old slot with this generation was written when its cursor was created. The first versions did not write `FRESH`, so [`convert`] adds
/// this flag to such a slot.
const MADE: u64 = 1;

/// An open cursor file.
pub(super) struct Cursor {
    slots: Slots,
    path: PathBuf,
    channel: ChannelId,
    pub(super) position: Position,
    /// Whether an operator or `behind` has moved the cursor at least once.
    passed_on: bool,
    /// Whether a sink was configured to read with this cursor at the last start.
    configured: bool,
    /// Whether the last move was a commit of the consumer.
    own: bool,
}

impl Cursor {
    /// Creates the file. It is durable when this returns.
    pub(super) fn create(
        disk: &dyn Disk,
        path: &Path,
        channel: ChannelId,
        position: Position,
    ) -> Result<Self, Error> {
        // A crash or a full disk may have left an incomplete cursor behind.
        match disk.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::disk("creating a cursor", path, error));
            }
            _ => {}
        }
        let body = encode(channel, position, FRESH | CONFIGURED);
        let slots = Slots::create(disk, path, FORMAT, &body)
            .map_err(|error| Error::state("creating a cursor", path, error))?;
        Ok(Self {
            slots,
            path: path.to_owned(),
            channel,
            position,
            passed_on: false,
            configured: true,
            own: false,
        })
    }

    /// Opens an existing cursor file; `None` if it is damaged, was never completed, or belongs to another channel. With [`Open::Write`] the
    /// position that was found is durable when this returns.
    pub(super) fn open(
        disk: &dyn Disk,
        path: &Path,
        channel: ChannelId,
        how: Open,
    ) -> Result<Option<Self>, Error> {
        let (slots, stored) = Slots::open(disk, path, FORMAT, how, convert)
            .map_err(|error| Error::state("reading a cursor", path, error))?;
        let Stored::Body(body) = stored else {
            return Ok(None);
        };
        let decoded = decode(&body).filter(|(found, ..)| *found == channel);
        Ok(decoded.map(|(channel, position, flags)| Self {
            slots,
            path: path.to_owned(),
            channel,
            position,
            passed_on: flags & PASSED_ON != 0,
            configured: flags & CONFIGURED != 0,
            own: match flags & PASSED_ON != 0 {
                true => flags & SINCE != 0,
                false => flags & FRESH == 0,
            },
        }))
    }

    /// The position before which a sink must not resume, even if its own position is lower. `None` if neither an operator nor `behind` has
    /// ever moved the cursor.
    pub(super) fn floor(&self) -> Option<Position> {
        self.passed_on.then_some(self.position)
    }

    /// Whether a sink was configured to read with this cursor at the last start.
    pub(super) fn is_configured(&self) -> bool {
        self.configured
    }

    /// Stores whether a sink is configured to read with this cursor in this run.
    pub(super) fn set_configured(&mut self, configured: bool) -> Result<(), Error> {
        if self.configured == configured {
            return Ok(());
        }
        self.configured = configured;
        self.store(self.position)
    }

    /// The last position that the consumer committed; `None` if it never did, or if an operator or `behind` has moved the cursor
    /// since.
    pub(super) fn committed(&self) -> Option<Position> {
        self.own.then_some(self.position)
    }

    /// Moves the cursor past batches that the sink did not settle.
    pub(super) fn pass_on(&mut self, position: Position) -> Result<(), Error> {
        let before = (self.passed_on, self.own);
        (self.passed_on, self.own) = (true, false);
        let stored = self.store(position);
        if stored.is_err() {
            // The cursor was not moved, so the next commit must not store the flags of a move.
            (self.passed_on, self.own) = before;
        }
        stored
    }

    /// Commits that the consumer has settled everything up to a position.
    pub(super) fn commit(&mut self, position: Position) -> Result<(), Error> {
        self.own = true;
        self.store(position)
    }

    fn store(&mut self, position: Position) -> Result<(), Error> {
        let moved = match (self.passed_on, self.own) {
            (false, false) => FRESH,
            (false, true) => 0,
            (true, false) => PASSED_ON,
            (true, true) => PASSED_ON | SINCE,
        };
        let configured = if self.configured { CONFIGURED } else { 0 };
        let body = encode(self.channel, position, moved | configured);
        self.slots
            .store(&body)
            .map_err(|error| Error::state("committing the cursor", &self.path, error))?;
        self.position = position;
        Ok(())
    }
}

fn encode(channel: ChannelId, position: Position, flags: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(32);
    out.extend_from_slice(&channel.0);
    out.extend_from_slice(&position.epoch.to_le_bytes());
    out.extend_from_slice(&flags.to_le_bytes());
    out.extend_from_slice(&position.seq.to_le_bytes());
    out
}

/// The channel, the position and the flags.
fn decode(body: &[u8]) -> Option<(ChannelId, Position, u32)> {
    let mut fields = Fields::new(body);
    let channel = ChannelId(fields.array()?);
    let (epoch, flags, seq) = (fields.u32()?, fields.u32()?, fields.u64()?);
    Some((channel, Position { epoch, seq }, flags))
}

/// Converts a slot of an older version. Returns its generation and its body in the current format.
fn convert(slot: &[u8]) -> Option<(u64, Vec<u8>)> {
    let slot = slot.get(..OLD_SLOT_BYTES)?;
    let Sealed::Whole = seal::check(FORMAT.magic, slot) else {
        return None;
    };
    let mut fields = Fields::new(&slot[SEAL_BYTES..]);
    let channel = ChannelId(fields.array()?);
    let generation = fields.u64()?;
    let (epoch, mut flags, seq) = (fields.u32()?, fields.u32()?, fields.u64()?);
    if generation == MADE {
        flags |= FRESH;
    }
    Some((generation, encode(channel, Position { epoch, seq }, flags)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millstream_testkit::{
        Call, SimulatedDisk,
        trial::{DIRECTORY, DurableState, Trial},
    };

    use super::*;
    use crate::disk::log::tests::put_golden;

    const CHANNEL: ChannelId =
        ChannelId(0x8e4a_ffc2_d663_8c21_848c_9124_6a10_6edc_u128.to_be_bytes());

    fn open(disk: &SimulatedDisk, path: &Path) -> Cursor {
        let opened = Cursor::open(disk, path, CHANNEL, Open::Write);
        opened.unwrap().unwrap()
    }

    #[test]
    fn a_cursor_of_version_3_is_read_and_continues_in_version_4() {
        let disk = SimulatedDisk::new(1);
        let path = Path::new("/out.cursor");
        put_golden(&disk, path, "version-3/out.cursor");
        let mut cursor = open(&disk, path);
        let settled = Position { epoch: 1, seq: 1 };
        assert_eq!(
            (cursor.position, cursor.committed()),
            (settled, Some(settled))
        );
        assert!(cursor.is_configured() && cursor.floor().is_none());
        let skipped = Position { epoch: 1, seq: 9 };
        cursor.pass_on(skipped).unwrap();
        let cursor = open(&disk, path);
        assert_eq!((cursor.floor(), cursor.committed()), (Some(skipped), None));
        let other = Cursor::open(&disk, path, ChannelId([7; 16]), Open::Read);
        assert!(other.unwrap().is_none(), "it belongs to another channel");
    }

    #[test]
    fn a_new_cursor_has_no_committed_position_until_its_consumer_commits() {
        let disk = SimulatedDisk::new(1);
        let path = Path::new("/out.cursor");
        let position = Position { epoch: 1, seq: 4 };
        drop(Cursor::create(&disk, path, CHANNEL, position).unwrap());
        let mut cursor = open(&disk, path);
        assert_eq!((cursor.position, cursor.committed()), (position, None));
        cursor.commit(position).unwrap();
        assert_eq!(open(&disk, path).committed(), Some(position));
    }

    #[test]
    fn a_cursor_that_could_not_be_moved_is_as_before() {
        let disk = SimulatedDisk::new(1);
        let path = Path::new("/out.cursor");
        let at = |seq| Position { epoch: 1, seq };
        let mut cursor = Cursor::create(&disk, path, CHANNEL, at(0)).unwrap();
        cursor.commit(at(4)).unwrap();
        disk.fail(Call::Write, 1, 5);
        cursor.pass_on(at(9)).unwrap_err();
        assert_eq!((cursor.floor(), cursor.committed()), (None, Some(at(4))));
        cursor.commit(at(5)).unwrap();
        let cursor = open(&disk, path);
        assert_eq!((cursor.floor(), cursor.committed()), (None, Some(at(5))));
    }

    /// The number that [`Trial`] stores is the seq of the cursor.
    impl DurableState for Cursor {
        fn open(disk: Arc<dyn Disk>) -> Result<Self, String> {
            let directory = Path::new(DIRECTORY);
            let path = directory.join("out.cursor");
            (disk.create_directory(directory))
                .and_then(|()| disk.sync_directory(Path::new("/")))
                .map_err(|error| error.to_string())?;
            let opened = match disk.metadata(&path) {
                Ok(_) => Cursor::open(&*disk, &path, CHANNEL, Open::Write),
                Err(_) => Ok(None),
            };
            match opened.map_err(|error| error.to_string())? {
                Some(cursor) => Ok(cursor),
                None => Cursor::create(&*disk, &path, CHANNEL, Position::default())
                    .map_err(|error| error.to_string()),
            }
        }

        fn number(&self) -> u64 {
            self.position.seq
        }

        fn advance(&mut self, number: u64) -> Result<(), String> {
            let position = Position {
                epoch: 1,
                seq: number,
            };
            self.commit(position).map_err(|error| error.to_string())
        }
    }

    #[test]
    fn a_committed_position_survives_every_crash_and_needs_no_space() {
        let trial = Trial {
            needs_no_space: true,
            ..Trial::default()
        };
        trial.run::<Cursor>();
    }
}
