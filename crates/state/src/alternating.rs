//! A journal in two files that are used alternately, for components whose commits must succeed even on a full disk.
//!
//! ```text
//! NAME.0, NAME.1
//!  0  24  header (see `seal`): every switch to the other file raises the generation, so the file with the higher one is current
//! 24      records (see `frame`): the first one is a snapshot, the others are changes to it
//! -24     the mark: 24 bytes at the end of the file, about the durable part of the *other* file
//!          0   8  generation of the other file
//!          8   8  offset after the last durable record of the other file
//!         16   4  CRC-32C of "mark" and bytes 0..16
//!         20   4  0
//! ```
//! A record is synced before the next one is written, so only the last can be torn. The mark is written after that sync, and is not synced
//! itself. So the mark may be stale or missing, but all records before the offset in it were durable. If one of these records cannot be
//! read, the file is damaged, even if the damage looks like a torn end. Programs up to 2026-11 wrote no marks; they ended a superseded file
//! with a record of the single byte ff.

use std::{
    io::{self, IoSlice},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use millstream_sys::{
    checksum::crc32c_of,
    disk::{Disk, File, Open},
};

use crate::{
    Error, Format,
    frame::{self, Record, Scan, frame_bytes},
    replace::{bounded, create_directory, directory},
    seal::{self, HEADER_BYTES, Seal, u64_at},
};

const MARK_BYTES: usize = 24;
/// Number of attempts to take a lock, and the time between two of them.
const LOCK_ATTEMPTS: u32 = 50;
const LOCK_WAIT: Duration = Duration::from_millis(10);
/// The body of the last record of a superseded file, as earlier programs wrote it.
const OVER: &[u8] = &[0xff];

/// An open and locked journal in two files. Both are allocated and filled when they are created.
pub struct Alternating {
    format: Format,
    files: [Side; 2],
    /// The index of the current file.
    active: usize,
    generation: u64,
    /// The offset of the next record in the current file.
    at: usize,
    /// Whether a record is synced before [`Alternating::append`] returns.
    synced: bool,
    buffer: Vec<u8>,
}

/// The records that an earlier run left.
#[derive(Debug, PartialEq, Eq)]
pub enum Begun {
    /// There are no records: the journal is new.
    Nothing,
    /// The bodies of the journal's records.
    Records(Vec<Vec<u8>>),
    /// Records are missing. Holds the reason, and the bodies of the records before the missing ones, which describe an earlier state. The
    /// files were renamed to `NAME.0.damaged` and `NAME.1.damaged`.
    Damaged(String, Vec<Vec<u8>>),
}

struct Side {
    path: PathBuf,
    file: Arc<dyn File>,
    capacity: usize,
    /// Whether the file, when it was opened, was shorter than a completely created one.
    was_short: bool,
}

impl Alternating {
    /// Opens or creates the files `NAME.0` and `NAME.1`, each of at least `capacity` bytes, and reads them. Nothing can be appended
    /// before [`Alternating::begin`]. With `synced: false`, a power cut can lose records.
    pub fn open(
        disk: &dyn Disk,
        path: &Path,
        format: Format,
        capacity: usize,
        synced: bool,
    ) -> Result<(Self, Begun), Error> {
        let directory = directory(path);
        create_directory(disk, directory).map_err(Error::io("create", directory))?;
        let files = open_sides(disk, path, &format, capacity)?;
        let read = [
            read_side(&files[0], &format)?,
            read_side(&files[1], &format)?,
        ];
        let (active, begun) = choose(&files, &read);
        let mut journal = Self {
            format,
            active,
            at: read[active].end,
            generation: read.iter().map(Contents::newest).max().unwrap_or(0),
            files,
            synced,
            buffer: Vec::new(),
        };
        if let Begun::Damaged(..) = begun {
            // The files are renamed and not reused: if a generation number were used again, an old record could be taken for a new
            // one.
            for side in &journal.files {
                let aside = side.path.with_added_extension("damaged");
                disk.rename(&side.path, &aside)
                    .map_err(Error::io("rename", &side.path))?;
            }
            journal.files = open_sides(disk, path, &format, capacity)?;
            (journal.active, journal.at) = (0, 0);
        }
        Ok((journal, begun))
    }

    /// Writes a snapshot to the file that is not current, and makes that file the current one. So the records that were read stay intact
    /// until the snapshot is durable.
    pub fn begin(&mut self, snapshot: &[u8]) -> Result<(), Error> {
        self.switch(snapshot)
    }

    /// Appends a change. If the current file is full, writes the result of `snapshot` to the other file instead: the whole state,
    /// including the change.
    pub fn append(
        &mut self,
        change: &[u8],
        snapshot: impl FnOnce() -> Vec<u8>,
    ) -> Result<(), Error> {
        let capacity = self.files[self.active].capacity;
        if self.at + frame_bytes(change.len()) + MARK_BYTES > capacity {
            return self.switch(&snapshot());
        }
        self.buffer.clear();
        frame::push(&mut self.buffer, self.generation, self.at as u64, &[change]);
        self.files[self.active].write(&self.buffer, self.at, self.synced)?;
        self.at += self.buffer.len();
        self.mark()
    }

    /// Writes the snapshot to the other file and makes that file the current one.
    fn switch(&mut self, snapshot: &[u8]) -> Result<(), Error> {
        let (other, generation) = (1 - self.active, self.generation + 1);
        self.buffer.clear();
        let header = seal::header(self.format.magic, self.format.version, generation);
        self.buffer.extend_from_slice(&header);
        frame::push(
            &mut self.buffer,
            generation,
            HEADER_BYTES as u64,
            &[snapshot],
        );
        let side = &mut self.files[other];
        // The capacity is at least twice the snapshot. If the snapshot only just fitted, every change would need a new snapshot.
        if side.capacity < 2 * self.buffer.len() {
            self.format
                .check_length(&side.path, 4 * self.buffer.len() as u64)?;
            side.grow(4 * self.buffer.len())?;
        }
        side.write(&self.buffer, 0, self.synced)?;
        (self.active, self.generation, self.at) = (other, generation, self.buffer.len());
        self.mark()
    }

    /// Writes a mark to the other file: the end of the durable records in the current one.
    fn mark(&self) -> Result<(), Error> {
        if !self.synced {
            return Ok(());
        }
        let side = &self.files[1 - self.active];
        let mark = Mark {
            generation: self.generation,
            end: self.at as u64,
        };
        side.write(&mark.encode(), side.capacity - MARK_BYTES, false)
    }
}

impl Side {
    fn write(&self, bytes: &[u8], at: usize, sync: bool) -> Result<(), Error> {
        let write = || -> io::Result<()> {
            self.file.write_at(&[IoSlice::new(bytes)], at as u64)?;
            if sync { self.file.sync() } else { Ok(()) }
        };
        write().map_err(Error::io("write", &self.path))
    }

    /// Extends the file to `bytes` and fills the new part with zeros. Later writes only overwrite these blocks, which needs neither space
    /// nor the journal of the file system.
    fn grow(&mut self, bytes: usize) -> Result<(), Error> {
        let grow = || -> io::Result<()> {
            self.file.allocate(bytes as u64)?;
            let zeros = vec![0; bytes - self.capacity];
            self.file
                .write_at(&[IoSlice::new(&zeros)], self.capacity as u64)?;
            self.file.sync()
        };
        grow().map_err(Error::io("allocate", &self.path))?;
        self.capacity = bytes;
        Ok(())
    }
}

fn open_sides(
    disk: &dyn Disk,
    path: &Path,
    format: &Format,
    capacity: usize,
) -> Result<[Side; 2], Error> {
    let sides = [
        open_side(disk, path.with_added_extension("0"), format, capacity)?,
        open_side(disk, path.with_added_extension("1"), format, capacity)?,
    ];
    let directory = directory(path);
    disk.sync_directory(directory)
        .map_err(Error::io("sync", directory))?;
    Ok(sides)
}

/// Takes the lock; retries briefly if another process has it. A child process that another thread has forked holds copies of all
/// descriptors until it executes its program, so a lock may briefly outlive its owner.
fn lock(file: &dyn File, path: &Path) -> Result<(), Error> {
    for _ in 0..LOCK_ATTEMPTS {
        if file.try_lock().map_err(Error::io("lock", path))? {
            return Ok(());
        }
        thread::sleep(LOCK_WAIT);
    }
    Err(Error::InUse { path: path.into() })
}

fn open_side(
    disk: &dyn Disk,
    path: PathBuf,
    format: &Format,
    capacity: usize,
) -> Result<Side, Error> {
    let open = || match disk.open(&path, Open::Write) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => disk.open(&path, Open::Create),
        other => other,
    };
    let file = open().map_err(Error::io("open", &path))?;
    lock(&*file, &path)?;
    let length = file.metadata().map_err(Error::io("read", &path))?.len;
    let length = bounded(&path, length, format)?;
    let mut side = Side {
        path,
        file,
        capacity: length,
        was_short: length < capacity,
    };
    if side.was_short {
        side.grow(capacity)?;
    }
    Ok(side)
}

