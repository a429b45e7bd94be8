//! Unfinished lines: the bytes after the last whole record of each open file.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> [send] -> keep -> read back -> process -> encode -> write -> settle`
//!
//! The bytes themselves are in the cutters of the streams. This module limits the memory that the unfinished bytes of all files
//! take together. It also tracks which unfinished bytes are in the journal, from which they are recovered after a crash. With a
//! durable channel, a crash then loses no bytes that a `write` has acknowledged. In the journal, each open file has a slot. The
//! bytes of a slot that are unfinished between two batches form a generation (`journal/`).

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use millstream_pipeline::report::Reporter;
use millstream_record::{FileOrigin, Origin};
use rustix::io::Errno;

use super::journal::{Identity, Journal};

/// All unfinished lines together may take `memory_max` divided by this number.
const MEMORY_PART: usize = 8;
/// An unfinished line up to this size, in bytes, is always accepted. A line may grow beyond this size only if all unfinished
/// lines together stay within their limit.
const FREE_BYTES: usize = 4 << 10;

/// The unfinished lines of all open files.
pub(super) struct Unfinished {
    journal: Mutex<Journal>,
    identity: Identity,
    /// Whether the channel is durable: after a crash, the origins in the channel show which generations it has kept.
    durable: bool,
    bytes: AtomicUsize,
    bytes_max: usize,
    directory: PathBuf,
    reporter: Reporter,
}

/// A generation of unfinished bytes in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub slot: u32,
    pub generation: u64,
}

impl Unfinished {
    /// `memory_max` is the memory limit of the process, in bytes; `directory` holds the journal.
    pub(super) fn new(
        journal: Journal,
        durable: bool,
        memory_max: usize,
        directory: &Path,
        reporter: Reporter,
    ) -> Self {
        Self {
            identity: journal.identity(),
            journal: Mutex::new(journal),
            durable,
            bytes: AtomicUsize::new(0),
            bytes_max: memory_max / MEMORY_PART,
            directory: directory.to_owned(),
            reporter,
        }
    }

    /// Notes in the journal that all generations of a slot before the generation of `place` are settled. Needed with a memory
    /// channel, which keeps no origins.
    pub(super) fn note_settled(&self, place: Place) -> Result<(), Errno> {
        let noted = self.journal().note_done(place.slot, place.generation);
        noted.map_err(|error| self.failed(&error))
    }

    /// Frees the slot of a closed file.
    pub(super) fn end(&self, place: Place) {
        self.journal().end(place.slot, place.generation);
    }

    /// Makes everything in the journal durable.
    pub(super) async fn sync(&self) -> Result<(), Errno> {
        let sync = self.journal().begin_sync();
        let sync = Arc::new(sync.map_err(|error| self.failed(&error))?);
        let run = sync.clone();
        let synced = tokio::task::spawn_blocking(move || run.run()).await;
        let synced = synced.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        self.journal().end_sync(&sync, synced.is_ok());
        synced.map_err(|error| self.failed(&error))
    }

    /// Locks the journal. No method of the journal can panic between two changes, so the data are consistent even if the lock is
    /// poisoned.
    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs that the journal cannot be written. Returns the error for the writer.
    fn failed(&self, error: &io::Error) -> Errno {
        let text = format_args!(
            "cannot write an unfinished line to {}: {error}; the writer gets this error",
            self.directory.display()
        );
        self.reporter.error("journal", text);
        Errno::from_io_error(error).unwrap_or(Errno::IO)
    }
}

/// The unfinished line of one open file, and its state in the journal.
pub(super) struct UnfinishedLine {
    all: Arc<Unfinished>,
    /// The bytes that are unfinished now.
    bytes: usize,
    /// The number of these bytes that are in the journal, counted from the first.
    journaled: usize,
    /// The generation in the journal to which further bytes are added. `None` if no bytes were journaled. Each parcel that takes
    /// unfinished bytes ends a generation. This holds even for a parcel that was not kept: one of several channels may have kept
    /// it although the others did not.
    place: Option<Place>,
    /// The generation of the first unfinished bytes.
    since: u64,
    /// True while it is unknown whether the last parcel was kept. It stays true if the writer stops waiting.
    in_doubt: bool,
}

