//! From one segment to the next, and the end of those that nobody needs any more.
//!
//! Room is taken first: a full disk shows before anything is changed. Then the old segment gets its end mark and is
//! synced whatever the policy, its id file is written, and the new segment's header and name are synced; only then is a
//! frame written to it. Every step can fail and be done again.

use std::{io::IoSlice, path::PathBuf, sync::Arc};

use millstream_record::{Position, Time};

use super::{
    Error, SEGMENT_BYTES_LEAST, Then,
    commit::{Log, OpenSegment, Previous},
    error::{Shortage, is_no_room},
    frame::Kind,
    ids::{ids_name, write_ids},
    segment::{AMPLE, Blank, Header, PAGE, Segment, blank_name, header_bytes, segment_name},
    write::Needs,
};

/// Used segments that wait to be written over, at least: enough for a reader that follows in steps of 1 s at 200 MB/s.
const BLANKS_MIN: u64 = 4;
/// Or this part of `size_max`, if that is more: a reader that falls behind and catches up makes room and takes it again,
/// and new segments cost eight times as much as used ones.
const BLANKS_PART: u64 = 8;

impl Log {
    /// Closes the open segment, if there is one, and opens the next one, in which `group` has room.
    pub(super) fn roll(&mut self, group: Needs) -> Result<(), Error> {
        let least = self.least_bytes(group).max(self.least_segment());
        match self.take_room(least) {
            Err(full @ Error::NoRoom { .. }) => self.free_newest(least, full)?,
            taken => taken?,
        }
        self.end_open()?;
        match self.write_previous_ids() {
            Err(Error::NoRoom { .. }) => {
                // The next segment has a reserve of its own.
                let settled = self.index.lock().is_settled();
                self.give_back_newest()?;
                self.write_ids_somehow(settled)?;
            }
            written => written?,
        }
        self.open_next(least)
    }

    /// Bytes of the smallest segment that is worth making.
    pub(super) fn least_segment(&self) -> u64 {
        SEGMENT_BYTES_LEAST.min(self.options.segment_bytes / 4)
    }

    /// Gives the open segment its end mark and syncs it.
    fn end_open(&mut self) -> Result<(), Error> {
        let Some(number) = self.open.as_ref().map(|open| open.segment.number) else {
            return Ok(());
        };
        self.end_segment(Kind::End, &[])?;
        // A failure to end it has taken it away and staged again what was not durable.
        if let Some(open) = self
            .open
            .as_ref()
            .filter(|open| open.segment.number == number)
        {
            self.previous = Previous {
                number,
                end: open.written,
                ids_written: open.ids.is_empty(),
                ids: open.ids.clone(),
            };
            self.publish();
            self.open = None;
            self.note_record();
        }
        Ok(())
    }

    /// Takes the room for the next segment, of at least `least` bytes, from the newest one, on a disk that has none left:
    /// `full` says so.
    ///
    /// The newest segment ends here and gives back the room behind its end mark. If all of it is settled, an empty segment
    /// takes its place as the newest, so that it can be released like any other. Its reserve has room for that, at worst at
    /// the cost of the oldest ids. Until it is settled it keeps its reserve, which others could take.
    fn free_newest(&mut self, least: u64, full: Error) -> Result<(), Error> {
        let (newest, settled) = {
            let state = self.index.lock();
            let newest = state.segments.back().map(|(newest, _)| Arc::clone(newest));
            (newest, state.is_settled() && self.written.is_empty())
        };
        let Some(newest) = newest else {
            return Err(full);
        };
        let written = self.open.as_ref().map_or(newest.end(), |open| open.written);
        let tail = newest.bytes().saturating_sub(written + 2 * PAGE);
        if !settled && tail < least {
            return Err(full);
        }
        self.end_open()?;
        self.give_back_newest()?;
        self.write_ids_somehow(settled)?;
        match self.take_room(least) {
            Err(Error::NoRoom { .. }) if settled && newest.end() > newest.start => {}
            taken => return taken,
        }
        drop(newest);
        let bytes = header_bytes(self.files.len()) + PAGE;
        self.at_the_cost_of_ids(|log| log.make_blank(bytes))?;
        self.open_next(bytes)?;
        self.collect()?;
        self.take_room(least)
    }

