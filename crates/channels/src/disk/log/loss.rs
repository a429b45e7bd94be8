//! What is missing of a channel, and whether an operator knows it.
//!
//! A start compares what it finds with what it knows: the headers of the segments, the cursors, and the record (record.rs).
//! What is missing stands in a file of text beside the record until an operator accepts it, and after that as accepted, so
//! that it is not reported again as long as its trace shows:
//!
//! ```text
//! millstream losses 2
//! open newest 8f0c... 1.300 1.500 6000        state, kind, channel, after, to, records (about)
//! end 0badc0de                                CRC-32C of all that stands before this line, in hex
//! ```
//!
//! Version 1 had no end. What cannot be read may have been a loss, so it counts as one.

use std::{
    fmt::{self, Write},
    io::{self, IoSlice},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millstream_record::Position;
use millstream_sys::disk::{Disk, Open};

use super::{ChannelId, frame::checksum, record::Known};

const HEAD: &str = "millstream losses 2";
const HEAD_BEFORE: &str = "millstream losses 1\n";
/// Begins the last line.
const END: &str = "end ";
/// The largest file of losses that is read.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Where positions are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The directory of the channel, with everything in it.
    Directory,
    /// The oldest segments.
    Oldest,
    /// Something between two frames that are there.
    Middle,
    /// The newest frames.
    Newest,
    /// Frames that a sink had committed with its data.
    Committed,
    /// Nobody knows: a line of the list of losses cannot be read.
    Unreadable,
}

impl Missing {
    const ALL: [(Self, &str); 6] = [
        (Self::Directory, "directory"),
        (Self::Oldest, "oldest"),
        (Self::Middle, "middle"),
        (Self::Newest, "newest"),
        (Self::Committed, "committed"),
        (Self::Unreadable, "unreadable"),
    ];

    fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(kind, _)| *kind == self);
        found.map_or("", |(_, name)| name)
    }
}

/// Positions that were kept and are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Where they are missing.
    pub missing: Missing,
    /// The channel that held them.
    pub channel: ChannelId,
    /// The position before the first of them.
    pub after: Position,
    /// The last of them.
    pub to: Position,
    /// How many records they held, about; 0 if that is not known.
    pub records: u64,
}

impl Loss {
    /// How many positions, and so batches, that is.
    pub fn batches(&self) -> u64 {
        self.to.seq.saturating_sub(self.after.seq)
    }

    /// Whether this says nothing that `other` does not say.
    fn is_in(&self, other: &Self) -> bool {
        let is_known = other.missing != Missing::Unreadable;
        is_known
            && self.channel == other.channel
            && self.after >= other.after
            && self.to <= other.to
    }

    /// A line of the list of losses that cannot be read.
    fn unreadable() -> Self {
        Self {
            missing: Missing::Unreadable,
            channel: ChannelId([0; 16]),
            after: Position::default(),
            to: Position::default(),
            records: 0,
        }
    }

    fn parse(line: &str) -> Option<(bool, Self)> {
        let mut words = line.split_whitespace();
        let accepted = match words.next()? {
            "open" => false,
            "accepted" => true,
            _ => return None,
        };
        let name = words.next()?;
        let (missing, _) = Missing::ALL.iter().find(|(_, known)| *known == name)?;
        let channel = u128::from_str_radix(words.next()?, 16).ok()?;
        let loss = Self {
            missing: *missing,
            channel: ChannelId(channel.to_be_bytes()),
            after: position(words.next()?)?,
            to: position(words.next()?)?,
            records: words.next()?.parse().ok()?,
        };
        Some((accepted, loss))
    }
}

/// Whether a list ends with the checksum of what is before it.
fn is_sealed(text: &str) -> bool {
    let Some((body, crc)) = text
        .strip_suffix('\n')
        .and_then(|text| text.rsplit_once(END))
    else {
        return false;
    };
    body.starts_with(HEAD) && u32::from_str_radix(crc, 16) == Ok(checksum(body.as_bytes()))
}

fn position(text: &str) -> Option<Position> {
    let (epoch, seq) = text.split_once('.')?;
    Some(Position {
        epoch: epoch.parse().ok()?,
        seq: seq.parse().ok()?,
    })
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (after, to) = (self.after, self.to);
        let place = match self.missing {
            Missing::Directory => {
                write!(f, "the directory of channel {} is missing: ", self.channel)?;
                if self.to == Position::default() {
                    return f.write_str("how much it held is not known");
                }
                if self.batches() == 0 {
                    return write!(
                        f,
                        "all that it held, up to {to}, was settled by its consumers"
                    );
                }
                "at the last note of it, not every consumer had settled them"
            }
            Missing::Oldest => "the oldest segments are missing",
            Missing::Middle => "they stood between frames that are there",
            Missing::Newest if self.batches() == 0 => {
                return write!(
                    f,
                    "all segments are missing; everything in them, up to {to}, was settled"
                );
            }
            Missing::Newest => "the end of the log is missing",
            Missing::Committed => "a sink has committed more than the channel holds",
            Missing::Unreadable => {
                return f.write_str(
                    "the list of losses beside the record of the channel is damaged: a loss that it named may be missing from it",
                );
            }
        };
        write!(
            f,
            "the positions after {after} up to {to} are missing, {} batches",
            self.batches()
        )?;
        if self.records > 0 {
            write!(f, " with about {} records", self.records)?;
        }
        write!(f, " ({place})")
    }
}

/// What is known of a log from outside, and what is there of it.
pub(super) struct Look {
    pub(super) channel: ChannelId,
    /// The position of the oldest frame that is there or may come, if there is a segment.
    pub(super) oldest: Option<Position>,
    /// The newest position that is there.
    pub(super) newest: Position,
    /// Positions that are missing between them: after, to.
    pub(super) gaps: Vec<(Position, Position)>,
    /// The lowest and the highest position of all cursors.
    pub(super) cursors: Option<(Position, Position)>,
    pub(super) known: Option<Known>,
}

