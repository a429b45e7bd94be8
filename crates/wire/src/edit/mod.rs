//! Changes of fields, made on the undecoded bytes: rename, set, remove, keep, in this order.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> [process] -> encode -> write -> settle`
//!
//! ```yaml
//! rename: { .msg: .message, .ctx.user: .user }    all at once; replaces a field that has the new name
//! set: { .env: prod, .n: 5, .copy: "{.n}" }       a constant or a template; a template of one field keeps the field's type
//! remove: [.password, .headers.cookie]
//! keep: [.message, .user.id]                      drops all other fields
//! ```
//!
//! The templates of `set` read the record as it is after `rename`; they do not see values that `set` writes. An existing
//! field keeps its place in the map, even if it is renamed within the map. A new field is appended, and missing parent
//! maps are created. A parent that is not a map is replaced by a map. `keep` drops maps in which no field is kept. If a
//! key is repeated in a map, `rename` takes the value of the first occurrence, and `rename` and `set` replace all
//! occurrences; `remove` and `keep` apply to each occurrence.
//!
//! Everything else is copied as bytes: types, order, equal keys, binary data and integers of 64 bits stay as they are. A
//! line is changed as the record `{"message": line}` and becomes an entry of the packed encoding (MessagePack
//! `[time, map]`) with the receive time.
//!
//! If a template needs a value that is missing, the record is rejected. The depth of the changed paths limits the
//! recursion; the depth of the record does not matter. Nothing is allocated per record.

mod engine;
mod option;
mod plan;
mod value;

#[cfg(test)]
mod tests;

use std::ops::Range;

use jiff::tz::TimeZone;
use millstream_record::{Batch, Encoding};

pub use option::{Rename, Set, Setting};

use crate::{
    lines,
    msgpack::{self, Head, skip},
    option_error::OptionError,
    record::{FieldPath, Record, TimedRecord},
    room::Room,
    template::{Depends, Missing, Shared},
};
use engine::Engine;
use plan::Level;
use value::Values;

/// Stands for the offset of a field that the record does not have.
const MISSING: usize = usize::MAX;
/// A record is rejected if one of its maps has this many pairs whose keys the edit names. An edit has far fewer names per
/// map ([`plan`]), so such a map repeats its keys. Without the limit, the memory for these pairs would be unbounded.
const REPEATS_MAX: usize = 1024;

/// Changes of the fields of a record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// Fields to rename.
    pub rename: Rename,
    /// Fields to set.
    pub set: Set,
    /// Fields to remove.
    pub remove: Vec<FieldPath>,
    /// The only fields to keep; `None`: all.
    pub keep: Option<Vec<FieldPath>>,
}

/// Applies [`Changes`]. Every task needs its own `Edit`, because it caches keys and times.
#[derive(Clone, Debug)]
pub struct Edit {
    /// A separate pass for `rename`, if a template reads fields and so must see the new names.
    first: Option<Box<Engine>>,
    last: Engine,
    /// The record between the two passes.
    renamed: Vec<u8>,
    /// A line, converted to an entry.
    line: Vec<u8>,
}

/// A record that was not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reject {
    /// The range of the record in the batch's body: a line with its newline, or an entry.
    pub range: Range<usize>,
    /// Why it was not changed.
    pub reason: Reason,
}

/// Why a record was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// A template needs a value that is missing.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// A map has too many pairs whose keys the edit names, so keys are repeated.
    #[error("a map has the changed fields {REPEATS_MAX} times or more")]
    Repeated,
    /// All changed records of the batch would take more bytes than this.
    #[error("the changed records of its batch would take more than {0} bytes")]
    Grown(usize),
    /// The bytes are not an entry. No valid batch contains such bytes.
    #[error("the bytes are not a record")]
    Malformed,
}

impl Changes {
    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.rename.fields.is_empty()
            && self.set.fields.is_empty()
            && self.remove.is_empty()
            && self.keep.is_none()
    }

    /// Compiles the changes; strftime in templates uses the time zone `zone`.
    ///
    /// # Errors
    /// [`OptionError`]: changes that contradict each other.
    pub fn compile(&self, zone: &TimeZone) -> Result<Edit, OptionError> {
        let engine = |changes: &Self| -> Result<Engine, OptionError> {
            let settings = changes.set.fields.iter().map(|(_, setting)| setting);
            let values = Values::new(settings, zone);
            let renames = changes.rename.fields.len();
            Ok(Engine::new(Level::new(changes)?, values, renames))
        };
        let whole = engine(self)?;
        let templates = self.set.templates();
        let mut depends = templates.iter().map(|template| template.depends());
        let reads_records = depends.any(|depends| depends == Depends::Record);
        let (first, last) = if reads_records && !self.rename.fields.is_empty() {
            let rename = Self {
                rename: self.rename.clone(),
                ..Self::default()
            };
            let rest = Self {
                rename: Rename::default(),
                ..self.clone()
            };
            (Some(Box::new(engine(&rename)?)), engine(&rest)?)
        } else {
            (None, whole)
        };
        Ok(Edit {
            first,
            last,
            renamed: Vec::new(),
            line: Vec::new(),
        })
    }
}

