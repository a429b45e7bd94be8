//! The table of a file sink: the unfinished outputs, and the position in the channel up to which all records are in the
//! files. This file also defines how the journal encodes the table.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `encode -> [write] -> [settle]`
//!
//! ```text
//! body of a journal record = changes, one after the other; each change is one byte for its kind, then
//!  1 enter   id u32, device u64, inode u64, committed u64, records u64, since i64, head, path
//!  2 grow    id u32, committed u64, records u64, head
//!  3 rename  id u32, path          announced: the file has its old or this new name
//!  4 leave   id u32
//!  5 commit  channel u128, epoch u32, seq u64, u8: 1 = this is the position, 0 = no position yet
//!  6 number  u64                   the number of the next rotated file
//! head = length u8 (up to 64), CRC-32C u32 of the first `length` bytes of the file; path = length u16, bytes
//! ```
//! Integers are little-endian.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use millstream_record::{Position, Time};
use millstream_state::Fields;
use millstream_sys::checksum::crc32c;

/// Maximum number of files in the table. If there are more, the least recently used files leave the table first.
pub(super) const ROWS_MAX: usize = 65_536;
/// The number of bytes at the start of a file that distinguish the file from another file with the same inode number.
pub(super) const HEAD_BYTES: usize = 64;

/// Length and checksum of the first bytes of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) length: u8,
    pub(super) checksum: u32,
}

impl Head {
    /// Returns the head of a file that starts with `bytes`.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let bytes = &bytes[..bytes.len().min(HEAD_BYTES)];
        Self {
            length: u8::try_from(bytes.len()).unwrap_or(0),
            checksum: crc32c(bytes),
        }
    }

    /// Whether a file that starts with `bytes` can be the file with this head.
    pub(super) fn fits(self, bytes: &[u8]) -> bool {
        bytes
            .get(..usize::from(self.length))
            .is_some_and(|bytes| Self::of(bytes) == self)
    }
}

/// A row of the table: a file to which the sink still writes, or which it still has to recover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// The path under which the file is written.
    pub(super) path: PathBuf,
    /// The new name, if the journal has announced a rotation.
    pub(super) renamed: Option<PathBuf>,
    pub(super) device: u64,
    pub(super) inode: u64,
    /// The length at the last commit.
    pub(super) committed: u64,
    /// Number of records that this sink has written to the file.
    pub(super) records: u64,
    /// The receive time of the first record.
    pub(super) since: Time,
    pub(super) head: Head,
}

/// A change to the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A file is about to get its first byte.
    Enter(u32, Row),
    /// A file has grown: its committed length, number of records and head.
    Grow(u32, u64, u64, Head),
    /// A file is about to be renamed.
    Rename(u32, PathBuf),
    /// A file is finished.
    Leave(u32),
    /// Everything up to this position of this channel is in the files. Channel id 0 stands for a memory channel.
    Commit(u128, Option<Position>),
    /// The number of the next rotated file.
    Number(u64),
}

/// The content of the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) rows: BTreeMap<u32, Row>,
    pub(super) channel: u128,
    pub(super) position: Option<Position>,
    pub(super) number: u64,
}

impl Table {
    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::Enter(id, row) => {
                self.rows.insert(*id, row.clone());
            }
            Change::Grow(id, committed, records, head) => {
                if let Some(row) = self.rows.get_mut(id) {
                    (row.committed, row.records, row.head) = (*committed, *records, *head);
                }
            }
            Change::Rename(id, to) => {
                if let Some(row) = self.rows.get_mut(id) {
                    row.renamed = Some(to.clone());
                }
            }
            Change::Leave(id) => {
                self.rows.remove(id);
            }
            Change::Commit(channel, position) => {
                (self.channel, self.position) = (*channel, *position)
            }
            Change::Number(number) => self.number = *number,
        }
    }

    /// Encodes the whole table as one body.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        Change::Commit(self.channel, self.position).encode(&mut out);
        Change::Number(self.number).encode(&mut out);
        for (id, row) in &self.rows {
            enter(&mut out, *id, row);
            if let Some(to) = &row.renamed {
                Change::Rename(*id, to.clone()).encode(&mut out);
            }
        }
        out
    }

    /// Decodes the changes in `bodies`; returns the resulting table, and whether all changes are valid.
    pub(super) fn decode(bodies: &[Vec<u8>]) -> (Self, bool) {
        let mut table = Self::default();
        for body in bodies {
            let mut fields = Fields::new(body);
            while !fields.rest().is_empty() {
                match Change::decode(&mut fields) {
                    Some(change) => table.apply(&change),
                    None => return (table, false),
                }
            }
        }
        (table, true)
    }
}

