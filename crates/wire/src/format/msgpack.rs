//! `format: msgpack`: entries `[time, record]` as in the batch, with the fields of `add` after the fields of the record.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`

use millstream_record::{Batch, Time};

use super::{
    Reason,
    add::Added,
    value::behind,
    write::{Of, Write},
};
use crate::{
    json::Unfit,
    msgpack::{Head, Reader, write_array_len, write_map_len, write_str, write_time},
    record::MESSAGE,
    room::Room,
};

#[derive(Debug)]
pub(super) struct Msgpack {
    added: Added,
    /// Buffer for the head of a map with added fields.
    head: Vec<u8>,
    /// The receive time of the batch, and the bytes that precede the text of each line in the output. These bytes contain
    /// the receive time.
    line: (Option<Time>, Vec<u8>),
    /// The added fields that a line already has, as a bit set: bit n stands for the added field with index n.
    line_seen: u64,
}

impl Msgpack {
    pub(super) fn new(added: Added) -> Self {
        Self {
            line_seen: added.named(MESSAGE.as_bytes()),
            added,
            head: Vec::new(),
            line: (None, Vec::new()),
        }
    }

    /// Whether entries are written unchanged.
    pub(super) fn passes_packed(&self) -> bool {
        self.added.is_empty()
    }
}

impl Write for Msgpack {
    fn begin(&mut self, batch: &Batch) {
        self.added.begin(batch);
        if self.line.0 != Some(batch.received) {
            let head = &mut self.line.1;
            head.clear();
            write_array_len(head, 2);
            write_time(head, batch.received);
            write_map_len(head, 1 + self.added.count(self.line_seen));
            write_str(head, MESSAGE.as_bytes());
            self.line.0 = Some(batch.received);
        }
    }

    fn line(&mut self, room: &mut Room<'_>, line: &[u8], of: Of<'_>) -> Result<(), Reason> {
        room.bytes(&self.line.1);
        crate::lines::str_head(room, line.len());
        room.bytes(line);
        self.added
            .write(room, of.shared, of.line(line), self.line_seen, true)
    }

    fn packed(
        &mut self,
        room: &mut Room<'_>,
        body: &[u8],
        start: usize,
        head: Head,
        of: Of<'_>,
    ) -> Result<usize, Reason> {
        if self.added.is_empty() {
            let end = behind(body, start, 1)?;
            room.bytes(body.get(start..end).unwrap_or_default());
            return Ok(end);
        }
        let mut reader = Reader::at(body, head.record);
        let fields = reader.map_len().map_err(Unfit::from)?;
        let own = reader.position();
        let mut seen = 0;
        for _ in 0..fields {
            // The names of added fields are texts, so a key of another type cannot be one of them.
            match reader.bytes() {
                Ok(name) => seen |= self.added.named(name),
                Err(_) => reader.skip().map_err(Unfit::from)?,
            }
            reader.skip().map_err(Unfit::from)?;
        }
        let end = reader.position();
        self.head.clear();
        let all = fields.saturating_add(self.added.count(seen));
        write_map_len(&mut self.head, all);
        // The head of the entry, including its metadata, stays unchanged.
        room.bytes(body.get(start..head.record).unwrap_or_default());
        room.bytes(&self.head);
        room.bytes(body.get(own..end).unwrap_or_default());
        self.added
            .write(room, of.shared, of.packed(body, head), seen, fields > 0)?;
        Ok(end)
    }
}
