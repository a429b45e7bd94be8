//! The record file of a channel, which survives the loss of the channel's directory. The code in this directory also calls this file the
//! record of the channel.
//!
//! For the channel in `DATA_DIR/channels/NAME` it is `DATA_DIR/channel-records/NAME.record`. For a channel elsewhere it is `NAME.record`
//! beside the channel's directory. The file has two slots (`millstream_state::Slots`), each of which holds:
//!
//! ```text
//! offset bytes
//!      0  16   channel id
//!     16  12   end: epoch (4) and seq (8); everything up to it was durable
//!     28  12   settled: the position that every consumer had settled
//!     40   8   number of batches that were counted
//!     48   8   number of records in these batches
//! ```
//!
//! `end` is a lower bound. A start and a clean stop store it with a sync. Every commit that syncs a segment writes `end` without syncing
//! the record file. So after a kill, `end` is the end of the log at its last sync. After a power cut, it is the last value that the
//! system had written to the disk. The two counts give the average number of records in a batch, from which the size of a loss is
//! estimated.

use std::{
    io,
    path::{Path, PathBuf},
};

use millstream_record::Position;
use millstream_state::{Fields, Format, Slots, Stored};
use millstream_sys::disk::{Disk, Open};

use super::{
    ChannelId, Error,
    losses::{Loss, Missing},
    seal::{self, SEAL_BYTES, Sealed},
};

const FORMAT: Format = Format {
    magic: b"MILLREC\0",
    version: 4,
    bytes_max: 8192,
    remedy: "remove it; without it a start may not see that the end of the log is missing",
};
/// Bytes of a slot up to version 3: seal, channel id (16), generation (8; incremented by every store), end (12), settled (12), 0 (16),
/// batches (8), records (8).
const OLD_SLOT_BYTES: usize = 96;
/// The directory of the channels in a data_dir.
const CHANNELS: &str = "channels";
/// The directory of the record files of these channels.
const RECORDS: &str = "channel-records";

/// The path of the record file of the channel in `directory`.
pub(super) fn record_path(directory: &Path) -> PathBuf {
    // The name and the parent of a relative path such as `.` are not those of the directory.
    let absolute = std::path::absolute(directory);
    let directory = absolute.as_deref().unwrap_or(directory);
    let name = directory.file_name().unwrap_or_default();
    let records = match directory.parent() {
        Some(parent) if parent.ends_with(CHANNELS) => parent.with_file_name(RECORDS),
        Some(parent) => parent.to_owned(),
        None => PathBuf::new(),
    };
    records.join(format!("{}.record", name.to_string_lossy()))
}

/// The content of a record file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) channel: ChannelId,
    /// Everything up to this position was durable.
    pub(super) end: Position,
    /// Every consumer had settled everything up to this position.
    pub(super) settled: Position,
    /// Batches that were counted.
    batches: u64,
    /// Records in these batches.
    records: u64,
}

impl Summary {
    /// The summary of a channel of which only the id is known.
    pub(super) fn of(channel: ChannelId) -> Self {
        Self {
            channel,
            end: Position::default(),
            settled: Position::default(),
            batches: 0,
            records: 0,
        }
    }

    /// Whether no batch was counted yet.
    pub(super) fn is_uncounted(&self) -> bool {
        self.batches == 0
    }

    /// Counts a batch.
    pub(super) fn count(&mut self, records: u32) {
        self.batches += 1;
        self.records += u64::from(records);
    }

    /// The approximate number of records in this number of batches.
    pub(super) fn records_in(&self, batches: u64) -> u64 {
        let product = u128::from(batches) * u128::from(self.records);
        u64::try_from(product / u128::from(self.batches.max(1))).unwrap_or(u64::MAX)
    }

