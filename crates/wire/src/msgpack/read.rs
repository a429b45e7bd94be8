//! Reads single values from a slice.

use super::skip;

/// Why a value could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The bytes end inside the value; more may arrive.
    #[error("the bytes end inside a MessagePack value")]
    Short,
    /// The byte 0xc1, with which no value begins.
    #[error("no MessagePack value begins with the byte 0xc1")]
    Malformed,
    /// The value has another type than the requested one.
    #[error("a MessagePack value of another type was expected")]
    Type,
}

/// Reads the values in a slice one after the other. After an error, the offset is unchanged.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// A reader at offset `at` of `bytes`.
    pub fn at(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// The offset of the next value.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Returns the first byte of the next value, which shows its type, without consuming it.
    ///
    /// # Errors
    /// [`ReadError::Short`] at the end.
    pub fn peek(&self) -> Result<u8, ReadError> {
        self.bytes.get(self.at).copied().ok_or(ReadError::Short)
    }

    /// Skips one value of any type.
    ///
    /// # Errors
    /// [`ReadError::Short`], [`ReadError::Malformed`].
    pub fn skip(&mut self) -> Result<(), ReadError> {
        self.value().map(drop)
    }

    /// Reads one value of any type; returns its encoded bytes.
    ///
    /// # Errors
    /// [`ReadError::Short`], [`ReadError::Malformed`].
    pub fn value(&mut self) -> Result<&'a [u8], ReadError> {
        self.values(1)
    }

    /// Reads `count` values of any type; returns their encoded bytes.
    ///
    /// # Errors
    /// [`ReadError::Short`], [`ReadError::Malformed`].
    pub fn values(&mut self, count: u64) -> Result<&'a [u8], ReadError> {
        let mut open = count;
        let end = skip(self.bytes, self.at, &mut open).map_err(|_| ReadError::Malformed)?;
        if open > 0 {
            return Err(ReadError::Short);
        }
        let value = self.bytes.get(self.at..end).ok_or(ReadError::Short)?;
        self.at = end;
        Ok(value)
    }

    /// Reads nil.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn nil(&mut self) -> Result<(), ReadError> {
        match self.peek()? {
            0xc0 => {
                self.at += 1;
                Ok(())
            }
            other => Err(wrong(other)),
        }
    }

    /// Reads a boolean.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn bool(&mut self) -> Result<bool, ReadError> {
        match self.peek()? {
            marker @ (0xc2 | 0xc3) => {
                self.at += 1;
                Ok(marker == 0xc3)
            }
            other => Err(wrong(other)),
        }
    }

    /// Reads an integer of any width and sign.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn int(&mut self) -> Result<i128, ReadError> {
        let (value, size) = match *self.rest() {
            [] => return Err(ReadError::Short),
            [m @ 0x00..=0x7f, ..] => (i128::from(m), 1),
            [m @ 0xe0..=0xff, ..] => (i128::from(m as i8), 1),
            [0xcc, a, ..] => (i128::from(a), 2),
            [0xcd, a, b, ..] => (i128::from(u16::from_be_bytes([a, b])), 3),
            [0xce, a, b, c, d, ..] => (i128::from(u32::from_be_bytes([a, b, c, d])), 5),
            [0xcf, a, b, c, d, e, f, g, h, ..] => {
                let value = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
                (i128::from(value), 9)
            }
            [0xd0, a, ..] => (i128::from(a as i8), 2),
            [0xd1, a, b, ..] => (i128::from(i16::from_be_bytes([a, b])), 3),
            [0xd2, a, b, c, d, ..] => (i128::from(i32::from_be_bytes([a, b, c, d])), 5),
            [0xd3, a, b, c, d, e, f, g, h, ..] => {
                let value = i64::from_be_bytes([a, b, c, d, e, f, g, h]);
                (i128::from(value), 9)
            }
            [0xcc..=0xd3, ..] => return Err(ReadError::Short),
            [other, ..] => return Err(wrong(other)),
        };
        self.at += size;
        Ok(value)
    }

    /// Reads a float of 4 or 8 bytes.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn float(&mut self) -> Result<f64, ReadError> {
        let (value, size) = match *self.rest() {
            [0xca, a, b, c, d, ..] => (f64::from(f32::from_be_bytes([a, b, c, d])), 5),
            [0xcb, a, b, c, d, e, f, g, h, ..] => (f64::from_be_bytes([a, b, c, d, e, f, g, h]), 9),
            [] | [0xca | 0xcb, ..] => return Err(ReadError::Short),
            [other, ..] => return Err(wrong(other)),
        };
        self.at += size;
        Ok(value)
    }

    /// Reads the head of a str or bin; returns the length of its content, which need not have arrived yet.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn bytes_head(&mut self) -> Result<usize, ReadError> {
        let (length, size) = match *self.rest() {
            [] => return Err(ReadError::Short),
            [m @ 0xa0..=0xbf, ..] => (usize::from(m & 0x1f), 1),
            [0xd9 | 0xc4, a, ..] => (usize::from(a), 2),
            [0xda | 0xc5, a, b, ..] => (usize::from(u16::from_be_bytes([a, b])), 3),
            [0xdb | 0xc6, a, b, c, d, ..] => (u32::from_be_bytes([a, b, c, d]) as usize, 5),
            [0xd9..=0xdb | 0xc4..=0xc6, ..] => return Err(ReadError::Short),
            [other, ..] => return Err(wrong(other)),
        };
        self.at += size;
        Ok(length)
    }

    /// Reads a str or bin. Senders use both for the same purpose.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn bytes(&mut self) -> Result<&'a [u8], ReadError> {
        let mut ahead = *self;
        let length = ahead.bytes_head()?;
        let data = ahead.take(length)?;
        *self = ahead;
        Ok(data)
    }

    /// Reads an ext value; returns its type code and its data.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn ext(&mut self) -> Result<(i8, &'a [u8]), ReadError> {
        let mut ahead = *self;
        let (code, length) = ahead.ext_head()?;
        let data = ahead.take(length)?;
        *self = ahead;
        Ok((code, data))
    }

    /// Reads the head of an ext value; returns its type code and the length of its data, which need not have arrived
    /// yet.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn ext_head(&mut self) -> Result<(i8, usize), ReadError> {
        let (code, length, size) = match *self.rest() {
            [] => return Err(ReadError::Short),
            [m @ 0xd4..=0xd8, code, ..] => (code, 1 << (m - 0xd4), 2),
            [0xc7, a, code, ..] => (code, usize::from(a), 3),
            [0xc8, a, b, code, ..] => (code, usize::from(u16::from_be_bytes([a, b])), 4),
            [0xc9, a, b, c, d, code, ..] => (code, u32::from_be_bytes([a, b, c, d]) as usize, 6),
            [0xd4..=0xd8 | 0xc7..=0xc9, ..] => return Err(ReadError::Short),
            [other, ..] => return Err(wrong(other)),
        };
        self.at += size;
        Ok((code as i8, length))
    }

    /// Reads the head of an array; returns the number of its values.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn array_len(&mut self) -> Result<u32, ReadError> {
        let (length, size) = match *self.rest() {
            [] => return Err(ReadError::Short),
            [m @ 0x90..=0x9f, ..] => (u32::from(m & 0x0f), 1),
            [0xdc, a, b, ..] => (u32::from(u16::from_be_bytes([a, b])), 3),
            [0xdd, a, b, c, d, ..] => (u32::from_be_bytes([a, b, c, d]), 5),
            [0xdc | 0xdd, ..] => return Err(ReadError::Short),
            [other, ..] => return Err(wrong(other)),
        };
        self.at += size;
        Ok(length)
    }

    /// Reads the head of a map; returns the number of its pairs.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn map_len(&mut self) -> Result<u32, ReadError> {
        let (length, size) = match *self.rest() {
            [] => return Err(ReadError::Short),
            [m @ 0x80..=0x8f, ..] => (u32::from(m & 0x0f), 1),
            [0xde, a, b, ..] => (u32::from(u16::from_be_bytes([a, b])), 3),
            [0xdf, a, b, c, d, ..] => (u32::from_be_bytes([a, b, c, d]), 5),
            [0xde | 0xdf, ..] => return Err(ReadError::Short),
            [other, ..] => return Err(wrong(other)),
        };
        self.at += size;
        Ok(length)
    }

    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ReadError> {
        let data = self.rest().get(..length).ok_or(ReadError::Short)?;
        self.at += length;
        Ok(data)
    }
}

fn wrong(marker: u8) -> ReadError {
    match marker {
        0xc1 => ReadError::Malformed,
        _ => ReadError::Type,
    }
}
