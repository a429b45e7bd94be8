//! Unfinished lines that have been answered for: they survive a crash here until the line is whole and kept elsewhere.
//!
//! ```text
//! header (36 bytes)                          record
//! offset bytes                               offset bytes
//!      0   8   "MSFUSE01"                         0   4   CRC-32C of the rest of the record
//!      8   8   number of the journal              4   4   N: bytes of data
//!     16   8   when it was made, nanoseconds      8   1   1 begin (data: path), 2 piece, 3 done
//!     24   8   first generation                   9   3   zero
//!     32   4   CRC-32C of the 32 bytes           12   4   slot
//!                                                16   8   generation
//!                                                24   N   data
//! ```
//!
//! An open file with an unfinished line has a slot; the unfinished bytes between two whole lines are one generation. When a
//! batch makes them whole, it carries the slot as a file and the generation as the offset of its origin (`begin`
//! generation, `next` the one behind): what a durable channel says of its origins then tells after a crash which
//! generation is left. Behind memory `done` says it.

use std::{
    collections::BTreeMap,
    fs, io,
    io::{Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_pipeline::failure::Failure;
use millstream_record::{FileId, Time};

const NAME: &str = "unfinished";
const NEW_NAME: &str = "unfinished.new";
const MAGIC: &[u8; 8] = b"MSFUSE01";
/// The part that is the same in every version.
const TITLE: &[u8] = b"MSFUSE";
const HEADER_BYTES: usize = 36;
const HEAD_BYTES: usize = 24;
const BEGIN: u8 = 1;
const PIECE: u8 = 2;
const DONE: u8 = 3;
/// Stands for the device in origins: no device has this number.
const DEVICE: u64 = u64::from_be_bytes(*b"ms-fuse\0");
/// It is written anew when it is larger than this and mostly of what is done: one sync for so many bytes.
const BYTES_MAX: u64 = 4 << 20;

/// Who the journal is, in origins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    number: u64,
    made: i64,
}

impl Identity {
    /// The file that a slot is in origins.
    pub(super) fn file(self, slot: u32) -> FileId {
        FileId {
            device: DEVICE,
            inode: u64::from(slot),
            birth: self.made,
            head: self.number,
        }
    }
}

/// What an earlier run has left of one open file, in its new slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Left {
    pub slot: u32,
    pub generation: u64,
    /// Its path below the mount point.
    pub path: String,
    pub tail: Vec<u8>,
}

/// What a journal says of one slot.
#[derive(Debug, Default)]
struct Found {
    slot: u32,
    path: String,
    /// The generation it began with.
    start: u64,
    /// Generations below this are done.
    done: u64,
    /// Unfinished bytes by generation.
    tails: BTreeMap<u64, Vec<u8>>,
}

#[derive(Debug, Default)]
struct Slot {
    path: String,
    /// The generation of the next open file that gets the slot, or of this one's first live bytes.
    generation: u64,
    /// Pieces in the file: generation, offset of the record, bytes of data.
    pieces: Vec<(u64, u64, u32)>,
}

/// The journal. Writes are to the page cache; [`Journal::file`] is what to sync.
#[derive(Debug)]
pub(super) struct Journal {
    folder: PathBuf,
    file: Arc<fs::File>,
    identity: Identity,
    end: u64,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Generations of new slots.
    floor: u64,
}

