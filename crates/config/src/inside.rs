//! Finds the place (the location in a file) at which a part of a scalar's value is written, in any of YAML's styles.
//!
//! Programs and conditions are scalars, and an error in one of them points at a part of it. The value differs from the text in the file:
//! quotes and escapes are gone, lines are joined or lose their indentation, and `${NAME}` is replaced. [`Place::inside`] walks along both
//! texts and keeps them aligned, so no second YAML parser is needed.

use std::{ops::Range, sync::Arc};

use crate::place::{Place, Source};

/// To find where a substituted text ends in the value, the characters that follow its `${...}` in the file are searched for in the value.
/// This is the maximum number of these characters.
const ANCHOR: usize = 12;

impl Place {
    /// Returns the place of the bytes `part` of `value`, which is the value of the scalar at this place. If the part has several lines, the
    /// place covers only the first one. A substituted text has the place of its `${...}`.
    #[must_use]
    pub fn inside(&self, value: &str, part: Range<usize>) -> Self {
        let Some(mut walk) = Walk::new(self, value) else {
            return self.clone();
        };
        let start = walk.to(part.start);
        let end = walk.to(part.end.max(part.start)).max(start);
        Self::of_bytes(&self.file, start..end)
    }

    /// Returns the place of a range of bytes of a file. If the range has several lines, the place covers only the first one.
    #[must_use]
    pub fn of_bytes(file: &Arc<Source>, part: Range<usize>) -> Self {
        let (line, column) = file.line_and_column(part.start);
        let text = file.text().get(part).unwrap_or_default();
        let first = text.lines().next().unwrap_or_default();
        Self {
            file: Arc::clone(file),
            line,
            column,
            length: u32::try_from(first.chars().count().max(1)).unwrap_or(u32::MAX),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Plain,
    Single,
    Double,
    Block,
}

/// An offset in the file (`at`), and the offset of the same character in the value (`of`).
struct Walk<'a> {
    source: &'a str,
    value: &'a str,
    style: Style,
    /// The indentation of every line of a block, in columns.
    indent: usize,
    at: usize,
    of: usize,
}

impl<'a> Walk<'a> {
    /// Starts where the place and the value begin. `None` if the place is not in its file.
    fn new(place: &'a Place, value: &'a str) -> Option<Self> {
        let source = place.file.text();
        let at = place.file.offset(place.line, place.column)?;
        let rest = source.get(at..)?;
        let (style, at) = match (block_before(source.get(..at)?), rest.chars().next()?) {
            (Some(block), _) => (Style::Block, block),
            (None, '\'') => (Style::Single, at + 1),
            (None, '"') => (Style::Double, at + 1),
            (None, '|' | '>') => (Style::Block, at + rest.find('\n')? + 1),
            (None, _) => (Style::Plain, at),
        };
        let mut walk = Self {
            source,
            value,
            style,
            indent: 0,
            at,
            of: 0,
        };
        if style == Style::Block {
            walk.indent = indent(source.get(at..)?, value);
            walk.skip_indent();
        }
        Some(walk)
    }

    /// Advances to the byte `of` of the value, and returns its offset in the file.
    fn to(&mut self, of: usize) -> usize {
        while self.of < of.min(self.value.len()) {
            let (at, before) = (self.at, self.of);
            if !self.step() {
                break;
            }
            // The byte is inside an escape or a substitution, and gets the offset at which the escape or substitution begins.
            if self.of > of {
                (self.at, self.of) = (at, before);
                break;
            }
            if (self.at, self.of) == (at, before) {
                break;
            }
        }
        // Skips a line continuation, so that the place is that of the next character.
        while self.style == Style::Double && self.rest().starts_with("\\\n") {
            self.at += 2;
            self.skip_blanks();
        }
        self.at
    }

    fn rest(&self) -> &'a str {
        self.source.get(self.at..).unwrap_or_default()
    }

