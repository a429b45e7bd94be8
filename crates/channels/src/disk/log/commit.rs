//! The writer of a disk channel: group commit.
//!
//! `read -> decode -> send -> [keep] -> take -> process -> encode -> write -> settle`
//!
//! Groups are staged in memory (append.rs), written many at a time with one call, synced by policy, and only then shown to
//! consumers. Whatever fails before that leaves them staged: nothing is answered for that is not kept.

use std::{collections::VecDeque, io, path::PathBuf, sync::Arc};

use bytes::Bytes;
use millstream_record::{Batch, FileId, FileOrigin, Position, Time};
use millstream_sys::disk::{Disk, File};

use super::{
    ChannelId, Error, Options, Sync,
    error::is_no_room,
    frame::{ALIGNMENT, Kind},
    ids::IdRecord,
    index::{Hot, Index},
    key::Keys,
    loss::Losses,
    origins::FileTable,
    record::{Known, Record, record_path},
    segment::{Blank, Segment},
    window::Window,
};

/// The writer of one channel. One thread owns it.
pub struct Log {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) directory: PathBuf,
    pub(super) options: Options,
    pub(super) channel: ChannelId,
    /// Held as long as the log is open.
    pub(super) lock: Arc<dyn File>,
    pub(super) index: Arc<Index>,
    pub(super) epoch: u32,
    pub(super) next_seq: u64,
    pub(super) keep_time: Time,
    /// The segment being written; none before the first frame, and after a failure.
    pub(super) open: Option<OpenSegment>,
    /// The segment that the next one follows.
    pub(super) previous: Previous,
    /// Filled files that are not part of the log.
    pub(super) blanks: Vec<Blank>,
    pub(super) blank_number: u64,
    /// A used segment has become a blank, and its new name is not durable yet.
    pub(super) blank_unsynced: bool,
    /// The disk had no room for a segment of the usual size: smaller ones are made, and used again.
    pub(super) short: bool,
    /// Id files: segment, and the number of the window's entry after its last.
    pub(super) id_files: VecDeque<(u64, u64)>,
    pub(super) staged: VecDeque<Staged>,
    /// Written to the open segment and not yet kept.
    pub(super) written: Vec<Staged>,
    pub(super) keys: Keys,
    pub(super) window: Window,
    pub(super) files: FileTable,
    /// When the oldest frame that is written and not synced was written.
    pub(super) unsynced_since: Option<Time>,
    /// A disk call has failed and none has proved the disk good since.
    pub(super) failing: bool,
    pub(super) stopped: Option<Error>,
    pub(super) lost: Vec<(Position, Position)>,
    pub(super) repeats: u64,
    /// What others know of the channel when its directory is gone; none as long as the disk has no room for it.
    pub(super) record: Option<Record>,
    pub(super) known: Known,
    pub(super) losses: Arc<Losses>,
}

/// The segment being written.
pub(super) struct OpenSegment {
    pub(super) segment: Arc<Segment>,
    /// Where the next frame is written.
    pub(super) written: u64,
    /// What is durable.
    pub(super) synced: u64,
    /// What its frames say about repeats.
    pub(super) ids: Vec<IdRecord>,
    /// How many of them stand in frames that are durable.
    pub(super) ids_synced: usize,
    /// Files whose next byte was moved on by frames that are not durable, and what it was.
    pub(super) files_unsynced: Vec<(FileId, Option<u64>)>,
}

/// The end of the log before the next segment.
#[derive(Debug, Default)]
pub(super) struct Previous {
    pub(super) number: u64,
    pub(super) end: u64,
    /// What goes into its id file.
    pub(super) ids: Vec<IdRecord>,
    /// The id file is there, or there is nothing to put into one.
    pub(super) ids_written: bool,
}

/// A frame in memory.
pub(super) struct Staged {
    pub(super) head: Vec<u8>,
    pub(super) body: Bytes,
    pub(super) position: Position,
    pub(super) ends_group: bool,
    pub(super) ids: Vec<IdRecord>,
    pub(super) files: Vec<FileOrigin>,
    /// What consumers get to see; none if they see it already.
    pub(super) batch: Option<Batch>,
    /// When this is kept, the entries of the window below this number are.
    pub(super) window_end: u64,
}

