//! Reads single values of Avro's binary encoding from a slice.
//!
//! ```text
//! int, long      zigzag, 7 bits per byte, the lowest first; the high bit is set if more bytes follow; at most 10 bytes
//! bytes, string  a long with the length in bytes, then the bytes
//! map, array     blocks: a long n, then n items; if n < 0, a long with the size in bytes, then -n items; n = 0 is the end
//! fixed          its bytes
//! union          a long, the index of the branch, then its value
//! ```

/// The maximum number of bytes of a long.
const LONG_BYTES_MAX: usize = 10;

/// Why a value could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The bytes end inside the value; more may arrive.
    #[error("the bytes end inside an Avro value")]
    Short,
    /// A number of more than 64 bits, or a negative length.
    #[error("a number of more than 64 bits or a length below zero")]
    Malformed,
}

/// Reads the values in a slice one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// A reader at offset `at` of `bytes`.
    pub fn at(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// The offset of the next value.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Reads an int or a long.
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

    /// Reads a length: a long that is not negative. The length may exceed the number of available bytes.
    ///
    /// # Errors
    /// [`ReadError`].
    #[inline]
    pub fn length(&mut self) -> Result<usize, ReadError> {
        usize::try_from(self.long()?).map_err(|_| ReadError::Malformed)
    }

    /// Reads bytes or a string.
    ///
    /// # Errors
    /// [`ReadError`].
    #[inline]
    pub fn bytes(&mut self) -> Result<&'a [u8], ReadError> {
        let length = self.length()?;
        self.take(length)
    }

    /// Reads the next `length` bytes.
    ///
    /// # Errors
    /// [`ReadError`].
    #[inline]
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], ReadError> {
        let end = self.at.checked_add(length).ok_or(ReadError::Malformed)?;
        let bytes = self.bytes.get(self.at..end).ok_or(ReadError::Short)?;
        self.at = end;
        Ok(bytes)
    }

    /// Reads the number of items in the next block of a map or array. 0 means that the map or array ends here.
    ///
    /// # Errors
    /// [`ReadError`].
    #[inline]
    pub fn block(&mut self) -> Result<u64, ReadError> {
        let count = self.long()?;
        if count < 0 {
            // Only a reader that skips the whole block needs its size.
            self.length()?;
        }
        Ok(count.unsigned_abs())
    }
}
