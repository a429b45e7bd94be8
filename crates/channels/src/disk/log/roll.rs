//! Rolls to the next segment, frees space for it, and repairs the log when a disk call fails.
//!
//! Space is allocated first, so that a full disk is noticed before anything is changed. Then the old segment gets its end mark and is
//! synced (whatever the option `sync` is), its id file is written, and the header and name of the new segment are synced. Normally, frames
//! are written to the new segment only after that. After a failure, the frames that are staged again are written earlier: they are synced
//! with the header, before the segment gets its name (see `open_next`). Every step can fail and be repeated.

use std::{
    io::{self, IoSlice},
    sync::Arc,
};

use millstream_pipeline::channel::Consumer;
use millstream_record::Time;

use super::{
    Error, Log, Then,
    error::is_no_room,
    frame::Kind,
    segment::{END_BYTES, Header, PAGE, Segment, header_bytes, segment_name},
    segment_writer::least_bytes,
    skip::{skip_before, skip_segment},
};

impl Log {
    /// Closes the open segment, if there is one, and opens the next one with space for the first group that is staged. If the old segment
    /// fails meanwhile, its frames that are not durable are staged again, and the first group may become larger. If no blank file has space
    /// for this group, opens no segment, and the caller repeats the roll.
    pub(super) fn roll(&mut self) -> Result<(), Error> {
        let least = self.least_bytes();
        match self.ensure_blank(least) {
            Err(full @ Error::NoRoom { .. }) => self.free_newest(least, full)?,
            ensured => ensured?,
        }
        self.end_open()?;
        match self.write_previous_ids() {
            // A segment that failed may hold the only copy of frames that are kept (see `open_next`), so it is not truncated.
            Err(Error::NoRoom { .. }) if !self.staging.has_kept() => {
                // The next segment has its own reserve of space (`segment_writer::reserve`), so the unused end of this segment can be
                // freed.
                let is_settled = self.index.lock().is_settled();
                self.truncate_newest()?;
                self.write_previous_ids_at_any_cost(is_settled)?;
            }
            written => written?,
        }
        self.open_next(self.least_bytes())
    }

    /// Bytes of the smallest segment that may be opened for the first group that is staged.
    fn least_bytes(&self) -> u64 {
        let group = self.staging.first_group();
        let group = group.map_or(0, |group| least_bytes(group, self.files.len()));
        group.max(self.blanks.least_bytes())
    }

    /// Ensures that there is a blank file of at least `least` bytes, within `size_max` and the space of the disk.
    fn ensure_blank(&mut self, least: u64) -> Result<(), Error> {
        let (size_max, usual) = (self.options.size_max, self.options.segment_bytes);
        let used = self.index.used_bytes() + least.max(usual);
        let is_only_one = self.index.lock().segments.len() <= 1;
        if used > size_max && !is_only_one && !self.skip_for_space()? {
            return Err(Error::Full {
                path: self.directory.path.clone(),
                consumer: self.index.lock().consumers.slowest().cloned(),
            });
        }
        self.blanks
            .ensure(&self.directory, least, size_max.saturating_sub(used))
    }

    /// Writes an end mark to the open segment. Syncs and closes the segment.
    fn end_open(&mut self) -> Result<(), Error> {
        let number = |log: &Self| log.writer.open().map(|open| open.segment.number);
        let Some(ended) = number(self) else {
            return Ok(());
        };
        self.end_segment(Kind::End, &[])?;
        // After a failure the segment is already closed, and its frames that were not durable are staged again.
        if number(self) == Some(ended) {
            self.publish();
            self.writer.close();
        }
        Ok(())
    }