    fn value(&self) -> &'a str {
        self.value.get(self.of..).unwrap_or_default()
    }

    /// Advances by one character, escape, line break or substitution; false if the texts do not match.
    fn step(&mut self) -> bool {
        let (rest, value) = (self.rest(), self.value());
        if self.step_escape(rest) || self.step_break(rest, value) {
            return true;
        }
        if rest.starts_with("$${") && value.starts_with("${") {
            self.at += 3;
            self.of += 2;
            return true;
        }
        if rest.starts_with("${") {
            return self.step_substitution(rest, value);
        }
        match (rest.chars().next(), value.chars().next()) {
            (Some(one), Some(other)) if one == other => {
                self.at += one.len_utf8();
                self.of += one.len_utf8();
                true
            }
            _ => false,
        }
    }

    /// Steps over an escape of a quoted text; returns false if there is none.
    fn step_escape(&mut self, rest: &str) -> bool {
        match self.style {
            Style::Single if rest.starts_with("''") => {
                self.at += 2;
                self.of += 1;
                true
            }
            Style::Double if rest.starts_with('\\') => {
                let Some(escaped) = rest.chars().nth(1) else {
                    return false;
                };
                if escaped == '\n' {
                    self.at += 2;
                    self.skip_blanks();
                    return true;
                }
                let digits = match escaped {
                    'x' => 2,
                    'u' => 4,
                    'U' => 8,
                    _ => 0,
                };
                self.at += 1 + escaped.len_utf8() + digits;
                self.of += self.value().chars().next().map_or(0, char::len_utf8);
                true
            }
            _ => false,
        }
    }

    /// Steps over line breaks and the blanks around them; returns false if there are none. For `n` line breaks in the file, the value has
    /// `n` or `n - 1` line breaks. For a single line break, it may have a space instead.
    fn step_break(&mut self, rest: &str, value: &str) -> bool {
        let blanks = match self.style {
            Style::Block => 0,
            _ => rest.len() - rest.trim_start_matches([' ', '\t']).len(),
        };
        if !rest
            .get(blanks..)
            .is_some_and(|rest| rest.starts_with(['\n', '\r']))
        {
            return false;
        }
        self.at += blanks;
        let mut breaks = 0;
        loop {
            let rest = self.rest();
            if let Some(size) = [("\r\n", 2), ("\n", 1)]
                .iter()
                .find_map(|(end, size)| rest.starts_with(end).then_some(*size))
            {
                self.at += size;
                breaks += 1;
                self.skip_indent();
            } else if breaks > 0 && self.is_blank_line() {
                self.skip_blanks();
            } else {
                break;
            }
        }
        if breaks == 1 && value.starts_with(' ') {
            self.of += 1;
        } else {
            let newlines = value.len() - value.trim_start_matches('\n').len();
            self.of += newlines.min(breaks);
        }
        true
    }

    /// Steps over `${NAME}` in the file, and over the text that replaced it in the value.
    fn step_substitution(&mut self, rest: &str, value: &str) -> bool {
        let Some(size) = rest.find('}').map(|end| end + 1) else {
            return false;
        };
        let behind = rest.get(size..).unwrap_or_default();
        let stops: &[char] = match self.style {
            Style::Single => &['\n', '\'', '$'],
            Style::Double => &['\n', '"', '\\', '$'],
            Style::Plain | Style::Block => &['\n', '$'],
        };
        let anchor = behind.split(stops).next().unwrap_or_default();
        let end = anchor
            .char_indices()
            .nth(ANCHOR)
            .map_or(anchor.len(), |(at, _)| at);
        let anchor = anchor.get(..end).unwrap_or_default().trim_end();
        let found = match anchor {
            "" => value.find('\n'),
            anchor => value.find(anchor),
        };
        self.at += size;
        self.of += found.unwrap_or(value.len());
        true
    }

    /// Whether the rest of this line is blank and another line follows.
    fn is_blank_line(&self) -> bool {
        let rest = self.rest();
        rest.trim_start_matches([' ', '\t'])
            .starts_with(['\n', '\r'])
    }

    fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t']).len();
    }

    /// Skips the blanks at the beginning of a line that do not belong to the value.
    fn skip_indent(&mut self) {
        if self.style != Style::Block {
            return self.skip_blanks();
        }
        let blanks = self.rest().bytes().take(self.indent);
        self.at += blanks.take_while(|byte| *byte == b' ').count();
    }
}

/// Returns the offset of the line after a block header (`|`, `>-`, ...), if `before` ends with a header and any number of blank lines. The
/// blank lines are allowed because the parser reports a block at its first line with text.
fn block_before(before: &str) -> Option<usize> {
    let (lines, blanks) = before.rsplit_once('\n')?;
    if !blanks.trim().is_empty() {
        return None;
    }
    let lines = lines.trim_end();
    let head = lines.rsplit('\n').next().unwrap_or(lines);
    let head = head
        .split_once(" #")
        .map_or(head, |(head, _)| head)
        .trim_end();
    let head = head.trim_end_matches(|c: char| c.is_ascii_digit() || c == '+' || c == '-');
    let rest = head.strip_suffix(['|', '>'])?;
    let behind = before.get(lines.len()..)?.find('\n')?;
    rest.ends_with([' ', '\t'])
        .then_some(lines.len() + behind + 1)
}

/// The indentation of a block. It is the indentation of the first line with text, minus the blanks that belong to the value.
fn indent(block: &str, value: &str) -> usize {
    let of = |text: &str| {
        let line = text.lines().find(|line| !line.trim().is_empty());
        line.map_or(0, |line| line.len() - line.trim_start_matches(' ').len())
    };
    of(block).saturating_sub(of(value))
}

#[cfg(test)]
mod tests {
    use crate::{environment::Environment, parse::parse, substitute::substitute};

    use super::*;

    /// Returns line, column, length and text of the place of `what` in the value `p.program`.
    fn find(yaml: &str, what: &str) -> (u32, u32, u32, String) {
        let environment = Environment::empty().with("LEVEL", "error or worse");
        let file = Source::new("t.yaml", yaml, 0);
        let mut problems = Vec::new();
        let mut node = parse(&file, &mut problems).unwrap();
        substitute(&mut node, &environment, &mut problems);
        assert!(problems.is_empty(), "{problems:?}");
        let node = node.find("p.program").unwrap();
        let value = node.as_text().unwrap();
        let start = value.find(what).unwrap_or_else(|| panic!("{value:?}"));
        let place = node.place.inside(value, start..start + what.len());
        let text = place.slice().unwrap_or_default().to_owned();
        (place.line, place.column, place.length, text)
    }

