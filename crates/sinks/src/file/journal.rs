//! The journal of a file sink: two files that take turns.
//!
//! `... encode -> write -> [commit] -> settle`
//!
//! Promises that a record that [`Journal::append`] has returned for is found again after SIGKILL and after power loss, that
//! its absence after damage is noticed, and that a full disk cannot stop a commit: both files are allocated and written once,
//! when they are made. What the records say is the business of `table`.
//!
//! ```text
//! journal.0, journal.1
//!  0   8  magic "mill-fsj"
//!  8   4  format version, 1
//! 12   4  CRC-32C of bytes 0..12 and 16..24
//! 16   8  generation: the file with the higher one counts
//! 24      records, one after the other, each at a multiple of 8:
//!          0   4  length of the body, not 0
//!          4   4  CRC-32C of generation, offset of the record in the file, length, body
//!          8      body; the first one of a file holds the whole table, the others what has changed
//! -24     the mark, in the last bytes of the file: how far the *other* file is known to be written
//!          0   8  generation of the other file
//!          8   8  where the next record goes in it
//!         16   4  CRC-32C of "mark" and bytes 0..16
//!         20   4  0
//! ```
//! Integers are little-endian. A record is written once and synced before the next one, so only the last can be torn. The
//! mark is written after the sync and not synced: it may be late or missing, but what it vouches for was durable. A record
//! that the mark names and that cannot be read is damage, even where it looks like the end of the file. Programs up to
//! 2026-11 wrote no marks; they ended a file whose place the other one had taken with a record of the single byte ff.

use std::{
    io::{self, IoSlice},
    path::{Path, PathBuf},
    sync::Arc,
};

use crc_fast::{CrcAlgorithm, Digest};
use millstream_pipeline::failure::Failure;
use millstream_sys::disk::{Disk, File, Open};

use super::failure::cannot;
use crate::directories::Directories;

const MAGIC: &[u8; 8] = b"mill-fsj";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 24;
const RECORD_HEAD_BYTES: usize = 8;
const MARK_BYTES: usize = 24;
/// The body of the last record of a file that counts no more, as earlier programs wrote it.
const OVER: &[u8] = &[0xff];
/// Room of each of the two files at first: thousands of commits of a few files, or the table of some 5,000 files.
const ROOM_BYTES: usize = 1 << 20;
/// No journal is longer than this: the table is bounded (`table::ROWS_MAX`), so what is longer is none of ours.
const ROOM_BYTES_MAX: u64 = 256 << 20;

/// The journal of one sink, open and locked.
pub(super) struct Journal {
    files: [Side; 2],
    /// The file that counts.
    active: usize,
    generation: u64,
    /// Where the next record goes in it.
    at: usize,
    /// Whether a record is synced before it counts. Behind memory nothing is promised that would need it.
    durable: bool,
    buffer: Vec<u8>,
}

struct Side {
    path: PathBuf,
    file: Arc<dyn File>,
    room: usize,
    /// It was found shorter than any that was made whole.
    short: bool,
}

/// What an earlier run has left.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing: the journal is new.
    Nothing,
    /// The bodies of its records.
    Records(Vec<Vec<u8>>),
    /// Records are missing: why, and the bodies of those that can be read. They say what was true once.
    Damage(String, Vec<Vec<u8>>),
}

impl Journal {
    /// Opens or makes the journal in `directory` and reads it. Nothing can be appended before [`Journal::begin`].
    pub(super) fn open(
        disk: &dyn Disk,
        directory: &Path,
        durable: bool,
    ) -> Result<(Self, Found), Failure> {
        Directories::private()
            .make(disk, directory)
            .map_err(|error| cannot("make the directory", directory, &error))?;
        let sides = open_sides(disk, directory)?;
        let read = [read_side(&sides[0])?, read_side(&sides[1])?];
        let (active, found) = choose(&sides, &read);
        let mut journal = Self {
            active,
            at: read[active].end,
            generation: read.iter().map(Read::newest).max().unwrap_or(0),
            files: sides,
            durable,
            buffer: Vec::new(),
        };
        if let Found::Damage(..) = found {
            journal.put_aside(disk, directory)?;
        }
        Ok((journal, found))
    }

