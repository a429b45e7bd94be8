//! Access to a channel from outside, for the commands `millstream channel ls`, `verify`, `cat`, `skip` and `forget`.
//!
//! Only [`skip`], [`forget`] and [`accept_losses`] change files. They take the channel's lock, except that [`accept_losses`] takes no lock
//! for a channel that is gone. Everything else also works on a channel that is in use. In this case the newest frames may not be visible
//! yet, and segments may be removed while they are read.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_record::{Batch, Position, Time};
use millstream_sys::disk::{Disk, Open};

use super::{
    ChannelId, Error,
    consumers::cursor_name,
    cursor::Cursor,
    directory::{list, read_identity, take_lock, was_moved},
    evidence::Evidence,
    frame::Kind,
    losses::{Loss, Losses},
    record::{Summary, record_path},
    segment::{Segment, number_in},
    survey::open_segment,
    tail::{Resume, resume},
    walk::{Walk, WalkError},
};

/// A segment as the headers describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its number.
    pub number: u64,
    /// Its file.
    pub path: PathBuf,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// The position of its first frame.
    pub first: Position,
    /// The newest keep time before this segment.
    pub since: Time,
    /// Bytes of its frames; `None` for the newest segment, whose end is known only from its frames.
    pub frame_bytes: Option<u64>,
    /// Whether its header is damaged.
    pub header_damaged: bool,
}

/// A batch in the log.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Its position.
    pub position: Position,
    /// Its segment, and the offset in it.
    pub place: (u64, u64),
    /// The number of this part of its group, from 0, and the number of parts.
    pub part: (u32, u32),
    /// The batch.
    pub batch: Batch,
}

/// Damage: from `offset` in `path` up to the next valid frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file of the segment.
    pub path: PathBuf,
    /// Where the damage begins.
    pub offset: u64,
    /// The last position that was read before the damage, if any.
    pub after: Option<Position>,
}

/// An item of [`Frames`].
#[derive(Debug)]
pub enum Seen {
    /// A batch. Only whole groups are yielded.
    Frame(Frame),
    /// Damage. Reading continues after it.
    Damage(Damage),
    /// The end of the log.
    End {
        /// Bytes of a torn tail: incomplete frames that a crash left after the end. They are not part of the log.
        torn_bytes: u64,
        /// Whether the channel was closed cleanly.
        clean: bool,
    },
}

/// A channel's directory, read only.
pub struct Directory {
    /// The id of the channel.
    pub channel: ChannelId,
    /// Its segments, in order.
    pub segments: Vec<SegmentInfo>,
    /// Its consumers with their settled positions; `None` if the cursor is damaged.
    pub consumers: Vec<(String, Option<Position>)>,
    opened: Vec<Arc<Segment>>,
}

impl Directory {
    /// Opens the channel in `directory` to read it.
    pub fn open(disk: &dyn Disk, directory: &Path) -> Result<Self, Error> {
        let path = directory.join("channel");
        let Some(channel) = read_identity(disk, &path)? else {
            let names = list(disk, directory).unwrap_or_default();
            let is_one = |name: &String| name == "channel" || number_in(name, ".seg").is_some();
            return Err(match names.iter().any(is_one) {
                true => Error::NoIdentity(path),
                false => Error::NoChannel(directory.to_owned()),
            });
        };
        let names = list(disk, directory)?;
        let (opened, segments) = open_segments(disk, directory, &names, &channel)?;
        let mut consumers = Vec::new();
        for name in &names {
            if let Some(consumer) = name.strip_suffix(".cursor") {
                let path = directory.join(name);
                let cursor = Cursor::open(disk, &path, channel, Open::Read)?;
                let settled = cursor.map(|cursor| cursor.position);
                consumers.push((consumer.to_owned(), settled));
            }
        }
        Ok(Self {
            channel,
            segments,
            consumers,
            opened,
        })
    }

