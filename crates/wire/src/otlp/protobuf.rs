//! OTLP in protobuf, read field by field from a slice (<https://protobuf.dev/programming-guides/encoding/>).
//!
//! ```text
//! tag      varint: field number << 3 | wire type
//! 0        varint: 7 bits per byte, the lowest first; the high bit is set if more bytes follow
//! 1, 5     8 bytes, 4 bytes, little endian
//! 2        varint length, then as many bytes: text, bytes, a message
//! 3, 4     groups, which OTLP has never used: malformed
//! ```
//!
//! In a message, the resource or scope may follow the records to which it belongs. So each message is first scanned for its
//! resource or scope. This scan skips the records without reading them.

use std::borrow::Cow;

use super::{
    Bad,
    record::{CONTEXT_BYTES_MAX, Id, Plain},
    walk::{Any, Encoding, LogRecord, Named, RECORD_ATTRIBUTES, VALUES},
};

/// The maximum length of a varint in bytes.
const VARINT_BYTES_MAX: usize = 10;

/// A field of any wire type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// The fields of a message that were not read yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    bytes: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The bytes that were not read yet.
    fn unread(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns number and value of the next field, or `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u32, Field<'a>)>, Bad> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let mut ahead = *self;
        let tag = ahead.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| Bad::Malformed)?;
        let field = match tag & 7 {
            0 => Field::Varint(ahead.varint()?),
            1 => Field::Fixed64(u64::from_le_bytes(ahead.array()?)),
            2 => {
                let length = usize::try_from(ahead.varint()?).map_err(|_| Bad::Malformed)?;
                Field::Bytes(ahead.take(length)?)
            }
            5 => Field::Fixed32(u32::from_le_bytes(ahead.array()?)),
            _ => return Err(Bad::Malformed),
        };
        *self = ahead;
        Ok(Some((number, field)))
    }

    /// Returns the next field with this number that is a text, bytes or a message. Skips other fields. Returns `None` at the end.
    pub(super) fn next_of(&mut self, number: u32) -> Result<Option<&'a [u8]>, Bad> {
        while let Some((found, field)) = self.next()? {
            if let Field::Bytes(bytes) = field
                && found == number
            {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    fn varint(&mut self) -> Result<u64, Bad> {
        let mut value = 0_u64;
        for (place, &byte) in self.bytes.iter().take(VARINT_BYTES_MAX).enumerate() {
            // Bits beyond the 64th are dropped, as by every protobuf reader.
            value |= u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                self.take(place + 1)?;
                return Ok(value);
            }
        }
        Err(Bad::Malformed)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Bad> {
        self.take(N)?.try_into().map_err(|_| Bad::Malformed)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Bad> {
        let (taken, left) = self.bytes.split_at_checked(length).ok_or(Bad::Malformed)?;
        self.bytes = left;
        Ok(taken)
    }
}

/// The elements of a repeated field that were not read yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct List<'a> {
    fields: Fields<'a>,
    number: u32,
}

impl<'a> List<'a> {
    fn new(message: &'a [u8], field: Named) -> Self {
        Self {
            fields: Fields::new(message),
            number: field.number,
        }
    }
}

/// OTLP in protobuf. If a field that is not repeated occurs twice, the last one applies.
#[derive(Debug)]
pub(super) struct Protobuf;

impl<'a> Encoding<'a> for Protobuf {
    type List = List<'a>;

    fn list(message: &'a [u8], field: Named) -> Result<List<'a>, Bad> {
        Ok(List::new(message, field))
    }

    fn count(list: &List<'a>) -> Result<u32, Bad> {
        let mut list = *list;
        let mut count = 0_u32;
        while Self::next(&mut list)?.is_some() {
            // This cannot overflow, because an element has at least two bytes, and no request has 8 GiB.
            count = count.saturating_add(1);
        }
        Ok(count)
    }

    fn next(list: &mut List<'a>) -> Result<Option<&'a [u8]>, Bad> {
        list.fields.next_of(list.number)
    }

    fn unread(list: &List<'a>) -> &'a [u8] {
        list.fields.unread()
    }

    /// This encoding ignores the name: both the resource and the scope are field 1 of their message.
    fn context(message: &'a [u8], _: &[u8]) -> Result<Option<&'a [u8]>, Bad> {
        let mut fields = Fields::new(message);
        let mut context = None;
        while let Some(bytes) = fields.next_of(1)? {
            context = Some(bytes);
        }
        match context {
            Some(bytes) if bytes.len() > CONTEXT_BYTES_MAX => Err(Bad::TooLong),
            context => Ok(context),
        }
    }

    fn text(message: &'a [u8], field: Named) -> Result<&'a [u8], Bad> {
        let mut fields = Fields::new(message);
        let mut text: &[u8] = &[];
        while let Some(found) = fields.next_of(field.number)? {
            text = found;
        }
        Ok(text)
    }

    fn number(message: &'a [u8], field: Named) -> Result<u64, Bad> {
        let mut fields = Fields::new(message);
        let mut value = 0;
        while let Some((number, found)) = fields.next()? {
            if let Field::Varint(found) = found
                && number == field.number
            {
                value = found;
            }
        }
        Ok(value)
    }

    fn record(message: &'a [u8]) -> Result<LogRecord<'a, List<'a>>, Bad> {
        let mut plain = Plain::default();
        let (mut body, mut has_attributes) = (None, false);
        let mut fields = Fields::new(message);
        while let Some((number, field)) = fields.next()? {
            match (number, field) {
                (1, Field::Fixed64(time)) => plain.time = time,
                (2, Field::Varint(severity)) => plain.severity_number = severity as i64,
                (3, Field::Bytes(text)) => plain.severity_text = text,
                (5, Field::Bytes(value)) => body = Some(value),
                (6, Field::Bytes(_)) => has_attributes = true,
                (7, Field::Varint(dropped)) => plain.dropped = dropped,
                (8, Field::Fixed32(flags)) => plain.flags = u64::from(flags),
                (9, Field::Bytes(id)) => plain.trace_id = Id::Bytes(id),
                (10, Field::Bytes(id)) => plain.span_id = Id::Bytes(id),
                (11, Field::Fixed64(time)) => plain.observed = time,
                (12, Field::Bytes(name)) => plain.event_name = name,
                (1..=12, _) if number != 4 => return Err(Bad::Type),
                _ => {}
            }
        }
        Ok(LogRecord {
            plain,
            body,
            attributes: has_attributes.then(|| List::new(message, RECORD_ATTRIBUTES)),
        })
    }

    fn pair(message: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), Bad> {
        let mut fields = Fields::new(message);
        let (mut key, mut value): (&[u8], &[u8]) = (&[], &[]);
        while let Some((number, field)) = fields.next()? {
            match (number, field) {
                (1, Field::Bytes(bytes)) => key = bytes,
                (2, Field::Bytes(bytes)) => value = bytes,
                (1 | 2, _) => return Err(Bad::Type),
                _ => {}
            }
        }
        Ok((key, value))
    }

    fn any(message: &'a [u8]) -> Result<Any<'a, List<'a>>, Bad> {
        let mut fields = Fields::new(message);
        let mut value = Any::Nil;
        while let Some((number, field)) = fields.next()? {
            value = match (number, field) {
                (1, Field::Bytes(text)) => Any::Text(text),
                (2, Field::Varint(bool)) => Any::Bool(bool != 0),
                (3, Field::Varint(int)) => Any::Int(int as i64),
                (4, Field::Fixed64(bits)) => Any::Double(f64::from_bits(bits)),
                (5, Field::Bytes(list)) => Any::List(List::new(list, VALUES)),
                (6, Field::Bytes(map)) => Any::Map(List::new(map, VALUES)),
                (7, Field::Bytes(bytes)) => Any::Bytes(Cow::Borrowed(bytes)),
                (1..=7, _) => return Err(Bad::Type),
                _ => continue,
            };
        }
        Ok(value)
    }
}