    /// Gives damaged files other names, for whoever wants to look at them, and makes new ones. Records of a generation that
    /// is used again could be taken for new ones.
    fn put_aside(&mut self, disk: &dyn Disk, directory: &Path) -> Result<(), Failure> {
        for side in &self.files {
            let aside = side.path.with_added_extension("damaged");
            disk.rename(&side.path, &aside)
                .map_err(|error| cannot("put aside", &side.path, &error))?;
        }
        self.files = open_sides(disk, directory)?;
        (self.active, self.at) = (0, 0);
        Ok(())
    }

    /// Begins a new life with `table`, in the file that does not count: what was read stays whole until it is there.
    pub(super) fn begin(&mut self, table: &[u8]) -> Result<(), Failure> {
        self.turn(table)
    }

    /// Appends what has changed; `table` gives the whole table with the change in it, which is written in its place when
    /// the file has no room left.
    pub(super) fn append(
        &mut self,
        change: &[u8],
        table: impl FnOnce() -> Vec<u8>,
    ) -> Result<(), Failure> {
        if self.at + record_bytes(change.len()) + MARK_BYTES > self.files[self.active].room {
            return self.turn(&table());
        }
        self.buffer.clear();
        record(&mut self.buffer, self.generation, self.at, change);
        let side = &self.files[self.active];
        side.write(&self.buffer, self.at, self.durable)?;
        self.at += self.buffer.len();
        self.mark()
    }

    /// Writes the table into the other file, which counts from then on.
    fn turn(&mut self, table: &[u8]) -> Result<(), Failure> {
        let (other, generation) = (1 - self.active, self.generation + 1);
        self.buffer.clear();
        self.buffer.extend_from_slice(&header(generation));
        record(&mut self.buffer, generation, HEADER_BYTES, table);
        let side = &mut self.files[other];
        // Twice the table: else a table that just fits would be written anew with every change.
        if side.room < 2 * self.buffer.len() {
            side.grow(4 * self.buffer.len())?;
        }
        side.write(&self.buffer, 0, self.durable)?;
        (self.active, self.generation, self.at) = (other, generation, self.buffer.len());
        self.mark()
    }

    /// Notes in the other file how far this one is written. Behind memory nothing is ever cut back, so nothing needs it.
    fn mark(&self) -> Result<(), Failure> {
        if !self.durable {
            return Ok(());
        }
        let side = &self.files[1 - self.active];
        let mark = Mark {
            generation: self.generation,
            end: self.at as u64,
        };
        side.write(&mark.encode(), side.room - MARK_BYTES, false)
    }
}

impl Side {
    fn write(&self, bytes: &[u8], at: usize, sync: bool) -> Result<(), Failure> {
        let write = || -> io::Result<()> {
            self.file.write_at(&[IoSlice::new(bytes)], at as u64)?;
            if sync { self.file.sync() } else { Ok(()) }
        };
        write().map_err(|error| cannot("write the journal", &self.path, &error))
    }

    /// Allocates and writes `bytes` from the end on: overwriting written blocks needs no room and no file system journal.
    fn grow(&mut self, bytes: usize) -> Result<(), Failure> {
        let grow = || -> io::Result<()> {
            self.file.allocate(bytes as u64)?;
            self.file.write_at(
                &[IoSlice::new(&vec![0; bytes - self.room])],
                self.room as u64,
            )?;
            self.file.sync()
        };
        grow().map_err(|error| cannot("make room for the journal", &self.path, &error))?;
        self.room = bytes;
        Ok(())
    }
}

fn open_sides(disk: &dyn Disk, directory: &Path) -> Result<[Side; 2], Failure> {
    let sides = [
        open_side(disk, directory.join("journal.0"))?,
        open_side(disk, directory.join("journal.1"))?,
    ];
    disk.sync_directory(directory)
        .map_err(|error| cannot("sync the directory", directory, &error))?;
    Ok(sides)
}

