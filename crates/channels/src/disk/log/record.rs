//! The record of a channel: what is known of it even when its directory is gone.
//!
//! ```text
//! DATA_DIR/channel-records/NAME.record   for the channel in DATA_DIR/channels/NAME; beside any other channel directory
//! two slots, at 0 and 4096; the valid slot with the higher generation counts
//! offset bytes
//!      0   8   magic "MILLREC" and 0
//!      8   4   format version
//!     12   4   CRC-32C of the version and bytes 16..96 (seal.rs)
//!     16  16   channel id
//!     32   8   generation
//!     40  12   end: epoch (4) and seq (8); everything up to it was durable
//!     52  12   settled: the position that every consumer had settled
//!     64  16   0
//!     80   8   batches counted
//!     88   8   records in them
//! ```
//!
//! `end` is a lower bound. A clean stop writes and syncs it. Every synced commit writes the first slot without a sync: after
//! a kill it is exact, and after a power cut it is what the system had written by then.

use std::{
    io::{self, IoSlice},
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_record::Position;
use millstream_sys::disk::{Disk, File, Open};

use super::{
    ChannelId, Error,
    bytes::Fields,
    error::is_no_room,
    losses::{Loss, Missing},
    seal::{self, SEAL_BYTES, Sealed},
    segment::PAGE,
};

const MAGIC: &[u8; 8] = b"MILLREC\0";
const SLOT_BYTES: usize = 96;
/// The directory of the channels in a data_dir.
const CHANNELS: &str = "channels";
/// The directory of their records.
const RECORDS: &str = "channel-records";

/// The path of the record of the channel in `directory`.
pub(super) fn record_path(directory: &Path) -> PathBuf {
    let name = directory.file_name().unwrap_or_default();
    let records = match directory.parent() {
        Some(parent) if parent.ends_with(CHANNELS) => parent.with_file_name(RECORDS),
        Some(parent) => parent.to_owned(),
        None => PathBuf::new(),
    };
    records.join(format!("{}.record", name.to_string_lossy()))
}

/// The content of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) channel: ChannelId,
    /// Everything up to this was durable.
    pub(super) end: Position,
    /// Every consumer had settled everything up to this.
    pub(super) settled: Position,
    /// Batches that were counted.
    batches: u64,
    /// Records in them.
    records: u64,
}

impl Summary {
    /// A channel of which only the id is known.
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

    /// About how many records a number of batches holds.
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

    fn encode(&self, generation: u64) -> Vec<u8> {
        let mut out = seal::begin(MAGIC);
        out.extend_from_slice(&self.channel.0);
        out.extend_from_slice(&generation.to_le_bytes());
        for position in [self.end, self.settled] {
            out.extend_from_slice(&position.epoch.to_le_bytes());
            out.extend_from_slice(&position.seq.to_le_bytes());
        }
        out.extend_from_slice(&[0; 16]);
        out.extend_from_slice(&self.batches.to_le_bytes());
        out.extend_from_slice(&self.records.to_le_bytes());
        seal::seal(&mut out);
        out
    }

    fn decode(bytes: &[u8]) -> Option<(u64, Self)> {
        let Sealed::Whole = seal::check(MAGIC, bytes) else {
            return None;
        };
        let mut fields = Fields::new(bytes.get(SEAL_BYTES..)?);
        let channel = ChannelId(fields.id()?);
        let generation = fields.u64()?;
        let mut positions = [Position::default(); 2];
        for position in &mut positions {
            (position.epoch, position.seq) = (fields.u32()?, fields.u64()?);
        }
        let [end, settled] = positions;
        fields.take(16)?;
        let summary = Self {
            channel,
            end,
            settled,
            batches: fields.u64()?,
            records: fields.u64()?,
        };
        Some((generation, summary))
    }

