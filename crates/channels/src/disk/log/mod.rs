//! The segment log.
//!
//! ```text
//! DIRECTORY/channel            format version and random id of the channel (directory.rs)
//! DIRECTORY/lock               locked by the process that has the channel open
//! DIRECTORY/0000000017.seg     a segment: header (segment.rs) and frames (frame.rs)
//! DIRECTORY/0000000016.ids     the chunk ids of a closed segment (ids.rs); outlives the segment
//! DIRECTORY/0000000016.bad     a damaged segment that every consumer has passed, or a file that is no segment of this channel
//! DIRECTORY/free-12.seg        a file that waits to become a segment, new or used before (blanks.rs)
//! DIRECTORY/NAME.cursor        the position up to which the consumer NAME has settled (cursor.rs)
//!
//! channel-records/NAME.record  the position at which the log ends; survives the loss of the directory (record.rs)
//! channel-records/NAME.losses  the losses of the channel, and which of them are accepted (losses.rs)
//! ```
//!
//! [`Log`] is the writer. One thread owns it, stages groups with [`Log::append`] and keeps them with [`Log::commit`]. A [`Reader`]
//! is one consumer; it sees only what is kept. Neither the log nor a reader starts a thread, blocks on another task, or reads the clock.
//! The caller passes the time, so that a test can drive both through every step and every crash.
//!
//! The log is made of parts that own their data: the frames in memory (staging.rs), the newest segment (segment_writer.rs), the
//! files that wait to become segments (blanks.rs), the chunk ids (repeats.rs), the tailed files (file_table.rs), the state shared
//! with readers (index.rs), and the files beside the directory (record.rs, losses.rs).

mod ages;
mod blanks;
mod claims;
mod consumers;
mod cursor;
#[cfg(test)]
mod damage_tests;
mod directory;
mod error;
mod evidence;
mod file_table;
mod frame;
#[cfg(test)]
mod full_tests;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod health;
mod hot;
mod ids;
mod index;
pub mod inspect;
mod key;
#[cfg(test)]
mod loss_tests;
mod losses;
mod options;
mod origins;
mod read_ahead;
mod reader;
mod record;
mod recover;
mod repeats;
mod roll;
mod seal;
mod segment;
mod segment_writer;
mod segments;
mod sift;
mod skip;
mod staging;
mod survey;
mod tail;
#[cfg(test)]
mod tests;
mod text;
mod walk;
mod window;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    task::Waker,
};

use millstream_pipeline::channel::Consumer;
use millstream_record::{Batch, FileId, Pool, Position, Time};
use millstream_sys::disk::Disk;

pub use blanks::Blank;
pub use claims::Unclaimed;
pub use error::Error;
pub use index::Watch;
pub use losses::{Loss, Losses, Missing};
pub use millstream_pipeline::channel::{Behind, Then};
pub use options::{ChannelId, Options, SEGMENT_BYTES, SEGMENT_BYTES_LEAST, Sync};
pub use reader::{Item, Lost, Reader};
pub use recover::Recovered;
pub use repeats::OtherContent;
pub use skip::{Skipped, unsettled};
pub use staging::Withdrawn;
pub use window::Dedupe;

use blanks::Blanks;
use directory::LogDirectory;
use file_table::FileTable;
use frame::Kind;
use health::Health;
use hot::HotBatch;
use index::Index;
use record::ChannelRecord;
use repeats::Repeats;
use segment_writer::SegmentWriter;
use sift::Sifter;
use staging::{GroupSize, Staging};
use window::seconds;

/// The writer of one channel. One thread at a time uses it.
pub struct Log {
    directory: LogDirectory,
    options: Options,
    /// Shared with the readers.
    index: Arc<Index>,
    /// Frames that readers cannot see yet, and the position of the next one.
    staging: Staging,
    /// The newest segment.
    writer: SegmentWriter,
    /// Files that wait to become segments.
    blanks: Blanks,
    repeats: Repeats,
    files: FileTable,
    health: Health,
    record: ChannelRecord,
    losses: Arc<Losses>,
}

/// Keeping batches.
impl Log {
    /// Opens the channel in `directory`, or creates it with the random id `fresh`. The parent directory must exist. Opening
    /// allocates no space for new frames, so a full disk does not prevent a start.
    pub fn open(
        disk: Arc<dyn Disk>,
        directory: &Path,
        options: Options,
        fresh: ChannelId,
    ) -> Result<(Self, Recovered), Error> {
        recover::open(disk, directory, options, fresh)
    }

