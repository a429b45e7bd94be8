//! Problems of a configuration and how they are printed: the place, the line with a caret, and what to do.
//!
//! A [`Problem`] is an error, a warning or a note. [`Problems`] sorts them by place and prints all of them:
//!
//! ```text
//! line.yaml:4:1: error: unknown setting `outputs`
//!   4 | outputs: {}
//!     | ^^^^^^^
//!   help: it is called `sinks` here
//! ```
//!
//! In the printed line, secrets are masked (`mask.rs`).

use std::fmt;

use crate::mask;
use crate::place::Place;

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// The configuration can be used, but may not do what was meant.
    Warning,
    /// The configuration can be used and does what was meant. The note only informs, for example about the cost of an option.
    Note,
}

/// A problem: what is wrong, where, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The severity; an error prevents a start.
    pub severity: Severity,
    /// Where it is.
    pub place: Place,
    /// The error, in one line without a full stop.
    pub message: String,
    /// Related places, each with a short explanation.
    pub also: Vec<(Place, String)>,
    /// Advice for the user: how to solve the problem.
    pub help: Option<String>,
    /// Whether the value at the place was meant as a secret. A secret value is masked in the printed line.
    pub is_secret: bool,
}

impl Problem {
    /// An error at a place.
    #[must_use]
    pub fn new(place: &Place, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            place: place.clone(),
            message: message.into(),
            also: Vec::new(),
            help: None,
            is_secret: false,
        }
    }

    /// A warning at a place.
    #[must_use]
    pub fn warning(place: &Place, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::new(place, message)
        }
    }

    /// A note at a place.
    #[must_use]
    pub fn note(place: &Place, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Note,
            ..Self::new(place, message)
        }
    }

    /// Adds a related place.
    #[must_use]
    pub fn also(mut self, place: &Place, why: impl Into<String>) -> Self {
        self.also.push((place.clone(), why.into()));
        self
    }

    /// Adds help: what to do about the problem.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    fn write(&self, out: &mut String, colour: bool) {
        let (word, paint) = match self.severity {
            Severity::Error => ("error", RED),
            Severity::Warning => ("warning", YELLOW),
            Severity::Note => ("note", PLAIN),
        };
        let paint = if colour { paint } else { PLAIN };
        let bold = if colour { BOLD } else { PLAIN };
        line(
            out,
            &format!(
                "{}: {}: {}",
                bold.on(&self.place.to_string()),
                paint.on(word),
                bold.on(&clean(&self.message))
            ),
        );
        show_line(out, &self.place, paint, self.is_secret);
        for (place, why) in &self.also {
            line(out, &format!("  {}: {}", bold.on(&place.to_string()), why));
            show_line(out, place, if colour { BLUE } else { PLAIN }, false);
        }
        if let Some(help) = &self.help {
            let word = if colour { GREEN } else { PLAIN }.on("help");
            line(out, &format!("  {word}: {}", clean(help)));
        }
    }
}

/// All problems that were found. They are sorted by place when they are printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// Whether at least one of the problems is an error.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.0.iter().any(|p| p.severity == Severity::Error)
    }

    /// Returns the number of errors, and the number of warnings and notes, that are printed.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let shown = self.shown();
        let errors = shown.iter().filter(|p| p.severity == Severity::Error);
        let errors = errors.count();
        (errors, shown.len() - errors)
    }

    /// All problems as text, in order of place, each with its line and a caret. `colour` adds ANSI colours.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        let mut out = String::new();
        for problem in self.shown() {
            problem.write(&mut out, colour);
        }
        out
    }

    /// All problems in order of place, without duplicates. Duplicates arise from aliases: each copy of a node reports the same problems.
    fn shown(&self) -> Vec<&Problem> {
        let mut shown: Vec<&Problem> = self.0.iter().collect();
        shown.sort_by(|a, b| (a.place.rank(), &a.message).cmp(&(b.place.rank(), &b.message)));
        shown.dedup();
        shown
    }
}

impl From<Vec<Problem>> for Problems {
    fn from(problems: Vec<Problem>) -> Self {
        Self(problems)
    }
}

impl Extend<Problem> for Problems {
    fn extend<I: IntoIterator<Item = Problem>>(&mut self, more: I) {
        self.0.extend(more);
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.render(false).trim_end())
    }
}

impl std::error::Error for Problems {}

