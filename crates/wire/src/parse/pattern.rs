//! Regular expressions: each named group becomes a field.
//!
//! Matching takes linear time. A UTF-8 text with non-ASCII characters is matched by characters. Text that is not UTF-8 is matched
//! by bytes, so that an invalid byte in a line does not prevent a match of `[^ ]*`. ASCII text is matched by bytes as well,
//! because that is faster and the result is the same. A pattern that cannot be compiled for bytes, for example because it contains
//! `\p{L}`, is always matched by characters.

use regex::bytes::{CaptureLocations, Regex, RegexBuilder};

use super::{
    Fault, OptionError,
    fields::{Fields, Meaning, Slot},
};
use crate::ruby::translated;

/// A compiled expression.
#[derive(Debug)]
pub(super) struct Pattern {
    characters: Matcher,
    /// The same expression for bytes, or `None` if it uses character classes that need UTF-8.
    bytes: Option<Matcher>,
    /// The named groups.
    groups: Box<[(usize, Slot)]>,
}

#[derive(Debug)]
struct Matcher {
    regex: Regex,
    /// The offsets of the groups in the last match.
    places: CaptureLocations,
}

impl Matcher {
    fn new(regex: Regex) -> Self {
        Self {
            places: regex.capture_locations(),
            regex,
        }
    }

    #[inline]
    fn find(&mut self, text: &[u8]) -> bool {
        self.regex.captures_read(&mut self.places, text).is_some()
    }
}

impl Pattern {
    pub(super) fn new(pattern: &str, meaning: &Meaning) -> Result<Self, OptionError> {
        let pattern = &*translated(pattern);
        let regex = Regex::new(pattern).map_err(|error| {
            OptionError::new(
                "pattern",
                format!("it is not a regular expression: {error}"),
                "it has the syntax of Rust's regex: named groups, classes and repetitions, without look-around and back-references",
            )
        })?;
        let names = regex.capture_names().enumerate();
        let groups: Box<[_]> = names
            .filter_map(|(group, name)| Some((group, Slot::new(name?, None, meaning))))
            .collect();
        if groups.is_empty() {
            return Err(OptionError::new(
                "pattern",
                "it has no named group, so no field would come from it",
                "give a group a name, such as `(?<level>\\w+)`",
            ));
        }
        let bytes = RegexBuilder::new(pattern).unicode(false).build().ok();
        Ok(Self {
            characters: Matcher::new(regex),
            bytes: bytes.map(Matcher::new),
            groups,
        })
    }

    /// Appends the groups that took part in the match.
    pub(super) fn fields(&mut self, text: &[u8], fields: &mut Fields<'_>) -> Result<(), Fault> {
        let by_bytes = text.is_ascii() || str::from_utf8(text).is_err();
        let matcher = match &mut self.bytes {
            Some(bytes) if by_bytes => bytes,
            _ => &mut self.characters,
        };
        if !matcher.find(text) {
            return Err(Fault::NoMatch);
        }
        for (group, slot) in &self.groups {
            if let Some((start, end)) = matcher.places.get(*group) {
                fields.text(slot, text.get(start..end).unwrap_or_default())?;
            }
        }
        Ok(())
    }
}
