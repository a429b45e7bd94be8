//! A channel seen from outside, for the operator: what `millstream channel ls`, `verify`, `cat`, `skip` and `forget` show
//! and do.
//!
//! Nothing here changes a file but [`skip`], [`forget`] and [`accept_losses`], which take the channel's lock. The others may look at a channel that is in
//! use: its newest frames may not be there yet, and segments may go away while they are read.

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
    cursor::{Cursor, CursorFound},
    directory::{list, read_identity, take_lock, was_moved},
    frame::Kind,
    loss::{Look, Loss, Losses},
    record::{Known, record_path},
    segment::{Segment, number_in},
    survey::look,
    tail::{GoOn, go_on},
    walk::{Walk, WalkError},
};

/// A segment as its file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentFound {
    /// Its number.
    pub number: u64,
    /// Its file.
    pub path: PathBuf,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// The position of its first frame.
    pub first: Position,
    /// The newest keep time before it.
    pub since: Time,
    /// Bytes of its frames; `None` for the newest segment, whose end only its frames tell.
    pub frame_bytes: Option<u64>,
    /// Whether its header is damaged.
    pub header_damaged: bool,
}

/// A batch as it stands in the log.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Its position.
    pub position: Position,
    /// The segment it stands in, and where.
    pub place: (u64, u64),
    /// Which part of its group it is, from 0, and of how many.
    pub part: (u32, u32),
    /// The batch.
    pub batch: Batch,
}

/// Damage: from `offset` in `path` on nothing fits, up to the next good frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The segment's file.
    pub path: PathBuf,
    /// Where it begins.
    pub offset: u64,
    /// The last position before it, if any was read.
    pub after: Option<Position>,
}

/// What reading through a log gives.
#[derive(Debug)]
pub enum Seen {
    /// A batch. A group is given whole.
    Frame(Frame),
    /// Damage; reading goes on behind it.
    Damage(Damage),
    /// The log ends here; so many bytes behind its end are a torn tail.
    End {
        /// Bytes of the torn tail; nothing in them counts.
        torn_bytes: u64,
        /// Whether the channel was closed in order.
        clean: bool,
    },
}

/// A channel's directory, read only.
pub struct Directory {
    /// The id of the channel.
    pub channel: ChannelId,
    /// Its segments, in order.
    pub segments: Vec<SegmentFound>,
    /// Its consumers and what they have settled; `None` where the cursor is damaged.
    pub consumers: Vec<(String, Option<Position>)>,
    opened: Vec<Arc<Segment>>,
}

impl Directory {
    /// Looks into a directory.
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
                let position = match Cursor::open(disk, &path, channel, Open::Read)? {
                    CursorFound::Good(cursor) => Some(cursor.position),
                    CursorFound::Damaged => None,
                };
                consumers.push((consumer.to_owned(), position));
            }
        }
        Ok(Self {
            channel,
            segments,
            consumers,
            opened,
        })
    }

    /// What is missing of the channel in `directory`, which is this one: what a start would find, where a pass over all frames has
    /// seen `span`. Of a channel that is in use only what is missing between frames, as its ends move.
    pub fn missing(
        &self,
        disk: &dyn Disk,
        directory: &Path,
        span: &Span,
    ) -> Result<Vec<Loss>, Error> {
        let record = record_path(directory);
        let known = Known::read(disk, &record)
            .map_err(|error| Error::disk("reading the record of the channel", &record, error))?;
        let settled = self.consumers.iter().filter_map(|(_, settled)| *settled);
        let empty = self.segments.last().map(|last| last.first.before());
        let mut look = Look {
            channel: self.channel,
            oldest: self.segments.first().map(|oldest| oldest.first),
            newest: span.newest.max(empty).unwrap_or_default(),
            gaps: span.gaps.clone(),
            cursors: settled.clone().min().zip(settled.max()),
            known,
        };
        if is_in_use(disk, directory)? {
            (look.cursors, look.known) = (None, None);
        }
        Ok(look.losses())
    }

    /// Reads through the log, from the first frame after `after` on.
    pub fn read(&self, after: Position) -> Frames<'_> {
        self.read_from(self.segment_of(after), after)
    }

    /// The first and the last position; `None` if there is no batch.
    pub fn span(&self) -> Result<Option<(Position, Position)>, Error> {
        let mut span: Option<(Position, Position)> = None;
        for at in (0..self.segments.len()).rev() {
            // The last position stands in the newest segment that has one, the first in the oldest.
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

    /// The last position at or before this one, and the first behind it. They are in the log, if there is any.
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

    /// The last segment that begins at or before a position: nothing behind the position stands before it.
    fn segment_of(&self, position: Position) -> usize {
        let begins = |segment: &SegmentFound| segment.first <= position;
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
    /// The newest.
    pub newest: Option<Position>,
    /// What is missing between two of them: after, to.
    pub gaps: Vec<(Position, Position)>,
}

impl Span {
    /// The next frame stands at this position.
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
        .map_err(|error| Error::disk("looking at the lock", &path, error))
}

/// The losses of the channel in `directory` that no operator has accepted: those that are remembered, and those of `found`. Its
/// directory need not be there.
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

/// The loss of the whole channel in `directory`, if its directory is gone or empty and something is known of it.
pub fn gone(disk: &dyn Disk, directory: &Path) -> Result<Option<Loss>, Error> {
    let record = record_path(directory);
    let known = Known::read(disk, &record)
        .map_err(|error| Error::disk("reading the record of the channel", &record, error))?;
    let there = read_identity(disk, &directory.join("channel"))?;
    let gone = known.filter(|known| there.is_none() && !was_moved(disk, directory, known.channel));
    Ok(gone.map(|known| known.directory()))
}

fn read_losses(disk: Arc<dyn Disk>, directory: &Path) -> Result<Losses, Error> {
    let record = record_path(directory);
    Losses::read(disk, &record)
        .map_err(|error| Error::disk("reading the losses of the channel", &record, error))
}

/// An operator accepts everything that is missing of the channel in `directory`: from now on a start does not report it. The
/// channel must not be in use. Returns what was not accepted before.
pub fn accept_losses(disk: Arc<dyn Disk>, directory: &Path) -> Result<Vec<Loss>, Error> {
    let losses = read_losses(Arc::clone(&disk), directory)?;
    let failed = |error| Error::disk("writing the losses of the channel", directory, error);
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
            // Before the lock is taken: the channel counts as in use after that.
            let missing = found.missing(&*disk, directory, &span)?;
            (missing, Some(take_lock(&*disk, directory)?))
        }
    };
    for loss in missing {
        losses.add(loss).map_err(failed)?;
    }
    losses.accept().map_err(failed)
}