/// The offset up to which the other file is durable, and the generation that the other file had then.
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
        let checksum = crc32c_of(&[b"mark", &bytes[..16]]);
        bytes[16..20].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes the mark at the end of a file; `None` if there is no valid one.
    fn decode(file: &[u8]) -> Option<Self> {
        let bytes = file.last_chunk::<MARK_BYTES>()?;
        let mark = Self {
            generation: u64_at(bytes, 0)?,
            end: u64_at(bytes, 8)?,
        };
        (mark.encode() == *bytes).then_some(mark)
    }
}

/// The content of one of the two files.
#[derive(Default)]
struct Contents {
    /// The generation in the header; `None` if the header is not valid.
    generation: Option<u64>,
    /// The bodies of the records before the first hole (invalid bytes that a record follows).
    bodies: Vec<Vec<u8>>,
    /// The offset after the last of these records; 0 without records.
    end: usize,
    /// The mark at the end of this file, which describes the other file.
    mark: Option<Mark>,
    /// Whether the header is neither valid nor all zeros.
    scratched: bool,
    /// The end of the first hole. Records follow the hole, so the hole is not a torn end.
    hole_end: Option<u64>,
}

impl Contents {
    /// The highest generation in its header and mark.
    fn newest(&self) -> u64 {
        let mark = self.mark.map_or(0, |mark| mark.generation);
        self.generation.unwrap_or(0).max(mark)
    }
}

