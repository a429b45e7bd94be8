//! The records of the journal, and the unfinished lines that they describe.
//!
//! ```text
//! offset bytes
//!      0   1   kind: 1 begin, 2 piece, 3 done, 4 part, 5 title
//!      1   3   zero
//!      4   4   slot
//!      8   8   generation
//!     16   8   offset up to which the file was durable when this was written
//!     24   -   data
//! ```
//!
//! - `title`: the first record. Its generation is the first generation that was never used. Its data is the journal's number and
//!   the time of its creation in nanoseconds, 8 bytes each.
//! - `begin`: an open file takes the slot. The data is the path of the file.
//! - `piece`: the data is unfinished bytes of the generation.
//! - `done`: all generations below the generation of the record are settled.
//! - `part`: the data is a number n (8 bytes). The lower generations of the slot are taken together, and their last n bytes move
//!   to the generation of the record.
//!
//! Each open file with unfinished bytes has a slot. The bytes of a slot that are unfinished between two batches form a generation
//! (`mod.rs`).

use std::collections::BTreeMap;

use millstream_record::{FileId, Time};
use millstream_state::{Records, Recovered};
use millstream_sys::random;

pub(super) const HEAD_BYTES: usize = 24;
/// The device number in the invented file ids that stand for slots. No device has this number.
const DEVICE: u64 = u64::from_be_bytes(*b"ms-fuse\0");

/// The number of bytes that a record with `data` bytes of data takes in the file.
pub(super) fn frame_bytes(data: usize) -> u64 {
    (8 + HEAD_BYTES + data).next_multiple_of(8) as u64
}

/// Identifies the journal in origins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fuse) struct Identity {
    pub(super) number: u64,
    pub(super) made: i64,
}

impl Identity {
    /// The file that stands for a slot in origins.
    pub(in crate::fuse) fn file(self, slot: u32) -> FileId {
        FileId {
            device: DEVICE,
            inode: u64::from(slot),
            birth: self.made,
            head: self.number,
        }
    }
}

/// The title record of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Title {
    pub(super) identity: Identity,
    /// The first generation that was never used.
    pub(super) floor: u64,
}

