//! Converts the journals of Millstream up to 2026-11, versions 1 to 3.
//!
//! ```text
//! header                                     record
//! offset bytes                               offset bytes
//!      0   8   "MSFUSE03"                         0   4   CRC-32C of the place and the rest of the record
//!      8   8   number of the journal              4   4   N: bytes of data
//!     16   8   creation time, nanoseconds         8   1   kind, as in `record.rs`
//!     24   8   first generation                   9   3   zero
//!     32   8   number of rewrites                12   4   slot
//!     40   4   CRC-32C of the 40 bytes           16   8   generation
//!                                                24   N   data
//! ```
//!
//! The place of a record is the number of the journal, the number of rewrites, and the offset of the record, 8 bytes each. The
//! copy holds the same records at the same offsets. Versions 1 and 2 have no copy and no number of rewrites: their header has its
//! checksum at offset 32, and the checksum of a record does not cover the place of the record.

use millstream_state::Recovered;
use millstream_sys::checksum::{crc32c, crc32c_of};

use super::record::{Head, Identity, Kind, Title};

const MAGIC: &[u8; 8] = b"MSFUSE03";
/// The magics of the versions without a copy.
const MAGICS_WITHOUT_COPY: [&[u8; 8]; 2] = [b"MSFUSE01", b"MSFUSE02"];
const HEADER_BYTES: usize = 44;
const HEADER_BYTES_WITHOUT_COPY: usize = 36;
const RECORD_HEAD_BYTES: usize = 24;

/// Reads a journal and its copy. Returns `None` if neither has the header of an older version.
pub(super) fn convert(files: [Option<&[u8]>; 2]) -> Option<Recovered> {
    let headers = files.map(|file| file.and_then(Header::decode));
    let header = match headers {
        // If the process was killed between the two renames of a rewrite, an older journal lies beside the newer copy. Both have
        // the same unfinished lines.
        [Some(journal), Some(copy)] if copy.is_newer_than(&journal) => copy,
        [Some(header), _] | [None, Some(header)] => header,
        [None, None] => return None,
    };
    let counts = headers.map(|other| other == Some(header));
    let sides = [0, 1].map(|side| files[side].filter(|_| counts[side]).unwrap_or_default());
    let mut recovered = header.read(sides);
    for side in 0..2 {
        let is_older = headers[side].is_some() && !counts[side];
        if is_older || (side == 1 && !header.has_copy()) {
            recovered.lacks[side] = 0;
        } else if !counts[side] {
            recovered.lacks[side] += HEADER_BYTES as u64;
        }
    }
    Some(recovered)
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Header {
    title: Title,
    /// The number of rewrites. If it differs between a journal and its copy, the older file is ignored.
    rewrites: u64,
    bytes: usize,
}

/// A complete record of a file.
struct Record<'a> {
    head: Head,
    data: &'a [u8],
}

impl Header {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let magic = bytes.first_chunk::<8>()?;
        let (length, has_copy) = match magic == MAGIC {
            true => (HEADER_BYTES, true),
            false if MAGICS_WITHOUT_COPY.contains(&magic) => (HEADER_BYTES_WITHOUT_COPY, false),
            false => return None,
        };
        let (text, checksum) = bytes.get(..length)?.split_last_chunk::<4>()?;
        if *checksum != crc32c(text).to_le_bytes() {
            return None;
        }
        let number = |at: usize| Some(u64::from_le_bytes(*text.get(at..)?.first_chunk()?));
        Some(Self {
            title: Title {
                identity: Identity {
                    number: number(8)?,
                    made: number(16)? as i64,
                },
                floor: number(24)?,
            },
            rewrites: if has_copy { number(32)? } else { 0 },
            bytes: length,
        })
    }

    fn is_newer_than(&self, other: &Self) -> bool {
        self.title.identity == other.title.identity && self.rewrites > other.rewrites
    }

    fn has_copy(&self) -> bool {
        self.bytes == HEADER_BYTES
    }

    /// Reads each record from the file in which it is intact.
    fn read(&self, sides: [&[u8]; 2]) -> Recovered {
        let (head, data) = self.title.encode();
        let mut bodies = vec![[&head.encode()[..], &data].concat()];
        let (mut holes, mut lacks) = (Vec::new(), [0, 0]);
        let end = sides.map(<[u8]>::len).into_iter().max().unwrap_or(0);
        let (mut at, mut last) = (self.bytes, 0);
        while at < end {
            let records = sides.map(|side| self.record_at(side, at));
            let Some(record) = records.iter().flatten().next() else {
                // If no record follows these bytes, they are a write that was interrupted when the process died. That write was
                // not acknowledged.
                let mut behind = at + 1..end;
                let is_record = |next: &usize| {
                    sides
                        .iter()
                        .any(|side| self.record_at(side, *next).is_some())
                };
                let Some(next) = behind.find(is_record) else {
                    break;
                };
                holes.push(at as u64..next as u64);
                at = next;
                continue;
            };
            last = RECORD_HEAD_BYTES + record.data.len();
            for (lacks, record) in lacks.iter_mut().zip(&records) {
                *lacks += if record.is_none() { last as u64 } else { 0 };
            }
            bodies.push([&record.head.encode()[..], record.data].concat());
            at += last;
        }
        // If only the copy lacks the last record, the process died between the two writes. That is not damage.
        if lacks[1] == last as u64 && sides[1].len() == at - last {
            lacks[1] = 0;
        }
        Recovered {
            holes,
            lacks,
            ..Recovered::of(bodies)
        }
    }

    fn record_at<'a>(&self, file: &'a [u8], at: usize) -> Option<Record<'a>> {
        let bytes = file.get(at..)?;
        let head: &[u8; RECORD_HEAD_BYTES] = bytes.first_chunk()?;
        let number = |at: usize| Some(u32::from_le_bytes(*head.get(at..)?.first_chunk()?));
        // The kind and the zero bytes are checked first. The checksum is slower, and the search for the next record tries every
        // offset.
        let kind = Kind::of(head[8]).filter(|kind| *kind != Kind::Title)?;
        if head[9..12] != [0; 3] {
            return None;
        }
        let end = RECORD_HEAD_BYTES.checked_add(number(4)? as usize)?;
        let whole = bytes.get(..end)?;
        if number(0)? != self.checksum(at as u64, &whole[4..]) {
            return None;
        }
        Some(Record {
            head: Head {
                kind,
                slot: number(12)?,
                generation: u64::from_le_bytes(*head.last_chunk()?),
                // Older versions did not store this offset. With the maximum, every hole counts as damage.
                synced: u64::MAX,
            },
            data: &whole[RECORD_HEAD_BYTES..],
        })
    }

    fn checksum(&self, at: u64, bytes: &[u8]) -> u32 {
        let place = [self.title.identity.number, self.rewrites, at].map(u64::to_le_bytes);
        match self.has_copy() {
            true => crc32c_of(&[place.as_flattened(), bytes]),
            false => crc32c(bytes),
        }
    }
}
