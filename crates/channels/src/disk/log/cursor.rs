//! The cursor of one consumer, `NAME.cursor`: everything at or below its position is settled.
//!
//! ```text
//! two slots, at 0 and 4096, written in turn; the valid one with the higher generation counts
//! offset bytes
//!      0   8   magic "MILLCUR" and 0
//!      8   4   format version
//!     12   4   CRC-32C of the version and bytes 16..56 (seal.rs)
//!     16  16   channel id
//!     32   8   generation
//!     40   4   epoch
//!     44   4   flags: 1 = an operator, or `behind`, has passed the consumer on, once
//!                     2 = a sink read here after the last start
//!                     4 = the consumer has committed since it was passed on
//!                     8 = the consumer has not committed since the cursor was made
//!     48   8   seq
//! ```
//!
//! The position of a sink that keeps one of its own wins over the cursor, but not over who passed it on: once that flag
//! is set, nothing at or below the cursor is read again.
//!
//! The file is made whole at once, so that a full disk cannot stop a commit, and so stop the room from coming back.

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
/// The generation of a cursor that was made and not moved since; older versions did not write `FRESH`.
const MADE: u64 = 1;

/// An open cursor file.
pub(super) struct Cursor {
    file: Arc<dyn File>,
    channel: ChannelId,
    generation: u64,
    pub(super) position: Position,
    /// Something else than its sink has moved it, once.
    passed_on: bool,
    /// A sink read here after the last start.
    configured: bool,
    /// The last move was the consumer's own.
    own: bool,
}

/// What stands in a cursor file.
pub(super) enum CursorFound {
    Good(Cursor),
    /// Neither slot is valid.
    Damaged,
}

impl Cursor {
    /// Makes the file and syncs it; its name is synced by the caller.
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

    /// Opens a cursor file that is there.
    pub(super) fn open(
        disk: &dyn Disk,
        path: &Path,
        channel: ChannelId,
        how: Open,
    ) -> Result<CursorFound, Error> {
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
        Ok(match newest {
            Some(slot) => CursorFound::Good(Self {
                file,
                channel,
                generation: slot.generation,
                position: slot.position,
                passed_on: slot.passed_on,
                configured: slot.configured,
                own: slot.own,
            }),
            None => CursorFound::Damaged,
        })
    }

    /// What a sink may not go back behind, whatever its own position is.
    pub(super) fn floor(&self) -> Option<Position> {
        self.passed_on.then_some(self.position)
    }

    /// Makes what was found at a start durable: after a failed sync and a kill, the system may show a slot that the disk does
    /// not have, and segments are dropped by it.
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

    /// The last position that the consumer committed; `None` if it never did, or if it was passed on since.
    pub(super) fn committed(&self) -> Option<Position> {
        self.own.then_some(self.position)
    }

    /// Passes the consumer on to the position, which its sink did not settle.
    pub(super) fn pass_on(&mut self, position: Position) -> io::Result<()> {
        (self.passed_on, self.own) = (true, false);
        self.write(position)
    }

    /// The consumer has settled everything up to the position.
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

/// What stands in a slot.
struct Slot {
    generation: u64,
    position: Position,
    passed_on: bool,
    configured: bool,
    own: bool,
}

/// A slot, or the version of a newer program.
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
