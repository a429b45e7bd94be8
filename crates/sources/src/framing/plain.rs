//! Finds whole lines without examining each of them.

use millstream_wire::lines;

use super::options::Cr;

/// The result of scanning the start of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scanned {
    /// Whole lines of this many bytes in total, none of them too long.
    Lines(usize),
    /// A line of more than `line_max` bytes.
    TooLong,
    /// A line whose end is missing.
    Partial,
}

/// Scans the start of `text`. Lines may have at most `line_max` bytes without their ends. `cr`: whether a CR belongs to the end.
pub(crate) fn scan(text: &[u8], line_max: usize, cr: Cr) -> Scanned {
    let mut end = 0;
    while text.len() - end > line_max {
        // Every line that ends within the next `line_max + 1` bytes is short enough, so only the last newline in these bytes is
        // searched.
        match lines::cut(&text[end..], line_max.saturating_add(1)) {
            0 => match text.get(end + line_max..) {
                Some([b'\r', b'\n', ..]) if cr == Cr::Drop => end += line_max + 2,
                // The next byte may be a newline.
                Some([b'\r']) if cr == Cr::Drop && end == 0 => return Scanned::Partial,
                _ if end == 0 => return Scanned::TooLong,
                // The next line is too long. The next scan begins with it.
                _ => return Scanned::Lines(end),
            },
            whole => end += whole,
        }
    }
    match end + lines::whole(&text[end..]) {
        0 => Scanned::Partial,
        whole => Scanned::Lines(whole),
    }
}

/// Returns the size of the first piece of `text`. `text` must have more than `line_max` bytes. The size is `line_max`, or up to
/// three bytes less so that no UTF-8 character is cut.
pub(crate) fn piece(text: &[u8], line_max: usize) -> usize {
    let starts = |at: &usize| text.get(*at).is_none_or(|byte| byte & 0xc0 != 0x80);
    let near = (line_max.saturating_sub(3).max(1)..=line_max).rev();
    near.clone().find(starts).unwrap_or(line_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_are_found_up_to_the_first_that_is_too_long() {
        assert_eq!(scan(b"", 4, Cr::Keep), Scanned::Partial);
        assert_eq!(scan(b"abc", 4, Cr::Keep), Scanned::Partial);
        assert_eq!(scan(b"abcd", 4, Cr::Keep), Scanned::Partial);
        assert_eq!(scan(b"abcde", 4, Cr::Keep), Scanned::TooLong);
        assert_eq!(scan(b"abcd\n", 4, Cr::Keep), Scanned::Lines(5));
        assert_eq!(scan(b"abcde\n", 4, Cr::Keep), Scanned::TooLong);
        assert_eq!(scan(b"a\nbc\n\nd", 4, Cr::Keep), Scanned::Lines(6));
        assert_eq!(scan(b"a\nabcde\nb\n", 4, Cr::Keep), Scanned::Lines(2));
        assert_eq!(scan(b"a\nb\nabcd\nab", 4, Cr::Keep), Scanned::Lines(9));
        assert_eq!(scan(b"a\nb\nabcd\nabcde", 4, Cr::Keep), Scanned::Lines(9));
    }

    #[test]
    fn the_cr_at_the_end_of_a_line_does_not_count() {
        let scan = |text| super::scan(text, 4, Cr::Drop);
        assert_eq!(scan(b"abcd\r\n"), Scanned::Lines(6));
        assert_eq!(scan(b"abcd\r\nef\n"), Scanned::Lines(9));
        assert_eq!(scan(b"a\nabcd\r\nabcd\r"), Scanned::Lines(8));
        assert_eq!(scan(b"abcd\r"), Scanned::Partial);
        assert_eq!(scan(b"abcde\r\n"), Scanned::TooLong);
        assert_eq!(scan(b"abcd\rx"), Scanned::TooLong);
        assert_eq!(super::scan(b"abcd\r\n", 4, Cr::Keep), Scanned::TooLong);
    }

    #[test]
    fn a_piece_ends_between_characters() {
        assert_eq!(piece(b"abcdef", 4), 4);
        assert_eq!(piece("ab\u{20ac}d".as_bytes(), 4), 2);
        assert_eq!(piece("a\u{1f600}b".as_bytes(), 4), 1);
        assert_eq!(piece(&[0x80; 9], 4), 4);
        assert_eq!(piece("\u{20ac}".as_bytes(), 1), 1);
    }
}
