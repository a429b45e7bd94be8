//! The list of a channel's losses, and which of them an operator has accepted.
//!
//! When a channel is opened, missing positions are found (evidence.rs) and added to the list. The list is a file beside the record file
//! of the channel (record.rs), so it survives the loss of the channel's directory. A loss that an operator accepts stays in the list as
//! accepted, so that it is not reported again while the gap is still visible. The file (`millstream_state::WholeFile`) holds an empty
//! line and one line per loss:
//!
//! ```text
//! open newest 8f0c... 1.300 1.500 6000        state, kind, channel, after, to, records (about)
//! ```
//!
//! Versions 1 and 2 were plain text: a first line with the version, and then a line per loss. Version 2 added a last line with a CRC-32C in
//! hex. A line that cannot be read may have been a loss, so it counts as one.

use std::{
    fmt::{self, Write},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millstream_record::Position;
use millstream_state::{Format, WholeFile};
use millstream_sys::{checksum::crc32c, disk::Disk};

use super::{ChannelId, Error};

const FORMAT: Format = Format {
    magic: b"MILLLOSS",
    version: 3,
    bytes_max: 1 << 20,
    remedy: "accept the losses of the channel with `millstream channel forget --accept-loss`",
};
const HEAD_1: &str = "millstream losses 1\n";
const HEAD_2: &str = "millstream losses 2\n";
/// The start of the last line in version 2.
const END: &str = "end ";

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
    /// Positions that a sink has committed together with its data, but whose batches the channel does not have.
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

/// Positions that were kept and are missing now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Where they are missing.
    pub missing: Missing,
    /// The channel that held them.
    pub channel: ChannelId,
    /// The position before the first missing position.
    pub after: Position,
    /// The last missing position.
    pub to: Position,
    /// Approximate number of records at these positions; 0 if it is unknown.
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

/// Whether a list of version 2 ends with the checksum of everything before it.
fn is_sealed(text: &str) -> bool {
    let Some((body, crc)) = text
        .strip_suffix('\n')
        .and_then(|text| text.rsplit_once(END))
    else {
        return false;
    };
    body.starts_with(HEAD_2) && u32::from_str_radix(crc, 16) == Ok(crc32c(body.as_bytes()))
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
pub struct Losses(Mutex<List>);

struct List {
    file: WholeFile,
    /// The losses. Each entry holds whether the loss is accepted, and the loss.
    losses: Vec<(bool, Loss)>,
}

impl Losses {
    /// Reads the list of losses, which is beside the record file `record`.
    pub(super) fn read(disk: Arc<dyn Disk>, record: &Path) -> Result<Self, Error> {
        use millstream_state::Error as StateError;
        let path = record.with_extension("losses");
        let file = WholeFile::new(disk, path.clone(), FORMAT);
        let losses = match file.load(|bytes| Some(salvage(bytes))) {
            Ok(body) => body.as_deref().map_or_else(Vec::new, parse),
            Err(StateError::Damaged { .. } | StateError::TooLarge { .. }) => {
                vec![(false, Loss::unreadable())]
            }
            Err(error) => {
                return Err(Error::state(
                    "reading the losses of the channel",
                    &path,
                    error,
                ));
            }
        };
        Ok(Self(Mutex::new(List { file, losses })))
    }

    /// Adds a loss, unless it is known. If the file cannot be written, the loss counts for this run, and the next start finds it
    /// again.
    pub fn add(&self, loss: Loss) -> Result<(), Error> {
        let mut list = self.lock();
        if list.losses.iter().any(|(_, known)| loss.is_in(known)) {
            return Ok(());
        }
        list.losses.push((false, loss));
        list.store()
    }

    /// Whether a loss is in the list, accepted or not.
    pub(super) fn knows(&self, loss: &Loss) -> bool {
        let list = self.lock();
        list.losses.iter().any(|(_, known)| loss.is_in(known))
    }

    /// The losses that no operator has accepted.
    pub fn open(&self) -> Vec<Loss> {
        let list = self.lock();
        let open = list.losses.iter().filter(|(accepted, _)| !accepted);
        open.map(|(_, loss)| *loss).collect()
    }

    /// Accepts all losses. Returns those that were not accepted before.
    pub(super) fn accept(&self) -> Result<Vec<Loss>, Error> {
        let open = self.open();
        let mut list = self.lock();
        for (accepted, _) in &mut list.losses {
            *accepted = true;
        }
        if !open.is_empty() {
            list.store()?;
        }
        Ok(open)
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        // No holder can panic in the middle of a change, so the data is consistent even if the lock is poisoned.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl List {
    fn store(&mut self) -> Result<(), Error> {
        let body = encode(&self.losses);
        let path = self.file.path().to_owned();
        self.file
            .store(body.as_bytes())
            .map_err(|error| Error::state("writing the losses of the channel", &path, error))
    }
}

/// The body of the file. It begins with an empty line. Otherwise the first loss would be on one line with the binary header, and could not
/// be read from a damaged file.
fn encode(losses: &[(bool, Loss)]) -> String {
    let mut text = "\n".to_owned();
    for (accepted, loss) in losses {
        let state = if *accepted { "accepted" } else { "open" };
        let (missing, channel) = (loss.missing.name(), loss.channel);
        let (after, to, records) = (loss.after, loss.to, loss.records);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{state} {missing} {channel} {after} {to} {records}");
    }
    text
}

fn parse(body: &[u8]) -> Vec<(bool, Loss)> {
    let text = String::from_utf8_lossy(body);
    let lines = text.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| Loss::parse(line).unwrap_or((false, Loss::unreadable())))
        .collect()
}

/// Converts a list of version 1 or 2, or the readable lines of a damaged list, to the current format.
fn salvage(bytes: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.lines().filter(|line| !line.starts_with(END));
    let mut losses: Vec<_> = lines.clone().filter_map(Loss::parse).collect();
    let is_all_read = lines.count() == losses.len() + 1;
    let is_whole = match text.starts_with(HEAD_1) {
        true => text.ends_with('\n'),
        false => is_sealed(&text),
    };
    if !is_all_read || !is_whole {
        losses.push((false, Loss::unreadable()));
    }
    encode(&losses).into_bytes()
}

#[cfg(test)]
mod tests {
    use std::{io::IoSlice, path::PathBuf};

    use millstream_sys::disk::Open;
    use millstream_testkit::{
        SimulatedDisk,
        trial::{DIRECTORY, DurableState, Trial},
    };

    use super::*;
    use crate::disk::log::tests::put_golden;

    fn read(disk: &SimulatedDisk) -> Losses {
        Losses::read(Arc::new(disk.clone()), Path::new("/buffer.record")).unwrap()
    }

    fn loss() -> Loss {
        let seq = |seq| Position { epoch: 1, seq };
        Loss {
            missing: Missing::Newest,
            channel: ChannelId(0x8e4a_ffc2_d663_8c21_848c_9124_6a10_6edc_u128.to_be_bytes()),
            after: seq(1),
            to: seq(1),
            records: 0,
        }
    }

    #[test]
    fn lists_of_versions_1_and_2_are_read_and_continue_in_version_3() {
        let path = PathBuf::from("/buffer.losses");
        for version in [1, 2] {
            let disk = SimulatedDisk::new(1);
            if version == 2 {
                put_golden(&disk, &path, "version-3/buffer.losses");
            } else {
                let line = "open newest 8e4affc2d6638c21848c91246a106edc 1.1 1.1 0\n";
                let text = format!("{HEAD_1}{line}");
                let file = disk.open(&path, Open::Create).unwrap();
                file.write_at(&[IoSlice::new(text.as_bytes())], 0).unwrap();
            }
            let losses = read(&disk);
            assert_eq!(losses.open(), [loss()], "version {version}");
            assert_eq!(losses.accept().unwrap(), [loss()]);
            assert_eq!(read(&disk).open(), []);
        }
    }

    #[test]
    fn a_damaged_list_keeps_its_whole_lines_and_counts_as_a_loss() {
        for at in 0..100 {
            let disk = SimulatedDisk::new(1);
            // Three losses, because a damaged line break makes the lines on both sides of it unreadable.
            for channel in [3, 4, 5] {
                let channel = ChannelId([channel; 16]);
                read(&disk).add(Loss { channel, ..loss() }).unwrap();
            }
            if !disk.damage(Path::new("/buffer.losses"), at) {
                break;
            }
            let open = read(&disk).open();
            let is_unreadable = |loss: &Loss| loss.missing == Missing::Unreadable;
            assert!(open.iter().any(is_unreadable), "{at}: {open:?}");
            assert!(open.len() >= 2, "{at}: {open:?}");
        }
    }

    /// The number that [`Trial`] stores is the channel id of the newest loss.
    impl DurableState for Losses {
        fn open(disk: Arc<dyn Disk>) -> Result<Self, String> {
            let record = Path::new(DIRECTORY).join("buffer.record");
            Losses::read(disk, &record).map_err(|error| error.to_string())
        }

        fn number(&self) -> u64 {
            let known = Losses::open(self).into_iter();
            let known = known.filter(|loss| loss.missing != Missing::Unreadable);
            let numbers = known.map(|loss| u128::from_be_bytes(loss.channel.0));
            numbers.max().unwrap_or(0) as u64
        }

        fn advance(&mut self, number: u64) -> Result<(), String> {
            let channel = ChannelId(u128::from(number).to_be_bytes());
            self.add(Loss { channel, ..loss() })
                .map_err(|error| error.to_string())
        }
    }

    #[test]
    fn a_loss_survives_every_crash() {
        Trial::default().run::<Losses>();
    }
}