impl Change {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Enter(id, row) => enter(out, *id, row),
            Self::Grow(id, committed, records, head) => {
                out.push(2);
                out.extend_from_slice(&id.to_le_bytes());
                out.extend_from_slice(&committed.to_le_bytes());
                out.extend_from_slice(&records.to_le_bytes());
                put_head(out, *head);
            }
            Self::Rename(id, to) => {
                out.push(3);
                out.extend_from_slice(&id.to_le_bytes());
                put_path(out, to);
            }
            Self::Leave(id) => {
                out.push(4);
                out.extend_from_slice(&id.to_le_bytes());
            }
            Self::Commit(channel, position) => {
                let Position { epoch, seq } = position.unwrap_or_default();
                out.push(5);
                out.extend_from_slice(&channel.to_le_bytes());
                out.extend_from_slice(&epoch.to_le_bytes());
                out.extend_from_slice(&seq.to_le_bytes());
                out.push(u8::from(position.is_some()));
            }
            Self::Number(number) => {
                out.push(6);
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
    }

    fn decode(fields: &mut Fields<'_>) -> Option<Self> {
        Some(match fields.u8()? {
            1 => {
                let id = fields.u32()?;
                let mut row = Row {
                    path: PathBuf::new(),
                    renamed: None,
                    device: fields.u64()?,
                    inode: fields.u64()?,
                    committed: fields.u64()?,
                    records: fields.u64()?,
                    since: Time(fields.i64()?),
                    head: take_head(fields)?,
                };
                row.path = take_path(fields)?;
                Self::Enter(id, row)
            }
            2 => Self::Grow(
                fields.u32()?,
                fields.u64()?,
                fields.u64()?,
                take_head(fields)?,
            ),
            3 => Self::Rename(fields.u32()?, take_path(fields)?),
            4 => Self::Leave(fields.u32()?),
            5 => {
                let channel = fields.u128()?;
                let position = Position {
                    epoch: fields.u32()?,
                    seq: fields.u64()?,
                };
                let known = fields.u8()?;
                Self::Commit(channel, (known != 0).then_some(position))
            }
            6 => Self::Number(fields.u64()?),
            _ => return None,
        })
    }
}

fn enter(out: &mut Vec<u8>, id: u32, row: &Row) {
    out.push(1);
    out.extend_from_slice(&id.to_le_bytes());
    for number in [row.device, row.inode, row.committed, row.records] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&row.since.0.to_le_bytes());
    put_head(out, row.head);
    put_path(out, &row.path);
}

fn put_head(out: &mut Vec<u8>, head: Head) {
    out.push(head.length);
    out.extend_from_slice(&head.checksum.to_le_bytes());
}

/// The system accepts paths of up to 4096 bytes, so the length fits into 16 bits.
fn put_path(out: &mut Vec<u8>, path: &Path) {
    let bytes = path.as_os_str().as_bytes();
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&bytes[..usize::from(length)]);
}

fn take_head(fields: &mut Fields<'_>) -> Option<Head> {
    Some(Head {
        length: fields.u8()?,
        checksum: fields.u32()?,
    })
}

fn take_path(fields: &mut Fields<'_>) -> Option<PathBuf> {
    let length = usize::from(fields.u16()?);
    Some(PathBuf::from(OsStr::from_bytes(fields.take(length)?)))
}