fn read_side(side: &Side, format: &Format) -> Result<Contents, Error> {
    let mut bytes = Vec::new();
    side.file
        .read_at(&mut bytes, side.capacity, 0)
        .map_err(Error::io("read", &side.path))?;
    let mut contents = Contents {
        mark: Mark::decode(&bytes),
        ..Contents::default()
    };
    let generation = match seal::open_header(format.magic, format.version, &bytes) {
        Seal::Current(generation) => generation,
        Seal::Newer(found) => return Err(format.newer(&side.path, found)),
        Seal::Other => {
            let header = bytes.get(..HEADER_BYTES).unwrap_or_default();
            contents.scratched = header.iter().any(|byte| *byte != 0);
            return Ok(contents);
        }
    };
    contents.generation = Some(generation);
    let Scan { records, holes, .. } = frame::scan([&bytes, &[]], generation, bytes.len());
    let hole = holes.first();
    contents.hole_end = hole.map(|hole| hole.end);
    let first_lost = hole.map_or(u64::MAX, |hole| hole.start);
    for Record { at, body } in records.into_iter().filter(|record| record.at < first_lost) {
        if body == OVER {
            contents.mark.get_or_insert(Mark {
                generation: generation + 1,
                end: 0,
            });
            continue;
        }
        contents.end = at as usize - frame::HEAD_BYTES + frame_bytes(body.len());
        contents.bodies.push(body);
    }
    Ok(contents)
}

/// Chooses the current file; returns its index and its content.
fn choose(sides: &[Side; 2], read: &[Contents; 2]) -> (usize, Begun) {
    let newer = usize::from(read[1].generation > read[0].generation);
    // If the newer file has no snapshot, a crash has interrupted the switch, and the other file is still the current one.
    let side = match read[newer].bodies.is_empty() && !read[1 - newer].bodies.is_empty() {
        true => 1 - newer,
        false => newer,
    };
    let contents = &read[side];
    let bodies = contents.bodies.clone();
    let begun = match why_damaged(side, sides, read) {
        Some(why) => Begun::Damaged(why, bodies),
        None if bodies.is_empty() => Begun::Nothing,
        None => Begun::Records(bodies),
    };
    (side, begun)
}

/// Returns why records of the current file are missing; `None` if no record is missing.
fn why_damaged(side: usize, sides: &[Side; 2], read: &[Contents; 2]) -> Option<String> {
    let path = |side: usize| sides[side].path.display();
    let Contents {
        generation,
        bodies,
        end,
        hole_end,
        ..
    } = &read[side];
    let known = generation.unwrap_or(0);
    let mark = read
        .iter()
        .filter_map(|contents| contents.mark)
        .max_by_key(|mark| (mark.generation, mark.end));
    if let Some(mark) = mark
        && mark.generation > known
    {
        return Some(format!(
            "{} is damaged: it replaced {} and cannot be read",
            path(1 - side),
            path(side)
        ));
    }
    if let Some(end) = hole_end {
        return Some(format!("{} is damaged before byte {end}", path(side)));
    }
    // A file that is being created has no header yet.
    if sides[side].was_short && generation.is_some() {
        return Some(format!("{} was truncated", path(side)));
    }
    if let Some(mark) = mark
        && mark.generation == known
        && mark.end > *end as u64
    {
        return Some(format!(
            "{} is damaged: it was written up to byte {} and can be read up to byte {end}",
            path(side),
            mark.end
        ));
    }
    // If a crash tore the first header of a new journal, the header looks like a damaged one. Both cases are reported as damage, and the
    // list of records is empty.
    let has_remains = |contents: &Contents| contents.scratched || contents.generation.is_some();
    (bodies.is_empty() && read.iter().any(has_remains))
        .then(|| format!("{} has no snapshot", path(side)))
}
