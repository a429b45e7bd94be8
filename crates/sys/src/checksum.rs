//! CRC-32C (Castagnoli), the checksum of everything that Millstream stores and of several protocols.

use crc_fast::{CrcAlgorithm::Crc32Iscsi, Digest};

/// Returns the CRC-32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    // The crate returns every checksum as 64 bits; this algorithm fills the lower half.
    crc_fast::checksum(Crc32Iscsi, bytes) as u32
}

/// Returns the CRC-32C of the concatenated parts.
#[must_use]
pub fn crc32c_of(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}

/// A CRC-32C of bytes that arrive one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Crc32c(Digest);

impl Crc32c {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the CRC-32C of the bytes so far.
    #[must_use]
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self(Digest::new(Crc32Iscsi))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_has_the_published_check_value() {
        // RFC 3720 and the catalogue of CRCs.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c_of(&[b"123", b"", b"456789"]), 0xe306_9283);
        let mut running = Crc32c::default();
        assert_eq!(running.value(), crc32c(b""));
        running.update(b"1234");
        assert_eq!(running.value(), crc32c(b"1234"));
        running.update(b"56789");
        assert_eq!(running.value(), 0xe306_9283);
    }
}