    /// Returns the losses that a start of this channel (in `directory`) would find. `span` is the result of a pass over all frames. If the
    /// channel is in use, returns only gaps between frames, because the oldest and the newest position change meanwhile.
    pub fn missing(
        &self,
        disk: &dyn Disk,
        directory: &Path,
        span: &Span,
    ) -> Result<Vec<Loss>, Error> {
        let record = record_path(directory);
        let known = Summary::read(disk, &record)?.summary();
        let settled = self.consumers.iter().filter_map(|(_, settled)| *settled);
        let empty = self.segments.last().map(|last| last.first.before());
        let mut evidence = Evidence {
            channel: self.channel,
            oldest: self.segments.first().map(|oldest| oldest.first),
            newest: span.newest.max(empty).unwrap_or_default(),
            gaps: span.gaps.clone(),
            cursors: settled.clone().min().zip(settled.max()),
            known,
        };
        if is_in_use(disk, directory)? {
            (evidence.cursors, evidence.known) = (None, None);
        }
        Ok(evidence.losses())
    }

    /// Reads through the log, beginning with the first frame after `after`.
    pub fn read(&self, after: Position) -> Frames<'_> {
        self.read_from(self.segment_of(after), after)
    }

    /// The first and the last position; `None` if there is no batch.
    pub fn span(&self) -> Result<Option<(Position, Position)>, Error> {
        let mut span: Option<(Position, Position)> = None;
        for at in (0..self.segments.len()).rev() {
            // The newest segment with a frame holds the last position, the oldest segment with a frame holds the first.
            if at > 0 && span.is_some() {
                continue;
            }
            let mut positions = Positions(self.read_from(at, Position::default()));
            let Some(first) = positions.next().transpose()? else {
                continue;
            };
            let last = match span {
                Some((_, last)) => last,
                None => positions.try_fold(first, |_, next| next)?,
            };
            span = Some((first, last));
        }
        Ok(span)
    }

    /// The last position in the log at or before `position`, and the first position after `position`.
    pub fn around(
        &self,
        position: Position,
    ) -> Result<(Option<Position>, Option<Position>), Error> {
        let mut before = None;
        for next in Positions(self.read_from(self.segment_of(position), Position::default())) {
            match next? {
                next if next > position => return Ok((before, Some(next))),
                next => before = Some(next),
            }
        }
        Ok((before, None))
    }

    /// The index of the last segment that begins at or before a position. All frames after the position are in this segment or in a later
    /// one.
    fn segment_of(&self, position: Position) -> usize {
        let begins = |segment: &SegmentInfo| segment.first <= position;
        let behind = self.segments.iter().take_while(|segment| begins(segment));
        behind.count().saturating_sub(1)
    }

    fn read_from(&self, at: usize, after: Position) -> Frames<'_> {
        Frames {
            directory: self,
            after,
            at,
            walk: None,
            group: VecDeque::new(),
            whole: 0,
            last: None,
            torn_bytes: 0,
            clean: false,
            ended: false,
        }
    }
}

/// The positions that a pass over all frames has seen.
#[derive(Clone, Debug, Default)]
pub struct Span {
    /// The newest position.
    pub newest: Option<Position>,
    /// Gaps between these positions. Each entry holds the last position before the gap, and the last missing position.
    pub gaps: Vec<(Position, Position)>,
}

impl Span {
    /// Notes the position of the next frame.
    pub fn see(&mut self, position: Position) {
        if let Some(last) = self.newest
            && position.seq > last.seq + 1
        {
            self.gaps.push((last, position.before()));
        }
        self.newest = Some(position);
    }
}

/// Whether a process has the channel open.
fn is_in_use(disk: &dyn Disk, directory: &Path) -> Result<bool, Error> {
    let path = directory.join("lock");
    let tried = match disk.open(&path, Open::Read) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        opened => opened.and_then(|lock| lock.try_lock()),
    };
    tried
        .map(|free| !free)
        .map_err(|error| Error::disk("checking the lock", &path, error))
}

/// The losses of the channel in `directory` that no operator has accepted: those in the channel's list, and those in `found` that the list
/// does not contain. The directory need not exist.
pub fn unaccepted(
    disk: Arc<dyn Disk>,
    directory: &Path,
    found: Vec<Loss>,
) -> Result<Vec<Loss>, Error> {
    let losses = read_losses(disk, directory)?;
    let mut unaccepted = losses.open();
    unaccepted.extend(found.into_iter().filter(|loss| !losses.knows(loss)));
    Ok(unaccepted)
}

/// Returns the loss of the whole channel in `directory`. The channel is lost if it has a record file, but the directory has no valid file
/// `channel`. Returns `None` if the channel is not lost, or was only moved.
pub fn gone(disk: &dyn Disk, directory: &Path) -> Result<Option<Loss>, Error> {
    let record = record_path(directory);
    let known = Summary::read(disk, &record)?.summary();
    let there = read_identity(disk, &directory.join("channel"))?;
    let gone = known.filter(|known| there.is_none() && !was_moved(disk, directory, known.channel));
    Ok(gone.map(|known| known.whole_loss()))
}