    /// The loss of the whole channel.
    pub(super) fn whole_loss(&self) -> Loss {
        let after = self.settled.min(self.end);
        Loss {
            missing: Missing::Directory,
            channel: self.channel,
            after,
            to: self.end,
            records: self.records_in(self.end.seq.saturating_sub(after.seq)),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(56);
        out.extend_from_slice(&self.channel.0);
        for position in [self.end, self.settled] {
            out.extend_from_slice(&position.epoch.to_le_bytes());
            out.extend_from_slice(&position.seq.to_le_bytes());
        }
        out.extend_from_slice(&self.batches.to_le_bytes());
        out.extend_from_slice(&self.records.to_le_bytes());
        out
    }

    fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(body);
        let channel = ChannelId(fields.array()?);
        let mut position = || {
            let (epoch, seq) = (fields.u32()?, fields.u64()?);
            Some(Position { epoch, seq })
        };
        let (end, settled) = (position()?, position()?);
        Some(Self {
            channel,
            end,
            settled,
            batches: fields.u64()?,
            records: fields.u64()?,
        })
    }

    /// Reads the record file at `path`.
    pub(super) fn read(disk: &dyn Disk, path: &Path) -> Result<RecordFile, Error> {
        match Slots::open(disk, path, FORMAT, Open::Read, convert) {
            Ok((_, Stored::Body(body))) => {
                Ok(Self::decode(&body).map_or(RecordFile::Damaged, RecordFile::Holds))
            }
            Ok((_, Stored::Damaged)) => Ok(RecordFile::Damaged),
            Ok((_, Stored::Nothing)) => Ok(RecordFile::Nothing),
            Err(error) => match Error::state("reading the record of the channel", path, error) {
                Error::Disk { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                    Ok(RecordFile::Nothing)
                }
                error => Err(error),
            },
        }
    }
}

/// The state of the file at the path of a record file.
pub(super) enum RecordFile {
    Holds(Summary),
    /// The file is missing, or a crash has interrupted its creation.
    Nothing,
    Damaged,
}

impl RecordFile {
    /// The content, if there is any.
    pub(super) fn summary(&self) -> Option<Summary> {
        match self {
            Self::Holds(summary) => Some(*summary),
            Self::Nothing | Self::Damaged => None,
        }
    }
}

/// Converts a slot of an older version. Returns its generation (see `millstream_state`) and its body in the current format.
fn convert(slot: &[u8]) -> Option<(u64, Vec<u8>)> {
    let slot = slot.get(..OLD_SLOT_BYTES)?;
    let Sealed::Whole = seal::check(FORMAT.magic, slot) else {
        return None;
    };
    let mut fields = Fields::new(&slot[SEAL_BYTES..]);
    let channel: [u8; 16] = fields.array()?;
    let generation = fields.u64()?;
    let positions = fields.take(24)?;
    fields.take(16)?;
    let counts = fields.take(16)?;
    Some((generation, [&channel[..], positions, counts].concat()))
}

/// The record file of an open channel.
pub(super) struct ChannelRecord {
    path: PathBuf,
    pub(super) summary: Summary,
    /// `None` until the file is opened, and while the disk has no space for it.
    slots: Option<Slots>,
}

impl ChannelRecord {
    pub(super) fn new(path: PathBuf, summary: Summary) -> Self {
        Self {
            path,
            summary,
            slots: None,
        }
    }

    /// Counts a batch that was kept.
    pub(super) fn count(&mut self, records: u32) {
        self.summary.count(records);
    }

    /// Notes without a sync that everything up to `end` is durable.
    pub(super) fn note_end(&mut self, end: Position) {
        self.summary.end = self.summary.end.max(end);
        if let Some(slots) = &mut self.slots {
            // An error is ignored: the value only helps a start that finds a shorter log, and the next commit notes it again.
            let _ = slots.note(&self.summary.encode());
        }
    }

    /// Stores durably that everything up to `end` is kept and that every consumer has settled everything up to `settled`. Does
    /// nothing while the disk has no space for the file: the channel works without it.
    pub(super) fn keep(
        &mut self,
        disk: &dyn Disk,
        end: Position,
        settled: Option<Position>,
    ) -> Result<(), Error> {
        self.summary.end = self.summary.end.max(end);
        self.summary.settled = settled.unwrap_or(self.summary.settled);
        let stored = match &mut self.slots {
            Some(slots) => slots.store(&self.summary.encode()),
            None => open(disk, &self.path, &self.summary).and_then(|slots| {
                let slots = self.slots.insert(slots);
                slots.store(&self.summary.encode())
            }),
        };
        match stored
            .map_err(|error| Error::state("writing the record of the channel", &self.path, error))
        {
            Err(Error::NoRoom { .. }) if self.slots.is_none() => Ok(()),
            stored => stored,
        }
    }
}

