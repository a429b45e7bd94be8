//! Leases: which server may have received which chunk, remembered across restarts (`failover: wait` behind a durable channel).
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! ```text
//! leases      a journal (crate `state`); its records are
//!             0 kind u16 | 2 fields
//!             kind 0, the title, always first: channel id, 16 bytes
//!             kind 1, a server: number u32, address
//!             kind 2, a lease: epoch u32, seq u64, part u32, server u32; the newest lease of a part counts
//! ```
//! Integers are little-endian, except for the channel id, which is big-endian. A lease is durable before the first byte of its
//! chunk goes out. So after a crash a chunk that a server may have received goes to the same server again, and that server
//! recognizes the id of the chunk. Many leases share a sync. Leases of settled chunks are forgotten. The file is rewritten when
//! most of it consists of forgotten leases.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millstream_pipeline::failure::Failure;
use millstream_record::Position;
use millstream_state::{Fields, Format, Journal, JournalFormat, Records};
use millstream_sys::disk::Disk;

mod version1;

const FORMAT: JournalFormat = JournalFormat {
    format: Format {
        magic: b"MSLEASES",
        version: 2,
        bytes_max: 256 << 20,
        remedy: "restore it from a backup, or remove it and restart Millstream: chunks that a server may have may then go to \
                 another server and be stored by both",
    },
    record_bytes_max: 2 + SERVER_BYTES_MAX,
    copied: false,
};
const TITLE: u16 = 0;
const SERVER: u16 = 1;
const LEASE: u16 = 2;
/// Bytes of a lease's fields.
const LEASE_BYTES: usize = 20;
/// Maximum bytes of a server's fields, a number and an address: a host name has at most 253 bytes, a port at most 5.
const SERVER_BYTES_MAX: usize = 4 + 300;
/// Bytes of a lease in the file: head, kind and fields, padded to a multiple of 8.
const LEASE_RECORD_BYTES: u64 = 32;
/// A file larger than this (about 30,000 leases) is rewritten if more than half of it consists of forgotten leases.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Identifies a chunk behind a durable channel: the position of its batch in the channel, and the number of the part of that
/// batch.
pub(super) type Place = (Position, u32);

/// Counts the starts of the sink. Only the newest start may write: a sync of the previous start may still be in flight and must not
/// write any more.
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
    /// Locked while a sync runs.
    journal: Arc<Mutex<Journal>>,
    channel: u128,
    servers: Vec<String>,
    table: BTreeMap<Place, u32>,
    /// Records that are not part of a sync yet.
    unsynced: Bodies,
    /// The number of the sync that will make `unsynced` durable.
    serial: u64,
    /// Number of unreadable bytes before valid records, found at the start.
    damaged_bytes: u64,
}

/// The bodies of records, one after the other.
#[derive(Default)]
struct Bodies {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

/// A pending write and sync, to be run on a thread that may block.
pub(super) struct Sync {
    turn: (Turn, u64),
    journal: Arc<Mutex<Journal>>,
    work: Work,
    /// Leases up to this number are durable after this sync.
    pub(super) serial: u64,
}

enum Work {
    Append(Bodies),
    Rewrite(Records),
}

impl Leases {
    /// Opens the leases in the sink's directory; creates the directory if needed. Drops leases of another channel.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        directory: &Path,
        channel: u128,
        turn: &Turn,
    ) -> Result<Self, Failure> {
        let path = directory.join("leases");
        let mut current = turn.lock();
        *current += 1;
        let (journal, recovered) = Journal::open(disk, path, FORMAT, |[file, _]| {
            Some(version1::read(file.unwrap_or_default()))
        })?;
        let mut leases = Self {
            turn: (turn.clone(), *current),
            journal: Arc::new(Mutex::new(journal)),
            channel,
            servers: Vec::new(),
            table: BTreeMap::new(),
            unsynced: Bodies::default(),
            serial: 1,
            damaged_bytes: 0,
        };
        if let Some(recovered) = recovered {
            let holes = recovered.holes.iter();
            leases.damaged_bytes = holes.map(|hole| hole.end - hole.start).sum();
            leases.restore(recovered.records.iter().map(|record| &*record.body));
        }
        // The file is rewritten at every start. The new file contains no incomplete or damaged records. The write also ensures that
        // the leases from the old file are durable before they are used.
        let records = leases.rewritten();
        lock(&leases.journal).replace(records)?;
        Ok(leases)
    }

    /// Number of damaged bytes in the file. The leases in these bytes are unknown, so their chunks may go to another server than
    /// before.
    pub(super) fn damaged_bytes(&self) -> u64 {
        self.damaged_bytes
    }

