//! The characters that a JSON string escapes, eight bytes at a time.
//!
//! The test for all eight is arithmetic in one 64-bit word, so it needs neither `unsafe` nor a vector unit (reference:
//! `bench` prints what it costs).

const ONES: u64 = 0x0101_0101_0101_0101;
/// The highest bit of each byte.
pub(super) const HIGHS: u64 = 0x8080_8080_8080_8080;

/// The highest bit of the lowest byte that a JSON string must escape (`"`, `\` and those below space) is set; bits above
/// that one may be set without cause (a borrow), bits below are not.
#[inline(always)]
pub(super) fn specials(word: u64) -> u64 {
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    // `x - 1` sets the high bit of a byte that was zero; `& !x` drops those that had it before.
    let controls = word.wrapping_sub(ONES * 0x20) & !word;
    let quotes = quote.wrapping_sub(ONES) & !quote;
    let backslashes = backslash.wrapping_sub(ONES) & !backslash;
    (controls | quotes | backslashes) & HIGHS
}

/// Index of the byte whose flag is the lowest; 8 for none.
#[inline(always)]
pub(super) fn lowest(flags: u64) -> usize {
    (flags.trailing_zeros() / 8) as usize
}

/// Whether a JSON string must escape `byte`.
pub(super) fn is_special(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

/// How many bytes at the start of `text` stand for themselves in a JSON string.
pub(super) fn clean_prefix(text: &[u8]) -> usize {
    let (words, rest) = text.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let flags = specials(u64::from_le_bytes(*word));
        if flags != 0 {
            return index * 8 + lowest(flags);
        }
    }
    let clean = rest
        .iter()
        .position(|&byte| is_special(byte))
        .unwrap_or(rest.len());
    words.len() * 8 + clean
}

/// What stands for a byte in a string, and its length: the byte itself where it needs no escape.
pub(super) static ESCAPES: [([u8; 8], u8); 256] = escapes();

const fn escapes() -> [([u8; 8], u8); 256] {
    let mut table = [([0; 8], 0); 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = escape(byte as u8);
        byte += 1;
    }
    table
}

const fn escape(byte: u8) -> ([u8; 8], u8) {
    let letter = match byte {
        8 => b'b',
        9 => b't',
        10 => b'n',
        12 => b'f',
        13 => b'r',
        b'"' | b'\\' => byte,
        0..0x20 => {
            let hex = b"0123456789abcdef";
            let (high, low) = (hex[byte as usize >> 4], hex[byte as usize & 15]);
            return ([b'\\', b'u', b'0', b'0', high, low, 0, 0], 6);
        }
        _ => return ([byte, 0, 0, 0, 0, 0, 0, 0], 1),
    };
    ([b'\\', letter, 0, 0, 0, 0, 0, 0], 2)
}
