//! The bytes of the journal, and who it is.
//!
//! ```text
//! header (36 bytes)                          record
//! offset bytes                               offset bytes
//!      0   8   "MSFUSE02"                         0   4   CRC-32C of the rest of the record
//!      8   8   number of the journal              4   4   N: bytes of data
//!     16   8   when it was made, nanoseconds      8   1   1 begin (data: path), 2 piece, 3 done, 4 part
//!     24   8   first generation                   9   3   zero
//!     32   4   CRC-32C of the 32 bytes           12   4   slot
//!                                                16   8   generation
//!                                                24   N   data
//! ```
//!
//! A part says that so many (data: 8 bytes) of the last bytes in generations before its own are of its own. Version 1 has none.

use std::{collections::BTreeMap, fs, io, io::Read};

use millstream_record::{FileId, Time};

const MAGIC: &[u8; 8] = b"MSFUSE02";
/// What came before and can be read as it is.
const MAGIC_BEFORE: &[u8; 8] = b"MSFUSE01";
/// The part that is the same in every version.
const TITLE: &[u8] = b"MSFUSE";
pub(super) const HEADER_BYTES: usize = 36;
pub(super) const HEAD_BYTES: usize = 24;
pub(super) const BEGIN: u8 = 1;
pub(super) const PIECE: u8 = 2;
pub(super) const DONE: u8 = 3;
pub(super) const PART: u8 = 4;
/// Stands for the device in origins: no device has this number.
const DEVICE: u64 = u64::from_be_bytes(*b"ms-fuse\0");

/// Who the journal is, in origins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fuse) struct Identity {
    number: u64,
    made: i64,
}

impl Identity {
    /// The file that a slot is in origins.
    pub(in crate::fuse) fn file(self, slot: u32) -> FileId {
        FileId {
            device: DEVICE,
            inode: u64::from(slot),
            birth: self.made,
            head: self.number,
        }
    }

    /// One that no other journal has.
    pub(super) fn new() -> io::Result<Self> {
        let mut number = [0; 8];
        fs::File::open("/dev/urandom")?.read_exact(&mut number)?;
        Ok(Self {
            number: u64::from_ne_bytes(number),
            made: Time::now().0,
        })
    }
}

/// What a journal says of one slot.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) slot: u32,
    pub(super) path: String,
    /// The generation it began with.
    pub(super) start: u64,
    /// Generations below this are done.
    pub(super) done: u64,
    /// Unfinished bytes by generation.
    pub(super) tails: BTreeMap<u64, Vec<u8>>,
}

pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The bytes of a record.
pub(super) fn record(kind: u8, slot: u32, generation: u64, data: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEAD_BYTES + data.len());
    record.extend_from_slice(&[0; 4]);
    let bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
    record.extend_from_slice(&bytes.to_le_bytes());
    record.extend_from_slice(&[kind, 0, 0, 0]);
    record.extend_from_slice(&slot.to_le_bytes());
    record.extend_from_slice(&generation.to_le_bytes());
    record.extend_from_slice(data);
    let crc = crc32c(&record[4..]);
    record[..4].copy_from_slice(&crc.to_le_bytes());
    record
}

/// The header of a journal whose generations begin with `floor`.
pub(super) fn header(identity: Identity, floor: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&identity.number.to_le_bytes());
    header[16..24].copy_from_slice(&identity.made.to_le_bytes());
    header[24..32].copy_from_slice(&floor.to_le_bytes());
    let crc = crc32c(&header[..32]);
    header[32..].copy_from_slice(&crc.to_le_bytes());
    header
}

impl Found {
    /// The last `bytes` of what was before a generation are of it.
    fn part(&mut self, generation: u64, bytes: usize) {
        let mut moved = Vec::new();
        for (_, tail) in self.tails.range_mut(..generation).rev() {
            let missing = bytes.saturating_sub(moved.len());
            let last = tail.split_off(tail.len().saturating_sub(missing));
            moved.splice(..0, last);
        }
        self.tails.entry(generation).or_default().splice(..0, moved);
    }
}

/// Reads a journal: who it is, what is left, and the first generation that was never used.
pub(super) fn load(bytes: &[u8]) -> Result<(Identity, Vec<Found>, u64), String> {
    let damaged = || "is damaged: it has no header".to_owned();
    let header: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or_else(damaged)?;
    let (text, crc) = header.split_at(32);
    let is_known = text.starts_with(MAGIC) || text.starts_with(MAGIC_BEFORE);
    if text.starts_with(TITLE) && !is_known {
        return Err("was written by a newer version of Millstream".to_owned());
    }
    if crc != crc32c(text).to_le_bytes() || !is_known {
        return Err(damaged());
    }
    let number = |at: usize| {
        let bytes = text.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    let identity = Identity {
        number: number(8),
        made: number(16) as i64,
    };
    let mut floor = number(24);
    let mut slots: BTreeMap<u32, Found> = BTreeMap::new();
    let mut rest = &bytes[HEADER_BYTES..];
    // What does not fit was being written when the power went: it was not answered for.
    while let Some((kind, slot, generation, data, behind)) = next_record(rest) {
        rest = behind;
        floor = floor.max(generation.saturating_add(1));
        let found = slots.entry(slot).or_default();
        match kind {
            BEGIN => {
                *found = Found {
                    slot,
                    path: String::from_utf8_lossy(data).into_owned(),
                    start: generation,
                    ..Found::default()
                }
            }
            PIECE => found.tails.entry(generation).or_default().extend(data),
            DONE => found.done = found.done.max(generation),
            PART => {
                let bytes = data
                    .first_chunk()
                    .map_or(0, |data| u64::from_le_bytes(*data));
                found.part(generation, usize::try_from(bytes).unwrap_or(usize::MAX));
            }
            _ => {}
        }
    }
    Ok((identity, slots.into_values().collect(), floor))
}

type Record<'a> = (u8, u32, u64, &'a [u8], &'a [u8]);

fn next_record(bytes: &[u8]) -> Option<Record<'_>> {
    let head: &[u8; HEAD_BYTES] = bytes.first_chunk()?;
    let number = |at: usize| {
        let bytes = head.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    };
    let end = HEAD_BYTES.checked_add(number(4)? as usize)?;
    let whole = bytes.get(..end)?;
    if number(0)? != crc32c(&whole[4..]) {
        return None;
    }
    let generation = u64::from_le_bytes(*head.last_chunk()?);
    Some((
        head[8],
        number(12)?,
        generation,
        &whole[HEAD_BYTES..],
        &bytes[end..],
    ))
}