impl Journal {
    /// Opens what is there or makes a new one. What an earlier run has left moves to the new one's slots: `kept` says of a
    /// slot which generation a durable channel expects next; None: nobody can tell, and what is not done is left.
    pub(super) fn open(
        folder: &Path,
        kept: impl Fn(&FileId) -> Option<u64>,
        durable: bool,
    ) -> Result<(Self, Vec<Left>), Failure> {
        let path = folder.join(NAME);
        let failed = |error: io::Error| Failure::disk(format!("{}: {error}", path.display()));
        fs::create_dir_all(folder).map_err(failed)?;
        let (identity, found, floor) = match fs::read(&path) {
            Ok(bytes) => load(&bytes).map_err(|why| {
                Failure::disk(format!(
                    "{} {why}; if it is removed, lines that were unfinished at the last stop are lost",
                    path.display()
                ))
                .never_again()
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                (Identity::new().map_err(failed)?, Vec::new(), 0)
            }
            Err(error) => return Err(failed(error)),
        };
        let mut left = Vec::new();
        for found in found {
            let kept = kept(&identity.file(found.slot)).unwrap_or(0);
            let live = found.start.max(found.done).max(kept);
            let tails = found.tails.into_iter();
            let tails = tails
                .filter(|(generation, _)| *generation == live || (!durable && *generation > live));
            left.extend(tails.map(|(_, tail)| (found.path.clone(), tail)));
        }
        let (slots, records) = take_over(&left, floor);
        let (file, end) = write_new(folder, identity, floor, &records).map_err(failed)?;
        let left = (0..).zip(left).map(|(slot, (path, tail))| Left {
            slot,
            generation: floor,
            path,
            tail,
        });
        let left = left.collect();
        let journal = Self {
            folder: folder.to_owned(),
            file: Arc::new(file),
            identity,
            end,
            slots,
            free: Vec::new(),
            floor,
        };
        Ok((journal, left))
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    /// What to sync to make all that was written durable.
    pub(super) fn file(&self) -> Arc<fs::File> {
        self.file.clone()
    }

    /// A slot for an open file, and its first generation.
    pub(super) fn begin(&mut self, path: &str) -> io::Result<(u32, u64)> {
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                self.slots.push(Slot {
                    generation: self.floor,
                    ..Slot::default()
                });
                u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
            }
        };
        let slot = &mut self.slots[number as usize];
        path.clone_into(&mut slot.path);
        let generation = slot.generation;
        match self.write(BEGIN, number, generation, path.as_bytes()) {
            Ok(_) => Ok((number, generation)),
            Err(error) => {
                self.free.push(number);
                Err(error)
            }
        }
    }

    /// More unfinished bytes of a generation.
    pub(super) fn append(&mut self, number: u32, generation: u64, data: &[u8]) -> io::Result<()> {
        if self.end > BYTES_MAX && self.end / 2 > self.live_bytes() {
            self.write_anew()?;
        }
        let at = self.write(PIECE, number, generation, data)?;
        let bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let slot = &mut self.slots[number as usize];
        slot.pieces.push((generation, at, bytes));
        Ok(())
    }

    /// Generations below `next` are kept elsewhere, which others can tell.
    pub(super) fn done(&mut self, number: u32, next: u64) {
        let slot = &mut self.slots[number as usize];
        slot.generation = slot.generation.max(next);
        slot.pieces.retain(|(generation, ..)| *generation >= next);
    }

    /// The same where nobody else can tell.
    pub(super) fn note_done(&mut self, number: u32, next: u64) -> io::Result<()> {
        if self.slots[number as usize]
            .pieces
            .iter()
            .any(|piece| piece.0 < next)
        {
            self.write(DONE, number, next, &[])?;
        }
        self.done(number, next);
        Ok(())
    }

    /// An open file needs its slot no more; all below `next` is done.
    pub(super) fn end(&mut self, number: u32, next: u64) {
        self.done(number, next);
        self.slots[number as usize].path.clear();
        self.free.push(number);
    }

    fn write(&mut self, kind: u8, slot: u32, generation: u64, data: &[u8]) -> io::Result<u64> {
        let record = record(kind, slot, generation, data);
        let at = self.end;
        self.file.write_all_at(&record, at)?;
        self.end += record.len() as u64;
        Ok(at)
    }

    fn live_bytes(&self) -> u64 {
        let slots = self.slots.iter();
        let bytes = slots.map(|slot| {
            let pieces = slot.pieces.iter();
            pieces
                .map(|piece| u64::from(piece.2) + HEAD_BYTES as u64)
                .sum::<u64>()
        });
        bytes.sum()
    }

