//! Files that wait to become segments (`free-N.seg`).
//!
//! Overwriting a file costs an eighth as much as writing to new space, so used segments are overwritten and not removed. A blank file is
//! allocated and filled in advance, so a full disk is noticed here, before any batch is accepted.

use std::{
    io::{self, IoSlice},
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_sys::disk::{Disk, File, Open};

use super::{
    Error, Options,
    directory::LogDirectory,
    error::{Shortage, is_no_room},
    segment::{PAGE, Segment, blank_name, blank_number_in},
};

/// The number of used segments that may wait to be overwritten. It is enough for a reader that commits once per second at 200 MB/s.
const BLANKS_MIN: u64 = 4;
/// More used segments than [`BLANKS_MIN`] may wait if they take at most `size_max` divided by this. A reader that repeatedly falls behind
/// and catches up needs their space again.
const BLANKS_PART: u64 = 8;
/// A new segment takes at most the free space of its disk divided by this. Only the next group, or the minimum size of a segment, can make
/// it larger. So a small disk gets several segments instead of one, and each of them can be released when it is settled.
const AMPLE: u64 = 4;
/// Zeros are written in pieces of this size.
const FILL_BYTES: usize = 1 << 20;

/// A file that is allocated and filled, and not yet part of the log.
pub struct Blank {
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn File>,
    pub(super) bytes: u64,
}

impl Blank {
    /// Creates a blank ahead of time. Fails if the disk is nearly full, because another file may need the space first.
    pub fn create_ahead(disk: &dyn Disk, path: &Path, bytes: u64) -> io::Result<Self> {
        let directory = path.parent().unwrap_or(Path::new("."));
        let space = disk.space(directory);
        if space.is_ok_and(|space| space.free / AMPLE < bytes) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Self::create(disk, path, bytes)
    }

    /// Creates the file, allocates it and fills it with zeros. If that fails, removes the file again.
    fn create(disk: &dyn Disk, path: &Path, bytes: u64) -> io::Result<Self> {
        let file = disk.open(path, Open::Create)?;
        let filled = file.allocate(bytes).and_then(|()| fill(&*file, bytes));
        if let Err(error) = filled {
            drop(file);
            // If the removal fails, the next start removes the file.
            let _ = disk.remove(path);
            return Err(error);
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            bytes,
        })
    }
}

fn fill(file: &dyn File, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; FILL_BYTES.min(usize::try_from(bytes).unwrap_or(FILL_BYTES))];
    let mut at = 0;
    while at < bytes {
        let piece = (bytes - at).min(zeros.len() as u64);
        let piece = usize::try_from(piece).unwrap_or(zeros.len());
        file.write_uncached_at(&[IoSlice::new(&zeros[..piece])], at)?;
        at += piece as u64;
    }
    Ok(())
}

/// The blank files of a channel.
pub(super) struct Blanks {
    files: Vec<Blank>,
    /// The highest number in a name so far. No name is used twice while the log is open.
    number: u64,
    /// Whether a used segment has become a blank and its new name is not durable yet.
    unsynced: bool,
    /// Whether the disk had too little space for a segment of the usual size. In this case smaller segments are created and reused.
    short: bool,
    /// Bytes of a usual segment.
    usual: u64,
    /// Bytes of the smallest segment worth creating.
    least: u64,
    /// Bytes that all segments may take.
    size_max: u64,
}