impl Staged {
    pub(super) fn bytes(&self) -> u64 {
        (self.head.len() as u64 + self.body.len() as u64).next_multiple_of(ALIGNMENT)
    }
}

impl Log {
    /// The newest position that is kept.
    pub fn kept(&self) -> Position {
        self.index.lock().kept
    }

    /// The newest keep time.
    pub fn keep_time(&self) -> Time {
        self.keep_time
    }

    /// The id of the channel.
    pub fn id(&self) -> ChannelId {
        self.channel
    }

    /// Whether something is kept that is not synced yet.
    pub fn is_unsynced(&self) -> bool {
        self.unsynced_since.is_some()
    }

    /// When the log syncs.
    pub fn sync_policy(&self) -> Sync {
        self.options.sync
    }

    /// Bytes that are staged and not yet written.
    pub fn staged_bytes(&self) -> u64 {
        self.staged.iter().map(Staged::bytes).sum()
    }

    /// The first byte of a tailed file that the channel does not hold.
    pub fn next_of(&self, file: &FileId) -> Option<u64> {
        self.files.next(file)
    }

    /// A tailed file is gone for good: its origin need not be remembered any more.
    pub fn forget_file(&mut self, file: &FileId) {
        self.files.forget(file);
        self.index.files().remove(file);
    }

    /// A connection has ended. `orderly`: its peer closed it after all our acks, without an error.
    pub fn close_connection(&mut self, connection: u64, orderly: bool) {
        self.window.close(connection, orderly);
    }

    /// Chunks that came again and were not stored a second time.
    pub fn repeats(&self) -> u64 {
        self.repeats
    }

    /// Ids that had to leave the window before their age.
    pub fn evicted_young(&self) -> u64 {
        self.window.evicted_young()
    }

    /// Ids in the window.
    pub fn ids(&self) -> usize {
        self.window.len()
    }

    /// Positions that were kept by `sync: 1s` or `never` and could not be read back when the disk failed to sync them.
    pub fn take_lost(&mut self) -> Vec<(Position, Position)> {
        std::mem::take(&mut self.lost)
    }

    /// What is missing of the channel, and who has accepted it.
    pub fn losses(&self) -> Arc<Losses> {
        Arc::clone(&self.losses)
    }

    /// Keeps all that is staged. `Error::NoRoom` and `Error::Full` are for now: what is not kept stays staged, and the
    /// same call goes on later. After any other error the channel has stopped.
    pub fn commit(&mut self, now: Time) -> Result<(), Error> {
        self.alive()?;
        let done = self.try_commit(now);
        if let Err(error) = &done
            && !error.is_for_now()
        {
            self.stopped = Some(error.clone());
        }
        done
    }

