//! The bytes of the journal, and who it is.
//!
//! ```text
//! header (44 bytes)                          record
//! offset bytes                               offset bytes
//!      0   8   "MSFUSE03"                         0   4   CRC-32C of the place and the rest of the record
//!      8   8   number of the journal              4   4   N: bytes of data
//!     16   8   when it was made, nanoseconds      8   1   1 begin (data: path), 2 piece, 3 done, 4 part
//!     24   8   first generation                   9   3   zero
//!     32   8   how often it was written anew     12   4   slot
//!     40   4   CRC-32C of the 40 bytes           16   8   generation
//!                                                24   N   data
//! ```
//!
//! The place is the number of the journal, how often it was written anew, and the offset of the record, 8 bytes each. So a
//! record that stands anywhere else is none. A part says that so many (data: 8 bytes) of the last bytes in generations before its own are of its own. Version 1 has
//! none. Versions 1 and 2 do not say how often they were written anew: their CRC stands at 32, the CRC of a record does not
//! cover its place, and they have no copy.
//!
//! The journal and its copy hold the same records at the same offsets. Reading takes each record from the one that has it
//! whole. So damage to one of them loses nothing.

use std::{collections::BTreeMap, fs, io, io::Read, ops::Range};

use millstream_record::{FileId, Time};

const MAGIC: &[u8; 8] = b"MSFUSE03";
/// What came before.
const MAGICS_BEFORE: [&[u8; 8]; 2] = [b"MSFUSE01", b"MSFUSE02"];
/// The part that is the same in every version.
const TITLE: &[u8] = b"MSFUSE";
pub(super) const HEADER_BYTES: usize = 44;
/// The same in the versions before.
const HEADER_BYTES_BEFORE: usize = 36;
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

/// The bytes of a record that stands at an offset of the journal with this header.
pub(super) fn record(
    header: &Header,
    at: u64,
    (kind, slot, generation): (u8, u32, u64),
    data: &[u8],
) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEAD_BYTES + data.len());
    record.extend_from_slice(&[0; 4]);
    let bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
    record.extend_from_slice(&bytes.to_le_bytes());
    record.extend_from_slice(&[kind, 0, 0, 0]);
    record.extend_from_slice(&slot.to_le_bytes());
    record.extend_from_slice(&generation.to_le_bytes());
    record.extend_from_slice(data);
    let crc = header.checksum(at, &record[4..]);
    record[..4].copy_from_slice(&crc.to_le_bytes());
    record
}

/// What stands at the head of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) identity: Identity,
    /// The first generation.
    pub(super) floor: u64,
    /// How often it was written anew. Of a journal and a copy that differ in this, the older one does not count.
    anew: u64,
    /// Its bytes.
    bytes: usize,
}

impl Header {
    /// Of a journal that is written now.
    pub(super) fn new(identity: Identity, floor: u64, anew: u64) -> Self {
        Self {
            identity,
            floor,
            anew,
            bytes: HEADER_BYTES,
        }
    }

    /// Of the same journal when it is written anew once more.
    pub(super) fn anew(&self) -> Self {
        Self::new(self.identity, self.floor, self.anew + 1)
    }

    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(MAGIC);
        header[8..16].copy_from_slice(&self.identity.number.to_le_bytes());
        header[16..24].copy_from_slice(&self.identity.made.to_le_bytes());
        header[24..32].copy_from_slice(&self.floor.to_le_bytes());
        header[32..40].copy_from_slice(&self.anew.to_le_bytes());
        let crc = crc32c(&header[..40]);
        header[40..].copy_from_slice(&crc.to_le_bytes());
        header
    }

    /// Reads it; `None` if it is damaged or of a version that is not known.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let magic = bytes.first_chunk::<8>()?;
        let (length, is_new) = match magic == MAGIC {
            true => (HEADER_BYTES, true),
            false if MAGICS_BEFORE.contains(&magic) => (HEADER_BYTES_BEFORE, false),
            false => return None,
        };
        let (text, crc) = bytes.get(..length)?.split_last_chunk::<4>()?;
        if *crc != crc32c(text).to_le_bytes() {
            return None;
        }
        let number = |at: usize| {
            let bytes = text.get(at..).and_then(|rest| rest.first_chunk());
            bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        Some(Self {
            identity: Identity {
                number: number(8),
                made: number(16) as i64,
            },
            floor: number(24),
            anew: if is_new { number(32) } else { 0 },
            bytes: length,
        })
    }

    /// The checksum of a record: of `bytes` at an offset.
    fn checksum(&self, at: u64, bytes: &[u8]) -> u32 {
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        if self.has_copy() {
            for part in [self.identity.number, self.anew, at] {
                digest.update(&part.to_le_bytes());
            }
        }
        digest.update(bytes);
        digest.finalize() as u32
    }

    fn is_newer_than(&self, other: &Self) -> bool {
        self.identity == other.identity && self.anew > other.anew
    }

    /// Whether a journal with this header has a copy.
    fn has_copy(&self) -> bool {
        self.bytes == HEADER_BYTES
    }
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