    /// Stages a group: everything that one batch of a source became, in order. A group is kept whole or not at all. Repeats (records that
    /// the channel already holds) are removed from it. `now` is the time of a clock that never jumps, by which ages are measured. Returns a
    /// sequence number. The group is kept when the `seq` of [`Log::kept`] has reached this number. Returns 0 if the whole group is kept
    /// already.
    pub fn append(&mut self, group: Vec<Batch>, now: Time) -> Result<u64, Error> {
        self.health.check()?;
        sift::check_size(&group)?;
        let seconds = seconds(self.staging.advance(now));
        let sifted = Sifter::new(&mut self.repeats, &self.files, seconds).sift(group);
        for origin in &sifted.files {
            self.files.stage(origin);
        }
        if sifted.parts.is_empty() && !sifted.is_pending {
            return Ok(0);
        }
        if !sifted.parts.is_empty() {
            let window = &mut self.repeats.window;
            let (closed, window_end) = (window.drain_closed(), window.end());
            self.staging.stage(sifted.parts, closed, window_end);
        }
        Ok(self.staging.last_seq())
    }

    /// Keeps everything that is staged, and releases the segments that every consumer has settled. After [`Error::NoRoom`] and
    /// [`Error::Full`] the frames that are not kept yet stay staged; call this again later. After any other error the log has stopped.
    pub fn commit(&mut self, now: Time) -> Result<(), Error> {
        self.health.check()?;
        let done = self.try_commit(now);
        self.health.stop_on(done)
    }

    /// Whether a group of about `bytes` bytes can be kept at once: nothing else is staged, the open segment has space for the group,
    /// and neither an answer nor the time requires a sync.
    pub fn can_keep_now(&self, bytes: u64, now: Time) -> bool {
        self.options.sync != Sync::Batch
            && self.staging.is_empty()
            && !self.staging.has_unpublished()
            && self.sync_due().is_none_or(|due| due > now)
            && self
                .writer
                .fits(GroupSize::of_body(bytes), self.files.len() + 1)
            && self.health.check().is_ok()
            && self.check_place().is_ok()
    }

    fn try_commit(&mut self, now: Time) -> Result<(), Error> {
        self.repeats.window.evict(now);
        let written = self.write_new(now);
        if written.as_ref().is_err_and(|error| !error.is_for_now()) {
            return written;
        }
        // If there is temporarily no space for some of the frames, the others are kept.
        if self.options.sync == Sync::Batch {
            return self.sync_written(written);
        }
        self.publish();
        match self.sync_due() {
            Some(due) if due <= now => self.sync_written(written),
            _ => written,
        }
    }

    /// Releases what is settled, and writes everything that is staged.
    fn write_new(&mut self, now: Time) -> Result<(), Error> {
        self.release_settled()?;
        // After a failed sync, kept frames are staged again. Consumers can read them only after they are written again, so writing them
        // must not wait for consumers.
        if !self.staging.has_kept() {
            self.check_backlogs(now)?;
        }
        self.write_staged()
    }