impl Title {
    /// A new title. Its number is random, so that no other journal has it.
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            identity: Identity {
                number: u64::from_ne_bytes(random::bytes()?),
                made: Time::now().0,
            },
            floor: 0,
        })
    }

    /// Adds the title to the records of a new journal file. Returns the offset of the title.
    pub(super) fn add(&self, records: &mut Records) -> u64 {
        let (head, data) = self.encode();
        records.add(&[&head.encode(), &data])
    }

    pub(super) fn encode(&self) -> (Head, [u8; 16]) {
        let head = Head {
            kind: Kind::Title,
            slot: 0,
            generation: self.floor,
            synced: 0,
        };
        let mut data = [0; 16];
        data[..8].copy_from_slice(&self.identity.number.to_le_bytes());
        data[8..].copy_from_slice(&self.identity.made.to_le_bytes());
        (head, data)
    }

    fn decode(head: &Head, data: &[u8]) -> Option<Self> {
        let (number, made) = data.split_first_chunk()?;
        Some(Self {
            identity: Identity {
                number: u64::from_le_bytes(*number),
                made: i64::from_le_bytes(*made.first_chunk()?),
            },
            floor: head.generation,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Begin = 1,
    Piece = 2,
    Done = 3,
    Part = 4,
    Title = 5,
}

impl Kind {
    pub(super) fn of(number: u8) -> Option<Self> {
        let kinds = [
            Self::Begin,
            Self::Piece,
            Self::Done,
            Self::Part,
            Self::Title,
        ];
        kinds.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// The fixed part of a record, before its data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) kind: Kind,
    pub(super) slot: u32,
    pub(super) generation: u64,
    /// The offset up to which the file was durable when the record was written.
    pub(super) synced: u64,
}

impl Head {
    pub(super) fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[0] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.slot.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.generation.to_le_bytes());
        bytes[16..].copy_from_slice(&self.synced.to_le_bytes());
        bytes
    }

    fn decode(body: &[u8]) -> Option<(Self, &[u8])> {
        let (bytes, data) = body.split_first_chunk::<HEAD_BYTES>()?;
        let head = Self {
            kind: Kind::of(bytes[0])?,
            slot: u32::from_le_bytes(*bytes[4..].first_chunk()?),
            generation: u64::from_le_bytes(*bytes[8..].first_chunk()?),
            synced: u64::from_le_bytes(*bytes[16..].first_chunk()?),
        };
        Some((head, data))
    }
}

/// The state of one slot, as the records describe it.
#[derive(Debug, Default)]
struct Slot {
    path: String,
    /// The first generation of the open file that has the slot.
    start: u64,
    /// Generations below this one are done.
    done: u64,
    /// Unfinished bytes by generation.
    tails: BTreeMap<u64, Vec<u8>>,
}

impl Slot {
    fn apply(&mut self, head: &Head, data: &[u8]) {
        match head.kind {
            Kind::Begin => {
                *self = Self {
                    path: String::from_utf8_lossy(data).into_owned(),
                    start: head.generation,
                    ..Self::default()
                }
            }
            Kind::Piece => self.tails.entry(head.generation).or_default().extend(data),
            Kind::Done => self.done = self.done.max(head.generation),
            Kind::Part => {
                let bytes = data
                    .first_chunk()
                    .map_or(0, |data| u64::from_le_bytes(*data));
                let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                self.part(head.generation, bytes);
            }
            Kind::Title => {}
        }
    }

    /// Moves the last `bytes` bytes of the generations below `generation` to `generation`.
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

/// The path and the bytes of an unfinished line.
pub(super) type Line = (String, Vec<u8>);

/// The unfinished lines that a journal holds.
#[derive(Debug)]
pub(super) struct Lines {
    /// The title of the journal, with the first generation that was never used.
    pub(super) title: Title,
    /// The slots according to all records.
    all: BTreeMap<u32, Slot>,
    /// The slots according to the records before the first hole (a range without valid records). Empty if the journal is damaged.
    intact: BTreeMap<u32, Slot>,
    /// The number of bytes lost in holes before the last record.
    pub(super) lost_bytes: u64,
    /// Whether the journal is damaged: some of the lost bytes were durable.
    pub(super) is_damaged: bool,
}

impl Lines {
    /// Reads the records. A hole is a range without valid records in front of a valid record. A hole before the offset up to
    /// which the file was durable is damage: any line may lack a part. A hole after that offset is most likely a write that a
    /// power cut lost, so the records before the hole are intact. Returns an error if the title is lost or a record is unknown.
    pub(super) fn of(recovered: &Recovered) -> Result<Self, &'static str> {
        let mut records = Vec::new();
        for record in &recovered.records {
            let (head, data) = Head::decode(&record.body).ok_or("it has an unknown record")?;
            records.push((record.at, head, data));
        }
        let title = match records.first() {
            Some((_, head, data)) if head.kind == Kind::Title && !recovered.lost_first() => {
                Title::decode(head, data)
            }
            _ => None,
        };
        let synced = records.iter().map(|(_, head, _)| head.synced).max();
        let holes = &recovered.holes;
        let is_damaged = holes.iter().any(|hole| Some(hole.start) < synced);
        let first_hole = holes.first().map_or(u64::MAX, |hole| hole.start);
        let mut lines = Self {
            title: title.ok_or("its first record is lost")?,
            all: BTreeMap::new(),
            intact: BTreeMap::new(),
            lost_bytes: holes.iter().map(|hole| hole.end - hole.start).sum(),
            is_damaged,
        };
        for (at, head, data) in records.iter().skip(1) {
            let next = head.generation.saturating_add(1);
            lines.title.floor = lines.title.floor.max(next);
            let slot = lines.all.entry(head.slot).or_default();
            slot.apply(head, data);
            if *at < first_hole && !is_damaged {
                let slot = lines.intact.entry(head.slot).or_default();
                slot.apply(head, data);
            }
        }
        Ok(lines)
    }

    /// The lines that can be sent, and those that may lack a part.
    pub(super) fn left(&self, kept: impl Fn(&FileId) -> Option<u64>) -> (Vec<Line>, Vec<Line>) {
        let left = |slots: &BTreeMap<u32, Slot>| {
            let mut lines = Vec::new();
            for (number, slot) in slots {
                let kept = kept(&self.title.identity.file(*number)).unwrap_or(0);
                let live = slot.start.max(slot.done).max(kept);
                let tails = slot.tails.range(live..);
                let tails = tails.filter(|(_, tail)| !tail.is_empty());
                lines.extend(tails.map(|(_, tail)| (slot.path.clone(), tail.clone())));
            }
            lines
        };
        let (intact, mut doubtful) = (left(&self.intact), left(&self.all));
        doubtful.retain(|line| !intact.contains(line));
        (intact, doubtful)
    }
}