    /// Writes what is live to a new file, which takes this one's place.
    fn write_anew(&mut self) -> io::Result<()> {
        let mut records = Vec::new();
        let mut moved = Vec::new();
        for (number, slot) in (0..).zip(&self.slots) {
            if slot.path.is_empty() {
                continue;
            }
            records.extend(record(BEGIN, number, slot.generation, slot.path.as_bytes()));
            for (generation, at, bytes) in &slot.pieces {
                let mut data = vec![0; *bytes as usize];
                self.file.read_exact_at(&mut data, at + HEAD_BYTES as u64)?;
                let to = (HEADER_BYTES + records.len()) as u64;
                moved.push((number, (*generation, to, *bytes)));
                records.extend(record(PIECE, number, *generation, &data));
            }
        }
        let (file, end) = write_new(&self.folder, self.identity, self.floor, &records)?;
        (self.file, self.end) = (Arc::new(file), end);
        for slot in &mut self.slots {
            slot.pieces.clear();
        }
        for (number, piece) in moved {
            self.slots[number as usize].pieces.push(piece);
        }
        Ok(())
    }
}

/// The slots and records of what is left, one behind the other.
fn take_over(left: &[(String, Vec<u8>)], floor: u64) -> (Vec<Slot>, Vec<u8>) {
    let (mut slots, mut records) = (Vec::new(), Vec::new());
    for (number, (path, tail)) in (0..).zip(left) {
        records.extend(record(BEGIN, number, floor, path.as_bytes()));
        let at = (HEADER_BYTES + records.len()) as u64;
        records.extend(record(PIECE, number, floor, tail));
        let bytes = u32::try_from(tail.len()).unwrap_or(u32::MAX);
        slots.push(Slot {
            path: path.clone(),
            generation: floor,
            pieces: vec![(floor, at, bytes)],
        });
    }
    (slots, records)
}

