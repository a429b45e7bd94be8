//! Which server may have which chunk, across restarts (`failover: wait` behind a durable channel).
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! ```text
//! header  0 "MSLEASES" | 8 version u32 | 12 channel id, 16 bytes | 28 crc u32 of 0..28
//! record  0 length of the body u16 | 2 kind u16 | 4 crc u32 of kind and body | 8 body
//!         kind 1, a server: number u32, address
//!         kind 2, a lease: epoch u32, seq u64, part u32, server u32; the newest counts
//! ```
//! Integers are little endian, CRCs are CRC-32C. It promises that a lease is durable before the first byte of its chunk goes
//! out, so after a crash a chunk that a server may have goes to that server again, which recognises its id. Many leases share a
//! sync. Leases of settled chunks are forgotten; the file is rewritten when most of it is forgotten leases.

use std::{
    collections::BTreeMap,
    io::{self, IoSlice},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crc_fast::{CrcAlgorithm, checksum};
use millstream_pipeline::failure::Failure;
use millstream_record::Position;
use millstream_sys::disk::{Disk, File, Open};

const MAGIC: &[u8; 8] = b"MSLEASES";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 32;
const HEAD_BYTES: usize = 8;
const SERVER: u16 = 1;
const LEASE: u16 = 2;
const LEASE_BYTES: usize = 20;
/// A number and an address: a name has at most 253 bytes, a port 5.
const SERVER_BYTES_MAX: usize = 4 + 300;
/// A larger file is rewritten without forgotten leases: about 30,000 leases.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// A larger file was not written by Millstream.
const READ_BYTES_MAX: u64 = 256 << 20;

/// A chunk behind a durable channel: its frame, and which part of it.
pub(super) type Place = (Position, u32);

/// Which start of the sink may write: a sync of the previous start may still be in flight and must not write any more.
#[derive(Clone, Debug, Default)]
pub(super) struct Turn(Arc<Mutex<u64>>);

impl Turn {
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The leases of a sink.
pub(super) struct Leases {
    turn: (Turn, u64),
    disk: Arc<dyn Disk>,
    path: PathBuf,
    file: Arc<dyn File>,
    channel: u128,
    /// Where the next record goes.
    end: u64,
    servers: Vec<String>,
    table: BTreeMap<Place, u32>,
    /// Records that are in no sync yet.
    unsynced: Vec<u8>,
    /// The number of the sync that will make them durable.
    serial: u64,
    /// Bytes that were unreadable at the start although valid records follow.
    damaged_bytes: usize,
}

/// A write and sync, to be run on a thread that may block.
pub(super) struct Sync {
    turn: (Turn, u64),
    disk: Arc<dyn Disk>,
    file: Arc<dyn File>,
    path: PathBuf,
    records: Vec<u8>,
    at: u64,
    /// Whether `records` replaces the whole file.
    rewrites: bool,
    /// Leases up to this number are durable after it.
    pub(super) serial: u64,
}

impl Leases {
    /// Opens the leases in the sink's directory, which it creates if needed. Drops those of another channel.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        directory: &Path,
        channel: u128,
        turn: &Turn,
    ) -> Result<Self, Failure> {
        let path = directory.join("leases");
        let mut current = turn.lock();
        *current += 1;
        let turn = (turn.clone(), *current);
        let failed = |error| Failure::disk(format!("{}: {error}", path.display()));
        if let Some(version) = newer_version(&*disk, &path).map_err(failed)? {
            return Err(Failure::state(format!(
                "{}: it has format {version}, this Millstream reads {VERSION}: run the newer one that wrote it",
                path.display()
            )));
        }
        Self::try_open(disk, directory, &path, channel, turn).map_err(failed)
    }

    fn try_open(
        disk: Arc<dyn Disk>,
        directory: &Path,
        path: &Path,
        channel: u128,
        turn: (Turn, u64),
    ) -> io::Result<Self> {
        let (file, bytes) = match disk.open(path, Open::Write) {
            Ok(file) => {
                let length = file.metadata()?.len.min(READ_BYTES_MAX);
                let mut bytes = Vec::new();
                file.read_at(&mut bytes, usize::try_from(length).unwrap_or(0), 0)?;
                (file, bytes)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_directory(&*disk, directory)?;
                let file = disk.open(path, Open::Create)?;
                file.sync()?;
                disk.sync_directory(directory)?;
                (file, Vec::new())
            }
            Err(error) => return Err(error),
        };
        let mut leases = Self {
            turn,
            disk,
            path: path.to_owned(),
            file,
            channel,
            end: 0,
            servers: Vec::new(),
            table: BTreeMap::new(),
            unsynced: Vec::new(),
            serial: 1,
            damaged_bytes: 0,
        };
        leases.restore(&bytes);
        if leases.end == 0 {
            let header = leases.header();
            leases.file.truncate(0)?;
            leases.file.write_at(&[IoSlice::new(&header)], 0)?;
            leases.end = HEADER_BYTES as u64;
        }
        // Old bytes must not follow a torn write, and what was read counts only if it is durable.
        leases.file.truncate(leases.end)?;
        leases.file.sync()?;
        Ok(leases)
    }

    /// How many bytes of the file were damaged. Leases in them are unknown, so their chunks may go to another server than
    /// before.
    pub(super) fn damaged_bytes(&self) -> usize {
        self.damaged_bytes
    }

    fn header(&self) -> Vec<u8> {
        let mut header = MAGIC.to_vec();
        header.extend(VERSION.to_le_bytes());
        header.extend(self.channel.to_be_bytes());
        let crc = crc(&header);
        header.extend(crc.to_le_bytes());
        header
    }

    /// Reads records; leaves `end` behind the last valid one, or at 0 if the file belongs to another channel. A torn end is
    /// dropped; invalid bytes before a valid record are damage.
    fn restore(&mut self, bytes: &[u8]) {
        if bytes.get(..HEADER_BYTES) != Some(&self.header()) {
            if !bytes.is_empty() && !is_whole(bytes) {
                self.damaged_bytes = bytes.len();
            }
            return;
        }
        let (mut at, mut end) = (HEADER_BYTES, HEADER_BYTES);
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            match self.restore_record(rest) {
                Some(length) => {
                    self.damaged_bytes += at - end;
                    at += length;
                    end = at;
                }
                None => at += 1,
            }
        }
        self.end = end as u64;
    }

    /// Reads one record; returns its length.
    fn restore_record(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut head = Fields(bytes);
        let (length, kind) = (usize::from(head.u16()?), head.u16()?);
        let sum = head.u32()?;
        let lengths = match kind {
            SERVER => 4..=SERVER_BYTES_MAX,
            LEASE => LEASE_BYTES..=LEASE_BYTES,
            _ => return None,
        };
        let body = head.bytes(length).filter(|_| lengths.contains(&length))?;
        if record_crc(kind, body) != sum {
            return None;
        }
        let mut fields = Fields(body);
        match kind {
            SERVER => {
                if fields.u32()? as usize != self.servers.len() {
                    return None;
                }
                self.servers
                    .push(String::from_utf8(fields.0.to_vec()).ok()?);
            }
            LEASE => {
                let position = Position {
                    epoch: fields.u32()?,
                    seq: fields.u64()?,
                };
                let (part, server) = (fields.u32()?, fields.u32()?);
                self.servers.get(server as usize)?;
                self.table.insert((position, part), server);
            }
            _ => return None,
        }
        Some(HEAD_BYTES + length)
    }

    /// The server that may have a chunk.
    pub(super) fn holder(&self, place: Place) -> Option<&str> {
        let server = self.table.get(&place)?;
        self.servers.get(*server as usize).map(String::as_str)
    }

    /// Leases a chunk to a server. Returns the number of the sync that makes the lease durable.
    pub(super) fn lease(&mut self, place: Place, server: &str) -> u64 {
        let known = self.servers.iter().position(|known| known == server);
        let number = known.unwrap_or_else(|| {
            self.servers.push(server.to_owned());
            let number = self.servers.len() - 1;
            write_server(&mut self.unsynced, number as u32, server);
            number
        });
        self.table.insert(place, number as u32);
        write_lease(&mut self.unsynced, place, number as u32);
        self.serial
    }

    /// What is not durable yet; None if there is nothing new. Only one sync may be in flight.
    pub(super) fn sync(&mut self) -> Option<Sync> {
        if self.unsynced.is_empty() {
            return None;
        }
        let mut records = std::mem::take(&mut self.unsynced);
        let rewrites = self.end + records.len() as u64 > FILE_BYTES_MAX.max(2 * self.live_bytes());
        let mut at = self.end;
        if rewrites {
            records = self.whole();
            at = 0;
        }
        self.end = at + records.len() as u64;
        self.serial += 1;
        Some(Sync {
            turn: self.turn.clone(),
            disk: self.disk.clone(),
            file: self.file.clone(),
            path: self.path.clone(),
            records,
            at,
            rewrites,
            serial: self.serial - 1,
        })
    }

    /// A sync is done; `file` is written next.
    pub(super) fn synced(&mut self, file: Arc<dyn File>) {
        self.file = file;
    }

    /// Everything up to and including `position` is settled.
    pub(super) fn settle(&mut self, position: Position) {
        while let Some(first) = self.table.first_entry() {
            if first.key().0 > position {
                return;
            }
            first.remove();
        }
    }

    fn live_bytes(&self) -> u64 {
        (self.table.len() * (HEAD_BYTES + LEASE_BYTES)) as u64
    }

    /// The contents of a new file without forgotten leases.
    fn whole(&mut self) -> Vec<u8> {
        let mut bytes = self.header();
        let mut numbers: BTreeMap<u32, u32> = BTreeMap::new();
        let servers = std::mem::take(&mut self.servers);
        for server in self.table.values_mut() {
            let number = *numbers.entry(*server).or_insert_with(|| {
                let number = self.servers.len() as u32;
                let address = &servers[*server as usize];
                write_server(&mut bytes, number, address);
                self.servers.push(address.clone());
                number
            });
            *server = number;
        }
        for (place, server) in &self.table {
            write_lease(&mut bytes, *place, *server);
        }
        bytes
    }
}

