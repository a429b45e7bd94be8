//! The journal of unfinished lines. It stores each line until the line is whole and a channel has kept it, so that the line
//! survives a crash.
//!
//! Each open file with an unfinished line has a slot, which is a number. The bytes of a slot that are unfinished between two
//! batches form a generation. The generations of a slot are numbered. The batch that takes the bytes of a generation has an origin
//! with an invented file, which stands for the slot. In this origin, `begin` is the number of the generation, and `next` is the
//! number of the next generation. After a crash, the origins in a durable channel therefore show which generations it has kept. A
//! memory channel remembers no origins. For such a channel, [`Journal::note_done`] writes to the journal which generations are
//! settled.
//!
//! The journal is written twice, to a file and its copy. Damage to only one of them loses nothing. If both are damaged in the same
//! place, any line may lack a part. Then no line is sent, and all are written to a file beside the journal for an operator.

mod aside;
mod older;
mod record;
#[cfg(test)]
mod tests;

use std::{io, path::Path, sync::Arc};

use millstream_pipeline::failure::Failure;
use millstream_record::FileId;
use millstream_state::{self as state, Error, Format, JournalFormat};
use millstream_sys::disk::{Disk, File};

pub(super) use record::Identity;
use record::{HEAD_BYTES, Head, Kind, Lines, Title, frame_bytes};

const NAME: &str = "unfinished";
/// The limit on the size of the file, in bytes. Writes that would exceed it fail.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// The remedy when the journal cannot be used.
const REMEDY: &str = "restore it from a backup, or remove `unfinished` and `unfinished.copy` and restart Millstream: lines \
                      that were unfinished at the last stop are then lost";
const FORMAT: JournalFormat = JournalFormat {
    format: Format {
        magic: b"MILLFUSE",
        version: 4,
        bytes_max: FILE_BYTES_MAX,
        remedy: REMEDY,
    },
    record_bytes_max: FILE_BYTES_MAX as usize,
    copied: true,
};
/// The journal is rewritten when it is larger than this many bytes, and less than half of it is live (still needed after a crash).
/// A rewrite costs a sync, so it must be rare.
const BYTES_MAX: u64 = 4 << 20;

/// An unfinished line of an earlier run, in its new slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Left {
    pub slot: u32,
    pub generation: u64,
    /// The path of its file below the mount point.
    pub path: String,
    pub tail: Vec<u8>,
}

/// A part of a generation. One record of the journal file holds it.
#[derive(Clone, Copy, Debug)]
struct Piece {
    generation: u64,
    /// The offset of the bytes in the journal file.
    at: u64,
    bytes: u32,
}

impl Piece {
    /// The number of bytes that a record of this piece takes in the file.
    fn live_bytes(&self) -> u64 {
        frame_bytes(self.bytes as usize)
    }
}

#[derive(Debug, Default)]
struct Slot {
    /// The path of the open file that has the slot; `None` if the slot is free.
    path: Option<String>,
    /// The first generation that is not done. If the slot is free, the next open file that gets the slot begins with this
    /// generation.
    generation: u64,
    pieces: Vec<Piece>,
}

/// The journal as [`Journal::open`] found it.
pub(super) struct Opened {
    pub journal: Journal,
    /// The unfinished lines that an earlier run left.
    pub left: Vec<Left>,
    /// A message about damage to one of the two files. No line was lost, because the other file had the bytes. `None` if both
    /// files were intact.
    pub mended: Option<String>,
    /// A message for an operator. It names files with lines that may be damaged and therefore were not sent. The message is
    /// repeated at each start until the operator removes these files. `None` if there are no such files.
    pub doubtful: Option<String>,
}

/// The journal. Writes go to the page cache only; [`Journal::begin_sync`] begins to make them durable.
pub(super) struct Journal {
    stored: state::Journal,
    /// The file of `stored`. Pieces can be read back from it even after a failed write.
    file: Arc<dyn File>,
    title: Title,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// The number of bytes that the records of live pieces take in the file.
    live: u64,
    /// The offset up to which the file is known to be durable.
    synced: u64,
}

/// A sync of the journal in progress.
pub(super) struct Sync {
    file: Arc<dyn File>,
    end: u64,
}

impl Sync {
    /// Makes everything durable that was written before the sync began. Blocks.
    pub(super) fn run(&self) -> io::Result<()> {
        self.file.sync()
    }
}