fn read_losses(disk: Arc<dyn Disk>, directory: &Path) -> Result<Losses, Error> {
    Losses::read(disk, &record_path(directory))
}

/// Accepts all losses of the channel in `directory`, so that a start does not report them any more. The channel must not be in use.
/// Returns the losses that were not accepted before.
pub fn accept_losses(disk: Arc<dyn Disk>, directory: &Path) -> Result<Vec<Loss>, Error> {
    let losses = read_losses(Arc::clone(&disk), directory)?;
    let (missing, _lock) = match gone(&*disk, directory)? {
        Some(gone) => (vec![gone], None),
        None => {
            let found = Directory::open(&*disk, directory)?;
            let mut span = Span::default();
            for seen in found.read(Position::default()) {
                if let Seen::Frame(frame) = seen? {
                    span.see(frame.position);
                }
            }
            // The losses are looked up before the lock is taken, because a locked channel counts as in use.
            let missing = found.missing(&*disk, directory, &span)?;
            (missing, Some(take_lock(&*disk, directory)?))
        }
    };
    for loss in missing {
        losses.add(loss)?;
    }
    losses.accept()
}

/// Opens all segments. Sets the end of a segment if the header of the next segment names this end.
fn open_segments(
    disk: &dyn Disk,
    directory: &Path,
    names: &[String],
    channel: &ChannelId,
) -> Result<(Vec<Arc<Segment>>, Vec<SegmentInfo>), Error> {
    let mut all = Vec::new();
    for name in names {
        if let Some(number) = number_in(name, ".seg") {
            let path = directory.join(name);
            all.extend(open_segment(disk, path, number, channel, Open::Read)?);
        }
    }
    all.sort_by_key(|found| found.number);
    let (mut opened, mut segments): (Vec<Arc<Segment>>, Vec<SegmentInfo>) = Default::default();
    for found in all {
        let number = found.number;
        if let (Some(header), Some(last)) = (&found.header, opened.last())
            && last.number + 1 == number
            && let Some(before) = segments.last_mut()
        {
            let end = header.previous_end.min(last.bytes());
            last.set_end(end);
            before.frame_bytes = Some(end.saturating_sub(last.start));
        }
        segments.push(SegmentInfo {
            number,
            path: found.path.clone(),
            file_bytes: found.bytes,
            first: found.first,
            since: found.keep_time,
            frame_bytes: None,
            header_damaged: found.header.is_none(),
        });
        let bytes = found.bytes;
        opened.push(Arc::new(found.into_segment(bytes)));
    }
    Ok((opened, segments))
}

/// Reads through a log.
pub struct Frames<'a> {
    directory: &'a Directory,
    after: Position,
    at: usize,
    walk: Option<Walk<'a>>,
    /// Frames that were read. The first `whole` of them belong to complete groups.
    group: VecDeque<Frame>,
    whole: usize,
    last: Option<Position>,
    torn_bytes: u64,
    clean: bool,
    ended: bool,
}

impl Iterator for Frames<'_> {
    type Item = Result<Seen, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            if self.whole > 0 {
                self.whole -= 1;
                match self.group.pop_front() {
                    Some(frame) if frame.position > self.after => {
                        return Some(Ok(Seen::Frame(frame)));
                    }
                    _ => continue,
                }
            }
            let Some(segment) = self.directory.opened.get(self.at) else {
                self.ended = true;
                return Some(Ok(Seen::End {
                    torn_bytes: self.torn_bytes,
                    clean: self.clean,
                }));
            };
            match self.step(segment) {
                Ok(None) => {}
                Ok(Some(seen)) => return Some(Ok(seen)),
                Err(error) => {
                    self.ended = true;
                    return Some(Err(Error::disk("reading", &segment.path, error)));
                }
            }
        }
        None
    }
}

