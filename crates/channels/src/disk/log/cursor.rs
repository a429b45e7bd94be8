//! The cursor of one consumer, `NAME.cursor`: everything at or below its position is settled.
//!
//! ```text
//! two slots, at 0 and 4096, written in turns; the valid slot with the higher generation counts
//! offset bytes
//!      0   8   magic "MILLCUR" and 0
//!      8   4   format version
//!     12   4   CRC-32C of the version and bytes 16..56 (seal.rs)
//!     16  16   channel id
//!     32   8   generation
//!     40   4   epoch
//!     44   4   flags: 1 = an operator, or `behind`, has moved the cursor at some time
//!                     2 = a sink read here after the last start
//!                     4 = the consumer has committed since the cursor was moved
//!                     8 = the consumer has not committed since the cursor was created
//!     48   8   seq
//! ```
//!
//! The position of a sink that keeps its own wins over the cursor, but not over an operator or `behind`: once that flag is
//! set, nothing at or below the cursor is read again.
//!
//! The file gets its full size at once, so that a full disk cannot prevent a commit, which would keep the disk full.

use std::{
    io::{self, IoSlice},
    path::Path,
    sync::Arc,
};

use millstream_record::Position;
use millstream_sys::disk::{Disk, File, Open};

use super::{
    ChannelId, Error,
    bytes::Fields,
    seal::{self, FORMAT_VERSION, SEAL_BYTES, Sealed},
    segment::PAGE,
};

const MAGIC: &[u8; 8] = b"MILLCUR\0";
const SLOT_BYTES: usize = 56;
const PASSED_ON: u32 = 1;
const CONFIGURED: u32 = 2;
const SINCE: u32 = 4;
const FRESH: u32 = 8;
/// The generation of a cursor that was created and not moved since. Older versions did not write `FRESH`.
const MADE: u64 = 1;

/// An open cursor file.
pub(super) struct Cursor {
    file: Arc<dyn File>,
    channel: ChannelId,
    generation: u64,
    pub(super) position: Position,
    /// An operator or `behind` has moved it at some time.
    passed_on: bool,
    /// A sink read here after the last start.
    configured: bool,
    /// The consumer itself moved it last.
    own: bool,
}

impl Cursor {
    /// Creates the file and syncs it. The caller syncs the directory.
    pub(super) fn create(
        disk: &dyn Disk,
        path: &Path,
        channel: ChannelId,
        position: Position,
    ) -> io::Result<Self> {
        let file = disk.open(path, Open::Create)?;
        let made = file.allocate(2 * PAGE).and_then(|()| {
            // Both pages are written, so that no later write needs room.
            file.write_at(&[IoSlice::new(&[0; 2 * PAGE as usize])], 0)
        });
        let mut cursor = Self {
            file,
            channel,
            generation: 0,
            position,
            passed_on: false,
            configured: true,
            own: false,
        };
        made.and_then(|()| cursor.write(position))?;
        Ok(cursor)
    }

    /// Opens an existing cursor file; `None` if neither slot is valid.
    pub(super) fn open(
        disk: &dyn Disk,
        path: &Path,
        channel: ChannelId,
        how: Open,
    ) -> Result<Option<Self>, Error> {
        let failed = |error| Error::disk("reading a cursor", path, error);
        let file = disk.open(path, how).map_err(failed)?;
        let mut newest: Option<Slot> = None;
        for slot in 0..2 {
            let mut bytes = Vec::new();
            file.read_at(&mut bytes, SLOT_BYTES, slot * PAGE)
                .map_err(failed)?;
            match decode(&bytes, &channel) {
                Some(Err(found)) => {
                    return Err(Error::Newer {
                        path: path.to_owned(),
                        found,
                        known: FORMAT_VERSION,
                    });
                }
                Some(Ok(slot))
                    if newest
                        .as_ref()
                        .is_none_or(|newest| newest.generation < slot.generation) =>
                {
                    newest = Some(slot);
                }
                _ => {}
            }
        }
        Ok(newest.map(|slot| Self {
            file,
            channel,
            generation: slot.generation,
            position: slot.position,
            passed_on: slot.passed_on,
            configured: slot.configured,
            own: slot.own,
        }))
    }

    /// The position that a sink must not go back behind, whatever its own position is.
    pub(super) fn floor(&self) -> Option<Position> {
        self.passed_on.then_some(self.position)
    }

    /// Writes the cursor again at a start. After a failed sync and a kill, the system may show a slot that is not on the disk,
    /// and segments are released by it.
    pub(super) fn renew(&mut self) -> io::Result<()> {
        self.write(self.position)
    }

    /// Whether a sink read here after the last start.
    pub(super) fn is_configured(&self) -> bool {
        self.configured
    }

    /// Records whether a sink reads here from this start on.
    pub(super) fn set_configured(&mut self, configured: bool) -> io::Result<()> {
        if self.configured == configured {
            return Ok(());
        }
        self.configured = configured;
        self.write(self.position)
    }

    /// The last position that the consumer committed; `None` if it never did, or if something else moved the cursor since.
    pub(super) fn committed(&self) -> Option<Position> {
        self.own.then_some(self.position)
    }

    /// Moves the cursor to a position that its sink did not settle.
    pub(super) fn pass_on(&mut self, position: Position) -> io::Result<()> {
        (self.passed_on, self.own) = (true, false);
        self.write(position)
    }

    /// Commits that the consumer has settled everything up to a position.
    pub(super) fn commit(&mut self, position: Position) -> io::Result<()> {
        self.own = true;
        self.write(position)
    }

    /// Writes the position into the older slot and syncs it.
    fn write(&mut self, position: Position) -> io::Result<()> {
        let generation = self.generation + 1;
        let mut out = seal::begin(MAGIC);
        out.extend_from_slice(&self.channel.0);
        out.extend_from_slice(&generation.to_le_bytes());
        out.extend_from_slice(&position.epoch.to_le_bytes());
        let moved = match (self.passed_on, self.own) {
            (false, false) => FRESH,
            (false, true) => 0,
            (true, false) => PASSED_ON,
            (true, true) => PASSED_ON | SINCE,
        };
        let configured = if self.configured { CONFIGURED } else { 0 };
        let flags = moved | configured;
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&position.seq.to_le_bytes());
        seal::seal(&mut out);
        self.file
            .write_at(&[IoSlice::new(&out)], generation % 2 * PAGE)?;
        self.file.sync()?;
        self.generation = generation;
        self.position = position;
        Ok(())
    }
}

/// A slot of the file.
struct Slot {
    generation: u64,
    position: Position,
    passed_on: bool,
    configured: bool,
    own: bool,
}

/// Decodes a slot; the error is the version of a newer program.
fn decode(bytes: &[u8], channel: &ChannelId) -> Option<Result<Slot, u32>> {
    match seal::check(MAGIC, bytes) {
        Sealed::Whole => {}
        Sealed::Newer(version) => return Some(Err(version)),
        Sealed::Damaged => return None,
    }
    let mut fields = Fields::new(bytes.get(SEAL_BYTES..)?);
    if fields.id()? != channel.0 {
        return None;
    }
    let generation = fields.u64()?;
    let epoch = fields.u32()?;
    let flags = fields.u32()?;
    let seq = fields.u64()?;
    Some(Ok(Slot {
        generation,
        position: Position { epoch, seq },
        passed_on: flags & PASSED_ON != 0,
        configured: flags & CONFIGURED != 0,
        own: match flags & PASSED_ON != 0 {
            true => flags & SINCE != 0,
            false => flags & FRESH == 0 && generation > MADE,
        },
    }))
}
