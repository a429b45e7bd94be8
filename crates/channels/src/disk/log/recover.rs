//! Start: from what a stop, a kill or a power cut left to a log that goes on.
//!
//! First the lock, then the segments in order: closed ones are taken by their headers, since each was synced whole before the
//! next one was opened; readers check their frames as they read them. The last one is walked frame by frame, bodies too.
//! At the first misfit: above the last synced end it is a torn tail, cut there, and everything after it is dropped,
//! valid-looking or not; below it, it is damage, which is named, and reading goes on behind it. Origins are those of
//! the newest head and of the frames after it; ids come from the id files, or from the frames where one is missing.
//! After anything but a clean stop the epoch is raised.

use std::{
    collections::{BTreeSet, VecDeque},
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_record::{FileId, Origin, Position, Time};
use millstream_sys::disk::{Disk, Open};

use super::{
    ChannelId, Error, Options, Sync,
    commit::{Log, Previous},
    consumers::consumer,
    cursor::{Cursor, CursorFound},
    directory::{identify, list, take_lock, was_moved},
    frame::Kind,
    ids::{ids_name, read_ids},
    index::Index,
    key::Keys,
    loss::{Look, Loss, Losses},
    origins::FileTable,
    record::{Known, is_damaged, record_path},
    segment::{Blank, Segment, blank_number_in, number_in},
    survey::{Damage, Survey, survey},
    tail::{Tail, walk_tail},
    walk::{Walk, ids_of},
    window::Window,
};

/// What a start has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The id of the channel.
    pub channel: ChannelId,
    /// The epoch of what is written from now on.
    pub epoch: u32,
    /// Whether the last stop was in order (or there was none).
    pub clean: bool,
    /// The newest position that is kept.
    pub kept: Position,
    /// Bytes of a torn tail that were dropped; nothing in them had been answered for with `sync: batch`.
    pub torn_bytes: u64,
    /// Files in which damage was found, and what it is.
    pub damage: Vec<(PathBuf, &'static str)>,
    /// What is missing of what was kept, found now or earlier, and not accepted by an operator.
    pub losses: Vec<Loss>,
    /// How far a consumer had settled what a power cut has taken, as the policy `sync` allows.
    pub taken_by_power: Option<Position>,
    /// Where reading of every tailed file goes on.
    pub files: Vec<(FileId, u64)>,
}

impl Log {
    /// Opens the channel in `directory` and makes it if there is none, with the id `fresh` (random). The parent of the
    /// directory must be there. Nothing is written for new frames yet: a full disk does not stop a start.
    pub fn open(
        disk: Arc<dyn Disk>,
        directory: &Path,
        options: Options,
        fresh: ChannelId,
    ) -> Result<(Self, Recovered), Error> {
        let lock = take_lock(&*disk, directory)?;
        let names = list(&*disk, directory)?;
        let record = record_path(directory);
        let failed = |error| Error::disk("reading the record of the channel", &record, error);
        let known = Known::read(&*disk, &record).map_err(failed)?;
        let losses = Losses::read(Arc::clone(&disk), &record).map_err(failed)?;
        let remembered = known.map(|known| known.channel);
        let channel = identify(&*disk, directory, &names, fresh, remembered)?;
        let mut finds = Finds::default();
        let is_new = !names.iter().any(|name| number_in(name, ".seg").is_some());
        if known.is_none() && !is_new && is_damaged(&*disk, &record).map_err(failed)? {
            let what = "the record of the channel is damaged: if the end of the log is missing, too, a start cannot tell";
            finds.damage.push((record.clone(), what));
        }
        let found = survey(&*disk, directory, &names, &channel, &mut finds.damage)?;
        let mut log = Self {
            directory: directory.to_owned(),
            options,
            channel,
            lock,
            index: Arc::new(Index::default()),
            epoch: 1,
            next_seq: 1,
            keep_time: Time(0),
            open: None,
            previous: Previous {
                ids_written: true,
                ..Previous::default()
            },
            blanks: Vec::new(),
            blank_number: 0,
            blank_unsynced: false,
            short: false,
            id_files: VecDeque::new(),
            staged: VecDeque::new(),
            written: Vec::new(),
            keys: Keys::new(channel.0),
            window: Window::new(options.dedupe),
            files: FileTable::default(),
            unsynced_since: None,
            failing: false,
            stopped: None,
            lost: Vec::new(),
            repeats: 0,
            record: None,
            known: known
                .filter(|known| known.channel == channel)
                .unwrap_or(Known::of(channel)),
            losses: Arc::new(losses),
            disk,
        };
        let tail = log.restore_segments(found, &names, &mut finds)?;
        // The newest names may be known to the page cache alone.
        log.disk
            .sync_directory(directory)
            .map_err(|error| Error::disk("opening the channel", directory, error))?;
        log.open_cursors(&names, &mut finds.damage)?;
        log.take_blanks(&names)?;
        let recovered = log.finish_start(tail, finds, known);
        log.known.end = log.known.end.max(recovered.kept);
        log.keep_record()?;
        Ok((log, recovered))
    }

    /// Takes the segments, their ids and their origins.
    fn restore_segments(
        &mut self,
        found: Vec<Survey>,
        names: &[String],
        finds: &mut Finds,
    ) -> Result<Option<Tail>, Error> {
        let mut gone = gone_id_files(&found, names);
        let mut tail = None;
        let newest_head = found.iter().rposition(|segment| segment.header.is_some());
        let nexts: Vec<Option<(u64, u64, u32)>> = (0..found.len())
            .map(|place| {
                let header = found.get(place + 1)?.header.as_ref()?;
                Some((header.number, header.previous_end, header.previous_ids))
            })
            .collect();
        let firsts: Vec<Position> = found.iter().map(|segment| segment.first).collect();
        for (place, (mut found, next)) in found.into_iter().zip(nexts).enumerate() {
            let older = gone.extract_if(..found.number, |_| true);
            self.restore_gone_ids(older, &mut finds.damage)?;
            if newest_head == Some(place)
                && let Some(header) = &found.header
            {
                self.files.restore(&header.files);
            }
            let next = next.filter(|next| next.0 == found.number + 1);
            let files_too = newest_head.is_none_or(|head| place >= head);
            let first = found.first;
            let keep_time = found.keep_time;
            let mut end = next.map_or(found.bytes, |next| next.1.min(found.bytes));
            let cut = next.is_some_and(|next| next.1 > found.bytes);
            if cut {
                let what = "the segment was cut: it is shorter than the next one says";
                finds.damage.push((found.path.clone(), what));
                self.index.lock().damaged.insert(found.number);
            } else if next.is_some() {
                found.give_back(end)?;
            }
            let segment = found.into_segment(end);
            match next {
                Some((_, _, ids)) if !files_too && !cut => self.restore_ids(&segment, ids)?,
                _ => {
                    let bounds = (end, next.is_some());
                    let mut walked = self.restore_frames(&segment, bounds, keep_time)?;
                    if let Some(what) = walked.damage {
                        finds.damage.push((segment.path.clone(), what));
                        self.index.lock().damaged.insert(segment.number);
                    }
                    end = walked.end;
                    if let Some(first) = firsts.get(place + 1) {
                        walked.note_gap(walked.next, *first);
                    }
                    finds.gaps.append(&mut walked.gaps);
                    tail = Some(walked);
                }
            }
            segment.set_end(end);
            let mut state = self.index.lock();
            state.kept = Position {
                epoch: first.epoch,
                seq: first.seq.saturating_sub(1),
            };
            state.segments.push_back((Arc::new(segment), keep_time));
        }
        self.restore_gone_ids(gone, &mut finds.damage)?;
        self.window.restored();
        Ok(tail)
    }

    /// Restores the ids of segments that were dropped.
    fn restore_gone_ids(
        &mut self,
        numbers: impl IntoIterator<Item = u64>,
        damage: &mut Damage,
    ) -> Result<(), Error> {
        for number in numbers {
            let path = self.directory.join(ids_name(number));
            let records = read_ids(&*self.disk, &path, &self.channel, number)
                .map_err(|error| Error::disk("reading ids", &path, error))?;
            if records.is_none() {
                damage.push((
                    path,
                    "ids of settled chunks are damaged: repeats of them are stored again",
                ));
            }
            for record in records.iter().flatten() {
                self.window.restore(record);
            }
            self.id_files.push_back((number, self.window.end()));
        }
        Ok(())
    }

    /// The ids of a closed segment: from its id file, or from its frames if that is missing.
    fn restore_ids(&mut self, segment: &Segment, count: u32) -> Result<(), Error> {
        if count == 0 {
            return Ok(());
        }
        let path = self.directory.join(ids_name(segment.number));
        let records = read_ids(&*self.disk, &path, &self.channel, segment.number)
            .map_err(|error| Error::disk("reading ids", &path, error))?;
        match records {
            Some(records) if records.len() == count as usize => {
                for record in &records {
                    self.window.restore(record);
                }
            }
            _ => {
                let mut walk = Walk::new(segment, self.channel, segment.end());
                while let Ok(Some(found)) = walk.next_head() {
                    for record in ids_of(&mut self.keys, &found.head) {
                        self.window.restore(&record);
                    }
                }
            }
        }
        self.id_files.push_back((segment.number, self.window.end()));
        Ok(())
    }

    /// Ids and origins from the frames themselves.
    fn restore_frames(
        &mut self,
        segment: &Segment,
        bounds: (u64, bool),
        keep_time: Time,
    ) -> Result<Tail, Error> {
        let mut ids = Vec::new();
        let (keys, window, files) = (&mut self.keys, &mut self.window, &mut self.files);
        let counted = &mut self.known.counted;
        let count = counted.0 == 0;
        let walked = walk_tail(segment, self.channel, bounds, keep_time, |head| {
            if count && head.kind == Kind::Batch {
                counted.0 += 1;
                counted.1 += u64::from(head.count);
            }
            for record in ids_of(keys, head) {
                window.restore(&record);
                ids.push(record);
            }
            for origin in &head.origins {
                if let Origin::File(origin) = origin {
                    files.write(origin);
                }
            }
        });
        self.previous.ids_written = ids.is_empty();
        self.previous.ids = ids;
        walked.map_err(|error| Error::disk("reading", &segment.path, error))
    }

    fn open_cursors(&mut self, names: &[String], damage: &mut Damage) -> Result<(), Error> {
        for name in names {
            let Some(consumer_name) = name.strip_suffix(".cursor") else {
                continue;
            };
            let path = self.directory.join(name);
            match Cursor::open(&*self.disk, &path, self.channel, Open::Write)? {
                CursorFound::Good(mut cursor) => {
                    let failed = |error| Error::disk("writing a cursor again", &path, error);
                    cursor.renew().map_err(failed)?;
                    let mut state = self.index.lock();
                    state
                        .consumers
                        .insert(consumer_name.to_owned(), consumer(cursor));
                }
                // Cut off while it was made, or damaged: the consumer begins at the oldest frame again.
                CursorFound::Damaged => damage.push((path, "neither slot of the cursor is valid")),
            }
        }
        Ok(())
    }

    /// Takes over the used segments that wait to be written over.
    fn take_blanks(&mut self, names: &[String]) -> Result<(), Error> {
        for name in names {
            let Some(number) = blank_number_in(name) else {
                continue;
            };
            let path = self.directory.join(name);
            let failed = |error| Error::disk("opening a used segment", &path, error);
            let file = self.disk.open(&path, Open::Write).map_err(failed)?;
            let bytes = file.metadata().map_err(failed)?.len;
            self.blank_number = self.blank_number.max(number);
            if (self.least_segment()..=self.options.segment_bytes).contains(&bytes) {
                self.short |= bytes < self.options.segment_bytes;
                self.blanks.push(Blank { path, file, bytes });
            } else {
                drop(file);
                self.disk.remove(&path).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Numbers go on behind everything that anybody may know. `remembered`: the record as it was found.
    fn finish_start(
        &mut self,
        tail: Option<Tail>,
        finds: Finds,
        remembered: Option<Known>,
    ) -> Recovered {
        let mut state = self.index.lock();
        let fresh = state.segments.is_empty();
        let clean = tail.as_ref().map_or(fresh, |tail| tail.clean);
        let torn_bytes = tail.as_ref().map_or(0, |tail| tail.torn_bytes);
        if let Some(tail) = &tail {
            self.keep_time = tail.keep_time;
            self.next_seq = tail.next.seq;
            self.epoch = tail.next.epoch + u32::from(!tail.clean);
            state.kept = Position {
                epoch: tail.next.epoch,
                seq: tail.next.seq - 1,
            };
        }
        let mut look = Look {
            channel: self.channel,
            oldest: state.segments.front().map(|(oldest, _)| oldest.first),
            newest: state.kept,
            gaps: finds.gaps,
            cursors: state.cursors(),
            known: remembered,
        };
        // Beyond the log there was more: it was taken away, or a power cut took what was not synced.
        let end = look.end();
        if end > state.kept {
            self.epoch = self.epoch.max(end.epoch + 1);
            if fresh {
                self.next_seq = end.seq + 1;
                state.kept = end;
            }
        }
        let taken_by_power = match self.options.sync {
            Sync::Batch => None,
            Sync::Every(_) | Sync::Never => look.take_unsynced(clean),
        };
        state.hot_after = state.kept;
        self.index.count_used(&state);
        self.index.files().extend(self.files.sorted());
        if let Some((last, _)) = state.segments.back() {
            self.previous.number = last.number;
            self.previous.end = last.end();
        }
        let kept = state.kept;
        drop(state);
        self.remember(&look);
        Recovered {
            channel: self.channel,
            epoch: self.epoch,
            clean,
            kept,
            torn_bytes,
            damage: finds.damage,
            losses: self.losses.open(),
            taken_by_power,
            files: self.files.sorted(),
        }
    }

    /// Remembers what is missing, until an operator accepts it.
    fn remember(&self, look: &Look) {
        let mut losses = look.losses();
        if let Some(known) = look.known
            && known.channel != self.channel
            && !was_moved(&*self.disk, &self.directory, known.channel)
        {
            losses.push(known.directory());
        }
        for loss in losses {
            // A full disk has no room for the file: it counts for this run, and is found again.
            let _ = self.losses.add(loss);
        }
    }
}

/// The numbers of the id files whose segments were dropped. A power cut may bring older segments back, so there may be
/// segments on both sides of such a number. Behind the newest segment nothing was ever dropped: an id file there is a leftover.
fn gone_id_files(found: &[Survey], names: &[String]) -> BTreeSet<u64> {
    let numbers: BTreeSet<u64> = found.iter().map(|segment| segment.number).collect();
    let newest = numbers.last().copied().unwrap_or(u64::MAX);
    names
        .iter()
        .filter_map(|name| number_in(name, ".ids"))
        .filter(|number| *number < newest && !numbers.contains(number))
        .collect()
}

/// What a start finds on its way.
#[derive(Default)]
struct Finds {
    damage: Damage,
    /// Positions that are missing between frames that are there.
    gaps: Vec<(Position, Position)>,
}
