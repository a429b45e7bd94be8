//! A journal of records: appended to, and replaced by a shorter one when it has grown.
//!
//! ```text
//! NAME         header (see `seal`), records (see `frame`)
//! NAME.copy    the same bytes, if the journal has a copy: damage to one of the two files loses nothing
//! NAME.new     a replacement that is not yet renamed to NAME
//! ```

use std::{
    io::{self, IoSlice},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_sys::{
    disk::{Disk, File},
    random,
};

use crate::{
    Error, Format,
    frame::{self, HEAD_BYTES, Record, Scan},
    replace::{Replacement, create_directory, directory, read},
    seal::{self, HEADER_BYTES, Seal},
};

/// The properties of a journal.
#[derive(Clone, Copy, Debug)]
pub struct JournalFormat {
    /// The format of the file's header, and the largest length of the file.
    pub format: Format,
    /// The largest body of a record. This bounds the search for records after a damaged range.
    pub record_bytes_max: usize,
    /// Whether everything is written to a second file as well.
    pub copied: bool,
}

/// The records that an earlier run left.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The valid records, in order. A torn end is left out.
    pub records: Vec<Record>,
    /// Ranges in which no record is valid, although a valid record follows. Either they are damaged, or a power cut lost unsynced writes.
    pub holes: Vec<Range<u64>>,
    /// The first element counts the bytes that are damaged or missing in the journal and intact in its copy. The second element counts the
    /// bytes that are damaged or missing in the copy and intact in the journal.
    pub lacks: [u64; 2],
}

impl Recovered {
    /// The records of a journal in an older format. Their offsets are unknown.
    #[must_use]
    pub fn of(bodies: Vec<Vec<u8>>) -> Self {
        let record = |body| Record { at: 0, body };
        Self {
            records: bodies.into_iter().map(record).collect(),
            ..Self::default()
        }
    }

    /// Whether the first record of the file was lost.
    #[must_use]
    pub fn lost_first(&self) -> bool {
        let first = HEADER_BYTES as u64;
        self.records.is_empty() || self.holes.iter().any(|hole| hole.start == first)
    }
}

/// A journal. It is read once, by [`Journal::open`]. Then [`Journal::replace`] begins a new file with the records that are still
/// needed. So torn ends, damage, older formats and writes that an earlier run could not sync disappear with the old file.
pub struct Journal {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    format: JournalFormat,
    generation: u64,
    open: Option<OpenFiles>,
    has_directory: bool,
    buffer: Vec<u8>,
}

/// The files to which records are appended.
struct OpenFiles {
    file: Arc<dyn File>,
    /// `None` if the journal has no copy, or if a write of the copy failed during or after the last replacement of the journal.
    copy: Option<Arc<dyn File>>,
    end: u64,
}

impl Journal {
    /// Reads the journal of an earlier run; `None` if there is none. Nothing can be appended before [`Journal::replace`].
    ///
    /// `older` converts a journal and its copy if neither has a valid header of the current version. If the bytes are not of an older
    /// version either, `older` returns `None`, and `open` fails with [`Error::Damaged`].
    pub fn open(
        disk: Arc<dyn Disk>,
        path: PathBuf,
        format: JournalFormat,
        older: impl FnOnce([Option<&[u8]>; 2]) -> Option<Recovered>,
    ) -> Result<(Self, Option<Recovered>), Error> {
        let mut journal = Self {
            disk,
            path,
            format,
            generation: 0,
            open: None,
            has_directory: false,
            buffer: Vec::new(),
        };
        let recovered = journal.recover(older)?;
        if recovered.is_none() {
            // The generation (a number that every replacement of the file raises) begins with a random number. So a stale record that
            // another journal left in the same disk blocks is not taken for a record of this journal.
            let random =
                random::bytes().map_err(Error::io("draw a random number for", &journal.path))?;
            journal.generation = u64::from(u32::from_le_bytes(random)) << 16;
        }
        Ok((journal, recovered))
    }

