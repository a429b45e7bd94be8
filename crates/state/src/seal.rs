//! The beginning of every state file: its kind, its format version, and a checksum that covers both.
//!
//! ```text
//! offset bytes                                     offset bytes
//!      0   8   magic                                   16   8   generation
//!      8   4   format version                          24   8   N: length of the body (not in journals)
//!     12   4   CRC-32C of 0..12 and of 16..end         32   N   body              (not in journals)
//! ```
//! Integers are little-endian. Every new state has a higher generation, which shows which of two slots or files is the newer one. In files
//! that are replaced as a whole, the generation is 0. The header of a journal ends at offset 24, and each record has its own checksum. The
//! checksum is verified before the version is used, so a damaged version cannot look like a file of a newer program.

use millstream_sys::checksum::crc32c_of;

pub(crate) const HEADER_BYTES: usize = 24;
/// Bytes before the body of a sealed block.
pub(crate) const OVERHEAD_BYTES: usize = 32;

/// The kind of a file, by its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seal<T> {
    /// Intact, and of the expected version.
    Current(T),
    /// Intact, but of this higher version, which a newer program wrote.
    Newer(u32),
    /// Of an older version, of another kind of file, or damaged.
    Other,
}

/// Encodes a whole block: header and body.
pub(crate) fn block(magic: &[u8; 8], version: u32, generation: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(OVERHEAD_BYTES + body.len());
    bytes.extend_from_slice(magic);
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&generation.to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(body);
    close(&mut bytes);
    bytes
}

/// Decodes a block at the beginning of `bytes`, and returns its generation and body. Bytes after the block are ignored.
pub(crate) fn open_block<'a>(
    magic: &[u8; 8],
    version: u32,
    bytes: &'a [u8],
) -> Seal<(u64, &'a [u8])> {
    let Some(length) = u64_at(bytes, HEADER_BYTES).and_then(|length| usize::try_from(length).ok())
    else {
        return Seal::Other;
    };
    let end = OVERHEAD_BYTES.checked_add(length);
    let Some(whole) = end.and_then(|end| bytes.get(..end)) else {
        return Seal::Other;
    };
    match open(magic, version, whole) {
        Seal::Current(generation) => Seal::Current((generation, &whole[OVERHEAD_BYTES..])),
        Seal::Newer(found) => Seal::Newer(found),
        Seal::Other => Seal::Other,
    }
}

/// Encodes the header of a journal.
pub(crate) fn header(magic: &[u8; 8], version: u32, generation: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(magic);
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    bytes[16..].copy_from_slice(&generation.to_le_bytes());
    close(&mut bytes);
    bytes
}

/// Decodes the header of a journal, and returns its generation.
pub(crate) fn open_header(magic: &[u8; 8], version: u32, bytes: &[u8]) -> Seal<u64> {
    match bytes.get(..HEADER_BYTES) {
        Some(header) => open(magic, version, header),
        None => Seal::Other,
    }
}

/// Writes the checksum.
fn close(bytes: &mut [u8]) {
    let checksum = crc32c_of(&[&bytes[..12], &bytes[16..]]);
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
}

fn open(magic: &[u8; 8], version: u32, bytes: &[u8]) -> Seal<u64> {
    let (Some(found), Some(checksum), Some(generation)) =
        (u32_at(bytes, 8), u32_at(bytes, 12), u64_at(bytes, 16))
    else {
        return Seal::Other;
    };
    if !bytes.starts_with(magic) || checksum != crc32c_of(&[&bytes[..12], &bytes[16..]]) {
        return Seal::Other;
    }
    match found {
        _ if found == version => Seal::Current(generation),
        _ if found > version => Seal::Newer(found),
        _ => Seal::Other,
    }
}

/// The little-endian number at an offset.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

/// The little-endian number at an offset.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: &[u8; 8] = b"MILLTST\0";

    #[test]
    fn a_flipped_bit_anywhere_in_a_block_is_noticed_and_never_looks_like_a_newer_version() {
        let bytes = block(MAGIC, 3, 9, b"the body");
        assert_eq!(
            open_block(MAGIC, 3, &bytes),
            Seal::Current((9, &b"the body"[..]))
        );
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open_block(MAGIC, 3, &damaged), Seal::Other, "bit {bit}");
        }
        for end in 0..bytes.len() {
            assert_eq!(open_block(MAGIC, 3, &bytes[..end]), Seal::Other, "{end}");
        }
    }

    #[test]
    fn a_whole_block_of_another_version_is_newer_or_older() {
        let bytes = block(MAGIC, 3, 9, b"the body");
        assert_eq!(open_block(MAGIC, 2, &bytes), Seal::Newer(3));
        assert_eq!(open_block(MAGIC, 4, &bytes), Seal::Other);
        assert_eq!(open_block(b"MILLTST1", 3, &bytes), Seal::Other);
        assert_eq!(
            open_header(MAGIC, 3, &header(MAGIC, 3, 5)),
            Seal::Current(5)
        );
        assert_eq!(open_header(MAGIC, 2, &header(MAGIC, 3, 5)), Seal::Newer(3));
    }
}
