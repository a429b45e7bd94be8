//! Unfinished lines that have been answered for: they survive a crash here until the line is whole and kept elsewhere.
//!
//! An open file with an unfinished line has a slot; the unfinished bytes between two whole lines are one generation. When a
//! batch makes them whole, it carries the slot as a file and the generation as the offset of its origin (`begin`
//! generation, `next` the one behind): what a durable channel says of its origins then tells after a crash which
//! generation is left. Behind memory `done` says it.

mod format;
#[cfg(test)]
mod tests;

use std::{
    fs, io,
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_pipeline::failure::Failure;
use millstream_record::FileId;
use millstream_sys::private;

pub(super) use format::Identity;
use format::{BEGIN, DONE, HEAD_BYTES, HEADER_BYTES, PART, PIECE, header, load, record};

const NAME: &str = "unfinished";
const NEW_NAME: &str = "unfinished.new";
/// It is written anew when it is larger than this and mostly of what is done: one sync for so many bytes.
const BYTES_MAX: u64 = 4 << 20;

/// What an earlier run has left of one open file, in its new slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Left {
    pub slot: u32,
    pub generation: u64,
    /// Its path below the mount point.
    pub path: String,
    pub tail: Vec<u8>,
}

/// Generation, offset of the record, bytes of data.
type Piece = (u64, u64, u32);

/// What a piece takes in the file.
fn live_bytes(piece: &Piece) -> u64 {
    u64::from(piece.2) + HEAD_BYTES as u64
}

#[derive(Debug, Default)]
struct Slot {
    path: String,
    /// The generation of the next open file that gets the slot, or of this one's first live bytes.
    generation: u64,
    /// Pieces in the file.
    pieces: Vec<Piece>,
}

/// The journal. Writes are to the page cache; [`Journal::file`] is what to sync.
#[derive(Debug)]
pub(super) struct Journal {
    folder: PathBuf,
    file: Arc<fs::File>,
    identity: Identity,
    end: u64,
    slots: Vec<Slot>,
    /// What of the file is live: a record that comes in many small writes has many pieces.
    live: u64,
    free: Vec<u32>,
    /// Generations of new slots.
    floor: u64,
}

impl Journal {
    /// Opens what is there or makes a new one. What an earlier run has left moves to the new one's slots: `kept` says of a
    /// slot which generation a durable channel expects next; None: nobody can tell, and what is not done is left. Each
    /// generation becomes a line: there are several where lines between them were given to a channel that did not keep them.
    pub(super) fn open(
        folder: &Path,
        kept: impl Fn(&FileId) -> Option<u64>,
    ) -> Result<(Self, Vec<Left>), Failure> {
        let path = folder.join(NAME);
        let failed = |error: io::Error| Failure::disk(format!("{}: {error}", path.display()));
        private::create_dir_all(folder).map_err(failed)?;
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
            let tails = tails.filter(|(generation, tail)| *generation >= live && !tail.is_empty());
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
        let pieces = slots.iter().flat_map(|slot| &slot.pieces);
        let live = pieces.map(live_bytes).sum();
        let journal = Self {
            folder: folder.to_owned(),
            file: Arc::new(file),
            identity,
            end,
            slots,
            live,
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
        if self.end > BYTES_MAX && self.end / 2 > self.live {
            self.write_anew()?;
        }
        let at = self.write(PIECE, number, generation, data)?;
        let bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let piece = (generation, at, bytes);
        self.live += live_bytes(&piece);
        self.slots[number as usize].pieces.push(piece);
        Ok(())
    }

    /// The last `bytes` of what is live are of a new generation: what was before them leaves without them.
    pub(super) fn part(&mut self, number: u32, generation: u64, bytes: usize) -> io::Result<()> {
        let data = (bytes as u64).to_le_bytes();
        self.write(PART, number, generation, &data)?;
        let pieces = &mut self.slots[number as usize].pieces;
        let mut left = u32::try_from(bytes).unwrap_or(u32::MAX);
        let mut after = Vec::new();
        while left > 0
            && let Some((before, at, bytes)) = pieces.pop()
        {
            let moved = bytes.min(left);
            let stays = bytes - moved;
            after.push((generation, at + u64::from(stays), moved));
            left -= moved;
            if stays > 0 {
                pieces.push((before, at, stays));
                self.live += HEAD_BYTES as u64;
            }
        }
        pieces.extend(after.into_iter().rev());
        Ok(())
    }

    /// Generations below `next` are kept elsewhere, which others can tell.
    pub(super) fn done(&mut self, number: u32, next: u64) {
        let slot = &mut self.slots[number as usize];
        slot.generation = slot.generation.max(next);
        slot.pieces.retain(|piece| {
            let is_live = piece.0 >= next;
            if !is_live {
                self.live = self.live.saturating_sub(live_bytes(piece));
            }
            is_live
        });
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

/// Writes and syncs a new file and puts it in the place of the old one.
fn write_new(
    folder: &Path,
    identity: Identity,
    floor: u64,
    records: &[u8],
) -> io::Result<(fs::File, u64)> {
    let path = folder.join(NEW_NAME);
    let header = header(identity, floor);
    let mut options = private::options();
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