impl Edit {
    /// Appends the changed records of a batch to `out` as packed entries. Adds the records that cannot be changed to
    /// `rejects`. Returns the number of records appended to `out`.
    pub fn apply(&mut self, batch: &Batch, out: &mut Vec<u8>, rejects: &mut Vec<Reject>) -> u32 {
        let shared = Shared::from(batch);
        let begun = self.last.begin(shared);
        let mut room = Room::new(out);
        let (body, mut start, mut count) = (&*batch.body, 0, 0);
        let grown_bytes_max = batch.grown_bytes_max();
        let position_max = room.position() + grown_bytes_max;
        while start < body.len() {
            let before = room.position();
            let result = match (&begun, batch.encoding) {
                (Err(reason), _) => Err(reason.clone()),
                (Ok(()), Encoding::Lines) => self.line(batch, start, shared, &mut room),
                (Ok(()), Encoding::Packed) => self.entry(body, start, batch, shared, &mut room),
            };
            let result = match result {
                Ok(_) if room.position() > position_max => Err(Reason::Grown(grown_bytes_max)),
                result => result,
            };
            start = match result {
                Ok(end) => {
                    count += 1;
                    end
                }
                Err(reason) => {
                    room.back_to(before);
                    let range = start..behind(batch, start);
                    let end = range.end;
                    rejects.push(Reject { range, reason });
                    end
                }
            };
        }
        count
    }

    #[inline]
    fn line(
        &mut self,
        batch: &Batch,
        start: usize,
        shared: Shared<'_>,
        room: &mut Room<'_>,
    ) -> Result<usize, Reason> {
        let end = behind(batch, start);
        let line = batch.body.get(start..end).unwrap_or_default();
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let mut entry = std::mem::take(&mut self.line);
        entry.clear();
        lines::write_entry(&mut entry, batch.received, line);
        let result = self.entry(&entry, 0, batch, shared, room);
        self.line = entry;
        result.map(|_| end)
    }

    /// Writes the entry at `start` with its changes and returns the offset after the entry.
    #[inline]
    fn entry(
        &mut self,
        body: &[u8],
        start: usize,
        batch: &Batch,
        shared: Shared<'_>,
        room: &mut Room<'_>,
    ) -> Result<usize, Reason> {
        let head = msgpack::entry_head(body, start).map_err(|_| Reason::Malformed)?;
        // The head of the entry, including its metadata, stays unchanged.
        room.bytes(body.get(start..head.record).unwrap_or_default());
        let whole = body;
        let timed = |body, head: Head| TimedRecord {
            time: head.time.unwrap_or(batch.received),
            record: Record::Packed(body),
            metadata: head.metadata(whole),
        };
        let Some(first) = &mut self.first else {
            let map = body.get(head.record..).unwrap_or_default();
            return self
                .last
                .record(body, head.record, shared, timed(map, head), room);
        };
        self.renamed.clear();
        let mut renamed = Room::new(&mut self.renamed);
        let end = first.record(body, head.record, shared, timed(&[], head), &mut renamed)?;
        drop(renamed);
        let map = &self.renamed;
        self.last.record(map, 0, shared, timed(map, head), room)?;
        Ok(end)
    }
}

/// Returns the offset after the record at `start`. If the record cannot be read, which does not happen in a valid batch,
/// returns the end of the body.
#[inline]
fn behind(batch: &Batch, start: usize) -> usize {
    let body = &*batch.body;
    match batch.encoding {
        Encoding::Lines => {
            let rest = body.get(start..).unwrap_or_default();
            memchr::memchr(b'\n', rest).map_or(body.len(), |length| start + length + 1)
        }
        Encoding::Packed => {
            let mut open = 1;
            match skip(body, start, &mut open) {
                Ok(end) if open == 0 => end,
                _ => body.len(),
            }
        }
    }
}
