//! Protobuf, field by field, out of a slice (<https://protobuf.dev/programming-guides/encoding/>).
//!
//! ```text
//! tag      varint: field number << 3 | wire type
//! 0        varint: 7 bits a byte, the lowest first; the high bit says that more follow
//! 1, 5     8 bytes, 4 bytes, little endian
//! 2        varint length, and so many bytes: text, bytes, a message
//! 3, 4     groups, which OTLP has never had: malformed
//! ```

use super::Bad;

/// A varint has at most so many bytes.
const VARINT_BYTES_MAX: usize = 10;

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// The fields of a message, one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    bytes: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Of the message that `bytes` are.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// What was not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// The next field's number and value; `None` at the end.
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

    /// The next field of this number that is a text, bytes or a message; others are passed over.
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
            // Bits beyond the 64th are dropped, as all readers of protobuf do.
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
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or(Bad::Malformed)?;
        self.bytes = rest;
        Ok(taken)
    }
}
