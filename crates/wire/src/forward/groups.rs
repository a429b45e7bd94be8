//! Groups of Fluent Bit: records that share a resource and a scope of OpenTelemetry.
//!
//! ```text
//! [[-1, {"schema": "otlp", ...}], {"resource": {...}, "scope": {...}}]    begins a group
//! [[time, {"otlp": {...}}], record]                                       a record of the group
//! [[-2, {}], {}]                                                          ends the group
//! ```
//! The marks at the two ends are no records. The group's data become part of the metadata of each of its records, so that a record stays
//! complete wherever it goes: the fields of the first mark's body, and its metadata as `group`.

use millstream_record::Time;

use crate::msgpack::{
    ReadError, Reader, entry_head, is_array, write_map_len, write_str, write_time,
};

/// The name of the first mark's metadata in the metadata of a record.
const GROUP: &[u8] = b"group";
/// The maximum number of bytes by which the heads of an entry grow.
const HEAD_BYTES: usize = 32;

/// The data that the records of a group share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group<'a> {
    /// The mark's metadata and body, which are maps.
    metadata: &'a [u8],
    body: &'a [u8],
}

impl<'a> Group<'a> {
    /// The group that this mark begins; `None` if it ends one.
    pub(super) fn of(mark: &'a [u8]) -> Option<Self> {
        let head = entry_head(mark, 0).ok()?;
        // The times -1 and -2, of which an EventTime holds the lower 32 bits.
        let begins = head.time.is_some_and(|time| time.seconds() & 1 == 1);
        let metadata = Reader::at(mark, head.metadata).value().ok()?;
        let body = mark.get(head.record..)?;
        begins.then_some(Self { metadata, body })
    }

    /// The maximum number of bytes by which an entry of the group grows.
    pub(super) fn bytes_max(self) -> usize {
        self.metadata.len() + self.body.len() + GROUP.len() + HEAD_BYTES
    }

    /// Appends `entry` with the metadata of the group. An entry's own metadata of the same name stay. `time` replaces that of the entry.
    pub(super) fn write(
        self,
        entry: &[u8],
        time: Option<Time>,
        out: &mut Vec<u8>,
    ) -> Result<(), ReadError> {
        let head = entry_head(entry, 0)?;
        let mut sent = Reader::new(entry);
        sent.array_len()?;
        if is_array(sent.peek()?) {
            sent.array_len()?;
        }
        let own = match head.metadata {
            0 => &[0x80],
            at => Reader::at(entry, at).value()?,
        };
        out.extend_from_slice(&[0x92, 0x92]);
        match time {
            Some(time) => write_time(out, time),
            None => out.extend_from_slice(sent.value()?),
        }
        let mut reader = Reader::new(own);
        let own_len = reader.map_len()?;
        let own_pairs = own.get(reader.position()..).unwrap_or_default();
        let has = |name: &[u8]| pairs(own).any(|(key, _)| Reader::new(key).bytes() == Ok(name));
        let is_new = |key: &[u8]| !Reader::new(key).bytes().is_ok_and(has);
        let shared = || pairs(self.body).filter(|(key, _)| is_new(key));
        let has_group = pairs(self.metadata).next().is_some() && !has(GROUP);
        let more = u32::try_from(shared().count()).unwrap_or(u32::MAX);
        let all = own_len
            .saturating_add(more)
            .saturating_add(has_group.into());
        write_map_len(out, all);
        out.extend_from_slice(own_pairs);
        for (key, value) in shared() {
            out.extend_from_slice(key);
            out.extend_from_slice(value);
        }
        if has_group {
            write_str(out, GROUP);
            out.extend_from_slice(self.metadata);
        }
        out.extend_from_slice(entry.get(head.record..).unwrap_or_default());
        Ok(())
    }
}

/// The keys and values of a map.
fn pairs(map: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut reader = Reader::new(map);
    let count = reader.map_len().unwrap_or(0);
    (0..count).map_while(move |_| Some((reader.value().ok()?, reader.value().ok()?)))
}
