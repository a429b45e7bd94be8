//! Parses the parts of timestamps: numbers with a limited number of digits.

use super::civil::Civil;

pub(super) fn month(name: &[u8; 3]) -> Option<i64> {
    const NAMES: &[u8; 36] = b"janfebmaraprmayjunjulaugsepoctnovdec";
    let name = name.map(|byte| byte.to_ascii_lowercase());
    let (names, _) = NAMES.as_chunks::<3>();
    let at = names.iter().position(|known| *known == name)?;
    i64::try_from(at + 1).ok()
}

/// Reads a number of `min` to `max` digits. Returns the number, and the text after it.
#[inline(always)]
pub(super) fn number(text: &[u8], min: usize, max: usize) -> Option<(i64, &[u8])> {
    let (mut value, mut rest) = (0, text);
    for _ in 0..max {
        let [digit @ b'0'..=b'9', behind @ ..] = rest else {
            break;
        };
        value = value * 10 + i64::from(digit - b'0');
        rest = behind;
    }
    (text.len() - rest.len() >= min).then_some((value, rest))
}

/// Reads `hh:mm:ss`. Returns hours, minutes and seconds, and the text after them.
#[inline(always)]
pub(super) fn clock_time(text: &[u8]) -> Option<(i64, i64, i64, &[u8])> {
    let (hour, rest) = number(text, 1, 2)?;
    let (minute, rest) = number(rest.strip_prefix(b":")?, 2, 2)?;
    let (second, rest) = number(rest.strip_prefix(b":")?, 2, 2)?;
    Some((hour, minute, second, rest))
}

/// Reads `:ss`, with seconds from 0 to 59. Returns the seconds, and the text after them.
#[inline(always)]
pub(super) fn second(text: &[u8]) -> Option<(i64, &[u8])> {
    match text {
        [b':', tens @ b'0'..=b'5', ones @ b'0'..=b'9', rest @ ..] => {
            Some((i64::from((tens - b'0') * 10 + (ones - b'0')), rest))
        }
        _ => None,
    }
}

#[inline(always)]
pub(super) fn iso_date_time(text: &[u8]) -> Option<(Civil, &[u8])> {
    let (year, rest) = number(text, 4, 4)?;
    let (month, rest) = number(rest.strip_prefix(b"-")?, 2, 2)?;
    let (day, rest) = number(rest.strip_prefix(b"-")?, 2, 2)?;
    let [b'T' | b't' | b' ', rest @ ..] = rest else {
        return None;
    };
    let (hour, minute, second, rest) = clock_time(rest)?;
    let civil = Civil {
        year,
        month,
        day,
        hour,
        minute,
        second,
    };
    Some((civil, rest))
}

/// Reads a fraction, if there is one. Returns its nanoseconds (digits after the ninth are ignored), and the text after it.
pub(super) fn fraction(text: &[u8]) -> (u32, &[u8]) {
    let [b'.' | b',', digits @ ..] = text else {
        return (0, text);
    };
    let count = digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    if count == 0 {
        return (0, text);
    }
    let (mut nanos, mut unit) = (0, 100_000_000);
    for digit in digits.iter().take(count.min(9)) {
        nanos += u32::from(digit - b'0') * unit;
        unit /= 10;
    }
    (nanos, digits.get(count..).unwrap_or_default())
}

/// Reads a fraction of one to seven digits as one 64-bit word. Returns its nanoseconds, and the text after it; `None` for other
/// lengths.
#[inline(always)]
pub(super) fn few_digits(text: &[u8]) -> Option<(u32, &[u8])> {
    let word = u64::from_le_bytes(*text.first_chunk()?);
    let digits = word ^ 0x3030_3030_3030_3030;
    // Sets the high bit of each byte that is not a digit. A carry can set wrong bits only after the first such byte, and only the
    // first bit that is set is used.
    let others = (digits.wrapping_add(0x7676_7676_7676_7676) | digits) & 0x8080_8080_8080_8080;
    let count = others.trailing_zeros() / 8;
    if !(1..8).contains(&count) {
        return None;
    }
    // Clears the bytes after the last digit. Then combines digits into pairs, pairs into fours, and fours into eights.
    let digits = digits & ((1 << (8 * count)) - 1);
    let pairs = (digits * 10 + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    let eights = (fours * 10_000 + (fours >> 32)) as u32;
    Some((eights * 10, text.get(count as usize..)?))
}

/// Reads an offset: `hh:mm`, `hhmm` or `hh`. Returns it in seconds, and the text after it.
#[inline(always)]
pub(super) fn offset(text: &[u8]) -> Option<(i64, &[u8])> {
    let (hours, rest) = number(text, 2, 2)?;
    let digits = rest.strip_prefix(b":").unwrap_or(rest);
    let (minutes, rest) = number(digits, 2, 2).unwrap_or((0, rest));
    (hours < 24 && minutes < 60).then_some((hours * 3600 + minutes * 60, rest))
}
