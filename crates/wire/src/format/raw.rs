//! `format: raw`: writes one field of each record and a newline. Lines stay unchanged.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! A value that is not a text is written as JSON.

use millstream_record::Batch;

use super::{
    Reason,
    value::{behind, text_at},
    write::{Of, Write},
};
use crate::{
    json,
    msgpack::{self, Head},
    record::{FieldPath, MESSAGE, Record, Value},
    room::Room,
};

#[derive(Debug)]
pub(super) struct Raw {
    field: FieldPath,
    delimiter: Box<[u8]>,
    /// The encoded key, if the field is at the top level; otherwise empty.
    key: Vec<u8>,
    /// The shapes of the previous record's fields, by index.
    shapes: [Shape; FIELDS_MAX],
}

/// Only maps with fewer fields than this are read the fast way.
const FIELDS_MAX: usize = 16;

/// The first byte of a key and of its value, and the sizes that follow from these bytes. The sizes are stored for speed: if a
/// field has the same shape as in the previous record, the CPU can speculate where the next field begins, without waiting for
/// these two bytes.
#[derive(Clone, Copy, Debug)]
struct Shape {
    key: u8,
    key_size: u8,
    value: u8,
    value_size: u8,
}

impl Shape {
    /// A key and a value that are empty texts.
    const EMPTY: Self = Self {
        key: 0xa0,
        key_size: 1,
        value: 0xa0,
        value_size: 1,
    };
}

impl Raw {
    pub(super) fn new(field: FieldPath, delimiter: Box<[u8]>) -> Self {
        let mut key = Vec::new();
        if let Some(name) = field.top_name() {
            msgpack::write_str(&mut key, name.as_bytes());
        }
        Self {
            field,
            delimiter,
            key,
            shapes: [Shape::EMPTY; FIELDS_MAX],
        }
    }

    /// Whether lines are written unchanged.
    pub(super) fn passes_lines(&self) -> bool {
        *self.delimiter == *b"\n" && self.field.top_name() == Some(MESSAGE)
    }

    /// Finds the field the fast way. Returns its text, the offset after it, and the number of fields after it. Returns `None` if
    ///
    /// - the record has no fields, or at least [`FIELDS_MAX`],
    /// - the field is nested or missing, or its value is not a text of at most 65535 bytes,
    /// - the key of a field before it is not a text of at most 31 bytes,
    /// - or the value of a field before it is neither a text of at most 65535 bytes nor an integer from 0 to 127.
    #[inline(always)]
    fn plain<'a>(&mut self, body: &'a [u8], record: usize) -> Option<(&'a [u8], usize, u8)> {
        let fields = match *body.get(record)? {
            marker @ 0x81..=0x8f => marker & 0x0f,
            _ => return None,
        };
        let first = *self.key.first()?;
        let mut at = record + 1;
        for (index, shape) in (0..fields).zip(&mut self.shapes) {
            let rest = body.get(at..)?;
            let marker = *rest.first()?;
            if marker == first && rest.starts_with(&self.key) {
                let (start, length) = text_at(body, at + self.key.len())?;
                let text = body.get(start..start + length)?;
                return Some((text, start + length, fields - 1 - index));
            }
            if marker != shape.key {
                if !matches!(marker, 0xa0..=0xbf) {
                    return None;
                }
                (shape.key, shape.key_size) = (marker, 1 + (marker & 0x1f));
            }
            let value = at + usize::from(shape.key_size);
            let marker = *body.get(value)?;
            if marker != shape.value {
                match marker {
                    0xa0..=0xbf => {
                        (shape.value, shape.value_size) = (marker, 1 + (marker & 0x1f));
                    }
                    0x00..=0x7f => (shape.value, shape.value_size) = (marker, 1),
                    _ => {
                        let (start, length) = text_at(body, value)?;
                        at = start + length;
                        continue;
                    }
                }
            }
            at = value + usize::from(shape.value_size);
        }
        None
    }

    #[inline(always)]
    fn write(&self, room: &mut Room<'_>, text: &[u8]) {
        match room.rewrites(text) {
            None => room.both(text, &self.delimiter),
            Some(how) => {
                how.pieces(text, |piece| room.bytes(piece));
                room.bytes(&self.delimiter);
            }
        }
    }

    /// Writes the field in the general case: anywhere in the record, with any value. Returns the offset after the record.
    #[cold]
    #[inline(never)]
    fn any(&self, room: &mut Room<'_>, body: &[u8], record: usize) -> Result<usize, Reason> {
        let map = Record::Packed(body.get(record..).unwrap_or_default());
        let value = self.field.find(map);
        let value = value.ok_or_else(|| Reason::NoField(self.field.clone()))?;
        match (value.text(), value) {
            (Some(text), _) => room.text(text),
            (None, Value::Packed(bytes)) => {
                json::value(room, bytes, 0)?;
            }
            (None, Value::Line(line)) => room.text(line),
        }
        room.bytes(&self.delimiter);
        behind(body, record, 1)
    }
}

impl Write for Raw {
    fn begin(&mut self, _: &Batch) {}

    fn line(&mut self, room: &mut Room<'_>, line: &[u8], _: Of<'_>) -> Result<(), Reason> {
        if self.field.top_name() != Some(MESSAGE) {
            return Err(Reason::NoField(self.field.clone()));
        }
        self.write(room, line);
        Ok(())
    }

    #[inline]
    fn packed(
        &mut self,
        room: &mut Room<'_>,
        body: &[u8],
        _start: usize,
        head: Head,
        _: Of<'_>,
    ) -> Result<usize, Reason> {
        let Some((text, end, more)) = self.plain(body, head.record) else {
            return self.any(room, body, head.record);
        };
        self.write(room, text);
        match more {
            0 => Ok(end),
            _ => behind(body, end, 2 * u64::from(more)),
        }
    }
}
