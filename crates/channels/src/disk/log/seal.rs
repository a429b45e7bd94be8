//! The first bytes of segments, of id files and of the file `channel`: magic, format version, and a checksum over the version and the
//! content.
//!
//! ```text
//! offset bytes
//!      0   8   magic, different for each kind of file
//!      8   4   format version
//!     12   4   CRC-32C of the version (4) and bytes 16..H
//!     16   -   up to H: the content
//! ```
//!
//! Up to version 2 the checksum did not cover the version, so a flipped bit in the version looked like a file of a newer program. Since
//! version 3 the checksum is verified first, and a version that does not match it is damage.

use millstream_state::Fields;
use millstream_sys::checksum::{crc32c, crc32c_of};

/// The version of all files that begin like this. Version 2 added the receive time to frames. Version 3 made the checksum cover the
/// version. Version 4 added the tag under which a chunk arrived.
pub(super) const FORMAT_VERSION: u32 = 4;
/// The last format version in which the checksum does not cover the version field.
const UNCOVERED: u32 = 2;
/// Bytes before the content.
pub(super) const SEAL_BYTES: usize = 16;

/// The result of [`check`].
pub(super) enum Sealed {
    /// The file is intact and has this version or an earlier one.
    Whole,
    /// A newer program wrote it.
    Newer(u32),
    /// Another kind of file, or damaged.
    Damaged,
}

/// The first bytes of a file, before [`seal`] completes them.
pub(super) fn begin(magic: &[u8; 8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    out.extend_from_slice(magic);
    out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out
}

/// Writes the checksum of everything in `out`.
pub(super) fn seal(out: &mut [u8]) {
    let crc = covered(FORMAT_VERSION, &out[SEAL_BYTES..]);
    out[12..SEAL_BYTES].copy_from_slice(&crc.to_le_bytes());
}

/// Checks `bytes`, which end where the content ends.
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
        0..=UNCOVERED => crc32c(rest),
        _ => covered(version, rest),
    };
    match version {
        _ if version == 0 || crc != right => Sealed::Damaged,
        ..=FORMAT_VERSION => Sealed::Whole,
        _ => Sealed::Newer(version),
    }
}

fn covered(version: u32, content: &[u8]) -> u32 {
    crc32c_of(&[&version.to_le_bytes(), content])
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: &[u8; 8] = b"MILLTST\0";

    #[test]
    fn every_flipped_bit_is_damage_and_a_newer_version_is_recognized() {
        let mut bytes = begin(MAGIC);
        bytes.extend_from_slice(b"its content");
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
    fn earlier_versions_are_read_and_a_flipped_version_in_them_is_damage() {
        for version in [1_u32, 2] {
            let mut bytes = begin(MAGIC);
            bytes.extend_from_slice(b"its content");
            bytes[8..12].copy_from_slice(&version.to_le_bytes());
            let crc = crc32c(&bytes[SEAL_BYTES..]);
            bytes[12..16].copy_from_slice(&crc.to_le_bytes());
            assert!(matches!(check(MAGIC, &bytes), Sealed::Whole));
            bytes[9] ^= 2;
            assert!(matches!(check(MAGIC, &bytes), Sealed::Damaged));
        }
    }
}
