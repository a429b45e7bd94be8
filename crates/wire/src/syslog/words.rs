//! Finds the end of a word. Words are short, so eight bytes are tested in one step, without a function call.

const ONES: u64 = 0x0101_0101_0101_0101;

/// Returns the index of the first byte that is in `ends`.
#[inline(always)]
pub(super) fn find<const N: usize>(ends: [u8; N], text: &[u8]) -> Option<usize> {
    let (words, rest) = text.as_chunks::<8>();
    let mut at = 0;
    for word in words {
        let word = u64::from_le_bytes(*word);
        let flags = ends.iter().fold(0, |flags, end| {
            // In `differs`, the bytes that equal `end` are 0. Of the high bits that are set in the flags, the lowest one belongs
            // to the first of these bytes.
            let differs = word ^ (ONES * u64::from(*end));
            flags | differs.wrapping_sub(ONES) & !differs
        });
        let flags = flags & (ONES * 0x80);
        if flags != 0 {
            return Some(at + (flags.trailing_zeros() / 8) as usize);
        }
        at += 8;
    }
    let found = rest.iter().position(|byte| ends.contains(byte))?;
    Some(at + found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_end_is_the_same_as_in_a_bytewise_search(text in "[a :\\[\u{80}-\u{ff}\u{0}-\u{5}!;Z\\\\]{0,40}") {
            let text = text.as_bytes();
            let every = |ends: &[u8]| text.iter().position(|byte| ends.contains(byte));
            prop_assert_eq!(find(*b" ", text), every(b" "));
            prop_assert_eq!(find(*b":[ ", text), every(b":[ "));
            prop_assert_eq!(find([0xc2, 0x80], text), every(&[0xc2, 0x80]));
        }
    }
}