impl Journal {
    /// Opens the journal in a directory, or creates one. Unfinished lines of an earlier run move to new slots. `kept` gets the
    /// file that stands for a slot, and returns the first generation that a durable channel has not kept. If `kept` returns
    /// `None`, every generation that the journal does not note as done is unfinished. Each unfinished generation becomes a line. A
    /// slot has several unfinished generations if batches that took them were not kept.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        directory: &Path,
        kept: impl Fn(&FileId) -> Option<u64>,
    ) -> Result<Opened, Failure> {
        let path = directory.join(NAME);
        let (mut stored, recovered) =
            state::Journal::open(disk.clone(), path, FORMAT, older::convert)?;
        let (mut mended, mut left) = (None, Vec::new());
        let title = match recovered {
            None => Title::new().map_err(|error| {
                Failure::disk(format!("cannot draw a number for the journal: {error}"))
            })?,
            Some(recovered) => {
                let lines = Lines::of(&recovered).map_err(|why| stored.damaged(why))?;
                mended = aside::mended(directory, recovered.lacks);
                let (intact, doubtful) = lines.left(kept);
                if lines.is_damaged || !doubtful.is_empty() {
                    aside::put(&*disk, directory, lines.lost_bytes, &doubtful)
                        .map_err(|error| failed(directory, &error))?;
                }
                left = intact;
                lines.title
            }
        };
        let generation = title.floor;
        let mut slots: Vec<_> = left
            .iter()
            .map(|(path, tail)| Slot {
                path: Some(path.clone()),
                generation,
                pieces: vec![Piece {
                    generation,
                    at: 0,
                    bytes: u32::try_from(tail.len()).unwrap_or(u32::MAX),
                }],
            })
            .collect();
        let tail = |number: usize, _: &Piece| Ok(left[number].1.clone());
        let file = replace(&mut stored, title, &mut slots, tail)?;
        let pieces = slots.iter().flat_map(|slot| &slot.pieces);
        let journal = Self {
            live: pieces.map(Piece::live_bytes).sum(),
            synced: stored.bytes(),
            stored,
            file,
            title,
            slots,
            free: Vec::new(),
        };
        let left = (0..).zip(left).map(|(slot, (path, tail))| Left {
            slot,
            generation,
            path,
            tail,
        });
        Ok(Opened {
            left: left.collect(),
            journal,
            mended,
            doubtful: aside::doubtful(&*disk, directory)
                .map_err(|error| failed(directory, &error))?,
        })
    }

    pub(super) fn identity(&self) -> Identity {
        self.title.identity
    }

    /// Takes a slot for an open file. Returns the slot and its first generation.
    pub(super) fn begin(&mut self, path: &str) -> io::Result<(u32, u64)> {
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                self.slots.push(Slot {
                    generation: self.title.floor,
                    ..Slot::default()
                });
                u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
            }
        };
        let slot = &mut self.slots[number as usize];
        slot.path = Some(path.to_owned());
        let generation = slot.generation;
        match self.write(Kind::Begin, number, generation, path.as_bytes()) {
            Ok(_) => Ok((number, generation)),
            Err(error) => {
                self.slots[number as usize].path = None;
                self.free.push(number);
                Err(error)
            }
        }
    }

    /// Appends unfinished bytes to a generation.
    pub(super) fn append(&mut self, number: u32, generation: u64, data: &[u8]) -> io::Result<()> {
        let at = self.write(Kind::Piece, number, generation, data)?;
        let piece = Piece {
            generation,
            at,
            bytes: u32::try_from(data.len()).unwrap_or(u32::MAX),
        };
        self.live += piece.live_bytes();
        self.slots[number as usize].pieces.push(piece);
        Ok(())
    }

    /// Moves the last `bytes` live bytes of a slot to a new generation, because the bytes before them leave in a batch.
    pub(super) fn part(&mut self, number: u32, generation: u64, bytes: usize) -> io::Result<()> {
        let data = (bytes as u64).to_le_bytes();
        self.write(Kind::Part, number, generation, &data)?;
        let pieces = &mut self.slots[number as usize].pieces;
        let mut left = u32::try_from(bytes).unwrap_or(u32::MAX);
        let mut after = Vec::new();
        while left > 0
            && let Some(piece) = pieces.pop()
        {
            self.live -= piece.live_bytes();
            let moves = Piece {
                generation,
                at: piece.at + u64::from(piece.bytes.saturating_sub(left)),
                bytes: piece.bytes.min(left),
            };
            let stays = Piece {
                bytes: piece.bytes - moves.bytes,
                ..piece
            };
            left -= moves.bytes;
            self.live += moves.live_bytes();
            after.push(moves);
            if stays.bytes > 0 {
                self.live += stays.live_bytes();
                pieces.push(stays);
            }
        }
        pieces.extend(after.into_iter().rev());
        Ok(())
    }

    /// Drops the generations below `next`: they are kept, settled, or had no records to send.
    pub(super) fn done(&mut self, number: u32, next: u64) {
        let slot = &mut self.slots[number as usize];
        slot.generation = slot.generation.max(next);
        let live = &mut self.live;
        slot.pieces.retain(|piece| {
            let is_live = piece.generation >= next;
            if !is_live {
                *live -= piece.live_bytes();
            }
            is_live
        });
    }

    /// Writes to the journal that the generations below `next` are settled. Needed with a memory channel, which remembers nothing
    /// after a crash.
    pub(super) fn note_done(&mut self, number: u32, next: u64) -> io::Result<()> {
        let pieces = &self.slots[number as usize].pieces;
        if pieces.iter().any(|piece| piece.generation < next) {
            self.write(Kind::Done, number, next, &[])?;
        }
        self.done(number, next);
        Ok(())
    }

    /// Frees the slot of an open file. The generations below `next` are done.
    pub(super) fn end(&mut self, number: u32, next: u64) {
        self.done(number, next);
        self.slots[number as usize].path = None;
        self.free.push(number);
    }

    /// Begins a sync of everything that was written. [`Sync::run`] may be called without a lock on the
    /// journal.
    pub(super) fn begin_sync(&mut self) -> io::Result<Sync> {
        if self.stored.needs_replace() {
            self.rewrite()?;
        }
        Ok(Sync {
            file: self.file.clone(),
            end: self.stored.bytes(),
        })
    }

    /// Ends a sync. A failed sync is never repeated on the same file, because the kernel may have dropped the pages that it
    /// could not write. The next write or sync rewrites the journal instead.
    pub(super) fn end_sync(&mut self, sync: &Sync, succeeded: bool) {
        if !Arc::ptr_eq(&sync.file, &self.file) {
            // The journal was rewritten during the sync, and its new file is durable.
            return;
        }
        if succeeded {
            self.synced = self.synced.max(sync.end);
        } else {
            self.stored.invalidate();
        }
    }

    /// Appends a record. Returns the offset of its data.
    fn write(&mut self, kind: Kind, slot: u32, generation: u64, data: &[u8]) -> io::Result<u64> {
        let bytes = self.stored.bytes();
        if self.stored.needs_replace() || (bytes > BYTES_MAX && bytes / 2 > self.live) {
            self.rewrite()?;
        }
        let head = Head {
            kind,
            slot,
            generation,
            synced: self.synced,
        };
        let at = self.stored.append(&[&head.encode(), data])?;
        Ok(at + HEAD_BYTES as u64)
    }

    /// Replaces the journal by one that holds only the live bytes. Blocks.
    fn rewrite(&mut self) -> io::Result<()> {
        let old = self.file.clone();
        let data = |_: usize, piece: &Piece| {
            let mut data = Vec::new();
            let bytes = piece.bytes as usize;
            match old.read_at(&mut data, bytes, piece.at)? == bytes {
                true => Ok(data),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        };
        self.file = replace(&mut self.stored, self.title, &mut self.slots, data)?;
        self.synced = self.stored.bytes();
        Ok(())
    }
}

