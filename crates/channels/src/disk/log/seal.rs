//! How every file of a channel begins: what it is, which version wrote it, and a checksum over both and what follows.
//!
//! ```text
//! offset bytes
//!      0   8   magic, another one for each kind of file
//!      8   4   format version
//!     12   4   CRC-32C of the version (4) and bytes 16..H
//!     16   -   up to H: what the file says
//! ```
//!
//! Up to version 2 the checksum left the version out. So a flipped bit in it looked like a newer program. Now the
//! checksum comes first: only a version that it covers is believed.

use super::{bytes::Fields, frame::checksum};

/// The version of all files of a channel. Since 2 frames hold the receive time of their batch; since 3 the checksum covers
/// the version.
pub(super) const FORMAT_VERSION: u32 = 3;
/// The last version whose checksum left the version out.
const UNCOVERED: u32 = 2;
/// Bytes before what the file says.
pub(super) const SEAL_BYTES: usize = 16;

/// What the beginning of a file is.
pub(super) enum Sealed {
    /// Written by this version or an earlier one, and whole.
    Whole,
    /// A newer program has written it.
    Newer(u32),
    /// Another kind of file, or damaged.
    Damaged,
}

/// The first bytes of a file; [`seal`] fills them in.
pub(super) fn begin(magic: &[u8; 8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    out.extend_from_slice(magic);
    out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out
}

/// Writes the checksum of all that stands in `out`.
pub(super) fn seal(out: &mut [u8]) {
    let crc = covered(FORMAT_VERSION, &out[SEAL_BYTES..]);
    out[12..SEAL_BYTES].copy_from_slice(&crc.to_le_bytes());
}

/// Checks `bytes`, which end where the checksum ends.
pub(super) fn check(magic: &[u8; 8], bytes: &[u8]) -> Sealed {
    let mut fields = Fields::new(bytes);
    let is_ours = fields.take(8).is_some_and(|found| found == magic);
    let (Some(version), Some(crc), Some(rest)) =
        (fields.u32(), fields.u32(), bytes.get(SEAL_BYTES..))
    else {
        return Sealed::Damaged;
    };
    if !is_ours {
        return Sealed::Damaged;
    }
    let right = match version {
        0..=UNCOVERED => checksum(rest),
        _ => covered(version, rest),
    };
    match version {
        _ if version == 0 || crc != right => Sealed::Damaged,
        ..=FORMAT_VERSION => Sealed::Whole,
        _ => Sealed::Newer(version),
    }
}

fn covered(version: u32, rest: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&version.to_le_bytes());
    digest.update(rest);
    // CRC-32C has 32 bits; the crate returns all of its algorithms in 64.
    u32::try_from(digest.finalize()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: &[u8; 8] = b"MILLTST\0";

    #[test]
    fn only_a_version_that_the_checksum_covers_is_believed() {
        let mut bytes = begin(MAGIC);
        bytes.extend_from_slice(b"what it says");
        seal(&mut bytes);
        assert!(matches!(check(MAGIC, &bytes), Sealed::Whole));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(
                matches!(check(MAGIC, &damaged), Sealed::Damaged),
                "bit {bit}"
            );
        }
        let mut newer = bytes.clone();
        newer[8..12].copy_from_slice(&7_u32.to_le_bytes());
        let crc = covered(7, &newer[SEAL_BYTES..]);
        newer[12..16].copy_from_slice(&crc.to_le_bytes());
        assert!(matches!(check(MAGIC, &newer), Sealed::Newer(7)));
    }

    #[test]
    fn files_of_earlier_versions_are_read_and_a_flipped_version_in_them_is_damage() {
        for version in [1_u32, 2] {
            let mut bytes = begin(MAGIC);
            bytes.extend_from_slice(b"what it says");
            bytes[8..12].copy_from_slice(&version.to_le_bytes());
            let crc = checksum(&bytes[SEAL_BYTES..]);
            bytes[12..16].copy_from_slice(&crc.to_le_bytes());
            assert!(matches!(check(MAGIC, &bytes), Sealed::Whole));
            bytes[9] ^= 2;
            assert!(matches!(check(MAGIC, &bytes), Sealed::Damaged));
        }
    }
}