impl<'a> Frames<'a> {
    /// Reads one frame of a segment, or its end.
    fn step(&mut self, segment: &'a Segment) -> std::io::Result<Option<Seen>> {
        let channel = self.directory.channel;
        let closed = self.directory.segments[self.at].frame_bytes.is_some();
        let walk = self
            .walk
            .get_or_insert_with(|| Walk::new(segment, channel, segment.end()));
        let offset = walk.offset();
        match walk.next_whole() {
            Ok(Some(found)) if found.head.kind == Kind::Batch => {
                let (position, ends_group) = (found.head.position, found.head.ends_group());
                let part = (found.head.part, found.head.parts);
                if let Some(batch) = found.head.batch(found.body) {
                    self.group.push_back(Frame {
                        position,
                        place: (segment.number, offset),
                        part,
                        batch,
                    });
                }
                self.last = Some(position);
                if ends_group {
                    self.whole = self.group.len();
                }
            }
            Ok(Some(end)) => {
                self.clean = end.head.kind == Kind::CleanEnd;
                self.next_segment();
            }
            Ok(None) => self.next_segment(),
            Err(WalkError::Disk(error)) => return Err(error),
            Err(WalkError::Misfit) => {
                let damage = Damage {
                    path: segment.path.clone(),
                    offset,
                    after: self.last,
                };
                match resume(walk, closed)? {
                    Resume::At(offset) => walk.skip_to(offset),
                    Resume::Torn(_) if closed => self.next_segment(),
                    Resume::Torn(bytes) => {
                        self.torn_bytes = bytes;
                        self.next_segment();
                        return Ok(None);
                    }
                }
                return Ok(Some(Seen::Damage(damage)));
            }
        }
        Ok(None)
    }

    fn next_segment(&mut self) {
        self.walk = None;
        self.at += 1;
        // A group never continues in another segment.
        self.group.clear();
    }
}

/// The positions of the batches.
struct Positions<'a>(Frames<'a>);

impl Iterator for Positions<'_> {
    type Item = Result<Position, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.find_map(|seen| match seen {
            Ok(Seen::Frame(frame)) => Some(Ok(frame.position)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        })
    }
}

/// Moves the cursor of a consumer forward to `to`, after passing every skipped batch to `each`. The channel must not be in use. If
/// `each` fails, nothing changes. Afterwards a sink cannot resume before the cursor, even if it stores its own position. Returns the number
/// of skipped batches.
pub fn skip<E: From<Error>>(
    disk: &dyn Disk,
    directory: &Path,
    consumer: &str,
    to: Position,
    mut each: impl FnMut(&Frame) -> Result<(), E>,
) -> Result<u64, E> {
    let found = Directory::open(disk, directory)?;
    let _lock = take_lock(disk, directory)?;
    let path = directory.join(cursor_name(consumer));
    found.check_consumer(consumer)?;
    let Some(mut cursor) = Cursor::open(disk, &path, found.channel, Open::Write)? else {
        return Err(Error::Consumer(consumer.to_owned()).into());
    };
    let mut skipped = 0;
    for seen in found.read(cursor.position) {
        if let Seen::Frame(frame) = seen? {
            if frame.position > to {
                break;
            }
            each(&frame)?;
            skipped += 1;
        }
    }
    if to > cursor.position {
        cursor.pass_on(to)?;
    }
    Ok(skipped)
}

impl Directory {
    /// Fails if the channel has no such consumer. The error names the consumers that it has.
    pub fn check_consumer(&self, consumer: &str) -> Result<(), Error> {
        let known: Vec<String> = self
            .consumers
            .iter()
            .map(|(name, _)| name.clone())
            .collect();
        match known.iter().any(|name| name == consumer) {
            true => Ok(()),
            false => Err(Error::UnknownConsumer {
                name: consumer.to_owned(),
                known,
            }),
        }
    }
}

/// Removes the cursor of a consumer: the next start drops batches that only this consumer has not settled. The channel must not be
/// in use. Fails if a sink was configured to read for the consumer at the last start, unless `force` is set.
pub fn forget(disk: &dyn Disk, directory: &Path, consumer: &str, force: bool) -> Result<(), Error> {
    let found = Directory::open(disk, directory)?;
    let _lock = take_lock(disk, directory)?;
    found.check_consumer(consumer)?;
    let path = directory.join(cursor_name(consumer));
    if let Some(cursor) = Cursor::open(disk, &path, found.channel, Open::Read)?
        && cursor.is_configured()
        && !force
    {
        return Err(Error::Configured(consumer.to_owned()));
    }
    let failed = |error| Error::disk("removing a cursor", &path, error);
    disk.remove(&path).map_err(failed)?;
    disk.sync_directory(directory).map_err(failed)
}