    /// Syncs everything that is kept now, even if the option `sync` does not require it.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.health.check()?;
        let written = self.write_staged();
        let done = self.sync_written(written);
        self.health.stop_on(done)
    }

    /// Syncs if the time [`Log::sync_due`] has come.
    pub fn sync_if_due(&mut self, now: Time) -> Result<(), Error> {
        match self.sync_due() {
            Some(due) if due <= now => self.sync(),
            _ => Ok(()),
        }
    }

    /// When the next sync is due. `None` if everything is synced, or if the option `sync` is not a time.
    pub fn sync_due(&self) -> Option<Time> {
        let (Sync::Every(period), Some(since)) = (self.options.sync, self.writer.unsynced_since())
        else {
            return None;
        };
        let nanos = i64::try_from(period.as_nanos()).unwrap_or(i64::MAX);
        Some(Time(since.0.saturating_add(nanos)))
    }

    /// Syncs and publishes everything that is written. `written` is the result of writing what was staged. If it is a temporary error, the
    /// frames that are written are still published, because consumers free space only by settling published frames; the error is returned
    /// afterwards. After a failed sync the affected frames are staged again. A second failure is an error.
    fn sync_written(&mut self, mut written: Result<(), Error>) -> Result<(), Error> {
        while self.is_unsynced() {
            // Without an open segment, the frames that are not synced are staged again (see `repair` in roll.rs).
            let has_written = written.is_ok() || self.writer.open().is_some();
            if !has_written || written.as_ref().is_err_and(|error| !error.is_for_now()) {
                break;
            }
            match self.sync_segment() {
                Ok(()) => self.publish(),
                Err(error) => {
                    self.repair("syncing", error)?;
                    written = self.write_staged();
                }
            }
        }
        written
    }

    /// Writes everything that is staged, to several segments if needed.
    fn write_staged(&mut self) -> Result<(), Error> {
        while let Some(group) = self.staging.first_group() {
            if !self.writer.fits(group, self.files.len()) {
                self.roll()?;
                continue;
            }
            let channel = self.directory.channel;
            let written = self
                .writer
                .write(channel, &mut self.staging, &mut self.files);
            if let Err(error) = written {
                self.after_failed_write(error)?;
            }
        }
        self.files.clear_staged();
        Ok(())
    }

    fn sync_segment(&mut self) -> io::Result<()> {
        self.writer.sync()?;
        self.health.recover();
        Ok(())
    }

    /// Makes the written frames visible to readers. With `sync: batch` they are already synced.
    fn publish(&mut self) {
        let Some(open) = self.writer.open() else {
            return;
        };
        let mut published = self.index.lock();
        let mut files = self.files.kept().lock();
        let mut offset = open.written - self.staging.unpublished_bytes();
        let mut window_end = 0;
        open.segment.set_end(open.written);
        for frame in self.staging.drain_written() {
            files.extend(frame.files.iter().map(|origin| (origin.file, origin.next)));
            offset += frame.bytes();
            window_end = window_end.max(frame.window_end);
            if let Some(batch) = frame.batch {
                self.record.count(batch.count);
                let hot = HotBatch {
                    position: frame.position,
                    batch,
                    next: (open.segment.number, offset),
                };
                published.publish(hot, self.options.hot_bytes);
            }
        }
        published.consumers.wake_readers();
        let kept = published.kept;
        drop((published, files));
        self.repeats.window.keep(window_end);
        if !self.is_unsynced() {
            self.record.note_end(kept);
        }
    }

    /// Closes the channel cleanly: everything is kept and synced, and the next start continues in the same epoch.
    pub fn close(mut self, now: Time) -> Result<(), Error> {
        self.commit(now)?;
        let closed = self.repeats.window.drain_closed();
        self.end_segment(Kind::CleanEnd, &closed)?;
        self.keep_record()
    }

    /// Writes an end mark (a frame without a batch) to the open segment, and syncs the segment.
    fn end_segment(&mut self, kind: Kind, closed: &[u64]) -> Result<(), Error> {
        let Some(path) = self.writer.open().map(|open| open.segment.path.clone()) else {
            return Ok(());
        };
        let (channel, stamp) = (self.directory.channel, self.staging.end_stamp(kind));
        let written = self.writer.write_end(channel, &stamp, closed);
        match written.and_then(|()| self.sync_segment()) {
            Err(error) if kind == Kind::CleanEnd => {
                Err(Error::disk("closing the segment", &path, error))
            }
            Err(error) => self.repair("ending the segment", error),
            Ok(()) => Ok(()),
        }
    }

    /// Durably stores two positions in the record file: the end of the log, and the position up to which every consumer has settled.
    fn keep_record(&mut self) -> Result<(), Error> {
        let (kept, settled) = {
            let published = self.index.lock();
            (published.kept, published.consumers.range())
        };
        let settled = settled.map(|(lowest, _)| lowest);
        self.record.keep(&*self.directory.disk, kept, settled)
    }
}

/// Consumers.
impl Log {
    /// Attaches a reader to the consumer `name`. A new consumer gets a cursor and begins at the oldest frame.
    pub fn reader(&self, name: &str, behind: Behind, pool: Pool) -> Result<Reader, Error> {
        let (is_known, before_oldest) = {
            let published = self.index.lock();
            let is_known = published.consumers.get(name).is_some();
            (is_known, published.before_oldest())
        };
        if !is_known {
            let cursor = consumers::create_cursor(&self.directory, name, before_oldest)?;
            self.index.lock().consumers.insert(name, cursor);
        }
        let (index, hot_bytes) = (Arc::clone(&self.index), self.options.hot_bytes);
        Reader::attach(index, &self.directory, (name, behind), pool, hot_bytes)
    }