    fn at(line: u32, column: u32, text: &str) -> (u32, u32, u32, String) {
        (line, column, text.chars().count() as u32, text.to_owned())
    }

    #[test]
    fn places_in_plain_and_quoted_texts() {
        assert_eq!(
            find("p:\n  program: .a = öbad(.b)\n", "bad"),
            at(2, 18, "bad")
        );
        assert_eq!(
            find("p: { program: '.a = ''x'' + bad(.b)' }", "bad"),
            at(1, 29, "bad")
        );
        assert_eq!(
            find("p: { program: '.a = ''x'' + 1' }", "x"),
            at(1, 23, "x")
        );
        let double = r#"p: { program: ".a = \"\u00e4\x41\\\" + bad(.b)\n.c" }"#;
        assert_eq!(find(double, "bad"), at(1, 40, "bad"));
        assert_eq!(find(double, ".c"), at(1, 49, ".c"));
        assert_eq!(find(double, "ä"), (1, 23, 6, "\\u00e4".into()));
    }

    #[test]
    fn places_in_texts_over_several_lines() {
        let plain = "p:\n  program: .a = 1 +\n     two(.b)\n\n     third\n";
        assert_eq!(find(plain, "two"), at(3, 6, "two"));
        assert_eq!(find(plain, "third"), at(5, 6, "third"));
        let single = "p:\n  program: '.a = 1 +  \n     two(.b)\n\n\n     third'\n";
        assert_eq!(find(single, "two"), at(3, 6, "two"));
        assert_eq!(find(single, "third"), at(6, 6, "third"));
        let double = "p:\n  program: \".a = 1 + \\\n     two(.b)\n     third\"\n";
        assert_eq!(find(double, "two"), at(3, 6, "two"));
        assert_eq!(find(double, "third"), at(4, 6, "third"));
    }

    #[test]
    fn places_in_literal_blocks() {
        for head in ["|", "|-", "|+ # text", "|4"] {
            let yaml = format!(
                "p:\n  program: {head}\n      .a = 1\n\n      if x {{\n        bad(.b)\n      }}\n"
            );
            assert_eq!(find(&yaml, "bad"), at(6, 9, "bad"), "{head}");
            assert_eq!(find(&yaml, ".a = 1"), at(3, 7, ".a = 1"), "{head}");
        }
        // The header states the indentation, and the first line begins with blanks that belong to the value.
        let yaml = "p:\n  program: |2\n      .a = 1\n    bad(.b)\n";
        assert_eq!(find(yaml, "bad"), at(4, 5, "bad"));
        let yaml = "p:\r\n  program: |\r\n    .a = 1\r\n    bad(.b)\r\n";
        assert_eq!(find(yaml, "bad"), at(4, 5, "bad"));
    }

    #[test]
    fn places_in_folded_blocks() {
        let yaml = "p:\n  program: >\n\n    .a = 1 +\n    two(.b)\n\n    third\n      more\n      even\n    last\n";
        for (what, line, column) in [
            ("two", 5, 5),
            ("third", 7, 5),
            ("more", 8, 7),
            ("even", 9, 7),
            ("last", 10, 5),
        ] {
            assert_eq!(find(yaml, what), at(line, column, what));
        }
    }

    #[test]
    fn a_substitution_has_one_place_and_the_text_after_it_has_exact_places() {
        let yaml = "p:\n  program: |\n    .a = \"${LEVEL}\"; bad(.b)\n    third $${x}\n";
        assert_eq!(find(yaml, "bad"), at(3, 22, "bad"));
        assert_eq!(find(yaml, "third"), at(4, 5, "third"));
        assert_eq!(find(yaml, "x}"), at(4, 14, "x}"));
        let (line, column, ..) = find(yaml, "worse");
        assert_eq!((line, column), (3, 11));
        let yaml = "p:\n  program: ${LEVEL}\n";
        let (line, column, ..) = find(yaml, "worse");
        assert_eq!((line, column), (2, 12));
        assert_eq!(
            find("p:\n  program: |\n    x${LEVEL}\n    bad\n", "bad"),
            at(4, 5, "bad")
        );
    }

    #[test]
    fn the_place_of_the_end_of_a_text_is_after_its_last_character() {
        let file = Source::new("t.yaml", "a: b(\n", 0);
        let mut problems = Vec::new();
        let node = parse(&file, &mut problems).unwrap();
        let node = node.find("a").unwrap();
        let place = node.place.inside("b(", 2..2);
        assert_eq!((place.line, place.column, place.length), (1, 6, 1));
        let place = Place::of_bytes(&file, 3..6);
        assert_eq!((place.line, place.column, place.length), (1, 4, 2));
    }
}