/// The state of an [`UnfinishedLine`] before it advanced.
#[derive(Debug)]
pub(super) struct LineBefore {
    bytes: usize,
    journaled: usize,
    since: u64,
}

impl UnfinishedLine {
    pub(super) fn new(all: Arc<Unfinished>) -> Self {
        Self {
            all,
            bytes: 0,
            journaled: 0,
            place: None,
            since: 0,
            in_doubt: false,
        }
    }

    /// A line of an earlier run. All its `bytes` bytes are in the journal.
    pub(super) fn recovered(all: Arc<Unfinished>, place: Place, bytes: usize) -> Self {
        let mut line = Self::new(all);
        line.journaled = bytes;
        line.place = Some(place);
        line.since = place.generation;
        line.set_bytes(bytes);
        line
    }

    /// Whether the line may grow to this many bytes.
    pub(super) fn may_take(&self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let all = || self.all.bytes.load(Ordering::Relaxed).saturating_add(more);
        more == 0 || bytes <= FREE_BYTES || all() <= self.all.bytes_max
    }

    /// Begins a new generation before a parcel takes all unfinished bytes but the last `stay`. Returns the old generation, or
    /// `None` if no bytes were journaled. The bytes that stay move to the new generation before the parcel is sent, because the
    /// old generation is done once the channel has kept the parcel.
    pub(super) fn begin_generation(&mut self, stay: usize) -> Result<Option<Place>, Errno> {
        let Some(leaves) = self.place else {
            return Ok(None);
        };
        let generation = leaves.generation + 1;
        let journaled = self.journaled_of_last(stay);
        if journaled > 0 {
            let parted = self.all.journal().part(leaves.slot, generation, journaled);
            parted.map_err(|error| self.all.failed(&error))?;
        }
        self.place = Some(Place {
            generation,
            ..leaves
        });
        Ok(Some(leaves))
    }

    /// The origin of a batch that takes the bytes of a generation. `None` if the channel is not durable.
    pub(super) fn origin(&self, leaves: Place) -> Option<Origin> {
        self.all.durable.then(|| {
            Origin::File(FileOrigin {
                file: self.all.identity.file(leaves.slot),
                begin: leaves.generation,
                next: leaves.generation + 1,
            })
        })
    }

    /// Notes that a parcel was sent, and that it took all unfinished bytes but the last `stay`. Returns the state before.
    pub(super) fn advance(&mut self, leaves: Option<Place>, stay: usize) -> LineBefore {
        let before = LineBefore {
            bytes: self.bytes,
            journaled: self.journaled,
            since: self.since,
        };
        if let Some(place) = leaves {
            self.since = place.generation + 1;
            self.journaled = self.journaled_of_last(stay);
        }
        self.set_bytes(stay);
        before
    }

    /// Restores the state before a parcel that was not kept.
    pub(super) fn rewind(&mut self, before: &LineBefore) {
        self.set_bytes(before.bytes);
        (self.since, self.journaled) = (before.since, before.journaled);
    }

    /// Notes that a durable channel has received a parcel, but has not confirmed that it is kept.
    pub(super) fn set_in_doubt(&mut self) {
        self.in_doubt = true;
    }

    pub(super) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Notes that a durable channel has kept a parcel, and with it everything that was sent before.
    pub(super) fn kept(&mut self, leaves: Option<Place>) {
        self.in_doubt = false;
        if let Some(place) = leaves {
            self.all.journal().done(place.slot, place.generation + 1);
        }
    }

    /// Notes that a parcel had no records to send, for example because the rule dropped them. Such a parcel leaves no origin in a
    /// channel, so the journal stores that its generation is done.
    pub(super) fn dropped(&self, leaves: Option<Place>) -> Result<(), Errno> {
        match leaves {
            Some(place) => self.all.note_settled(Place {
                generation: place.generation + 1,
                ..place
            }),
            None => Ok(()),
        }
    }

    /// Adds `bytes` bytes to the line.
    pub(super) fn grow(&mut self, bytes: usize) {
        self.set_bytes(self.bytes + bytes);
    }