    /// Frees space in the newest segment, because the disk has no space for the next segment, which needs at least `least` bytes. If this
    /// is not possible, returns `full`, the error of the disk.
    ///
    /// Ends the newest segment and frees the space after its end mark. If the segment is completely settled, an empty segment becomes the
    /// newest, so that the settled one can be released like any other. The space for the empty segment comes from the reserve of the
    /// settled one: the space at its end that no frame of a batch may take. If necessary, the oldest ids are dropped, too. A segment that
    /// is not settled keeps its reserve, because another program could take the freed space.
    fn free_newest(&mut self, least: u64, full: Error) -> Result<(), Error> {
        let (newest, is_settled) = {
            let published = self.index.lock();
            let is_settled = published.is_settled() && !self.staging.has_unpublished();
            (published.segments.newest().cloned(), is_settled)
        };
        let Some(newest) = newest else {
            return Err(full);
        };
        let open = self.writer.open();
        let written = open.map_or(newest.end(), |open| open.written);
        let unused = newest.bytes().saturating_sub(written + 2 * PAGE);
        if !is_settled && unused < least {
            return Err(full);
        }
        self.end_open()?;
        if self.staging.has_kept() {
            // The newest segment has failed, and may hold the only copy of frames that are kept (see `open_next`).
            return Err(full);
        }
        self.truncate_newest()?;
        self.write_previous_ids_at_any_cost(is_settled)?;
        match self.ensure_blank(least) {
            Err(Error::NoRoom { .. }) if is_settled && newest.end() > newest.start => {}
            ensured => return ensured,
        }
        drop(newest);
        let bytes = header_bytes(self.files.len()) + PAGE;
        self.at_the_cost_of_ids(|log| log.blanks.create(&log.directory, bytes))?;
        self.open_next(bytes)?;
        self.release_settled()?;
        self.ensure_blank(least)
    }

    /// Truncates the newest segment after its end mark.
    fn truncate_newest(&self) -> Result<(), Error> {
        let published = self.index.lock();
        if let Some(newest) = published.segments.newest() {
            newest
                .truncate(newest.end() + END_BYTES)
                .map_err(|error| Error::disk("truncating a segment", &newest.path, error))?;
        }
        self.index.count_used(&published);
        Ok(())
    }

    /// Writes the id file of the previous segment, unless there is nothing to write.
    fn write_previous_ids(&mut self) -> Result<(), Error> {
        let previous = &mut self.writer.previous;
        if previous.lacks_id_file {
            let (number, ids) = (previous.number, &previous.ids);
            self.repeats.write_file(&self.directory, number, ids)?;
            previous.lacks_id_file = false;
        }
        Ok(())
    }

    /// Writes the id file of the previous segment. If there is no space and everything is settled, drops older ids to free space. If there
    /// is no space and not everything is settled, fails, because consumers will free space.
    fn write_previous_ids_at_any_cost(&mut self, is_settled: bool) -> Result<(), Error> {
        match is_settled {
            true => self.at_the_cost_of_ids(Self::write_previous_ids),
            false => self.write_previous_ids(),
        }
    }