fn open_side(disk: &dyn Disk, path: PathBuf) -> Result<Side, Failure> {
    let open = || match disk.open(&path, Open::Write) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => disk.open(&path, Open::Create),
        other => other,
    };
    let file = open().map_err(|error| cannot("open the journal", &path, &error))?;
    if !file
        .try_lock()
        .map_err(|error| cannot("lock the journal", &path, &error))?
    {
        return Err(Failure::disk(format!(
            "{} is in use by another Millstream",
            path.display()
        )));
    }
    let length = file
        .metadata()
        .map_err(|error| cannot("read the journal", &path, &error))?
        .len;
    if length > ROOM_BYTES_MAX {
        return Err(Failure::state(format!(
            "{} is damaged: it has {length} bytes, and a journal has at most {ROOM_BYTES_MAX}; move it away and restart \
             Millstream: the sink goes on after the channel's cursor and cuts no output",
            path.display()
        )));
    }
    let mut side = Side {
        path,
        file,
        room: usize::try_from(length).unwrap_or(0),
        short: length < ROOM_BYTES as u64,
    };
    if side.short {
        side.grow(ROOM_BYTES)?;
    }
    Ok(side)
}

/// How far the other file is known to be written.
#[derive(Clone, Copy)]
struct Mark {
    generation: u64,
    end: u64,
}

impl Mark {
    fn encode(self) -> [u8; MARK_BYTES] {
        let mut bytes = [0; MARK_BYTES];
        bytes[..8].copy_from_slice(&self.generation.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.end.to_le_bytes());
        let checksum = checksum(&[b"mark", &bytes[..16]]);
        bytes[16..20].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The mark at the end of a file, if there is one.
    fn of(file: &[u8]) -> Option<Self> {
        let bytes = file.last_chunk::<MARK_BYTES>()?;
        let mark = Self {
            generation: long(bytes),
            end: long(&bytes[8..]),
        };
        (mark.encode() == *bytes).then_some(mark)
    }
}

/// What one of the two files holds.
#[derive(Default)]
struct Read {
    /// Of a header that is whole.
    generation: Option<u64>,
    records: Vec<Vec<u8>>,
    /// Where the next record would stand; 0: there is none.
    end: usize,
    /// What it says of the other file.
    mark: Option<Mark>,
    /// There is something, but no header.
    scratched: bool,
    /// Where a record stands behind one that does not fit: no torn end looks like this.
    gap: Option<usize>,
}

impl Read {
    /// The highest generation that it names.
    fn newest(&self) -> u64 {
        let mark = self.mark.map_or(0, |mark| mark.generation);
        self.generation.unwrap_or(0).max(mark)
    }
}

fn read_side(side: &Side) -> Result<Read, Failure> {
    let mut bytes = Vec::new();
    side.file
        .read_at(&mut bytes, side.room, 0)
        .map_err(|error| cannot("read the journal", &side.path, &error))?;
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Ok(Read::default());
    };
    let mut read = Read {
        mark: Mark::of(&bytes),
        ..Read::default()
    };
    // The checksum comes first: a version that was damaged is no newer format.
    if &header[..8] != MAGIC || number(&header[12..]) != header_checksum(header) {
        read.scratched = header.iter().any(|byte| *byte != 0);
        return Ok(read);
    }
    let version = number(&header[8..]);
    if version > VERSION {
        return Err(Failure::state(format!(
            "{} has format {version}, this program reads up to {VERSION}: run the newer one that wrote it",
            side.path.display()
        )));
    }
    let generation = long(&header[16..]);
    read.generation = Some(generation);
    let mut at = HEADER_BYTES;
    while let Some(body) = body_at(&bytes, at, generation) {
        at += record_bytes(body.len());
        if body == OVER {
            read.mark.get_or_insert(Mark {
                generation: generation + 1,
                end: 0,
            });
        } else {
            read.records.push(body.to_vec());
            read.end = at;
        }
    }
    let mut behind = (at..bytes.len()).step_by(8).skip(1);
    read.gap = behind.find(|behind| body_at(&bytes, *behind, generation).is_some());
    Ok(read)
}

