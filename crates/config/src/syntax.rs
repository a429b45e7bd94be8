//! Errors for text that is not YAML, with help for the most common mistakes.

use std::sync::Arc;

use granit_parser::{ErrorKind, ScanError, Span};

use crate::place::{Place, Source};
use crate::problem::Problem;

/// The deepest nesting of lists and maps. It is limited because functions that walk the tree are recursive. Real files use about
/// eight levels.
pub(crate) const DEPTH_MAX: usize = 64;

/// Returns the problem for a syntax error, with help if the mistake is a common one. `open` is the innermost list or map that is open.
pub(crate) fn broken(
    source: &Arc<Source>,
    error: &ScanError,
    open: Option<&Place>,
) -> Box<Problem> {
    let marker = error.marker();
    let mut place = place_of(source, &Span::empty(*marker));
    place.length = 1;
    if matches!(error.kind(), ErrorKind::RecursionLimitExceeded) {
        let message = format!("lists and maps nest deeper than {DEPTH_MAX} levels");
        return Box::new(Problem::new(&place, message));
    }
    let mut problem = Problem::new(&place, format!("this is not YAML: {}", error.info()));
    let line = source.line(place.line).unwrap_or_default();
    let before: String = line.chars().take(marker.col()).collect();
    let at = line.chars().nth(marker.col());
    if let Some(open) = open.filter(|open| is_bracket(open) && open.line != place.line) {
        problem = problem.also(open, "this is still open");
    }
    let help = match at {
        Some('\t') => "indent with spaces, not with tabs".to_owned(),
        _ if before.ends_with('\t') => "indent with spaces, not with tabs".to_owned(),
        Some(c @ ('%' | '@' | '`')) => format!("a text that begins with `{c}` must be in quotes"),
        Some('{') if before.ends_with('$') => {
            "inside { } or [ ] a text with `${...}` must be in quotes".to_owned()
        }
        Some('{') => "a text with `{` or `}` must be in quotes".to_owned(),
        _ if before.ends_with('}') => "a text with `{` or `}` must be in quotes".to_owned(),
        Some(':') if before.contains(':') => {
            "a text with a colon and a space must be in quotes; a map begins on the next line or with `{`".to_owned()
        }
        _ => return Box::new(problem),
    };
    Box::new(problem.help(help))
}

fn is_bracket(place: &Place) -> bool {
    place
        .slice()
        .is_some_and(|text| text.starts_with(['{', '[']))
}

/// Returns the place of a span. If the span has several lines, the place covers only the first one.
pub(crate) fn place_of(source: &Arc<Source>, span: &Span) -> Place {
    let line = u32::try_from(span.start.line()).unwrap_or(u32::MAX);
    let column = u32::try_from(span.start.col() + 1).unwrap_or(u32::MAX);
    let length = match span.end.line() == span.start.line() {
        true => span.end.col().saturating_sub(span.start.col()),
        false => {
            let first = source.line(line).unwrap_or_default();
            first.chars().count().saturating_sub(span.start.col())
        }
    };
    Place {
        file: Arc::clone(source),
        line,
        column,
        length: u32::try_from(length).unwrap_or(u32::MAX),
    }
}