/// An ANSI colour, or none.
#[derive(Clone, Copy)]
struct Paint(&'static str);

const PLAIN: Paint = Paint("");
const BOLD: Paint = Paint("\x1b[1m");
const RED: Paint = Paint("\x1b[1;31m");
const YELLOW: Paint = Paint("\x1b[1;33m");
const BLUE: Paint = Paint("\x1b[1;34m");
const GREEN: Paint = Paint("\x1b[1;32m");

impl Paint {
    fn on(self, text: &str) -> String {
        if self.0.is_empty() {
            text.to_owned()
        } else {
            format!("{}{text}\x1b[0m", self.0)
        }
    }
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

/// The maximum number of characters of a line that are printed; a longer line is truncated around the caret.
const SHOWN_MAX: usize = 120;

/// The number of characters that are printed before the caret in a truncated line.
const BEFORE_CARET: usize = 40;

fn show_line(out: &mut String, place: &Place, paint: Paint, is_secret: bool) {
    let Some(masked) = mask::line(&place.file, place.line) else {
        return;
    };
    let mut shown: Vec<char> = masked.into_iter().map(clean_char).collect();
    let column = usize::try_from(place.column).map_or(0, |c| c.saturating_sub(1));
    let column = column.min(shown.len());
    let length = usize::try_from(place.length).unwrap_or(1).max(1);
    if is_secret {
        let value = shown.iter_mut().skip(column).take(length);
        value.for_each(|c| *c = '*');
    }
    let start = match shown.len() > SHOWN_MAX {
        true => column.saturating_sub(BEFORE_CARET),
        false => 0,
    };
    let end = shown.len().min(start + SHOWN_MAX);
    let left = if start > 0 { "…" } else { "" };
    let right = if end < shown.len() { "…" } else { "" };
    let visible: String = shown.get(start..end).unwrap_or_default().iter().collect();
    let number = place.line.to_string();
    let margin = " ".repeat(number.len());
    line(
        out,
        format!("  {number} | {left}{visible}{right}").trim_end(),
    );
    let length = length.min((end - column).max(1));
    let indent = " ".repeat(column - start + left.chars().count());
    let caret = paint.on(&"^".repeat(length));
    line(out, &format!("  {margin} | {indent}{caret}"));
}

/// Replaces control characters, which must not reach the terminal. A tab becomes one space, so that the caret stays below its column.
fn clean_char(c: char) -> char {
    match c {
        '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

fn clean(text: &str) -> String {
    text.chars().map(clean_char).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Source;

    fn at(text: &str, line: u32, column: u32, length: u32) -> Place {
        Place {
            file: Source::new("a.yaml", text, 0),
            line,
            column,
            length,
        }
    }

    #[test]
    fn a_problem_shows_its_line_with_a_caret_and_help() {
        let place = at("a: 1\n\tpört: x\n", 2, 8, 1);
        let problems = Problems(vec![Problem::new(&place, "no").help("write a number")]);
        assert_eq!(
            problems.render(false),
            "a.yaml:2:8: error: no\n  2 |  pört: x\n    |        ^\n  help: write a number\n"
        );
    }

    #[test]
    fn problems_are_printed_in_order_of_place() {
        let (first, second) = (at("a\nb", 1, 1, 1), at("a\nb", 2, 1, 1));
        let text = Problems(vec![
            Problem::warning(&second, "two"),
            Problem::new(&first, "one"),
        ])
        .to_string();
        assert!(text.find("error: one") < text.find("warning: two"));
    }

    #[test]
    fn a_problem_that_an_alias_repeats_is_shown_once() {
        let problem = Problem::new(&at("a: 1", 1, 1, 1), "no");
        let other = Problem::new(&at("a: 1", 1, 1, 1), "another");
        let problems = Problems(vec![problem.clone(), other, problem]);
        assert_eq!(problems.counts(), (2, 0));
        assert_eq!(problems.render(false).matches("error: no").count(), 1);
    }

    #[test]
    fn control_characters_never_reach_the_terminal() {
        let text = Problems(vec![Problem::new(&at("a: \x1b[2J", 1, 4, 9), "\x07")]).render(false);
        assert!(!text.contains('\x1b') && !text.contains('\x07'));
    }

    #[test]
    fn a_long_line_is_cut_around_the_caret() {
        let place = at(
            &format!("{}here{}", "x".repeat(500), "y".repeat(500)),
            1,
            501,
            4,
        );
        let text = Problems(vec![Problem::new(&place, "m")]).render(false);
        assert!(text.lines().all(|l| l.chars().count() < 140));
        assert!(text.contains("here"));
    }
}