    /// Whether the channel knows the consumer.
    pub fn has_consumer(&self, name: &str) -> bool {
        self.index.lock().consumers.get(name).is_some()
    }

    /// Marks the consumers that have no reader as not read by any sink, so that an operator may remove them (`channel forget`).
    pub fn note_unread(&self) {
        let note = self.index.lock().consumers.note_unread();
        note();
    }

    /// Removes a consumer. Fails if the consumer has a reader. The batches that only this consumer has not settled are dropped.
    pub fn forget(&mut self, name: &str) -> Result<(), Error> {
        self.index.lock().consumers.forget(name, &self.directory)
    }

    /// Moves a consumer past everything up to `to`, permanently. Its reader continues after `to` when its sink starts again. Fails if the
    /// consumer is unknown, or if `to` is above the newest kept position.
    pub fn skip_to(&mut self, name: &str, to: Position) -> Result<(), Error> {
        let kept = self.index.lock().kept;
        if to > kept {
            return Err(Error::NotKept { to, kept });
        }
        skip::skip_to(&self.index, name, to)
    }

    /// The consumers that no sink reads for.
    pub fn unread(&self) -> impl Iterator<Item = String> {
        self.index.lock().consumers.unread().into_iter()
    }

    /// All consumers with their settled positions.
    pub fn consumers(&self) -> Vec<(String, Position)> {
        self.index.lock().consumers.positions()
    }

    /// The number of attached readers.
    pub fn readers(&self) -> usize {
        self.index.lock().consumers.attached()
    }

    /// The approximate number of bytes that this consumer has not settled; 0 if there is no such consumer.
    pub fn backlog_bytes(&self, name: &str) -> u64 {
        self.index.lock().backlog_bytes(name)
    }

    /// The receive time of the oldest batch that this consumer has not settled; approximate if the batch is no longer in memory. `None` if
    /// there is no such batch. Also `None` if the consumer's reader has handed out batches that are not settled: the pipeline measures the
    /// exact age of these.
    pub fn oldest_of(&self, name: &str) -> Option<Time> {
        self.index.lock().oldest_of(name)
    }

    /// Everything that was skipped for a consumer since the start.
    pub fn skipped(&self, name: &str) -> Skipped {
        self.index.lock().consumers.skipped(name)
    }

    /// Whether a consumer that skipped segments has caught up. The consumer must have settled a batch since the skip, or have no backlog.
    /// In addition, it must be at most half as far behind as its option `behind` and `size_max` (the limit of the whole channel) allow.
    pub fn has_caught_up(&self, name: &str, now: Time) -> bool {
        let size_max = self.options.size_max;
        self.index.lock().has_caught_up(name, size_max, now)
    }

    /// From now on, counts the kept records whose tag none of these consumers takes.
    pub fn count_unclaimed(&mut self, consumers: &[Consumer]) {
        self.index.lock().claims = claims::Claims::of(consumers);
    }

    /// The records that no consumer takes, among those kept since the last call; `None` if there are none.
    pub fn drain_unclaimed(&mut self) -> Option<Unclaimed> {
        self.index.lock().claims.drain()
    }

    /// Calls `waker` when a consumer has settled a batch, which may free space.
    pub fn wake_on_settle(&self, waker: Waker) {
        self.index.lock().writer = Some(waker);
    }

    /// A handle for other threads.
    pub fn watch(&self) -> Watch {
        Watch {
            index: Arc::clone(&self.index),
            files: self.files.kept().clone(),
        }
    }
}

/// State and maintenance.
impl Log {
    /// The id of the channel.
    pub fn id(&self) -> ChannelId {
        self.directory.channel
    }

    /// The options of the log.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Uses other options from the next commit on. Existing segments keep their size. If the window in which repeats are recognized
    /// (`dedupe`) becomes smaller, the next commit evicts ids.
    pub fn change(&mut self, options: Options) {
        self.index.change(&options);
        self.repeats.window.change(options.dedupe);
        self.blanks.change(&options);
        self.options = options;
    }