    fn recover(
        &mut self,
        older: impl FnOnce([Option<&[u8]>; 2]) -> Option<Recovered>,
    ) -> Result<Option<Recovered>, Error> {
        let mut files = [self.read(&self.path), Ok(None)];
        if self.format.copied {
            files[1] = self.read(&self.copy_path());
        }
        let files = match files {
            [Ok(None), Ok(None)] => return Ok(None),
            [Ok(journal), Ok(copy)] => [journal, copy],
            // One readable file is enough.
            [Ok(Some(journal)), Err(_)] => [Some(journal), None],
            [Err(_), Ok(Some(copy))] => [None, Some(copy)],
            [Err(error), _] | [_, Err(error)] => return Err(error),
        };
        let Format { magic, version, .. } = self.format.format;
        let seals = files.each_ref().map(|file| match file {
            Some(bytes) => seal::open_header(magic, version, bytes),
            None => Seal::Other,
        });
        let generations = seals.map(|seal| match seal {
            Seal::Current(generation) => Some(generation),
            _ => None,
        });
        let Some(generation) = generations.into_iter().flatten().max() else {
            let newer = seals.iter().find_map(|seal| match seal {
                Seal::Newer(found) => Some(*found),
                _ => None,
            });
            if let Some(found) = newer {
                return Err(self.format.format.newer(&self.path, found));
            }
            let older = older(files.each_ref().map(Option::as_deref));
            return older
                .map(Some)
                .ok_or_else(|| self.damaged("its header cannot be read"));
        };
        self.generation = generation;
        // If journal and copy have different generations, the older one is ignored.
        let counts = generations.map(|other| other == Some(generation));
        let sides = [0, 1].map(|side| files[side].as_deref().filter(|_| counts[side]));
        let Scan {
            records,
            holes,
            mut lacks,
            ..
        } = frame::scan(
            sides.map(Option::unwrap_or_default),
            generation,
            self.format.record_bytes_max,
        );
        for side in 0..2 {
            let is_older = generations[side].is_some() && !counts[side];
            if is_older || (side == 1 && !self.format.copied) {
                lacks[side] = 0;
            } else if !counts[side] {
                lacks[side] += HEADER_BYTES as u64;
            }
        }
        Ok(Some(Recovered {
            records,
            holes,
            lacks,
        }))
    }

    fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, Error> {
        read(&*self.disk, path, &self.format.format)
    }

    fn copy_path(&self) -> PathBuf {
        self.path.with_added_extension("copy")
    }

    /// The error for records that are valid but that their owner cannot interpret.
    pub fn damaged(&self, why: impl Into<String>) -> Error {
        self.format.format.damaged(&self.path, why)
    }

    /// The path of the journal.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns an empty list of records for [`Journal::replace`].
    #[must_use]
    pub fn replacement(&self) -> Records {
        let generation = self.generation + 1;
        let Format { magic, version, .. } = self.format.format;
        Records {
            generation,
            bytes: seal::header(magic, version, generation).to_vec(),
        }
    }

    /// Replaces the journal with these records, which survive a power cut when this method returns. After an error, a restart finds either
    /// the earlier journal or the new one. This process may append to the earlier one only if [`Journal::needs_replace`] is false. Blocks.
    pub fn replace(&mut self, records: Records) -> Result<(), Error> {
        let Records { generation, bytes } = records;
        self.format
            .format
            .check_length(&self.path, bytes.len() as u64)?;
        self.try_replace(&bytes, generation)
            .map_err(Error::io("write", &self.path))
    }

    fn try_replace(&mut self, bytes: &[u8], generation: u64) -> io::Result<()> {
        let disk = &*self.disk;
        let directory = directory(&self.path);
        if !self.has_directory {
            create_directory(disk, directory)?;
            self.has_directory = true;
        }
        let new = Replacement::write(disk, &self.path, bytes).inspect_err(|_| {
            // The directory may have been removed.
            self.has_directory = false;
        })?;
        // From here on a crash may leave either the old or the new file, so no more records may be appended to the old one.
        self.open = None;
        self.generation = generation;
        // The copy is renamed first. Until the journal is renamed, too, nothing is appended, so neither of them has a record that
        // the other lacks.
        let copy = self.format.copied.then(|| {
            let copy_path = self.path.with_added_extension("copy");
            Replacement::write(disk, &copy_path, bytes)
                .and_then(|new| new.rename(disk, &copy_path))
                // An old copy beside the new journal would be ignored because of its generation, but it is removed anyway.
                .inspect_err(|_| drop(disk.remove(&copy_path)))
        });
        let file = new.rename(disk, &self.path)?;
        disk.sync_directory(directory)?;
        self.open = Some(OpenFiles {
            file,
            copy: copy.and_then(Result::ok),
            end: bytes.len() as u64,
        });
        Ok(())
    }