    /// Restores the records of an earlier start, if they belong to this channel.
    fn restore<'a>(&mut self, mut bodies: impl Iterator<Item = &'a [u8]>) {
        let mut title = TITLE.to_le_bytes().to_vec();
        title.extend(self.channel.to_be_bytes());
        if bodies.next() != Some(&*title) {
            return;
        }
        let mut servers = BTreeMap::new();
        for body in bodies {
            // An invalid record is skipped: its chunk may go to another server.
            let _ = self.restore_record(&mut Fields::new(body), &mut servers);
        }
    }

    /// Restores one record. `servers` maps the numbers in the file to addresses.
    fn restore_record(
        &mut self,
        fields: &mut Fields<'_>,
        servers: &mut BTreeMap<u32, u32>,
    ) -> Option<()> {
        match fields.u16()? {
            SERVER => {
                let number = fields.u32()?;
                let address = std::str::from_utf8(fields.rest()).ok()?;
                servers.insert(number, self.number_of(address));
            }
            LEASE => {
                let position = Position {
                    epoch: fields.u32()?,
                    seq: fields.u64()?,
                };
                let (part, server) = (fields.u32()?, fields.u32()?);
                self.table.insert((position, part), *servers.get(&server)?);
            }
            _ => {}
        }
        Some(())
    }

    fn number_of(&mut self, server: &str) -> u32 {
        let known = self.servers.iter().position(|known| known == server);
        let number = known.unwrap_or_else(|| {
            self.servers.push(server.to_owned());
            self.servers.len() - 1
        });
        number as u32
    }

    /// Returns the server that may have received a chunk, or None if the chunk has no lease.
    pub(super) fn holder(&self, place: Place) -> Option<&str> {
        let server = self.table.get(&place)?;
        self.servers.get(*server as usize).map(String::as_str)
    }

    /// Leases a chunk to a server. Returns the number of the sync that makes the lease durable.
    pub(super) fn lease(&mut self, place: Place, server: &str) -> u64 {
        let known = self.servers.len();
        let number = self.number_of(server);
        if self.servers.len() > known {
            self.unsynced.add(|out| write_server(out, number, server));
        }
        self.table.insert(place, number);
        self.unsynced.add(|out| write_lease(out, place, number));
        self.serial
    }

    /// Takes the records that are not durable yet, or returns None if there are none. Only one sync may be in flight.
    pub(super) fn sync(&mut self) -> Option<Sync> {
        if self.unsynced.ends.is_empty() {
            return None;
        }
        let unsynced = std::mem::take(&mut self.unsynced);
        let live = self.table.len() as u64 * LEASE_RECORD_BYTES;
        let journal = lock(&self.journal);
        let end = journal.bytes() + unsynced.ends.len() as u64 * LEASE_RECORD_BYTES;
        let rewrites = journal.needs_replace() || end > FILE_BYTES_MAX.max(2 * live);
        drop(journal);
        self.serial += 1;
        Some(Sync {
            turn: self.turn.clone(),
            journal: self.journal.clone(),
            work: match rewrites {
                true => Work::Rewrite(self.rewritten()),
                false => Work::Append(unsynced),
            },
            serial: self.serial - 1,
        })
    }

    /// Forgets the leases of everything up to and including `position`, which is settled.
    pub(super) fn settle(&mut self, position: Position) {
        while let Some(first) = self.table.first_entry() {
            if first.key().0 > position {
                return;
            }
            first.remove();
        }
    }

    /// Returns the records for a new file. It contains no forgotten leases.
    fn rewritten(&mut self) -> Records {
        let mut records = lock(&self.journal).replacement();
        records.add(&[&TITLE.to_le_bytes(), &self.channel.to_be_bytes()]);
        let mut numbers: BTreeMap<u32, u32> = BTreeMap::new();
        let servers = std::mem::take(&mut self.servers);
        let mut body = Vec::new();
        for server in self.table.values_mut() {
            let number = *numbers.entry(*server).or_insert_with(|| {
                let number = self.servers.len() as u32;
                let address = &servers[*server as usize];
                body.clear();
                write_server(&mut body, number, address);
                records.add(&[&body]);
                self.servers.push(address.clone());
                number
            });
            *server = number;
        }
        for (place, server) in &self.table {
            body.clear();
            write_lease(&mut body, *place, *server);
            records.add(&[&body]);
        }
        records
    }
}

impl Sync {
    /// Writes and syncs; blocks.
    pub(super) fn run(self) -> Result<(), Failure> {
        let turn = self.turn.0.lock();
        if *turn != self.turn.1 {
            return Err(Failure::us("the sink has been started again meanwhile"));
        }
        let mut journal = lock(&self.journal);
        match self.work {
            Work::Rewrite(records) => journal.replace(records)?,
            Work::Append(bodies) => {
                for body in bodies.iter() {
                    journal.append(&[body])?;
                }
                journal.sync()?;
            }
        }
        Ok(())
    }
}

impl Bodies {
    fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let ranges = starts.zip(&self.ends);
        ranges.filter_map(|(start, end)| self.bytes.get(start..*end))
    }
}

fn lock(journal: &Mutex<Journal>) -> MutexGuard<'_, Journal> {
    // After a panic in the middle of a write, the journal is unchanged or reports that it needs a replacement.
    journal.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write_server(out: &mut Vec<u8>, number: u32, address: &str) {
    out.extend(SERVER.to_le_bytes());
    out.extend(number.to_le_bytes());
    out.extend_from_slice(address.as_bytes());
}

fn write_lease(out: &mut Vec<u8>, (position, part): Place, server: u32) {
    out.extend(LEASE.to_le_bytes());
    out.extend(position.epoch.to_le_bytes());
    out.extend(position.seq.to_le_bytes());
    out.extend(part.to_le_bytes());
    out.extend(server.to_le_bytes());
}

#[cfg(test)]
mod tests;