    /// Runs `step`. While the disk has no space for it, forgets the ids of the oldest id file and repeats the step.
    fn at_the_cost_of_ids(
        &mut self,
        step: impl Fn(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        loop {
            match step(self) {
                Err(full @ Error::NoRoom { .. }) => {
                    if !self.repeats.forget_oldest_file(&self.directory)? {
                        return Err(full);
                    }
                }
                done => return done,
            }
        }
    }

    /// Opens the next segment in a blank file of at least `bytes` bytes.
    ///
    /// The new header names the end of the previous segment. Once the new segment has its name, bytes after this end are not part of the
    /// log. If the previous segment failed, these bytes may be the only copy of kept frames on the disk; the other copy is staged in
    /// memory. So the new segment gets its name only when the staged frames are durable in it. Until then, a start after a kill finds the
    /// frames in the previous segment. This order also ensures that retries on a full disk add no segments to the log.
    fn open_next(&mut self, bytes: u64) -> Result<(), Error> {
        let Some(blank) = self.blanks.pop(bytes) else {
            return Ok(());
        };
        let previous = &self.writer.previous;
        let header = Header {
            number: previous.number + 1,
            first: self.staging.first_position(),
            keep_time: self.staging.keep_time(),
            previous_end: previous.end,
            previous_ids: u32::try_from(previous.ids.len()).unwrap_or(u32::MAX),
            files: self.files.sorted(),
        };
        let encoded = header.encode(&self.directory.channel);
        let path = self.directory.join(&segment_name(header.number));
        let start = encoded.len() as u64;
        let lengths = (blank.bytes, start, start);
        let segment = Segment::new(header.number, header.first, path, blank.file, lengths);
        let segment = Arc::new(segment);
        let opened = self.fill_next(&segment, &encoded);
        let opened = opened
            .and_then(|()| self.directory.disk.rename(&blank.path, &segment.path))
            .and_then(|()| self.directory.sync());
        if let Err(error) = opened {
            self.files.undo(self.writer.abandon());
            self.staging.restage(Vec::new());
            if is_no_room(&error) {
                // If the removal fails, too, the next start may use the file as a blank. The frames in it then belong to an earlier epoch,
                // so they are not read. If the file has its final name already, the retry replaces it.
                let _ = self.directory.disk.remove(&blank.path);
                return Err(Error::disk("opening a segment", &segment.path, error));
            }
            // The file is not used again. The caller repeats the roll with another file.
            let path = segment.path.clone();
            return self.health.fail("opening a segment", path, error);
        }
        let mut published = self.index.lock();
        published.segments.push(segment, header.keep_time);
        self.index.count_used(&published);
        drop(published);
        self.writer.previous.ids = Vec::new();
        if self.staging.has_unpublished() {
            self.writer.note_sync();
            self.health.recover();
            self.publish();
        }
        Ok(())
    }

    /// Begins the next segment: writes its header and, after a failure, the first frames that are staged, and syncs the file.
    fn fill_next(&mut self, segment: &Arc<Segment>, header: &[u8]) -> io::Result<()> {
        self.blanks.sync_names(&self.directory)?;
        segment.file.write_at(&[IoSlice::new(header)], 0)?;
        self.writer.begin(Arc::clone(segment));
        let again = self.staging.first_group().filter(|_| self.is_unsynced());
        if again.is_some_and(|group| self.writer.fits(group, self.files.len())) {
            let channel = self.directory.channel;
            self.writer
                .write(channel, &mut self.staging, &mut self.files)?;
        }
        segment.file.sync()
    }

    /// Repairs the log after a failed disk call on the open segment: ends the segment at its last successful sync, and stages the later
    /// frames again with the same positions.
    ///
    /// Linux marks pages as clean even if it failed to write them, so a second sync would prove nothing. Therefore a file that failed is
    /// neither written nor synced again. The header of the next segment names the end of this one.
    pub(super) fn repair(&mut self, doing: &'static str, error: io::Error) -> Result<(), Error> {
        let Some(unsynced) = self.writer.close() else {
            return self.health.fail(doing, self.directory.path.clone(), error);
        };
        let kept = self.kept();
        let (frames, lost) = unsynced.read_back(self.directory.channel, &mut self.repeats, kept);
        self.health.lost.extend(lost.map(|first| (first, kept)));
        self.staging.restage(frames);
        for origin in self.staging.staged().flat_map(|frame| &frame.files) {
            self.files.stage(origin);
        }
        // An error only means that the space stays unused until the segment is released.
        let _ = unsynced.truncate();
        self.index.count_used(&self.index.lock());
        let path = unsynced.path().to_owned();
        self.files.undo(unsynced.files);
        self.health.fail(doing, path, error)
    }

    /// Repairs the log after a failed write of frames. If the disk is full, removes a blank file, so that the caller can retry. Fails if
    /// there is no blank file. The frames stay staged, and the next write puts them at the same place. Unlike after a failed sync, the
    /// state of the file is certain.
    pub(super) fn after_failed_write(&mut self, error: io::Error) -> Result<(), Error> {
        if !is_no_room(&error) {
            return self.repair("writing", error);
        }
        match self.blanks.remove_one(&self.directory)? {
            true => Ok(()),
            false => Err(Error::disk("writing", &self.directory.path, error)),
        }
    }

    /// Releases the segments that every consumer has settled, and the id files whose ids are too old. The newest segment is never released,
    /// because its header holds the offsets of tailed files for all segments before it (their chunk ids are in id files).
    pub(super) fn release_settled(&mut self) -> Result<(), Error> {
        let mut released = {
            let mut published = self.index.lock();
            let Some((lowest, _)) = published.consumers.range() else {
                return Ok(());
            };
            let released = published.segments.drain_below(lowest);
            if !released.is_empty() {
                self.index.count_used(&published);
            }
            released
        };
        while let Some((segment, since)) = released.pop_front() {
            if let Err(error) = self.release(&segment) {
                let error = Error::disk("releasing a segment", &segment.path, error);
                // The next call retries.
                released.push_front((segment, since));
                let mut published = self.index.lock();
                published.segments.put_back(released);
                self.index.count_used(&published);
                return Err(error);
            }
        }
        self.repeats.remove_old_files(&self.directory)
    }

    /// Releases one segment. Renames it to `.bad` if it is damaged; otherwise reuses or removes it.
    fn release(&mut self, segment: &Arc<Segment>) -> io::Result<()> {
        if self.index.lock().segments.is_damaged(segment.number) {
            let aside = segment.path.with_extension("bad");
            return self.directory.disk.rename(&segment.path, &aside);
        }
        self.blanks.recycle(&self.directory, segment)
    }

    /// Checks that no consumer is further behind than `behind` allows. Skips segments for consumers with `then: skip`; fails with
    /// [`Error::Full`] for any other. If nothing is staged, only skips what is too old.
    pub(super) fn check_backlogs(&mut self, now: Time) -> Result<(), Error> {
        self.skip_old(now)?;
        if self.staging.is_empty() {
            return Ok(());
        }
        let behind: Vec<(String, Then)> = {
            let published = self.index.lock();
            let consumers = published.consumers.iter();
            consumers
                .filter(|(_, consumer)| published.is_too_far_behind(consumer, now))
                .map(|(name, consumer)| (name.clone(), consumer.behind.then))
                .collect()
        };
        for (name, then) in behind {
            if then == Then::Block {
                return Err(Error::Full {
                    path: self.directory.path.clone(),
                    consumer: Some(name),
                });
            }
            while skip_segment(&self.index, &self.directory, &name)? {
                let published = self.index.lock();
                let consumer = published.consumers.get(&name);
                if consumer.is_none_or(|each| !published.is_too_far_behind(each, now)) {
                    break;
                }
            }
        }
        self.release_settled()
    }

    /// Whether batches may be skipped for a consumer.
    pub fn may_skip(&self, consumer: &Consumer) -> bool {
        consumer.behind.then == Then::Skip || !self.options.max_age.is_zero()
    }

    /// Skips the batches that are older than the channel or a consumer allows.
    fn skip_old(&mut self, now: Time) -> Result<(), Error> {
        let old: Vec<(String, Time)> = {
            let published = self.index.lock();
            let consumers = published.consumers.iter();
            let old = consumers.filter_map(|(name, consumer)| {
                let before = published.too_old_before(consumer, now)?;
                Some((name.clone(), before))
            });
            old.collect()
        };
        for (name, before) in old {
            let young = skip_before(&self.index, &self.directory, &name, before)?;
            self.index.lock().note_young(&name, young, now);
        }
        Ok(())
    }

    /// Frees the oldest segment by skipping it for the consumers that have not settled it. This is not possible if one of these consumers
    /// has `then: block`, if there is no consumer, or if there is no newer segment. In these cases returns `false`.
    fn skip_for_space(&mut self) -> Result<bool, Error> {
        let slowest: Vec<(String, Then)> = {
            let published = self.index.lock();
            let Some((lowest, _)) = published.consumers.range() else {
                return Ok(false);
            };
            let oldest = published.segments.below(lowest);
            let consumers = published.consumers.iter();
            consumers
                .filter(|(_, each)| published.segments.below(each.position) == oldest)
                .map(|(name, each)| (name.clone(), each.behind.then))
                .collect()
        };
        if slowest.iter().any(|(_, then)| *then == Then::Block) {
            return Ok(false);
        }
        for (name, _) in slowest {
            if !skip_segment(&self.index, &self.directory, &name)? {
                return Ok(false);
            }
        }
        self.release_settled()?;
        Ok(true)
    }
}
