//! The start of a log, after a stop, a kill or a power cut.
//!
//! A start takes the lock and opens the segments in order. It reads only the headers of closed segments, because each closed segment was
//! synced whole before the next one was opened. Readers check the frames of these segments later. A start reads every frame of the newest
//! segment. Each frame stores the synced end: the offset up to which the segment was durable when the frame was written. Invalid bytes
//! after the last synced end are a torn tail: the log ends there, and everything after this point is dropped, even if it looks valid.
//! Invalid bytes before the last synced end are damage. Damage is reported, and reading continues after it. The offsets of tailed files
//! come from the newest header and the frames after it. Chunk ids come from the id files; if an id file is missing, they come from the
//! frames of its segment. Unless the last stop was clean, a new epoch begins.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_record::{FileId, Origin, Position, Time};
use millstream_sys::disk::{Disk, Open};

use super::{
    ChannelId, Error, Log, Options, Sync,
    blanks::Blanks,
    cursor::Cursor,
    directory::{LogDirectory, identify, list, take_lock, was_moved},
    evidence::Evidence,
    file_table::FileTable,
    frame::Kind,
    health::Health,
    ids::{IdRecord, ids_name},
    index::{Index, Published},
    losses::{Loss, Losses},
    record::{ChannelRecord, RecordFile, Summary, record_path},
    repeats::Repeats,
    segment::{Segment, number_in},
    segment_writer::{PreviousSegment, SegmentWriter},
    staging::Staging,
    survey::{Damage, SegmentFile, survey},
    tail::{Tail, walk_tail},
    walk::Walk,
};

/// The result of a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The id of the channel.
    pub channel: ChannelId,
    /// The epoch of everything that is written from now on.
    pub epoch: u32,
    /// Whether the last stop was clean, or the channel is new.
    pub clean: bool,
    /// The newest position that is kept.
    pub kept: Position,
    /// Bytes of a torn tail that were dropped. With `sync: batch` nothing in them was acknowledged.
    pub torn_bytes: u64,
    /// Damaged files, and what is wrong with each.
    pub damage: Vec<(PathBuf, &'static str)>,
    /// Losses that were found now or earlier and that no operator has accepted.
    pub losses: Vec<Loss>,
    /// The position up to which a consumer had settled, if a power cut has taken batches that this consumer had already settled. `None` if
    /// no settled batch is missing for this reason; with `sync: batch` it is always `None`.
    pub taken_by_power: Option<Position>,
    /// Every tailed file, and the offset up to which it is kept.
    pub files: Vec<(FileId, u64)>,
}

/// Opens the channel in `path`; see [`Log::open`].
pub(super) fn open(
    disk: Arc<dyn Disk>,
    path: &Path,
    options: Options,
    fresh: ChannelId,
) -> Result<(Log, Recovered), Error> {
    let lock = take_lock(&*disk, path)?;
    let names = list(&*disk, path)?;
    let record_path = record_path(path);
    let record = Summary::read(&*disk, &record_path)?;
    let known = record.summary();
    let losses = Losses::read(Arc::clone(&disk), &record_path)?;
    let channel = identify(
        &*disk,
        path,
        &names,
        fresh,
        known.map(|known| known.channel),
    )?;
    let mut damage = Damage::new();
    let is_new = !names.iter().any(|name| number_in(name, ".seg").is_some());
    if matches!(record, RecordFile::Damaged) && !is_new {
        let what = "the record of the channel is damaged: if the end of the log is missing, too, a start cannot tell";
        damage.push((record_path.clone(), what));
    }
    let segments = survey(&*disk, path, &names, &channel, &mut damage)?;
    let of_this = known.filter(|known| known.channel == channel);
    let mut recovery = Recovery {
        directory: LogDirectory {
            disk,
            path: path.to_owned(),
            channel,
            lock,
        },
        repeats: Repeats::new(channel, options.dedupe),
        files: FileTable::default(),
        published: Published::default(),
        summary: of_this.unwrap_or(Summary::of(channel)),
        newest_ids: Vec::new(),
        gaps: Vec::new(),
        damage,
    };
    let tail = recovery.restore_segments(segments, &names)?;
    // The newest names may exist only in the page cache, so the directory is synced.
    let synced = recovery.directory.sync();
    synced.map_err(|error| Error::disk("opening the channel", path, error))?;
    recovery.open_cursors(&names)?;
    let blanks = Blanks::open(&recovery.directory, &names, &options)?;
    recovery.finish(tail, blanks, (known, record_path, losses), options)
}

/// A start in progress: the parts of the future log.
struct Recovery {
    directory: LogDirectory,
    repeats: Repeats,
    files: FileTable,
    published: Published,
    summary: Summary,
    /// The ids in the frames of the newest segment.
    newest_ids: Vec<IdRecord>,
    /// Gaps between frames. Each entry holds the last position before the gap, and the last missing position.
    gaps: Vec<(Position, Position)>,
    damage: Damage,
}