impl Sync {
    /// Writes and syncs; blocks. Returns the file that is written next.
    pub(super) fn run(self) -> Result<Arc<dyn File>, Failure> {
        let name = self.path.display().to_string();
        self.try_run()
            .map_err(|error| Failure::disk(format!("{name}: {error}")))
    }

    fn try_run(self) -> io::Result<Arc<dyn File>> {
        let turn = self.turn.0.lock();
        if *turn != self.turn.1 {
            return Err(io::Error::other(
                "the sink has been started again meanwhile",
            ));
        }
        let parts = [IoSlice::new(&self.records)];
        if !self.rewrites {
            self.file.write_at(&parts, self.at)?;
            self.file.sync()?;
            return Ok(self.file.clone());
        }
        let new = self.path.with_extension("new");
        match self.disk.remove(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = self.disk.open(&new, Open::Create)?;
        file.write_at(&parts, 0)?;
        file.sync()?;
        self.disk.rename(&new, &self.path)?;
        if let Some(directory) = self.path.parent() {
            self.disk.sync_directory(directory)?;
        }
        Ok(file)
    }
}

/// Whether bytes begin with a header whose checksum is right.
fn is_whole(bytes: &[u8]) -> bool {
    let header = bytes
        .get(..HEADER_BYTES)
        .and_then(|header| header.split_last_chunk::<4>());
    header.is_some_and(|(text, sum)| text.starts_with(MAGIC) && crc(text).to_le_bytes() == *sum)
}

/// The version of a file from a newer program. The checksum is checked first: a damaged version is not a newer one.
fn newer_version(disk: &dyn Disk, path: &Path) -> io::Result<Option<u32>> {
    let mut bytes = Vec::new();
    match disk.open(path, Open::Read) {
        Ok(file) => file.read_at(&mut bytes, HEADER_BYTES, 0)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let version = bytes.get(MAGIC.len()..).and_then(|rest| Fields(rest).u32());
    Ok(version.filter(|version| *version > VERSION && is_whole(&bytes)))
}

/// Creates a directory and its parents, and makes their names durable.
fn make_directory(disk: &dyn Disk, directory: &Path) -> io::Result<()> {
    if directory.as_os_str().is_empty() || disk.metadata(directory).is_ok() {
        return Ok(());
    }
    let above = directory.parent().unwrap_or(Path::new(""));
    make_directory(disk, above)?;
    disk.create_directory(directory)?;
    disk.sync_directory(if above.as_os_str().is_empty() {
        Path::new(".")
    } else {
        above
    })
}

fn write_record(out: &mut Vec<u8>, kind: u16, body: &[u8]) {
    let length = u16::try_from(body.len()).unwrap_or(u16::MAX);
    out.extend(length.to_le_bytes());
    out.extend(kind.to_le_bytes());
    out.extend(record_crc(kind, body).to_le_bytes());
    out.extend_from_slice(body);
}

fn write_server(out: &mut Vec<u8>, number: u32, address: &str) {
    let mut body = number.to_le_bytes().to_vec();
    body.extend_from_slice(address.as_bytes());
    write_record(out, SERVER, &body);
}

fn write_lease(out: &mut Vec<u8>, (position, part): Place, server: u32) {
    let mut body = Vec::with_capacity(LEASE_BYTES);
    body.extend(position.epoch.to_le_bytes());
    body.extend(position.seq.to_le_bytes());
    body.extend(part.to_le_bytes());
    body.extend(server.to_le_bytes());
    write_record(out, LEASE, &body);
}

fn crc(bytes: &[u8]) -> u32 {
    // A 32-bit CRC is in the low half.
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn record_crc(kind: u16, body: &[u8]) -> u32 {
    let mut sum = crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi);
    sum.update(&kind.to_le_bytes());
    sum.update(body);
    sum.finalize() as u32
}

/// Reads fields from the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests;
