//! `format: raw`: one field and a newline, a line as it is.
//!
//! Hop: read decode send keep take [encode] write settle. A value that is no text is written as JSON.

use millstream_record::Batch;

use super::{
    Reason,
    encoder::{Of, Write},
    value::{behind, text_at},
};
use crate::{
    event::{FieldPath, MESSAGE, Record, Value},
    json,
    msgpack::{self, Head},
    room::Room,
};

#[derive(Debug)]
pub(super) struct Raw {
    field: FieldPath,
    delimiter: Box<[u8]>,
    /// How most records look up to the field's value, when the field has a short name at the top: the key as a str.
    key: Vec<u8>,
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
        }
    }

    /// Whether a line leaves as it stands.
    pub(super) fn passes_lines(&self) -> bool {
        *self.delimiter == *b"\n" && self.field.top_name() == Some(MESSAGE)
    }

    /// The field's text and the offset behind it, when it is the first field and short.
    #[inline(always)]
    fn first<'a>(&self, body: &'a [u8], record: usize) -> Option<(u8, &'a [u8], usize)> {
        let fields = match *body.get(record)? {
            marker @ 0x81..=0x8f => marker & 0x0f,
            _ => return None,
        };
        let rest = body.get(record + 1..)?;
        if self.key.is_empty() || !rest.starts_with(&self.key) {
            return None;
        }
        let value = record + 1 + self.key.len();
        let (start, length) = text_at(body, value)?;
        let text = body.get(start..start + length)?;
        Some((fields, text, start + length))
    }

    /// Wherever the field stands and whatever it is.
    #[cold]
    #[inline(never)]
    fn any(&self, room: &mut Room<'_>, body: &[u8], record: usize) -> Result<usize, Reason> {
        let map = Record::Packed(body.get(record..).unwrap_or_default());
        let value = self.field.find(map);
        let value = value.ok_or_else(|| Reason::NoField(self.field.clone()))?;
        match (value.text(), value) {
            (Some(text), _) => room.bytes(text),
            (None, Value::Packed(bytes)) => {
                json::value(room, bytes, 0)?;
            }
            (None, Value::Line(line)) => room.bytes(line),
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
        room.both(line, &self.delimiter);
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
        let Some((fields, text, end)) = self.first(body, head.record) else {
            return self.any(room, body, head.record);
        };
        room.both(text, &self.delimiter);
        match fields {
            1 => Ok(end),
            _ => behind(body, end, 2 * (u64::from(fields) - 1)),
        }
    }
}
