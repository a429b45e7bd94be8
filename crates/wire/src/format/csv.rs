//! `format: csv`: the fields named in `columns`, comma-separated (RFC 4180), one record per row.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! ```text
//! 2026-11-21T03:46:12.123456789Z,web-1,"he said ""no"", then left",200,,""<LF>
//! ```
//!
//! A text with a comma, a quote or a line end is quoted, and its quotes are doubled. A missing field or nil is an empty cell; an
//! empty text is `""`, and so is a row that would otherwise be empty. Maps and arrays are JSON. If the record does not have the
//! field of a column, but the option `add` adds a field with this name, the cell holds the value of the added field.

use millstream_record::Batch;

use super::{
    Reason,
    add::Added,
    escape::Cell,
    value::{Plain, behind, map_at, plain, text_at},
    write::{Of, Write},
};
use crate::{
    json::Unfit,
    msgpack::{Head, Reader},
    record::{self, FieldPath, MESSAGE, TimedRecord},
    room::Room,
};

/// Stands for the offset of a field that the current record does not have.
const NOWHERE: usize = usize::MAX;

#[derive(Debug)]
pub(super) struct Csv {
    columns: Vec<Column>,
    added: Added,
    delimiter: Box<[u8]>,
    /// Buffer for the JSON of a value, before it is written as text.
    scratch: Vec<u8>,
}

#[derive(Debug)]
struct Column {
    path: FieldPath,
    /// The name of a field at the top level. `None` for a nested field, which is looked up in each record.
    name: Option<Box<[u8]>>,
    /// The index of the added field for this column, if there is one.
    added: Option<usize>,
    /// The offset of the column's value in the current record, or [`NOWHERE`].
    at: usize,
}

impl Csv {
    pub(super) fn new(columns: &[FieldPath], added: Added, delimiter: Box<[u8]>) -> Self {
        let columns = columns.iter().map(|path| {
            let name: Option<Box<[u8]>> = path.top_name().map(|name| name.as_bytes().into());
            Column {
                added: name.as_deref().and_then(|name| added.index_of(name)),
                path: path.clone(),
                name,
                at: NOWHERE,
            }
        });
        Self {
            columns: columns.collect(),
            added,
            delimiter,
            scratch: Vec::new(),
        }
    }

    /// The row with the names of the columns.
    pub(super) fn header(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut room = Room::new(&mut out);
        for (index, column) in self.columns.iter().enumerate() {
            if index > 0 {
                room.byte(b',');
            }
            match &column.name {
                Some(name) => Cell::text(&mut room, name),
                None => Cell::text(&mut room, column.path.to_string().as_bytes()),
            }
        }
        room.bytes(&self.delimiter);
        drop(room);
        out
    }

    /// Writes the row of a record. The caller has stored the offsets of the record's values in the columns.
    #[inline]
    fn row(
        &mut self,
        room: &mut Room<'_>,
        body: &[u8],
        event: TimedRecord<'_>,
        of: Of<'_>,
    ) -> Result<(), Reason> {
        let start = room.position();
        for (index, column) in self.columns.iter().enumerate() {
            if index > 0 {
                room.byte(b',');
            }
            if column.at != NOWHERE {
                plain::<Cell>(room, body, column.at, &mut self.scratch)?;
            } else if column.name.is_none() {
                if let Some(record::Value::Packed(bytes)) = column.path.find(event.record) {
                    plain::<Cell>(room, bytes, 0, &mut self.scratch)?;
                }
            } else if let Some(added) = column.added {
                self.added.write_value(added, room, of.shared, event)?;
            }
        }
        if room.position() == start {
            room.bytes(b"\"\"");
        }
        room.bytes(&self.delimiter);
        Ok(())
    }
}

impl Write for Csv {
    fn begin(&mut self, batch: &Batch) {
        self.added.begin(batch);
        self.columns
            .iter_mut()
            .for_each(|column| column.at = NOWHERE);
    }

    fn line(&mut self, room: &mut Room<'_>, line: &[u8], of: Of<'_>) -> Result<(), Reason> {
        let start = room.position();
        let event = of.line(line);
        for (index, column) in self.columns.iter().enumerate() {
            if index > 0 {
                room.byte(b',');
            }
            if column.name.as_deref() == Some(MESSAGE.as_bytes()) {
                Cell::text(room, line);
            } else if let Some(added) = column.added {
                self.added.write_value(added, room, of.shared, event)?;
            }
        }
        if room.position() == start {
            room.bytes(b"\"\"");
        }
        room.bytes(&self.delimiter);
        Ok(())
    }

    fn packed(
        &mut self,
        room: &mut Room<'_>,
        body: &[u8],
        _start: usize,
        head: Head,
        of: Of<'_>,
    ) -> Result<usize, Reason> {
        self.columns
            .iter_mut()
            .for_each(|column| column.at = NOWHERE);
        let (fields, mut at) = map_at(body, head.record)?;
        for _ in 0..fields {
            let (name, value) = key_at(body, at)?;
            for column in &mut self.columns {
                // If a key occurs several times, the first one applies.
                if column.at == NOWHERE && name.is_some() && column.name.as_deref() == name {
                    column.at = value;
                }
            }
            at = match text_at(body, value) {
                Some((start, length)) => start + length,
                None => behind(body, value, 1)?,
            };
        }
        self.row(room, body, of.packed(body, head), of)?;
        Ok(at)
    }
}

/// Returns the key at `at` and the offset of its value. A key that is not a text is `None`, and matches no column.
#[inline]
fn key_at(body: &[u8], at: usize) -> Result<(Option<&[u8]>, usize), Unfit> {
    if let Some((start, length)) = text_at(body, at) {
        return Ok((body.get(start..start + length), start + length));
    }
    let mut reader = Reader::at(body, at);
    let name = reader.bytes().ok();
    if name.is_none() {
        reader.skip()?;
    }
    Ok((name, reader.position()))
}
