//! The record of a channel, beside its directory: what is known of it even when the directory is gone.
//!
//! ```text
//! DATA_DIR/channel-records/NAME.record   for the channel in DATA_DIR/channels/NAME; beside any other channel directory
//! two slots, at 0 and 4096; the valid one with the higher generation counts
//! offset bytes
//!      0   8   magic "MILLREC" and 0
//!      8   4   format version
//!     12   4   CRC-32C of the version and bytes 16..96 (seal.rs)
//!     16  16   channel id
//!     32   8   generation
//!     40  12   end: epoch (4) and seq (8); everything up to it was durable
//!     52  12   settled: the position that every consumer had settled
//!     64  16   0
//!     80   8   batches that were counted
//!     88   8   records in them
//! ```
//!
//! `end` is a lower bound. A clean stop writes and syncs it. Each commit that was synced writes the first slot without a
//! sync: after a kill it is exact, and after a power cut it is what the system had written.

use std::{
    io::{self, IoSlice},
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_record::Position;
use millstream_sys::disk::{Disk, File, Open};

use super::{
    ChannelId,
    bytes::Fields,
    loss::{Loss, Missing},
    seal::{self, SEAL_BYTES, Sealed},
    segment::PAGE,
};

const MAGIC: &[u8; 8] = b"MILLREC\0";
const SLOT_BYTES: usize = 96;
/// The directory in which the channels of a data_dir stand.
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

/// What is known of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) channel: ChannelId,
    /// Everything up to this was durable.
    pub(super) end: Position,
    /// Every consumer had settled everything up to this.
    pub(super) settled: Position,
    /// Batches that were counted, and the records in them.
    pub(super) counted: (u64, u64),
}

impl Known {
    /// A channel of which nothing else is known.
    pub(super) fn of(channel: ChannelId) -> Self {
        Self {
            channel,
            end: Position::default(),
            settled: Position::default(),
            counted: (0, 0),
        }
    }

    /// How many records a number of batches holds, about.
    pub(super) fn records_in(&self, batches: u64) -> u64 {
        let (counted, records) = self.counted;
        let product = u128::from(batches) * u128::from(records) / u128::from(counted.max(1));
        u64::try_from(product).unwrap_or(u64::MAX)
    }

    /// The loss of the whole channel.
    pub(super) fn directory(&self) -> Loss {
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
        out.extend_from_slice(&self.counted.0.to_le_bytes());
        out.extend_from_slice(&self.counted.1.to_le_bytes());
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
        let known = Self {
            channel,
            end,
            settled,
            counted: (fields.u64()?, fields.u64()?),
        };
        Some((generation, known))
    }

    /// Reads the record at `path`; `None` if there is none, or none that is whole.
    pub(super) fn read(disk: &dyn Disk, path: &Path) -> io::Result<Option<Self>> {
        match disk.open(path, Open::Read) {
            Ok(file) => Ok(newest(&*file)?.map(|(_, known)| known)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether a record that says nothing did say something: both slots were written, and neither is whole. One with an empty slot
/// may have been made just before a crash.
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

fn newest(file: &dyn File) -> io::Result<Option<(u64, Known)>> {
    let mut slots = Vec::new();
    for slot in 0..2 {
        let mut bytes = Vec::new();
        file.read_at(&mut bytes, SLOT_BYTES, slot * PAGE)?;
        slots.extend(Known::decode(&bytes));
    }
    Ok(slots.into_iter().max_by_key(|(generation, _)| *generation))
}

/// The open record of a channel.
pub(super) struct Record {
    file: Arc<dyn File>,
    generation: u64,
}

impl Record {
    /// Opens the record at `path`, or makes it with its directory.
    pub(super) fn open(disk: &dyn Disk, path: &Path) -> io::Result<Self> {
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
            // An empty record would say nothing; the next start makes it.
            let _ = disk.remove(path);
            return Err(error);
        }
        Ok(file)
    }

    /// Notes what is known; durable when the system writes it.
    pub(super) fn note(&mut self, known: &Known) -> io::Result<()> {
        self.write(known, 0)
    }

    /// Notes what is known; durable when it returns.
    pub(super) fn keep(&mut self, known: &Known) -> io::Result<()> {
        // One slot after the other, so that a power cut finds one of them whole.
        self.write(known, 0)?;
        self.file.sync()?;
        self.write(known, PAGE)?;
        self.file.sync()
    }

    fn write(&mut self, known: &Known, at: u64) -> io::Result<()> {
        self.generation += 1;
        let slot = known.encode(self.generation);
        self.file.write_at(&[IoSlice::new(&slot)], at)
    }
}