impl Recovery {
    /// Restores the segments with their ids and origins. Returns the end of the newest segment; `None` if there is no segment.
    fn restore_segments(
        &mut self,
        found: Vec<SegmentFile>,
        names: &[String],
    ) -> Result<Option<Tail>, Error> {
        let mut orphans = orphaned_id_files(&found, names);
        let newest_header = found.iter().rposition(|segment| segment.header.is_some());
        // The end of each segment and the number of its ids, according to the header of the next segment.
        let headers = found.iter().skip(1).map(|next| next.header.as_ref());
        let closed: Vec<_> = headers
            .zip(&found)
            .map(|(next, segment)| {
                let next = next.filter(|next| next.number == segment.number + 1)?;
                Some((next.previous_end, next.previous_ids))
            })
            .chain([None])
            .collect();
        let firsts: Vec<Position> = found.iter().map(|segment| segment.first).collect();
        let mut newest = None;
        for (index, (mut file, closed)) in found.into_iter().zip(closed).enumerate() {
            self.restore_orphans(orphans.extract_if(..file.number, |_| true))?;
            if newest_header == Some(index)
                && let Some(header) = &file.header
            {
                self.files.restore(&header.files);
            }
            let (bytes, since, first) = (file.bytes, file.keep_time, file.first);
            let end = closed.map_or(bytes, |(end, _)| end.min(bytes));
            let is_cut = closed.is_some_and(|(end, _)| end > bytes);
            if is_cut {
                let what = "the segment was cut: it is shorter than the next one says";
                self.note_damage(&file.path, file.number, what);
            } else if closed.is_some() {
                file.truncate(end)?;
            }
            let segment = file.into_segment(end);
            let has_origins = newest_header.is_none_or(|newest| index >= newest);
            match closed {
                Some((_, ids)) if !has_origins && !is_cut => self.restore_ids(&segment, ids)?,
                _ => {
                    let mut tail = self.walk(&segment, (end, closed.is_some()), since)?;
                    if let Some(what) = tail.damage {
                        self.note_damage(&segment.path, segment.number, what);
                    }
                    if let Some(first) = firsts.get(index + 1) {
                        tail.note_gap(tail.next, *first);
                    }
                    segment.set_end(tail.end);
                    self.gaps.append(&mut tail.gaps);
                    newest = Some(tail);
                }
            }
            self.published.kept = first.before();
            self.published.segments.push(Arc::new(segment), since);
        }
        self.restore_orphans(orphans)?;
        self.repeats.window.finish_restore();
        Ok(newest)
    }

    fn note_damage(&mut self, path: &Path, segment: u64, what: &'static str) {
        self.damage.push((path.to_owned(), what));
        self.published.segments.mark_damaged(segment);
    }

    /// Restores the ids of segments that were released.
    fn restore_orphans(&mut self, numbers: impl IntoIterator<Item = u64>) -> Result<(), Error> {
        for number in numbers {
            match self.repeats.read_file(&self.directory, number)? {
                Some(records) => {
                    let window = &mut self.repeats.window;
                    records.iter().for_each(|record| window.restore(record));
                }
                None => self.damage.push((
                    self.directory.join(&ids_name(number)),
                    "ids of settled chunks are damaged: repeats of them are stored again",
                )),
            }
            self.repeats.add_file(number);
        }
        Ok(())
    }

    /// Restores the `count` ids of a closed segment: from its id file, or from its frames if the file is missing.
    fn restore_ids(&mut self, segment: &Segment, count: u32) -> Result<(), Error> {
        if count == 0 {
            return Ok(());
        }
        let records = self.repeats.read_file(&self.directory, segment.number)?;
        match records.filter(|records| records.len() == count as usize) {
            Some(records) => {
                let window = &mut self.repeats.window;
                records.iter().for_each(|record| window.restore(record));
            }
            None => {
                let mut walk = Walk::new(segment, self.directory.channel, segment.end());
                while let Ok(Some(frame)) = walk.next_head() {
                    for record in self.repeats.ids_of(&frame.head) {
                        self.repeats.window.restore(&record);
                    }
                }
            }
        }
        self.repeats.add_file(segment.number);
        Ok(())
    }

    /// Restores ids and origins from the frames of a segment. `bounds` holds the highest offset at which the frames can end, and whether
    /// the segment is closed. `since` is the newest keep time before the segment.
    fn walk(&mut self, segment: &Segment, bounds: (u64, bool), since: Time) -> Result<Tail, Error> {
        let channel = self.directory.channel;
        let (repeats, files, summary) = (&mut self.repeats, &mut self.files, &mut self.summary);
        let counts = summary.is_uncounted();
        let mut ids = Vec::new();
        let walked = walk_tail(segment, channel, bounds, since, |head| {
            if counts && head.kind == Kind::Batch {
                summary.count(head.count);
            }
            for record in repeats.ids_of(head) {
                repeats.window.restore(&record);
                ids.push(record);
            }
            for origin in &head.origins {
                if let Origin::File(origin) = origin {
                    files.write(origin);
                }
            }
        });
        self.newest_ids = ids;
        walked.map_err(|error| Error::disk("reading", &segment.path, error))
    }