/// Opens all segments, each with its end as far as a header tells.
fn open_segments(
    disk: &dyn Disk,
    directory: &Path,
    names: &[String],
    channel: &ChannelId,
) -> Result<(Vec<Arc<Segment>>, Vec<SegmentFound>), Error> {
    let mut all = Vec::new();
    for name in names {
        if let Some(number) = number_in(name, ".seg") {
            all.extend(look(
                disk,
                directory.join(name),
                number,
                channel,
                Open::Read,
            )?);
        }
    }
    all.sort_by_key(|found| found.number);
    let (mut opened, mut segments): (Vec<Arc<Segment>>, Vec<SegmentFound>) = Default::default();
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
        segments.push(SegmentFound {
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
    /// Frames read; the first `whole` are of whole groups.
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
    /// Reads one frame of a segment, or finds its end.
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
                match go_on(walk, closed)? {
                    GoOn::At(offset) => walk.skip_to(offset),
                    GoOn::Torn(_) if closed => self.next_segment(),
                    GoOn::Torn(bytes) => {
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
        // A group never goes on in another segment.
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

/// Moves the cursor of a consumer on to `to` and gives `each` every batch that it passes over first. The channel must not
/// be in use. If `each` fails, nothing is changed. From then on a sink cannot go back behind the cursor. Returns how many
/// batches were passed over.
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
    check_known(&found, consumer)?;
    let CursorFound::Good(mut cursor) = Cursor::open(disk, &path, found.channel, Open::Write)?
    else {
        return Err(Error::Consumer(consumer.to_owned()).into());
    };
    let mut passed = 0;
    for seen in found.read(cursor.position) {
        if let Seen::Frame(frame) = seen? {
            if frame.position > to {
                break;
            }
            each(&frame)?;
            passed += 1;
        }
    }
    if to > cursor.position {
        cursor
            .pass_on(to)
            .map_err(|error| Error::disk("committing the cursor", &path, error))?;
    }
    Ok(passed)
}

fn check_known(found: &Directory, consumer: &str) -> Result<(), Error> {
    let known: Vec<String> = found
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

/// Removes a consumer's cursor: what only it has not settled is given up at the next start. The channel must not be in use.
/// A consumer for which a sink read after the last start is forgotten only by `force`.
pub fn forget(disk: &dyn Disk, directory: &Path, consumer: &str, force: bool) -> Result<(), Error> {
    let found = Directory::open(disk, directory)?;
    let _lock = take_lock(disk, directory)?;
    check_known(&found, consumer)?;
    let path = directory.join(cursor_name(consumer));
    if let CursorFound::Good(cursor) = Cursor::open(disk, &path, found.channel, Open::Read)?
        && cursor.is_configured()
        && !force
    {
        return Err(Error::Configured(consumer.to_owned()));
    }
    let failed = |error| Error::disk("removing a cursor", &path, error);
    disk.remove(&path).map_err(failed)?;
    disk.sync_directory(directory).map_err(failed)
}