impl Blanks {
    /// Takes over the blank files among `names`. Removes those whose size does not fit the options.
    pub(super) fn open(
        directory: &LogDirectory,
        names: &[String],
        options: &Options,
    ) -> Result<Self, Error> {
        let mut blanks = Self {
            files: Vec::new(),
            number: 0,
            unsynced: false,
            short: false,
            usual: 0,
            least: 0,
            size_max: 0,
        };
        blanks.change(options);
        for name in names {
            let Some(number) = blank_number_in(name) else {
                continue;
            };
            let path = directory.join(name);
            let failed = |error| Error::disk("opening a used segment", &path, error);
            let file = directory.disk.open(&path, Open::Write).map_err(failed)?;
            let bytes = file.metadata().map_err(failed)?.len;
            blanks.number = blanks.number.max(number);
            if (blanks.least..=blanks.usual).contains(&bytes) {
                blanks.short |= bytes < blanks.usual;
                blanks.files.push(Blank { path, file, bytes });
            } else {
                drop(file);
                directory.disk.remove(&path).map_err(failed)?;
            }
        }
        Ok(blanks)
    }

    /// Creates files that fit these options from now on.
    pub(super) fn change(&mut self, options: &Options) {
        self.usual = options.segment_bytes;
        self.least = super::SEGMENT_BYTES_LEAST.min(options.segment_bytes / 4);
        self.size_max = options.size_max;
    }

    /// Bytes of the smallest segment worth creating.
    pub(super) fn least_bytes(&self) -> u64 {
        self.least
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Adds a file that was created ahead of time.
    pub(super) fn add(&mut self, blank: Blank) {
        self.files.push(blank);
    }

    /// A path for a new blank.
    pub(super) fn next_path(&mut self, directory: &LogDirectory) -> PathBuf {
        self.number += 1;
        directory.join(&blank_name(self.number))
    }

    /// Ensures that there is a blank of at least `least` bytes, or of the usual size if the disk has ample space. Removes other blanks if
    /// they take more than `others_max` bytes together.
    pub(super) fn ensure(
        &mut self,
        directory: &LogDirectory,
        least: u64,
        others_max: u64,
    ) -> Result<(), Error> {
        let usual = least.max(self.usual);
        loop {
            let fits = self.files.iter().position(|blank| blank.bytes >= usual);
            let other = (0..self.files.len()).rfind(|index| Some(*index) != fits);
            let others = self.bytes() - fits.map_or(0, |fits| self.files[fits].bytes);
            match other {
                Some(other) if others > others_max => self.remove(directory, other)?,
                _ if fits.is_some() => return Ok(()),
                _ => break,
            }
        }
        let ample = directory.free_bytes() / AMPLE;
        self.short = ample < usual;
        if !self.short {
            // All blanks are smaller than `usual`, and the disk has space for a larger one.
            while !self.files.is_empty() {
                self.remove(directory, 0)?;
            }
        } else if self.files.iter().any(|blank| blank.bytes >= least) {
            return Ok(());
        }
        let mut bytes = match ample {
            ample if ample >= usual => usual,
            ample => (ample / PAGE * PAGE).clamp(least, usual),
        };
        loop {
            match self.create(directory, bytes) {
                Err(Error::NoRoom { .. }) if bytes > least => {
                    self.short = true;
                    bytes = (bytes / 2).next_multiple_of(PAGE).max(least);
                }
                // The existing blanks are too small, and take the space that the new one needs.
                Err(Error::NoRoom { .. }) if !self.files.is_empty() => self.remove(directory, 0)?,
                created => return created,
            }
        }
    }

    /// Creates a blank of `bytes` bytes.
    pub(super) fn create(&mut self, directory: &LogDirectory, bytes: u64) -> Result<(), Error> {
        let path = self.next_path(directory);
        match Blank::create(&*directory.disk, &path, bytes) {
            Ok(blank) => {
                self.files.push(blank);
                Ok(())
            }
            Err(error) => Err(
                match Error::disk("creating a segment", &directory.path, error) {
                    Error::NoRoom {
                        path, lack, source, ..
                    } => Error::NoRoom {
                        path,
                        lack,
                        shortage: Some(Shortage {
                            needed: bytes,
                            free: directory.free_bytes(),
                        }),
                        source,
                    },
                    Error::Disk { doing, source, .. } => Error::Disk {
                        doing,
                        path,
                        source,
                    },
                    other => other,
                },
            ),
        }
    }

    /// Removes and returns the largest blank that has at least `bytes` bytes.
    pub(super) fn pop(&mut self, bytes: u64) -> Option<Blank> {
        let fitting = self.files.iter().enumerate();
        let fitting = fitting.filter(|(_, blank)| blank.bytes >= bytes);
        let (index, _) = fitting.max_by_key(|(_, blank)| blank.bytes)?;
        Some(self.files.remove(index))
    }

    /// Makes the names of blanks durable. Until then, a power cut could give a blank the name of its old segment back. If the blank has
    /// been overwritten, that segment would look damaged.
    pub(super) fn sync_names(&mut self, directory: &LogDirectory) -> io::Result<()> {
        if self.unsynced {
            directory.sync()?;
            self.unsynced = false;
        }
        Ok(())
    }

    /// Turns a released segment into a blank file. Removes the segment instead if its size does not fit, if there are enough blanks, or if
    /// a reader still uses it.
    pub(super) fn recycle(
        &mut self,
        directory: &LogDirectory,
        segment: &Arc<Segment>,
    ) -> io::Result<()> {
        let bytes = segment.bytes();
        let is_usual = bytes == self.usual;
        let is_small = self.short && (self.least..self.usual).contains(&bytes);
        let others_max = (BLANKS_MIN * bytes).max(self.size_max / BLANKS_PART) - bytes;
        let is_read = Arc::strong_count(segment) > 1;
        if !(is_usual || is_small) || self.bytes() > others_max || is_read {
            return directory.disk.remove(&segment.path);
        }
        let path = self.next_path(directory);
        match directory.disk.rename(&segment.path, &path) {
            // A full disk may have no space for another name. Removing the file needs none.
            Err(error) if is_no_room(&error) => return directory.disk.remove(&segment.path),
            renamed => renamed?,
        }
        self.unsynced = true;
        self.files.push(Blank {
            path,
            file: Arc::clone(&segment.file),
            bytes,
        });
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|blank| blank.bytes).sum()
    }