    fn open_cursors(&mut self, names: &[String]) -> Result<(), Error> {
        let LogDirectory { disk, channel, .. } = &self.directory;
        for name in names {
            let Some(consumer) = name.strip_suffix(".cursor") else {
                continue;
            };
            let path = self.directory.join(name);
            match Cursor::open(&**disk, &path, *channel, Open::Write)? {
                Some(cursor) => self.published.consumers.insert(consumer, cursor),
                // The cursor is damaged, or a crash has interrupted its creation. The consumer begins at the oldest frame.
                None => {
                    let what = "neither slot of the cursor is valid";
                    self.damage.push((path, what));
                }
            }
        }
        Ok(())
    }

    /// Builds the log. Its positions continue after every position to which any file or consumer may refer. `known` is the content of the
    /// record file as it was found.
    fn finish(
        mut self,
        tail: Option<Tail>,
        blanks: Blanks,
        (known, record_path, losses): (Option<Summary>, PathBuf, Losses),
        options: Options,
    ) -> Result<(Log, Recovered), Error> {
        let published = &mut self.published;
        let is_empty = tail.is_none();
        let (clean, torn_bytes) = tail
            .as_ref()
            .map_or((true, 0), |tail| (tail.clean, tail.torn_bytes));
        let mut next = Position { epoch: 1, seq: 1 };
        let mut keep_time = Time(0);
        if let Some(tail) = &tail {
            (next, keep_time) = (tail.next, tail.keep_time);
            next.epoch += u32::from(!tail.clean);
            published.kept = tail.next.before();
        }
        let mut evidence = Evidence {
            channel: self.directory.channel,
            oldest: published.segments.oldest().map(|oldest| oldest.first),
            newest: published.kept,
            gaps: self.gaps,
            cursors: published.consumers.range(),
            known,
        };
        // If `end` is higher, the log once reached further: its end was removed, or a power cut lost unsynced frames.
        let end = evidence.end();
        if end > published.kept {
            next.epoch = next.epoch.max(end.epoch + 1);
            if is_empty {
                next.seq = end.seq + 1;
                published.kept = end;
            }
        }
        let taken_by_power = match options.sync {
            Sync::Batch => None,
            Sync::Every(_) | Sync::Never => evidence.forgive_unsynced(clean),
        };
        remember(&self.directory, &evidence, &losses);
        let kept = published.kept;
        published.hot.after = kept;
        self.files.keep_restored();
        let newest = published.segments.newest();
        let previous = newest.map_or_else(PreviousSegment::default, |newest| {
            PreviousSegment::new(newest.number, newest.end(), self.newest_ids)
        });
        let recovered = Recovered {
            channel: self.directory.channel,
            epoch: next.epoch,
            clean,
            kept,
            torn_bytes,
            damage: self.damage,
            losses: losses.open(),
            taken_by_power,
            files: self.files.sorted(),
        };
        let mut log = Log {
            directory: self.directory,
            options,
            index: Arc::new(Index::new(self.published, &options)),
            staging: Staging::new(next, keep_time),
            writer: SegmentWriter::after(previous),
            blanks,
            repeats: self.repeats,
            files: self.files,
            health: Health::default(),
            record: ChannelRecord::new(record_path, self.summary),
            losses: Arc::new(losses),
        };
        log.keep_record()?;
        Ok((log, recovered))
    }
}

/// Adds missing positions to the list of losses, where they stay until an operator accepts them.
fn remember(directory: &LogDirectory, evidence: &Evidence, losses: &Losses) {
    let replaced = evidence.known.filter(|known| {
        known.channel != directory.channel
            && !was_moved(&*directory.disk, &directory.path, known.channel)
    });
    let whole = replaced.map(|known| known.whole_loss());
    for loss in evidence.losses().into_iter().chain(whole) {
        // An error is ignored, because a full disk may have no space for the file. In this case the loss counts for this run, and the next
        // start finds it again.
        let _ = losses.add(loss);
    }
}

/// The numbers of the id files whose segments were released. A power cut may restore older segments, so segments with lower numbers may
/// exist. An id file with a higher number than the newest segment is a leftover, because the newest segment is never released.
fn orphaned_id_files(found: &[SegmentFile], names: &[String]) -> BTreeSet<u64> {
    let numbers: BTreeSet<u64> = found.iter().map(|segment| segment.number).collect();
    let newest = numbers.last().copied().unwrap_or(u64::MAX);
    names
        .iter()
        .filter_map(|name| number_in(name, ".ids"))
        .filter(|number| *number < newest && !numbers.contains(number))
        .collect()
}