    /// The newest position that is kept.
    pub fn kept(&self) -> Position {
        self.index.lock().kept
    }

    /// The newest keep time.
    pub fn keep_time(&self) -> Time {
        self.staging.keep_time()
    }

    /// Whether there are written frames that are not synced yet.
    pub fn is_unsynced(&self) -> bool {
        self.writer.unsynced_since().is_some()
    }

    /// Bytes that are staged and not yet written.
    pub fn staged_bytes(&self) -> u64 {
        self.staging.bytes()
    }

    /// Bytes of all segments of the log.
    pub fn used_bytes(&self) -> u64 {
        self.index.used_bytes()
    }

    /// The offset up to which the channel holds a tailed file; `None` if it holds nothing of the file.
    pub fn next_of(&self, file: &FileId) -> Option<u64> {
        self.files.next(file)
    }

    /// Notes that a connection has ended. `orderly`: its peer closed it after all our acknowledgements, without an error.
    pub fn close_connection(&mut self, connection: u64, orderly: bool) {
        self.repeats.window.close(connection, orderly);
    }

    /// The number of chunks that arrived again and were not stored a second time.
    pub fn repeats(&self) -> u64 {
        self.repeats.count
    }

    /// The parts of positions of other Millstreams that arrived again with another content since the last call.
    pub fn drain_other_content(&mut self) -> OtherContent {
        std::mem::take(&mut self.repeats.other)
    }

    /// The number of ids that were evicted from the window before they reached the maximum age.
    pub fn evicted_young(&self) -> u64 {
        self.repeats.window.evicted_young()
    }

    /// The number of ids in the window.
    pub fn ids(&self) -> usize {
        self.repeats.window.len()
    }

    /// Ranges (first, last) of positions that were kept without a sync (`sync: 1s` or `never`) and that could not be read back after a sync
    /// failed. Each is returned once.
    pub fn drain_lost(&mut self) -> Vec<(Position, Position)> {
        std::mem::take(&mut self.health.lost)
    }

    /// The list of everything that the channel has lost.
    pub fn losses(&self) -> Arc<Losses> {
        Arc::clone(&self.losses)
    }

    /// Drops the staged frames that are not kept, so that the log can be closed without space. Returns the number of dropped records.
    /// Afterwards only [`Log::commit`] and [`Log::close`] may be called, because the window would treat a resend of a dropped chunk as a
    /// repeat.
    pub fn drop_staged(&mut self) -> u64 {
        let dropped = self.staging.drop_after(self.kept());
        for connection in dropped.closed {
            self.repeats.window.put_back_closed(connection);
        }
        dropped.records
    }

    /// Drops staged groups that their senders have withdrawn, given by the numbers that [`Log::append`] returned. They must have no
    /// chunk ids. Returns the new numbers of the other groups.
    pub fn withdraw(&mut self, groups: &[u64]) -> Withdrawn {
        let withdrawn = self.staging.withdraw(groups);
        for connection in &withdrawn.closed {
            self.repeats.window.put_back_closed(*connection);
        }
        let origins = self.staging.staged().flat_map(|frame| &frame.files);
        self.files.restage(origins);
        withdrawn
    }

    /// The path and size of a file that should be created now, to become the next segment. `None` if no segment is open, if the open
    /// segment is less than half full, if a blank file exists already, or if the channel is full. Create the file with
    /// [`Blank::create_ahead`] on another thread, and pass it to [`Log::add_blank`].
    pub fn wants_blank(&mut self) -> Option<(PathBuf, u64)> {
        let open = self.writer.open()?;
        let early = open.written < open.segment.bytes() / 2;
        let bytes = self.options.segment_bytes;
        let is_full = self.index.used_bytes() + bytes > self.options.size_max;
        (!early && !is_full && self.blanks.is_empty())
            .then(|| (self.blanks.next_path(&self.directory), bytes))
    }

    /// Adds a file that was created ahead of time.
    pub fn add_blank(&mut self, blank: Blank) {
        self.blanks.add(blank);
    }

    /// Checks that the file that is being written is still in the directory, where a start would find it. Fails with [`Error::Gone`] if it
    /// was removed or replaced.
    pub fn check_place(&self) -> Result<(), Error> {
        let open = self.writer.open().map(|open| &*open.segment);
        self.directory.check(open)
    }
}