    /// Whether [`Journal::replace`] is needed before the next append: the journal was just opened, or its content is unknown after
    /// a failed write or sync.
    #[must_use]
    pub fn needs_replace(&self) -> bool {
        self.open.is_none()
    }

    /// Makes [`Journal::replace`] necessary. Call this method if some of the records became invalid, or if a sync through
    /// [`Journal::file`] failed.
    pub fn invalidate(&mut self) {
        self.open = None;
    }

    /// The length of the journal in bytes; 0 if it needs to be replaced.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.end)
    }

    /// Appends a record whose body is the concatenation of `parts`, and returns the offset of the body. The record survives the end of the
    /// process, and after [`Journal::sync`] also a power cut. After an error the record is not in the journal.
    pub fn append(&mut self, parts: &[&[u8]]) -> Result<u64, Error> {
        let Some(open) = &mut self.open else {
            let error =
                io::Error::other("an earlier write failed and the journal was not replaced");
            return Err(Error::io("write", &self.path)(error));
        };
        self.buffer.clear();
        frame::push(&mut self.buffer, self.generation, open.end, parts);
        let end = open.end + self.buffer.len() as u64;
        self.format.format.check_length(&self.path, end)?;
        if let Err(error) = open.file.write_at(&[IoSlice::new(&self.buffer)], open.end) {
            // A partly written record must not remain in the file.
            if open.file.truncate(open.end).is_err() {
                self.open = None;
            }
            return Err(Error::io("write", &self.path)(error));
        }
        // The journal has the record, so a failed write of the copy is not an error for the caller.
        let written = |copy: &Arc<dyn File>| {
            let parts = [IoSlice::new(&self.buffer)];
            copy.write_at(&parts, open.end).is_ok()
        };
        open.copy = open.copy.take().filter(written);
        let at = open.end + HEAD_BYTES as u64;
        open.end = end;
        Ok(at)
    }

    /// Makes all appended records durable. A failed sync is never repeated on the same file, because the system may have dropped
    /// the data that it could not write. After a failure the journal must be replaced. Blocks.
    pub fn sync(&mut self) -> Result<(), Error> {
        let synced = match &self.open {
            Some(open) => open.file.sync(),
            None => Err(io::Error::other("the journal was not replaced")),
        };
        synced.map_err(|error| {
            self.open = None;
            Error::io("sync", &self.path)(error)
        })
    }

    /// The current file, for a caller that syncs it on another thread. If that sync fails, the caller must call
    /// [`Journal::invalidate`].
    #[must_use]
    pub fn file(&self) -> Option<Arc<dyn File>> {
        self.open.as_ref().map(|open| open.file.clone())
    }

    /// Reads back a body, or a part of one, at an offset from [`Journal::append`] or [`Records::add`].
    pub fn read_at(&self, at: u64, bytes: usize) -> Result<Vec<u8>, Error> {
        let mut buffer = Vec::new();
        let read = match &self.open {
            Some(open) => open.file.read_at(&mut buffer, bytes, at),
            None => Ok(0),
        };
        match read {
            Ok(read) if read == bytes => Ok(buffer),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => Err(error),
        }
        .map_err(Error::io("read", &self.path))
    }
}

/// The records of a journal that replaces another one.
pub struct Records {
    generation: u64,
    bytes: Vec<u8>,
}

impl Records {
    /// Adds a record whose body is the concatenation of `parts`, and returns the offset that the body will have in the file.
    pub fn add(&mut self, parts: &[&[u8]]) -> u64 {
        let at = self.bytes.len() as u64;
        frame::push(&mut self.bytes, self.generation, at, parts);
        at + HEAD_BYTES as u64
    }
}