    /// Removes a blank to free its space; returns false if there is none.
    pub(super) fn remove_one(&mut self, directory: &LogDirectory) -> Result<bool, Error> {
        let has_one = !self.files.is_empty();
        if has_one {
            self.remove(directory, 0)?;
        }
        Ok(has_one)
    }

    fn remove(&mut self, directory: &LogDirectory, index: usize) -> Result<(), Error> {
        let blank = self.files.remove(index);
        directory
            .disk
            .remove(&blank.path)
            .map_err(|error| Error::disk("removing a used segment", &blank.path, error))
    }
}

#[cfg(test)]
mod tests {
    use millstream_testkit::SimulatedDisk;

    use super::*;
    use crate::disk::log::{
        Sync,
        tests::{SEGMENT, directory, names, options},
    };

    #[test]
    fn a_small_disk_gets_smaller_segments_and_a_full_disk_reports_the_space_needed() {
        let disk = SimulatedDisk::new(1);
        let directory = directory(&disk);
        let mut blanks = Blanks::open(&directory, &[], &options(Sync::Batch)).unwrap();
        blanks.ensure(&directory, 4096, u64::MAX).unwrap();
        assert_eq!(blanks.pop(SEGMENT).unwrap().bytes, SEGMENT);
        // The first file still takes SEGMENT bytes.
        disk.set_capacity(SEGMENT + 4 * 8192);
        blanks.ensure(&directory, 4096, u64::MAX).unwrap();
        assert_eq!(blanks.bytes(), 8192, "a quarter of what is free");
        let error = blanks.create(&directory, 8 * 4096).unwrap_err();
        assert!(error.to_string().contains("32KiB are needed"), "{error}");
        // The next start takes over the blanks that fit the options.
        let blanks = Blanks::open(&directory, &names(&disk), &options(Sync::Batch)).unwrap();
        assert!(blanks.short && blanks.files.len() == 2);
    }
}