    /// Gives back the room behind the end mark of the newest segment.
    fn give_back_newest(&self) -> Result<(), Error> {
        let state = self.index.lock();
        if let Some((newest, _)) = state.segments.back() {
            newest
                .give_back_tail()
                .map_err(|error| Error::disk("giving back room of", &newest.path, error))?;
        }
        self.index.count_used(&state);
        Ok(())
    }

    /// Writes the id file of the segment before the next one, if everything is settled at the cost of older ids: else the
    /// consumers make room sooner or later.
    fn write_ids_somehow(&mut self, settled: bool) -> Result<(), Error> {
        match settled {
            true => self.at_the_cost_of_ids(Self::write_previous_ids),
            false => self.write_previous_ids(),
        }
    }

    /// Does `step`. As long as the disk has no room for it, the oldest ids are forgotten; those younger than their age are
    /// counted (`evicted_young_ids`).
    fn at_the_cost_of_ids(
        &mut self,
        step: impl Fn(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        loop {
            match step(self) {
                Err(Error::NoRoom { .. }) if !self.id_files.is_empty() => {
                    if let Some((_, end)) = self.id_files.front() {
                        self.window.forget(*end);
                    }
                    self.remove_old_ids()?;
                }
                done => return done,
            }
        }
    }

    /// Makes sure of a blank file of at least `least` bytes, within `size_max` and what the disk has; of the usual size if
    /// the disk has ample room.
    fn take_room(&mut self, least: u64) -> Result<(), Error> {
        let usual = least.max(self.options.segment_bytes);
        let live = self.index.used_bytes();
        let alone = self.index.lock().segments.len() <= 1;
        if live + usual > self.options.size_max && !alone && !self.skip_for_room()? {
            let state = self.index.lock();
            return Err(Error::Full {
                path: self.directory.clone(),
                consumer: state.slowest().map(|(name, _)| name.clone()),
            });
        }
        let blanks_max = self.options.size_max.saturating_sub(live + usual);
        loop {
            let fits = self.blanks.iter().position(|blank| blank.bytes >= usual);
            let other = (0..self.blanks.len()).rfind(|place| Some(*place) != fits);
            let others = self.blank_bytes() - fits.map_or(0, |fits| self.blanks[fits].bytes);
            match other {
                Some(other) if others > blanks_max => self.remove_blank(other)?,
                _ if fits.is_some() => return Ok(()),
                _ => break,
            }
        }
        let free = self.free_bytes();
        if free / AMPLE >= usual {
            // What waits to be used again is too small.
            while !self.blanks.is_empty() {
                self.remove_blank(0)?;
            }
            self.short = false;
        } else {
            self.short = true;
            if self.blanks.iter().any(|blank| blank.bytes >= least) {
                return Ok(());
            }
        }
        self.make_room(usual, least)
    }

    /// Makes a blank file of at most `usual` bytes and at least `least`, as the disk has room.
    fn make_room(&mut self, usual: u64, least: u64) -> Result<(), Error> {
        let mut bytes = match self.free_bytes() / AMPLE {
            part if part >= usual => usual,
            part => (part / PAGE * PAGE).clamp(least, usual),
        };
        loop {
            match self.make_blank(bytes) {
                Err(Error::NoRoom { .. }) if bytes > least => {
                    self.short = true;
                    bytes = (bytes / 2).next_multiple_of(PAGE).max(least);
                }
                // What waits to be used again is too small for this, and takes the room that it needs.
                Err(Error::NoRoom { .. }) if !self.blanks.is_empty() => self.remove_blank(0)?,
                made => return made,
            }
        }
    }

    /// Makes a blank file.
    fn make_blank(&mut self, bytes: u64) -> Result<(), Error> {
        let (path, bytes) = self.next_blank(bytes);
        match Blank::create(&*self.disk, &path, bytes) {
            Ok(blank) => {
                self.blanks.push(blank);
                Ok(())
            }
            Err(error) if is_no_room(&error) => Err(Error::NoRoom {
                path: self.directory.clone(),
                shortage: Some(Shortage {
                    needed: bytes,
                    free: self.free_bytes(),
                }),
                source: Arc::new(error),
            }),
            Err(error) => Err(Error::disk("making a segment", &path, error)),
        }
    }

    /// Bytes that are free on the disk, as far as the system says.
    fn free_bytes(&self) -> u64 {
        let space = self.disk.space(&self.directory);
        space.map_or(u64::MAX, |space| space.free)
    }

    /// What the next segment can be made of, ahead of time and on another thread, by [`Blank::create_ahead`]; `None` if there is
    /// one, or if it is too early. Give it to [`Log::add_blank`].
    pub fn wants_blank(&mut self) -> Option<(PathBuf, u64)> {
        let open = self.open.as_ref()?;
        let early = open.written < open.segment.bytes() / 2;
        let bytes = self.options.segment_bytes;
        let no_room = self.index.used_bytes() + bytes > self.options.size_max;
        (!early && !no_room && self.blanks.is_empty()).then(|| self.next_blank(bytes))
    }

    /// A segment to be, made ahead of time.
    pub fn add_blank(&mut self, blank: Blank) {
        self.blanks.push(blank);
    }

    fn blank_bytes(&self) -> u64 {
        self.blanks.iter().map(|blank| blank.bytes).sum()
    }

    /// Gives up a used segment for room.
    fn remove_blank(&mut self, place: usize) -> Result<(), Error> {
        let blank = self.blanks.remove(place);
        self.disk
            .remove(&blank.path)
            .map_err(|error| Error::disk("removing a used segment", &blank.path, error))
    }

    /// The path of a blank, a name that none ever had while the log was open, and its bytes.
    fn next_blank(&mut self, bytes: u64) -> (PathBuf, u64) {
        self.blank_number += 1;
        (self.directory.join(blank_name(self.blank_number)), bytes)
    }

    fn write_previous_ids(&mut self) -> Result<(), Error> {
        let previous = &mut self.previous;
        if previous.ids_written {
            return Ok(());
        }
        let path = self.directory.join(ids_name(previous.number));
        write_ids(
            &*self.disk,
            &path,
            &self.channel,
            previous.number,
            &previous.ids,
        )
        .map_err(|error| Error::disk("writing the ids of a segment", &path, error))?;
        previous.ids_written = true;
        self.id_files
            .push_back((previous.number, self.window.end()));
        Ok(())
    }

    fn open_next(&mut self, bytes: u64) -> Result<(), Error> {
        let fitting = self.blanks.iter().enumerate();
        let fitting = fitting.filter(|(_, blank)| blank.bytes >= bytes);
        let Some((place, _)) = fitting.max_by_key(|(_, blank)| blank.bytes) else {
            return Ok(());
        };
        let header = Header {
            number: self.previous.number + 1,
            first: self.staged.front().map_or(
                Position {
                    epoch: self.epoch,
                    seq: self.next_seq,
                },
                |frame| frame.position,
            ),
            keep_time: self.keep_time,
            previous_end: self.previous.end,
            previous_ids: u32::try_from(self.previous.ids.len()).unwrap_or(u32::MAX),
            files: self.files.sorted(),
        };
        let encoded = header.encode(&self.channel);
        let path = self.directory.join(segment_name(header.number));
        let blank = self.blanks.remove(place);
        // A power cut could give a blank its old name back. It must not be written over before that is ruled out, or the old
        // segment looks damaged.
        let durable = match self.blank_unsynced {
            true => self.disk.sync_directory(&self.directory),
            false => Ok(()),
        };
        let opened = durable
            .and_then(|()| blank.file.write_at(&[IoSlice::new(&encoded)], 0))
            .and_then(|()| blank.file.sync())
            .and_then(|()| self.disk.rename(&blank.path, &path))
            .and_then(|()| self.disk.sync_directory(&self.directory));
        if let Err(error) = opened {
            // The file is not used again; one more is tried, in the next round of the caller.
            if is_no_room(&error) {
                // It is only a leftover; the next start removes it too.
                let _ = self.disk.remove(&blank.path);
                return Err(Error::disk("opening a segment", &path, error));
            }
            drop(blank);
            return self.fail("opening a segment", path, error);
        }
        self.blank_unsynced = false;
        let start = encoded.len() as u64;
        let lengths = (blank.bytes, start, start);
        let segment = Segment::of(header.number, header.first, path, blank.file, lengths);
        let segment = Arc::new(segment);
        let mut state = self.index.lock();
        state
            .segments
            .push_back((Arc::clone(&segment), header.keep_time));
        self.index.count_used(&state);
        drop(state);
        self.previous.ids = Vec::new();
        self.open = Some(OpenSegment {
            segment,
            written: start,
            synced: start,
            ids: Vec::new(),
            ids_synced: 0,
            files_unsynced: Vec::new(),
        });
        Ok(())
    }

    /// Drops the segments below every cursor. Another segment's synced head holds their origins, and their ids are in id
    /// files: the newest segment is never dropped.
    pub(super) fn collect(&mut self) -> Result<(), Error> {
        let dropped = {
            let mut state = self.index.lock();
            let Some(lowest) = state.slowest().map(|(_, slowest)| slowest.position) else {
                return Ok(());
            };
            let count = state.below(lowest);
            let dropped = state.segments.drain(..count);
            let dropped: Vec<Arc<Segment>> = dropped.map(|(segment, _)| segment).collect();
            self.index.count_used(&state);
            dropped
        };
        for segment in dropped {
            self.put_away(segment)?;
        }
        self.remove_old_ids()
    }

    /// Removes the id files of which the window holds nothing any more.
    fn remove_old_ids(&mut self) -> Result<(), Error> {
        while let Some((number, end)) = self.id_files.front().copied() {
            if end > self.window.first() {
                break;
            }
            let path = self.directory.join(ids_name(number));
            self.disk
                .remove(&path)
                .map_err(|error| Error::disk("removing an id file", &path, error))?;
            self.id_files.pop_front();
        }
        Ok(())
    }

    /// The end of a segment: put aside if it is damaged, used again if nobody reads it, else removed.
    fn put_away(&mut self, segment: Arc<Segment>) -> Result<(), Error> {
        let failed = |error| Error::disk("dropping a segment", &segment.path, error);
        if self.index.lock().damaged.contains(&segment.number) {
            let aside = segment.path.with_extension("bad");
            return self.disk.rename(&segment.path, &aside).map_err(failed);
        }
        let bytes = segment.bytes();
        let usual = bytes == self.options.segment_bytes;
        let small =
            self.short && bytes < self.options.segment_bytes && bytes >= self.least_segment();
        let blanks_max = (BLANKS_MIN * bytes).max(self.options.size_max / BLANKS_PART) - bytes;
        if (usual || small) && self.blank_bytes() <= blanks_max && Arc::strong_count(&segment) == 1
        {
            let (path, _) = self.next_blank(bytes);
            self.disk.rename(&segment.path, &path).map_err(failed)?;
            self.blank_unsynced = true;
            self.blanks.push(Blank {
                path,
                file: Arc::clone(&segment.file),
                bytes,
            });
            return Ok(());
        }
        self.disk.remove(&segment.path).map_err(failed)
    }

    /// Makes the channel wait for a consumer that is too far behind, or skips for it.
    pub(super) fn wait_for_blockers(&mut self, now: Time) -> Result<(), Error> {
        let names: Vec<String> = self.index.lock().consumers.keys().cloned().collect();
        for name in names {
            let mut state = self.index.lock();
            while let Some(consumer) = state.consumers.get(&name) {
                let (position, behind) = (consumer.position, consumer.behind);
                let age = i64::try_from(behind.age.as_nanos()).unwrap_or(i64::MAX);
                let too_old = age > 0
                    && state
                        .oldest_after(position)
                        .is_some_and(|oldest| now.0.saturating_sub(oldest.0) > age);
                let too_much = behind.size > 0 && state.bytes_after(position) > behind.size;
                if !too_old && !too_much {
                    break;
                }
                if behind.then == Then::Block {
                    return Err(Error::Full {
                        path: self.directory.clone(),
                        consumer: Some(name),
                    });
                }
                drop(state);
                if !self.skip_segment(&name)? {
                    break;
                }
                state = self.index.lock();
            }
        }
        self.collect()
    }

    /// Room for one more segment at the cost of consumers that may skip; false if that gives none.
    fn skip_for_room(&mut self) -> Result<bool, Error> {
        let slow: Vec<(String, Then)> = {
            let state = self.index.lock();
            let Some(lowest) = state.slowest().map(|(_, slowest)| slowest.position) else {
                return Ok(false);
            };
            let place = state.below(lowest);
            state
                .consumers
                .iter()
                .filter(|(_, consumer)| state.below(consumer.position) == place)
                .map(|(name, consumer)| (name.clone(), consumer.behind.then))
                .collect()
        };
        if slow.iter().any(|(_, then)| *then == Then::Block) {
            return Ok(false);
        }
        for (name, _) in slow {
            if !self.skip_segment(&name)? {
                return Ok(false);
            }
        }
        self.collect()?;
        Ok(true)
    }
}