    /// Appends to the journal the unfinished bytes that the journal does not hold yet. `unfinished` holds all unfinished bytes of
    /// the file at `path`.
    pub(super) fn write(&mut self, path: &str, unfinished: &[u8]) -> Result<(), Errno> {
        if unfinished.len() <= self.journaled {
            return Ok(());
        }
        let mut journal = self.all.journal();
        let written = (|| {
            let place = match self.place {
                Some(place) => place,
                None => {
                    let (slot, generation) = journal.begin(path)?;
                    self.since = generation;
                    *self.place.insert(Place { slot, generation })
                }
            };
            journal.append(place.slot, place.generation, &unfinished[self.journaled..])
        })();
        drop(journal);
        written.map_err(|error| self.all.failed(&error))?;
        self.journaled = unfinished.len();
        Ok(())
    }

    /// Notes that everything that was sent is settled. Used only with a memory channel.
    pub(super) fn settled(&self) -> Result<(), Errno> {
        match self.place {
            Some(place) => self.all.note_settled(Place {
                generation: self.since,
                ..place
            }),
            None => Ok(()),
        }
    }

    /// Removes and returns the place in the journal, for [`Unfinished::end`].
    pub(super) fn release(&mut self) -> Option<Place> {
        self.place.take()
    }

    /// How many of the last `stay` unfinished bytes are in the journal.
    fn journaled_of_last(&self, stay: usize) -> usize {
        self.journaled
            .saturating_sub(self.bytes.saturating_sub(stay))
    }

    fn set_bytes(&mut self, bytes: usize) {
        let all = &self.all.bytes;
        if bytes >= self.bytes {
            all.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            all.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for UnfinishedLine {
    fn drop(&mut self) {
        self.set_bytes(0);
    }
}

#[cfg(test)]
mod tests {
    use millstream_sys::disk::HostDisk;

    use super::*;

    const KIB: usize = 1 << 10;

    fn unfinished(directory: &Path) -> Arc<Unfinished> {
        let disk = Arc::new(HostDisk);
        let journal = Journal::open(disk, directory, |_| None).unwrap().journal;
        let reporter = Reporter::new("fuse");
        let memory_max = 8 * KIB * MEMORY_PART;
        Arc::new(Unfinished::new(
            journal, true, memory_max, directory, reporter,
        ))
    }

    #[test]
    fn all_lines_together_take_a_bounded_amount_of_memory() {
        let directory = tempfile::tempdir().unwrap();
        let all = unfinished(directory.path());
        let (mut one, two) = (
            UnfinishedLine::new(all.clone()),
            UnfinishedLine::new(all.clone()),
        );
        one.grow(8 * KIB);
        assert!(two.may_take(FREE_BYTES), "a short line is always accepted");
        assert!(!two.may_take(FREE_BYTES + 1));
        assert!(one.may_take(8 * KIB), "it has them already");
        drop(one);
        assert!(two.may_take(8 * KIB) && !two.may_take(8 * KIB + 1));
    }

    #[test]
    fn bytes_after_a_kept_record_are_recovered_after_a_crash() {
        let directory = tempfile::tempdir().unwrap();
        let mut line = UnfinishedLine::new(unfinished(directory.path()));
        line.write("a", b"one\ntw").unwrap();
        line.grow(6);
        let leaves = line.begin_generation(2).unwrap();
        let before = line.advance(leaves, 2);
        line.rewind(&before);
        let leaves = line.begin_generation(2).unwrap();
        line.advance(leaves, 2);
        line.kept(leaves);
        line.write("a", b"two").unwrap();
        let Some(Origin::File(origin)) = leaves.and_then(|leaves| line.origin(leaves)) else {
            panic!("a durable channel needs an origin");
        };
        let kept = |asked: &_| (*asked == origin.file).then_some(origin.next);
        let opened = Journal::open(Arc::new(HostDisk), directory.path(), kept).unwrap();
        let tails: Vec<_> = opened.left.iter().map(|left| &left.tail[..]).collect();
        assert_eq!(tails, [b"two"]);
    }
}
