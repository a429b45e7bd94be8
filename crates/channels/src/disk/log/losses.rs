//! The list of everything that is missing of a channel, and whether an operator has accepted it.
//!
//! A start finds out what is missing (evidence.rs) and adds it to a text file beside the record of the channel. An operator
//! accepts a loss; it stays in the list as accepted, so that it is not reported again while its trace is still visible:
//!
//! ```text
//! millstream losses 2
//! open newest 8f0c... 1.300 1.500 6000        state, kind, channel, after, to, records (about)
//! end 0badc0de                                CRC-32C of everything before this line, in hex
//! ```
//!
//! Version 1 had no last line. A line that cannot be read may have been a loss, so it counts as one.

use std::{
    fmt::{self, Write},
    io::{self, IoSlice},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millstream_record::Position;
use millstream_sys::disk::{Disk, Open};

use super::{ChannelId, frame::checksum};

const HEAD: &str = "millstream losses 2";
const HEAD_BEFORE: &str = "millstream losses 1\n";
/// The start of the last line.
const END: &str = "end ";
/// At most this much of the file is read.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Where positions are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The directory of the channel, with everything in it.
    Directory,
    /// The oldest segments.
    Oldest,
    /// Between two frames that exist.
    Middle,
    /// The newest frames.
    Newest,
    /// Frames that a sink has committed with its data.
    Committed,
    /// Unknown: a line of the list of losses cannot be read.
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
        let entry = Self::ALL.iter().find(|(missing, _)| *missing == self);
        entry.map_or("", |(_, name)| name)
    }
}

/// Positions that were kept and are gone.
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
    /// About how many records they held; 0 if that is unknown.
    pub records: u64,
}

impl Loss {
    /// The number of positions, and so of batches.
    pub fn batches(&self) -> u64 {
        self.to.seq.saturating_sub(self.after.seq)
    }

    /// Whether `other` covers this loss.
    fn is_in(&self, other: &Self) -> bool {
        let is_known = other.missing != Missing::Unreadable;
        is_known
            && self.channel == other.channel
            && self.after >= other.after
            && self.to <= other.to
    }

    /// The loss for a line of the list that cannot be read.
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

/// Whether a list ends with the checksum of everything before it.
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
                    return f.write_str("how much it held is unknown");
                }
                if self.batches() == 0 {
                    return write!(f, "its consumers had settled everything in it, up to {to}");
                }
                "not every consumer had settled them when they were last recorded"
            }
            Missing::Oldest => "the oldest segments are missing",
            Missing::Middle => "they were between frames that exist",
            Missing::Newest if self.batches() == 0 => {
                return write!(
                    f,
                    "all segments are missing; consumers had settled everything in them, up to {to}"
                );
            }
            Missing::Newest => "the end of the log is missing",
            Missing::Committed => "a sink has committed more than the channel holds",
            Missing::Unreadable => {
                return f.write_str(
                    "the list of losses beside the record of the channel is damaged and may lack a loss",
                );
            }
        };
        write!(
            f,
            "the positions after {after} up to {to} are missing: {} batches",
            self.batches()
        )?;
        if self.records > 0 {
            write!(f, " with about {} records", self.records)?;
        }
        write!(f, " ({place})")
    }
}

/// The losses of a channel, and which of them an operator has accepted.
pub struct Losses {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    list: Mutex<Vec<(bool, Loss)>>,
}

impl Losses {
    /// Reads the list beside the record at the path `record`.
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

    /// Adds a loss, unless it is known. If it cannot be written, it counts for this run, and the next start finds it again.
    pub fn add(&self, loss: Loss) -> io::Result<()> {
        let mut list = self.lock();
        if list.iter().any(|(_, known)| loss.is_in(known)) {
            return Ok(());
        }
        list.push((false, loss));
        self.write(&list)
    }

    /// Whether a loss is in the list, accepted or not.
    pub(super) fn knows(&self, loss: &Loss) -> bool {
        self.lock().iter().any(|(_, known)| loss.is_in(known))
    }

    /// The losses that no operator has accepted.
    pub fn open(&self) -> Vec<Loss> {
        let list = self.lock();
        let open = list.iter().filter(|(accepted, _)| !accepted);
        open.map(|(_, loss)| *loss).collect()
    }

    /// Accepts all losses. Returns those that were not accepted before.
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
            // Writing to a string cannot fail.
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
        // No holder can panic halfway through a change, so a poisoned lock guards whole data.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