/// Opens the record file at `path`, or creates it with its directory.
fn open(disk: &dyn Disk, path: &Path, summary: &Summary) -> Result<Slots, millstream_state::Error> {
    create_directory(disk, path).map_err(|error| millstream_state::Error::Io {
        action: "create",
        path: path.to_owned(),
        error,
    })?;
    match disk.metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Slots::create(disk, path, FORMAT, &summary.encode())
        }
        _ => Slots::open(disk, path, FORMAT, Open::Write, convert).map(|(slots, _)| slots),
    }
}

/// Creates the directory of the record files in a data_dir and makes its name durable. This is done at every start, because an earlier
/// start may have crashed before the name was durable. For a channel outside of a data_dir the directory exists already, because the
/// channel's own directory is in it.
fn create_directory(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match path
        .parent()
        .and_then(|records| Some((records, records.parent()?)))
    {
        Some((records, above)) if records.ends_with(RECORDS) => {
            disk.create_directory(records)?;
            let here = above.as_os_str().is_empty();
            disk.sync_directory(if here { Path::new(".") } else { above })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millstream_testkit::{
        SimulatedDisk,
        trial::{DIRECTORY, DurableState, Trial},
    };

    use super::*;
    use crate::disk::log::tests::put_golden;

    #[test]
    fn a_record_file_of_version_3_is_read_and_continues_in_version_4() {
        let disk = SimulatedDisk::new(1);
        let path = Path::new("/buffer.record");
        assert!(Summary::read(&disk, path).unwrap().summary().is_none());
        put_golden(&disk, path, "version-3/buffer.record");
        let summary = Summary::read(&disk, path).unwrap().summary().unwrap();
        let one = Position { epoch: 1, seq: 1 };
        assert_eq!((summary.end, summary.settled), (one, Position::default()));
        assert_eq!(summary.records_in(2), 8);
        let mut record = ChannelRecord::new(path.to_owned(), summary);
        let end = Position { epoch: 1, seq: 7 };
        record.keep(&disk, end, None).unwrap();
        let noted = Position { epoch: 1, seq: 8 };
        record.note_end(noted);
        let again = Summary::read(&disk, path).unwrap().summary().unwrap();
        assert_eq!((again.channel, again.end), (summary.channel, noted));
        disk.restart(millstream_testkit::Crash::Power);
        let after = Summary::read(&disk, path).unwrap().summary().unwrap();
        assert!(after.end == end || after.end == noted);
    }

    /// A record file, and its disk. The number that [`Trial`] stores is the seq of `end`.
    struct Numbered(ChannelRecord, Arc<dyn Disk>);

    impl DurableState for Numbered {
        fn open(disk: Arc<dyn Disk>) -> Result<Self, String> {
            let directory = Path::new(DIRECTORY);
            (disk.create_directory(directory))
                .and_then(|()| disk.sync_directory(Path::new("/")))
                .map_err(|error| error.to_string())?;
            let path = directory.join("channel-records/buffer.record");
            let found = Summary::read(&*disk, &path).map_err(|error| error.to_string())?;
            let summary = found.summary().unwrap_or(Summary::of(ChannelId([1; 16])));
            let record = ChannelRecord::new(path, summary);
            let mut numbered = Self(record, disk);
            numbered.advance(summary.end.seq)?;
            Ok(numbered)
        }

        fn number(&self) -> u64 {
            self.0.summary.end.seq
        }

        fn advance(&mut self, number: u64) -> Result<(), String> {
            let Self(record, disk) = self;
            let end = Position {
                epoch: 0,
                seq: number,
            };
            let kept = record.keep(&**disk, end, None);
            kept.map_err(|error| error.to_string())?;
            match record.slots.is_some() {
                true => Ok(()),
                false => Err("there is no space for the file".to_owned()),
            }
        }
    }

    #[test]
    fn a_record_file_survives_every_crash_and_needs_no_space() {
        let trial = Trial {
            needs_no_space: true,
            ..Trial::default()
        };
        trial.run::<Numbered>();
    }
}