    /// Reads the record at `path`; `None` if it is missing or damaged.
    pub(super) fn read(disk: &dyn Disk, path: &Path) -> io::Result<Option<Self>> {
        match disk.open(path, Open::Read) {
            Ok(file) => Ok(newest(&*file)?.map(|(_, summary)| summary)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether a record without a valid slot is damaged: both slots were written. A record with an empty slot may have been
/// created just before a crash.
pub(super) fn is_damaged(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    let file = match disk.open(path, Open::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        file => file?,
    };
    let mut used = 0;
    for slot in 0..2 {
        let mut bytes = Vec::new();
        file.read_at(&mut bytes, SLOT_BYTES, slot * PAGE)?;
        used += u32::from(bytes.iter().any(|byte| *byte != 0));
    }
    Ok(used == 2)
}

fn newest(file: &dyn File) -> io::Result<Option<(u64, Summary)>> {
    let mut slots = Vec::new();
    for slot in 0..2 {
        let mut bytes = Vec::new();
        file.read_at(&mut bytes, SLOT_BYTES, slot * PAGE)?;
        slots.extend(Summary::decode(&bytes));
    }
    Ok(slots.into_iter().max_by_key(|(generation, _)| *generation))
}

/// The record of an open channel.
pub(super) struct ChannelRecord {
    path: PathBuf,
    pub(super) summary: Summary,
    /// The open file and its generation; `None` while the disk has no space for it.
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
            // It only helps a start that finds less, and is noted again.
            let _ = slots.write(&self.summary, 0);
        }
    }

    /// Makes durable that everything up to `end` is kept, and which position every consumer has `settled`. Does nothing
    /// while the disk has no space for the file: the channel works without it.
    pub(super) fn keep(
        &mut self,
        disk: &dyn Disk,
        end: Position,
        settled: Option<Position>,
    ) -> Result<(), Error> {
        self.summary.end = self.summary.end.max(end);
        self.summary.settled = settled.unwrap_or(self.summary.settled);
        let failed = |error| Error::disk("writing the record of the channel", &self.path, error);
        if self.slots.is_none() {
            self.slots = match Slots::open(disk, &self.path) {
                Err(error) if is_no_room(&error) => return Ok(()),
                opened => Some(opened.map_err(failed)?),
            };
        }
        let kept = self.slots.as_mut().map(|slots| slots.keep(&self.summary));
        kept.unwrap_or(Ok(())).map_err(failed)
    }
}

/// The open file of a record.
struct Slots {
    file: Arc<dyn File>,
    generation: u64,
}

impl Slots {
    /// Opens the record at `path`, or creates it with its directory.
    fn open(disk: &dyn Disk, path: &Path) -> io::Result<Self> {
        let file = match disk.open(path, Open::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::create(disk, path)?,
            opened => opened?,
        };
        let generation = newest(&*file)?.map_or(0, |(generation, _)| generation);
        Ok(Self { file, generation })
    }

    fn create(disk: &dyn Disk, path: &Path) -> io::Result<Arc<dyn File>> {
        let records = path.parent().unwrap_or(Path::new("."));
        if let Some(above) = records.parent().filter(|_| disk.metadata(records).is_err()) {
            disk.create_directory(records)?;
            let here = above.as_os_str().is_empty();
            disk.sync_directory(if here { Path::new(".") } else { above })?;
        }
        let file = disk.open(path, Open::Create)?;
        // Both pages are written, so that no later write needs room.
        let made = file
            .allocate(2 * PAGE)
            .and_then(|()| file.write_at(&[IoSlice::new(&[0; 2 * PAGE as usize])], 0))
            .and_then(|()| file.sync())
            .and_then(|()| disk.sync_directory(records));
        if let Err(error) = made {
            // An empty record is of no use. The next start creates it.
            let _ = disk.remove(path);
            return Err(error);
        }
        Ok(file)
    }

    /// Writes both slots, one after the other, so that a power cut leaves one of them whole.
    fn keep(&mut self, summary: &Summary) -> io::Result<()> {
        self.write(summary, 0)?;
        self.file.sync()?;
        self.write(summary, PAGE)?;
        self.file.sync()
    }

    fn write(&mut self, summary: &Summary, at: u64) -> io::Result<()> {
        self.generation += 1;
        let slot = summary.encode(self.generation);
        self.file.write_at(&[IoSlice::new(&slot)], at)
    }
}