/// Replaces the stored journal by one with these slots, and sets the new offsets of their pieces. `data` returns the bytes of a
/// piece.
fn replace(
    stored: &mut state::Journal,
    title: Title,
    slots: &mut [Slot],
    data: impl Fn(usize, &Piece) -> io::Result<Vec<u8>>,
) -> Result<Arc<dyn File>, Error> {
    let unreadable = |error: io::Error| Error::Io {
        action: "read",
        path: stored.path().to_owned(),
        error,
    };
    let mut records = stored.replacement();
    // The new file is durable before it is renamed. So each record in it may state that everything before the record was durable.
    let mut synced = title.add(&mut records);
    let mut add = |kind, slot, generation, data: &[u8]| {
        let head = Head {
            kind,
            slot,
            generation,
            synced,
        };
        synced = records.add(&[&head.encode(), data]);
        synced + HEAD_BYTES as u64
    };
    let mut moved = Vec::new();
    for (number, slot) in slots.iter().enumerate() {
        let Some(path) = &slot.path else { continue };
        let place = u32::try_from(number).unwrap_or(u32::MAX);
        add(Kind::Begin, place, slot.generation, path.as_bytes());
        for piece in &slot.pieces {
            let data = data(number, piece).map_err(unreadable)?;
            moved.push(add(Kind::Piece, place, piece.generation, &data));
        }
    }
    stored.replace(records)?;
    let pieces = slots
        .iter_mut()
        .filter(|slot| slot.path.is_some())
        .flat_map(|slot| &mut slot.pieces);
    for (piece, at) in pieces.zip(moved) {
        piece.at = at;
    }
    stored
        .file()
        .ok_or_else(|| stored.damaged("it was replaced and cannot be read back"))
}

fn failed(directory: &Path, error: &io::Error) -> Failure {
    Failure::disk(format!("{}: {error}", directory.display()))
}