/// What a journal and its copy say together.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) header: Header,
    pub(super) found: Vec<Found>,
    /// The first generation that was never used.
    pub(super) floor: u64,
    /// Bytes of the journal, and of its copy, that only the other one has.
    pub(super) lacks: [u64; 2],
    /// What neither has whole, although more was written behind it.
    pub(super) holes: Vec<Range<usize>>,
}

/// Reads a journal and its copy.
pub(super) fn load(files: [Option<&[u8]>; 2]) -> Result<Loaded, String> {
    let headers = files.map(|file| file.and_then(Header::decode));
    let header = match headers {
        // A kill between the renames of the two leaves the older journal, with the same records.
        [Some(journal), Some(copy)] if copy.is_newer_than(&journal) => copy,
        [Some(header), _] | [None, Some(header)] => header,
        [None, None] => return Err(no_header(files)),
    };
    let counts = headers.map(|other| other == Some(header));
    let empty: &[u8] = &[];
    let sides = [0, 1].map(|side| files[side].filter(|_| counts[side]).unwrap_or(empty));
    let mut loaded = Loaded {
        floor: header.floor,
        header,
        found: Vec::new(),
        lacks: [0; 2],
        holes: Vec::new(),
    };
    loaded.read(sides);
    for side in 0..2 {
        let is_older = headers[side].is_some() && !counts[side];
        if is_older || (side == 1 && !header.has_copy()) {
            loaded.lacks[side] = 0;
        } else if !counts[side] {
            loaded.lacks[side] += HEADER_BYTES as u64;
        }
    }
    Ok(loaded)
}

/// Why neither of two files can be read.
fn no_header(files: [Option<&[u8]>; 2]) -> String {
    let known = [&[MAGIC][..], &MAGICS_BEFORE].concat();
    let versions = files.map(|file| {
        let magic = file.and_then(|file| file.first_chunk::<8>());
        magic.filter(|magic| magic.starts_with(TITLE) && !known.contains(magic))
    });
    // Two files that agree on a version that is not known are not damaged.
    match versions {
        [Some(one), Some(other)] if one == other => {
            "was written by a newer version of Millstream: run that version".to_owned()
        }
        _ => "is damaged: it has no header, nor has its copy".to_owned(),
    }
}

impl Loaded {
    fn read(&mut self, sides: [&[u8]; 2]) {
        let mut slots: BTreeMap<u32, Found> = BTreeMap::new();
        let mut at = self.header.bytes;
        let end = sides.map(<[u8]>::len).into_iter().max().unwrap_or(0);
        let header = self.header;
        let record_at = |side, at| record_at(&header, side, at);
        let mut last = 0;
        while at < end {
            let records = sides.map(|side| record_at(side, at));
            let Some(record) = records.iter().flatten().next() else {
                // What does not fit at the end was being written when the power went: it was not answered for.
                let Some(next) = (at + 1..end)
                    .find(|next| sides.iter().any(|side| record_at(side, *next).is_some()))
                else {
                    break;
                };
                self.holes.push(at..next);
                at = next;
                continue;
            };
            last = HEAD_BYTES + record.data.len();
            for (lacks, found) in self.lacks.iter_mut().zip(&records) {
                *lacks += if found.is_none() { last as u64 } else { 0 };
            }
            self.floor = self.floor.max(record.generation.saturating_add(1));
            slots.entry(record.slot).or_default().apply(record);
            at += last;
        }
        // A kill between the two writes of the last record is no damage.
        if self.lacks[1] == last as u64 && sides[1].len() == at - last {
            self.lacks[1] = 0;
        }
        self.found = slots.into_values().collect();
    }
}

/// A record as it stands in a file.
struct Record<'a> {
    kind: u8,
    slot: u32,
    generation: u64,
    data: &'a [u8],
}

impl Found {
    fn apply(&mut self, record: &Record<'_>) {
        let Record {
            kind,
            slot,
            generation,
            data,
        } = *record;
        match kind {
            BEGIN => {
                *self = Self {
                    slot,
                    path: String::from_utf8_lossy(data).into_owned(),
                    start: generation,
                    ..Self::default()
                }
            }
            PIECE => self.tails.entry(generation).or_default().extend(data),
            DONE => self.done = self.done.max(generation),
            PART => {
                let bytes = data
                    .first_chunk()
                    .map_or(0, |data| u64::from_le_bytes(*data));
                self.part(generation, usize::try_from(bytes).unwrap_or(usize::MAX));
            }
            _ => {}
        }
    }
}

fn record_at<'a>(header: &Header, file: &'a [u8], at: usize) -> Option<Record<'a>> {
    let bytes = file.get(at..)?;
    let head: &[u8; HEAD_BYTES] = bytes.first_chunk()?;
    let number = |at: usize| {
        let bytes = head.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    };
    // Before the checksum: a search looks at every offset.
    if !(BEGIN..=PART).contains(&head[8]) || head[9..12] != [0; 3] {
        return None;
    }
    let end = HEAD_BYTES.checked_add(number(4)? as usize)?;
    let whole = bytes.get(..end)?;
    if number(0)? != header.checksum(at as u64, &whole[4..]) {
        return None;
    }
    Some(Record {
        kind: head[8],
        slot: number(12)?,
        generation: u64::from_le_bytes(*head.last_chunk()?),
        data: &whole[HEAD_BYTES..],
    })
}