impl Identity {
    fn new() -> io::Result<Self> {
        let mut number = [0; 8];
        fs::File::open("/dev/urandom")?.read_exact(&mut number)?;
        Ok(Self {
            number: u64::from_ne_bytes(number),
            made: Time::now().0,
        })
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn record(kind: u8, slot: u32, generation: u64, data: &[u8]) -> Vec<u8> {
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

/// Writes and syncs a new file and puts it in the place of the old one.
fn write_new(
    folder: &Path,
    identity: Identity,
    floor: u64,
    records: &[u8],
) -> io::Result<(fs::File, u64)> {
    let path = folder.join(NEW_NAME);
    let mut header = MAGIC.to_vec();
    header.extend_from_slice(&identity.number.to_le_bytes());
    header.extend_from_slice(&identity.made.to_le_bytes());
    header.extend_from_slice(&floor.to_le_bytes());
    header.extend_from_slice(&crc32c(&header).to_le_bytes());
    let mut options = fs::File::options();
    let mut file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)?;
    file.write_all(&header)?;
    file.write_all(records)?;
    file.sync_data()?;
    fs::rename(&path, folder.join(NAME))?;
    fs::File::open(folder)?.sync_all()?;
    Ok((file, (header.len() + records.len()) as u64))
}

/// Reads a journal: who it is, what is left, and the first generation that was never used.
fn load(bytes: &[u8]) -> Result<(Identity, Vec<Found>, u64), String> {
    let damaged = || "is damaged: it has no header".to_owned();
    let header: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or_else(damaged)?;
    let (text, crc) = header.split_at(32);
    if text.starts_with(TITLE) && !text.starts_with(MAGIC) {
        return Err("was written by a newer version of Millstream".to_owned());
    }
    if crc != crc32c(text).to_le_bytes() || !text.starts_with(MAGIC) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &Path) -> (Journal, Vec<Left>) {
        Journal::open(folder, |_| None, true).unwrap()
    }

    fn tails(left: &[Left]) -> Vec<(&str, &[u8])> {
        left.iter()
            .map(|left| (&*left.path, &left.tail[..]))
            .collect()
    }

    #[test]
    fn what_was_unfinished_is_there_after_a_crash_and_after_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, left) = open(folder.path());
        assert!(left.is_empty());
        let (a, first) = journal.begin("a.log").unwrap();
        journal.append(a, first, b"un").unwrap();
        journal.append(a, first, b"fin").unwrap();
        journal.append(a, first + 1, b"next").unwrap();
        let (b, second) = journal.begin("b/c").unwrap();
        journal.append(b, second, b"x").unwrap();
        journal.note_done(b, second + 1).unwrap();
        let identity = journal.identity();
        drop(journal);
        for _ in 0..2 {
            let (journal, left) = open(folder.path());
            assert_eq!(journal.identity(), identity);
            // What stands behind the first generation was never answered for.
            assert_eq!(tails(&left), [("a.log", &b"unfin"[..])]);
            // No generation is ever used again.
            assert!(left[0].generation > first + 1);
        }
    }

    #[test]
    fn what_a_durable_channel_has_kept_is_not_left() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(folder.path());
        let (a, first) = journal.begin("a").unwrap();
        journal.append(a, first, b"kept").unwrap();
        journal.append(a, first + 1, b"left").unwrap();
        let file = journal.identity().file(a);
        drop(journal);
        let kept = |asked: &FileId| (*asked == file).then_some(first + 1);
        let (_, left) = Journal::open(folder.path(), kept, true).unwrap();
        assert_eq!(tails(&left), [("a", &b"left"[..])]);
    }

    #[test]
    fn behind_memory_all_that_is_not_done_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(folder.path());
        let (a, first) = journal.begin("a").unwrap();
        for (generation, text) in (first..).zip(["done", "one", "two"]) {
            journal.append(a, generation, text.as_bytes()).unwrap();
        }
        journal.note_done(a, first + 1).unwrap();
        let (_, left) = Journal::open(folder.path(), |_| None, false).unwrap();
        assert_eq!(tails(&left), [("a", &b"one"[..]), ("a", b"two")]);
    }

    #[test]
    fn a_torn_end_is_left_out_and_a_newer_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(folder.path());
        let (slot, first) = journal.begin("a").unwrap();
        journal.append(slot, first, b"one").unwrap();
        journal.append(slot, first, b"two").unwrap();
        let path = folder.path().join(NAME);
        let whole = fs::read(&path).unwrap();
        for cut in 1..27 {
            fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            assert_eq!(tails(&open(folder.path()).1), [("a", &b"one"[..])], "{cut}");
        }
        let refused = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            Journal::open(folder.path(), |_| None, true)
                .unwrap_err()
                .message
        };
        let mut newer = whole.clone();
        newer[7] = b'2';
        assert!(refused(&newer).contains("newer"));
        assert!(refused(b"rubbish").contains("damaged"));
    }

    #[test]
    fn it_stays_small_and_keeps_what_is_live() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(folder.path());
        let (quiet, first) = journal.begin("quiet").unwrap();
        journal.append(quiet, first, b"waits").unwrap();
        let (busy, mut generation) = journal.begin("busy").unwrap();
        for _ in 0..100 {
            journal.append(busy, generation, &[b'x'; 100_000]).unwrap();
            generation += 1;
            journal.done(busy, generation);
        }
        journal.append(busy, generation, b"last").unwrap();
        let size = fs::metadata(folder.path().join(NAME)).unwrap().len();
        assert!(size < BYTES_MAX + 200_000, "{size}");
        let file = journal.identity().file(busy);
        drop(journal);
        let kept = |asked: &FileId| (*asked == file).then_some(generation);
        let (_, left) = Journal::open(folder.path(), kept, true).unwrap();
        assert_eq!(tails(&left), [("quiet", &b"waits"[..]), ("busy", b"last")]);
    }
}
