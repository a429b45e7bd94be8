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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_has_the_published_check_value() {
        // RFC 3720 and the catalogue of CRCs.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c_of(&[b"123", b"", b"456789"]), 0xe306_9283);
    }
}