impl Look {
    /// Where the log ended, as far as anything says.
    pub(super) fn end(&self) -> Position {
        let known = self.known.filter(|known| known.channel == self.channel);
        let known = known.map_or(self.newest, |known| known.end);
        let cursors = self.cursors.map_or(self.newest, |(_, highest)| highest);
        self.newest.max(known).max(cursors)
    }

    /// Under a policy that does not sync each batch a power cut may take what consumers have settled already: that is no
    /// loss to report. Returns how far they had settled, if that is what has happened.
    pub(super) fn take_unsynced(&mut self, clean: bool) -> Option<Position> {
        let (_, highest) = self.cursors.as_mut()?;
        if clean || *highest <= self.newest {
            return None;
        }
        Some(std::mem::replace(highest, self.newest))
    }

    /// What is missing.
    pub(super) fn losses(&self) -> Vec<Loss> {
        let of_this = self.known.filter(|known| known.channel == self.channel);
        let known = of_this.unwrap_or(Known::of(self.channel));
        let mut losses = Vec::new();
        let mut add = |missing, after: Position, to: Position| {
            losses.push(Loss {
                missing,
                channel: self.channel,
                after,
                to,
                records: known.records_in(to.seq.saturating_sub(after.seq)),
            });
        };
        let released = self.cursors.map(|(lowest, _)| lowest);
        if let (Some(oldest), Some(released)) = (self.oldest, released)
            && oldest > released
            && oldest.seq > released.seq + 1
        {
            add(Missing::Oldest, released, oldest.before());
        }
        for (after, to) in &self.gaps {
            // A power cut may bring back a segment that was released, and not the one behind it.
            let after = released.unwrap_or_default().max(*after);
            // Sequence numbers continue over epochs.
            if to.seq > after.seq {
                add(Missing::Middle, after, *to);
            }
        }
        let end = self.end();
        if self.oldest.is_some() && end > self.newest {
            add(Missing::Newest, self.newest, end);
        } else if self.oldest.is_none() && end > Position::default() {
            let after = released.unwrap_or(known.settled);
            add(Missing::Newest, after.min(end), end);
        }
        losses
    }
}

/// The losses of a channel that were found, and which of them an operator has accepted.
pub struct Losses {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    list: Mutex<Vec<(bool, Loss)>>,
}

impl Losses {
    /// Reads them from beside the record at `record`.
    pub(super) fn read(disk: Arc<dyn Disk>, record: &Path) -> io::Result<Self> {
        let path = record.with_extension("losses");
        let mut bytes = Vec::new();
        let exists = match disk.open(&path, Open::Read) {
            Ok(file) => file.read_at(&mut bytes, FILE_BYTES_MAX, 0).map(|_| true)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        let text = String::from_utf8_lossy(&bytes);
        let lines = text.lines().filter(|line| !line.starts_with(END));
        let mut list: Vec<_> = lines.clone().filter_map(Loss::parse).collect();
        let is_all_read = lines.count() == list.len() + 1;
        let is_whole = match text.starts_with(HEAD_BEFORE) {
            true => is_all_read && text.ends_with('\n'),
            false => is_all_read && is_sealed(&text),
        };
        if exists && !is_whole {
            list.push((false, Loss::unreadable()));
        }
        Ok(Self {
            disk,
            path,
            list: Mutex::new(list),
        })
    }

    /// Remembers a loss, unless it is known. What cannot be written counts for this run, and is found again by the next.
    pub fn add(&self, loss: Loss) -> io::Result<()> {
        let mut list = self.lock();
        if list.iter().any(|(_, known)| loss.is_in(known)) {
            return Ok(());
        }
        list.push((false, loss));
        self.write(&list)
    }

    /// Whether a loss is remembered, accepted or not.
    pub(super) fn knows(&self, loss: &Loss) -> bool {
        self.lock().iter().any(|(_, known)| loss.is_in(known))
    }

    /// Those that no operator has accepted.
    pub fn open(&self) -> Vec<Loss> {
        let list = self.lock();
        let open = list.iter().filter(|(accepted, _)| !accepted);
        open.map(|(_, loss)| *loss).collect()
    }

    /// An operator accepts all of them; returns those that were open.
    pub(super) fn accept(&self) -> io::Result<Vec<Loss>> {
        let open = self.open();
        let mut list = self.lock();
        for (accepted, _) in list.iter_mut() {
            *accepted = true;
        }
        if !open.is_empty() {
            self.write(&list)?;
        }
        Ok(open)
    }

    fn write(&self, list: &[(bool, Loss)]) -> io::Result<()> {
        let mut text = format!("{HEAD}\n");
        for (accepted, loss) in list {
            let state = if *accepted { "accepted" } else { "open" };
            let (missing, channel) = (loss.missing.name(), loss.channel);
            let (after, to, records) = (loss.after, loss.to, loss.records);
            // Writing to a string does not fail.
            let _ = writeln!(text, "{state} {missing} {channel} {after} {to} {records}");
        }
        let crc = checksum(text.as_bytes());
        let _ = writeln!(text, "{END}{crc:08x}");
        let new = self.path.with_extension("losses-new");
        match self.disk.remove(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = self.disk.open(&new, Open::Create)?;
        file.write_at(&[IoSlice::new(text.as_bytes())], 0)?;
        file.sync()?;
        self.disk.rename(&new, &self.path)?;
        self.disk
            .sync_directory(self.path.parent().unwrap_or(Path::new(".")))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(bool, Loss)>> {
        // Nothing in here can panic half way, so a poisoned lock is whole.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
