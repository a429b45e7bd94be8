//! Integers as decimal digits.

/// The length of the longest 64-bit integer: `-9223372036854775808` or `18446744073709551615`.
pub(crate) const INTEGER_BYTES: usize = 20;

/// The digits of a number with its sign. The number must fit into 64 bits, signed or unsigned.
pub(crate) fn digits(number: i128, buffer: &mut [u8; INTEGER_BYTES]) -> &[u8] {
    let magnitude = u64::try_from(number.unsigned_abs()).unwrap_or(u64::MAX);
    let mut start = unsigned_digits(magnitude, buffer);
    if number < 0 && start > 0 {
        start -= 1;
        if let Some(sign) = buffer.get_mut(start) {
            *sign = b'-';
        }
    }
    buffer.get(start..).unwrap_or_default()
}

/// Writes the digits at the end of `buffer`; returns the offset of the first digit.
#[inline(always)]
pub(crate) fn unsigned_digits(mut rest: u64, buffer: &mut [u8; INTEGER_BYTES]) -> usize {
    let mut start = INTEGER_BYTES;
    loop {
        start -= 1;
        if let Some(digit) = buffer.get_mut(start) {
            *digit = b'0' + (rest % 10) as u8;
        }
        rest /= 10;
        if rest == 0 || start == 0 {
            return start;
        }
    }
}
