//! The characters that a JSON string must escape: `"`, `\` and all characters below U+0020.
//!
//! A block is tested as a whole by a fold that the compiler vectorizes, without `unsafe`. Arithmetic on a word of eight bytes
//! finds the index of the first such character.

const ONES: u64 = 0x0101_0101_0101_0101;

/// Whether a JSON string must escape `byte`.
#[inline(always)]
fn is_special(byte: u8) -> bool {
    (byte < 0x20) | (byte == b'"') | (byte == b'\\')
}

/// Whether all bytes are ASCII and need no escape.
#[inline(always)]
pub(super) fn plain<const N: usize>(block: &[u8; N]) -> bool {
    // The compiler vectorizes this fold, because it has no early exit. As signed numbers, control characters and non-ASCII bytes
    // are below 0x20, so one comparison finds both.
    !block.iter().fold(false, |special, &byte| {
        special | ((byte as i8) < 0x20) | (byte == b'"') | (byte == b'\\')
    })
}

/// Returns flags, each in the high bit of a byte. The lowest set flag is in the first byte that needs an escape. Higher flags may
/// be wrong, because the subtractions borrow from higher bytes. 0 means that no byte needs an escape.
#[inline(always)]
pub(super) fn specials(word: u64) -> u64 {
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    // `x - 1` sets the high bit of a zero byte, `x - 32` the high bit of a byte below 32. `& !x` clears the bits that are
    // already set in `x`.
    let controls = word.wrapping_sub(ONES * 0x20) & !word;
    let quotes = quote.wrapping_sub(ONES) & !quote;
    let backslashes = backslash.wrapping_sub(ONES) & !backslash;
    (controls | quotes | backslashes) & (ONES * 0x80)
}

/// The index of the byte with the lowest set flag; 8 if no flag is set.
#[inline(always)]
pub(super) fn lowest(flags: u64) -> usize {
    (flags.trailing_zeros() / 8) as usize
}

/// The number of bytes at the start of `text` that need no escape.
#[inline]
pub(super) fn clean_prefix(text: &[u8]) -> usize {
    let (words, rest) = text.as_chunks::<8>();
    let mut clean = 0;
    for word in words {
        let flags = specials(u64::from_le_bytes(*word));
        if flags != 0 {
            return clean + lowest(flags);
        }
        clean += 8;
    }
    let special = rest.iter().position(|&byte| is_special(byte));
    clean + special.unwrap_or(rest.len())
}

/// For each byte, its form in a JSON string: the escape, or the byte itself if it needs no escape. The form begins at the
/// lowest byte of the word, and the highest byte of the word is the length of the form.
pub(super) static ESCAPES: [u64; 256] = escapes();

const fn escapes() -> [u64; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = u64::from_le_bytes(escape(byte as u8));
        byte += 1;
    }
    table
}

const fn escape(byte: u8) -> [u8; 8] {
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
            return [b'\\', b'u', b'0', b'0', high, low, 0, 6];
        }
        _ => return [byte, 0, 0, 0, 0, 0, 0, 1],
    };
    [b'\\', letter, 0, 0, 0, 0, 0, 2]
}