/// Which file counts, and what it holds.
fn choose(sides: &[Side; 2], read: &[Read; 2]) -> (usize, Found) {
    let newer = usize::from(read[1].generation > read[0].generation);
    // The newer one without its table: the crash came while it was written, and the other one still counts.
    let side = match read[newer].records.is_empty() && !read[1 - newer].records.is_empty() {
        true => 1 - newer,
        false => newer,
    };
    let Read {
        generation,
        records,
        gap,
        end,
        ..
    } = &read[side];
    let path = |side: usize| sides[side].path.display();
    let known = generation.unwrap_or(0);
    let newest = read
        .iter()
        .filter_map(|read| read.mark)
        .max_by_key(|mark| (mark.generation, mark.end));
    let why = match (gap, newest) {
        (_, Some(mark)) if mark.generation > known => Some(format!(
            "{} is damaged: it has taken the place of {} and cannot be read",
            path(1 - side),
            path(side)
        )),
        (Some(gap), _) => Some(format!("{} is damaged before byte {gap}", path(side))),
        // One that is being made has no header yet.
        _ if sides[side].short && generation.is_some() => {
            Some(format!("{} was cut off", path(side)))
        }
        (None, Some(mark)) if mark.generation == known && mark.end > *end as u64 => Some(format!(
            "{} is damaged: it was written up to byte {} and can be read up to byte {end}",
            path(side),
            mark.end
        )),
        // A first header that was torn while it was made looks the same as damage to it; both lead to an empty table.
        _ if records.is_empty() => read
            .iter()
            .any(|read| read.scratched || read.generation.is_some())
            .then(|| format!("{} has no table", path(side))),
        _ => None,
    };
    let found = match why {
        Some(why) => Found::Damage(why, records.clone()),
        None if records.is_empty() => Found::Nothing,
        None => Found::Records(records.clone()),
    };
    (side, found)
}

fn header(generation: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[16..].copy_from_slice(&generation.to_le_bytes());
    let checksum = header_checksum(&header);
    header[12..16].copy_from_slice(&checksum.to_le_bytes());
    header
}

fn header_checksum(header: &[u8; HEADER_BYTES]) -> u32 {
    checksum(&[&header[..12], &header[16..]])
}

/// Appends the record that stands at `at` in its file.
fn record(out: &mut Vec<u8>, generation: u64, at: usize, body: &[u8]) {
    // The table is bounded far below 4 GiB.
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes();
    let checksum = record_checksum(generation, at, length, body);
    out.extend_from_slice(&length);
    out.extend_from_slice(&checksum.to_le_bytes());
    out.extend_from_slice(body);
    out.resize(out.len().next_multiple_of(8), 0);
}

/// The body of the record at `at`, if there is one.
fn body_at(bytes: &[u8], at: usize, generation: u64) -> Option<&[u8]> {
    let head = bytes.get(at..)?.first_chunk::<RECORD_HEAD_BYTES>()?;
    let length = number(head) as usize;
    if length == 0 {
        return None;
    }
    let body = bytes.get(at + RECORD_HEAD_BYTES..)?.get(..length)?;
    let checksum = record_checksum(generation, at, [head[0], head[1], head[2], head[3]], body);
    (number(&head[4..]) == checksum).then_some(body)
}

fn record_checksum(generation: u64, at: usize, length: [u8; 4], body: &[u8]) -> u32 {
    checksum(&[
        &generation.to_le_bytes(),
        &(at as u64).to_le_bytes(),
        &length,
        body,
    ])
}

const fn record_bytes(body: usize) -> usize {
    (RECORD_HEAD_BYTES + body).next_multiple_of(8)
}

/// CRC-32C of the parts, one after the other.
pub(super) fn checksum(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    u32::try_from(digest.finalize()).unwrap_or(0)
}

fn number(bytes: &[u8]) -> u32 {
    bytes
        .first_chunk()
        .map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn long(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
