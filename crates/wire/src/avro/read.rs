//! Reads single values of Avro's binary encoding out of a slice.
//!
//! ```text
//! int, long      zigzag, 7 bits a byte, the lowest first; the high bit says that more follow; at most 10 bytes
//! bytes, string  a long, and so many bytes
//! map, array     blocks: a long n, then n items; n < 0: -n items, and a long with their bytes before them; 0 ends
//! fixed          its bytes
//! union          a long that names the branch, and its value
//! ```

use std::fmt;

/// A long has at most so many bytes.
const LONG_BYTES_MAX: usize = 10;

/// Why a value could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The bytes end inside the value: an outcome while more may come.
    Short,
    /// A number of more than 64 bits, or a length below zero.
    Malformed,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "the bytes end inside an Avro value",
            Self::Malformed => "a number of more than 64 bits or a length below zero",
        })
    }
}

impl std::error::Error for ReadError {}

/// A place in a slice from which values are read one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// At offset `at` of `bytes`.
    pub fn at(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// The offset of the next value.
    pub fn position(&self) -> usize {
        self.at
    }

    /// An int or a long.
    ///
    /// # Errors
    /// [`ReadError`].
    #[inline]
    pub fn long(&mut self) -> Result<i64, ReadError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let mut bits = 0_u64;
        for (place, &byte) in rest.iter().take(LONG_BYTES_MAX).enumerate() {
            if place == LONG_BYTES_MAX - 1 && byte > 1 {
                return Err(ReadError::Malformed);
            }
            bits |= u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                self.at += place + 1;
                return Ok((bits >> 1) as i64 ^ -((bits & 1) as i64));
            }
        }
        Err(if rest.len() < LONG_BYTES_MAX {
            ReadError::Short
        } else {
            ReadError::Malformed
        })
    }

    /// A length: a long that is not below zero. It says nothing about the bytes that are there.
    ///
    /// # Errors
    /// [`ReadError`].
    #[inline]
    pub fn length(&mut self) -> Result<usize, ReadError> {
        usize::try_from(self.long()?).map_err(|_| ReadError::Malformed)
    }

    /// Bytes or a string.
    ///
    /// # Errors
    /// [`ReadError`].
    #[inline]
    pub fn bytes(&mut self) -> Result<&'a [u8], ReadError> {
        let length = self.length()?;
        self.take(length)
    }

    /// The next `length` bytes as they are.
    ///
    /// # Errors
    /// [`ReadError::Short`].
    #[inline]
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], ReadError> {
        let end = self.at.checked_add(length).ok_or(ReadError::Malformed)?;
        let bytes = self.bytes.get(self.at..end).ok_or(ReadError::Short)?;
        self.at = end;
        Ok(bytes)
    }

    /// The items of the next block of a map or array; 0: there is none.
    ///
    /// # Errors
    /// [`ReadError`].
    #[inline]
    pub fn block(&mut self) -> Result<u64, ReadError> {
        let count = self.long()?;
        if count < 0 {
            // The size of the block is for those who step over it.
            self.length()?;
        }
        Ok(count.unsigned_abs())
    }
}
