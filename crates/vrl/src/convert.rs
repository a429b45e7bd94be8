//! Converts the compiler's diagnostics.

use std::ops::Range;

use vrl::diagnostic::{DiagnosticList, Formatter, Label, Note, Severity};

use crate::Diagnostic;

impl Diagnostic {
    /// An error at `span` of a program.
    pub(crate) fn error(program: &str, span: Range<usize>, message: &str, help: &str) -> Self {
        let code = 0;
        let list = vrl::diagnostic::Diagnostic::error(code, message)
            .with_primary(help, (span.start, span.end));
        Self {
            is_warning: false,
            span: within(program, span),
            message: message.to_owned(),
            help: Some(help.to_owned()),
            rendered: Formatter::new(program, vec![list]).to_string(),
        }
    }
}

/// Converts the compiler's diagnostics and sorts them by their position in the text.
pub(crate) fn from_compiler(program: &str, list: DiagnosticList) -> Vec<Diagnostic> {
    let mut all: Vec<Diagnostic> = list.into_iter().map(|one| convert(program, one)).collect();
    all.sort_by_key(|one| one.span.start);
    all
}

fn convert(program: &str, one: vrl::diagnostic::Diagnostic) -> Diagnostic {
    let first = one.labels().iter().find(|label| label.primary);
    let first = first.or_else(|| one.labels().first());
    let span = first.map_or(0..0, |label| label.span.range());
    let mut message = plain(one.message()).to_owned();
    let says_more = |label: &&Label| !label.message.is_empty() && label.message != message;
    if let Some(label) = first.filter(says_more) {
        message = format!("{message}: {}", label.message);
    }
    let others = one.labels().iter().filter(|label| Some(*label) != first);
    let hints = one.notes().iter().filter_map(|note| match note {
        Note::Hint(text) | Note::Example(text) | Note::Basic(text) => Some(text.as_str()),
        _ => None,
    });
    let help: Vec<&str> = others
        .map(|label| label.message.as_str())
        .chain(hints)
        .map(str::trim)
        .filter(|text| !text.is_empty())
        .collect();
    Diagnostic {
        is_warning: matches!(one.severity(), Severity::Warning | Severity::Note),
        span: within(program, span),
        message: one_line(&message),
        help: (!help.is_empty()).then(|| one_line(&help.join("; "))),
        rendered: Formatter::new(program, vec![one]).to_string(),
    }
}

/// Removes the prefixes that the compiler puts before the message of a function.
fn plain(message: &str) -> &str {
    let Some(inner) = message.strip_prefix("function compilation error: ") else {
        return message;
    };
    let code = inner
        .strip_prefix("error[E")
        .and_then(|rest| rest.split_once("] "));
    match code {
        Some((code, text)) if code.bytes().all(|byte| byte.is_ascii_digit()) => text,
        _ => inner,
    }
}

/// Extends a range to at least one whole character of the text. The compiler also reports empty ranges and ranges after the end.
fn within(program: &str, span: Range<usize>) -> Range<usize> {
    let mut start = span.start.min(program.len().saturating_sub(1));
    while !program.is_char_boundary(start) {
        start -= 1;
    }
    let mut end = span.end.clamp(start, program.len());
    if end == start && start < program.len() {
        end += 1;
    }
    while !program.is_char_boundary(end) {
        end += 1;
    }
    start..end
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_codes_are_removed_from_messages_of_functions() {
        let message = "function compilation error: error[E610] the pattern is wrong";
        assert_eq!(plain(message), "the pattern is wrong");
        assert_eq!(plain("function compilation error: x"), "x");
        assert_eq!(plain("undefined variable"), "undefined variable");
    }

    #[test]
    fn spans_cover_whole_characters_of_the_text() {
        assert_eq!(within("äb", 1..1), 0..2);
        assert_eq!(within("ab", 2..2), 1..2);
        assert_eq!(within("ab", Range { start: 9, end: 3 }), 1..2);
        assert_eq!(within("ab", 0..2), 0..2);
        assert_eq!(within("", 0..0), 0..0);
    }
}