    fn try_commit(&mut self, now: Time) -> Result<(), Error> {
        self.window.evict(now);
        self.collect()?;
        if !self.staged.is_empty() {
            self.wait_for_blockers(now)?;
        }
        match self.options.sync {
            Sync::Batch => self.try_sync(),
            Sync::Every(_) | Sync::Never => {
                self.write_staged()?;
                self.publish();
                match self.sync_due() {
                    Some(due) if due <= now => self.try_sync(),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Syncs if it is time to. Returns quickly if not; to be called when [`Log::sync_due`] says so.
    pub fn tick(&mut self, now: Time) -> Result<(), Error> {
        match self.sync_due() {
            Some(due) if due <= now => self.sync(),
            _ => Ok(()),
        }
    }

    /// When the next sync by time is due.
    pub fn sync_due(&self) -> Option<Time> {
        let (Sync::Every(time), Some(since)) = (self.options.sync, self.unsynced_since) else {
            return None;
        };
        let nanos = i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        Some(Time(since.0.saturating_add(nanos)))
    }

    /// Syncs what is kept now, whatever the policy.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.alive()?;
        let done = self.try_sync();
        if let Err(error) = &done
            && !error.is_for_now()
        {
            self.stopped = Some(error.clone());
        }
        done
    }

    fn try_sync(&mut self) -> Result<(), Error> {
        while self.unsynced_since.is_some() || !self.staged.is_empty() {
            // A failed sync stages again what it failed for; a second failure stops the channel.
            self.write_staged()?;
            match self.sync_open() {
                Ok(()) => self.publish(),
                Err(error) => self.repair("syncing", error)?,
            }
        }
        Ok(())
    }

    /// Writes all that is staged.
    fn write_staged(&mut self) -> Result<(), Error> {
        while let Some(group) = self.first_group() {
            if !self.fits(group) {
                self.roll(group)?;
            } else if let Err(error) = self.write_groups() {
                self.repair("writing", error)?;
            }
        }
        self.files.settle();
        Ok(())
    }

    /// Closes the channel in order: everything is kept and synced, and the next start goes on in the same epoch.
    pub fn close(mut self, now: Time) -> Result<(), Error> {
        self.commit(now)?;
        let closed = self.window.take_closed();
        if self.open.is_some() {
            self.end_segment(Kind::CleanEnd, &closed)?;
        }
        self.known.end = self.known.end.max(self.kept());
        self.keep_record()
    }

    /// Notes in the record where the log ends, without a sync. Everything that is kept is durable.
    pub(super) fn note_record(&mut self) {
        self.known.end = self.known.end.max(self.kept());
        if let Some(record) = &mut self.record {
            // Only a hint for a start that finds less: it is noted again.
            let _ = record.note(&self.known);
        }
    }

    /// Makes durable in the record what is known.
    pub(super) fn keep_record(&mut self) -> Result<(), Error> {
        if let Some((lowest, _)) = self.index.lock().cursors() {
            self.known.settled = lowest;
        }
        let path = record_path(&self.directory);
        let failed = |error| Error::disk("writing the record of the channel", &path, error);
        if self.record.is_none() {
            self.record = match Record::open(&*self.disk, &path) {
                // There is room for it sooner or later, and the channel can go on without it.
                Err(error) if is_no_room(&error) => None,
                opened => Some(opened.map_err(failed)?),
            };
        }
        let kept = self.record.as_mut().map(|record| record.keep(&self.known));
        kept.unwrap_or(Ok(())).map_err(failed)
    }

    /// Whether what is written goes to a file that a start would find: [`Error::Gone`] if it was removed or replaced.
    pub fn check_place(&self) -> Result<(), Error> {
        let (path, file) = match &self.open {
            Some(open) => (open.segment.path.clone(), &open.segment.file),
            None => (self.directory.join("lock"), &self.lock),
        };
        let is_there = match (self.disk.metadata(&path), file.metadata()) {
            (Ok(named), Ok(held)) => (named.device, named.inode) == (held.device, held.inode),
            (Err(error), _) => error.kind() != io::ErrorKind::NotFound,
            // A disk that fails shows when it is written.
            (_, Err(_)) => true,
        };
        match is_there {
            true => Ok(()),
            false => Err(Error::Gone {
                path: self.directory.clone(),
            }),
        }
    }

    pub(super) fn alive(&self) -> Result<(), Error> {
        match &self.stopped {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Makes durable what is written to the open segment.
    pub(super) fn sync_open(&mut self) -> io::Result<()> {
        if let Some(open) = &mut self.open {
            open.segment.file.sync()?;
            open.synced = open.written;
            open.ids_synced = open.ids.len();
            open.files_unsynced.clear();
        }
        self.unsynced_since = None;
        self.failing = false;
        Ok(())
    }

    /// Shows consumers what is written. With `sync: batch` it is synced, too.
    pub(super) fn publish(&mut self) {
        let Some(open) = &self.open else { return };
        let mut state = self.index.lock();
        open.segment.set_end(open.written);
        let mut offset = open.written - self.written.iter().map(Staged::bytes).sum::<u64>();
        let mut window_end = 0;
        let mut files = self.index.files();
        for frame in self.written.drain(..) {
            files.extend(frame.files.iter().map(|origin| (origin.file, origin.next)));
            offset += frame.bytes();
            window_end = window_end.max(frame.window_end);
            if let Some(batch) = frame.batch {
                state.claims.count(&batch);
                self.known.counted.0 += 1;
                self.known.counted.1 += u64::from(batch.count);
                let hot = Hot {
                    position: frame.position,
                    batch,
                    next: (open.segment.number, offset),
                };
                state.show(hot, self.options.hot_bytes);
            }
        }
        state.wake_readers();
        drop((state, files));
        self.window.keep(window_end);
        if self.unsynced_since.is_none() {
            self.note_record();
        }
    }
}
