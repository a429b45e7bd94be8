//! Where a record ends in a stream of bytes: the options `framing`, `line_max`, `too_long` and `encoding` of sources that
//! read text.
//!
//! `[read] -> decode -> send -> keep -> take -> process -> encode -> write -> settle`
//!
//! Joining is framing: a position never points into a record. Plain lines are found here, without a look at each
//! ([`find`]); records that take more than that are made line by line by the [`Framer`]. Pure; what to do with a plain
//! line that is too long is decided by whoever reads.

mod charset;
mod framer;
#[cfg(test)]
mod framer_tests;
mod open;

use millstream_config::{Period, Size};
use millstream_wire::lines;
use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::Deserialize;

pub(crate) use charset::Charset;
pub(crate) use framer::{Ending, Framed, Framer, Rejected};

/// The longest line by default.
pub(crate) const LINE_MAX: Size = Size::mib(1);
/// The largest `line_max`: a line stands in one buffer.
pub(crate) const LINE_MAX_LARGEST: Size = Size::gib(1);

/// Why a line is rejected that has not the form of its framing.
pub(crate) const NOT_FRAMED: &str = "a line that is not as container runtimes write them";

/// Where a record ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Framing {
    /// At every newline.
    #[default]
    Lines,
    /// As container runtimes write logs: `TIME STREAM F TEXT`; parts (`P`) are joined, time and stream become the
    /// record's.
    Cri,
    /// Lines from one that matches to the next.
    Multiline(Multiline),
}

/// Which lines belong together.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Multiline {
    /// A regular expression that matches the first line of every record, such as `^\\d{4}-`. Linear in time.
    pub start: String,
    /// How long to wait for more lines before the last record is taken as whole.
    #[serde(default = "wait")]
    pub wait: Period,
}

impl Multiline {
    /// What matches the first line of every record; the error says what is wrong with the regular expression.
    pub(crate) fn start(&self) -> Result<Regex, String> {
        Regex::new(&self.start)
            .map_err(|error| format!("`start` is no regular expression: {error}"))
    }
}

/// Programs write the lines of a stack trace within milliseconds of each other.
fn wait() -> Period {
    Period::secs(1)
}

/// What becomes of a line that is longer than `line_max`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TooLong {
    /// It becomes several records of at most `line_max` bytes.
    #[default]
    Split,
    /// Its first `line_max` bytes become a record, the others are dropped and counted.
    Truncate,
    /// It leaves by the port `NAME.rejected`, in pieces of at most `line_max` bytes.
    Reject,
}

/// What stands at the start of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// That many bytes of whole lines, none of them too long.
    Lines(usize),
    /// A line of more than `line_max` bytes.
    TooLong,
    /// A line whose end is not there yet.
    Partial,
}

/// What stands at the start of `text`, with lines of at most `line_max` bytes (without their newlines).
pub(crate) fn find(text: &[u8], line_max: usize) -> Found {
    let mut end = 0;
    while text.len() - end > line_max {
        // Between two newlines that are this near to each other no line is too long: most lines are never looked at.
        match lines::cut(&text[end..], line_max.saturating_add(1)) {
            0 if end == 0 => return Found::TooLong,
            // The next one is; it comes first the next time.
            0 => return Found::Lines(end),
            whole => end += whole,
        }
    }
    match end + lines::whole(&text[end..]) {
        0 => Found::Partial,
        whole => Found::Lines(whole),
    }
}

/// How much of `text`, which has more than `line_max` bytes, becomes a piece: `line_max` bytes, or up to three fewer so
/// that no character of UTF-8 is cut.
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
        assert_eq!(find(b"", 4), Found::Partial);
        assert_eq!(find(b"abc", 4), Found::Partial);
        assert_eq!(find(b"abcd", 4), Found::Partial);
        assert_eq!(find(b"abcde", 4), Found::TooLong);
        assert_eq!(find(b"abcd\n", 4), Found::Lines(5));
        assert_eq!(find(b"abcde\n", 4), Found::TooLong);
        assert_eq!(find(b"a\nbc\n\nd", 4), Found::Lines(6));
        assert_eq!(find(b"a\nabcde\nb\n", 4), Found::Lines(2));
        assert_eq!(find(b"a\nb\nabcd\nab", 4), Found::Lines(9));
        assert_eq!(find(b"a\nb\nabcd\nabcde", 4), Found::Lines(9));
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
