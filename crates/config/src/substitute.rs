//! Replaces `${NAME}` and similar expressions in the scalars of a parsed tree.
//!
//! Substitution follows parsing, so a value cannot change the structure of the file. Names in maps are not substituted. If
//! an unquoted scalar contains an expression, the option that reads the scalar decides the type of the substituted text. A quoted scalar
//! stays a text. Inserted text is not searched for further expressions.
//!
//! ```text
//! ${NAME}            the variable; an error if it is unset
//! ${NAME:-default}   the default if the variable is unset or empty
//! ${NAME:?message}   an error with the message if the variable is unset or empty
//! ${file:PATH}       the file without its last line end; systemd credentials first, then relative to the configuration file
//! $${                the two characters ${
//! ```

use std::path::Path;

use crate::environment::Environment;
use crate::names::nearest;
use crate::node::{Node, Text, Value};
use crate::place::Place;
use crate::problem::Problem;
use crate::secret::HIDDEN;
use crate::secret_names::names_secret;

/// Substitutes in every scalar of the tree. A scalar with an error becomes invalid.
pub(crate) fn substitute(node: &mut Node, environment: &Environment, problems: &mut Vec<Problem>) {
    match &mut node.value {
        Value::Text(text) if text.text.contains("${") => {
            let writer = Writer {
                environment,
                place: &node.place,
            };
            match writer.write(text) {
                Ok(text) => node.value = Value::Text(text),
                Err(found) => {
                    problems.extend(found);
                    node.value = Value::Invalid;
                }
            }
        }
        Value::List(list) => {
            for node in list {
                substitute(node, environment, problems);
            }
        }
        Value::Map(map) => {
            for (key, node) in &mut map.entries {
                if key.text.contains("${") {
                    let problem = Problem::new(&key.place, "a name cannot contain a substitution")
                        .help("only values can contain `${...}`");
                    problems.push(problem);
                }
                substitute(node, environment, problems);
            }
        }
        _ => {}
    }
}

struct Writer<'a> {
    environment: &'a Environment,
    place: &'a Place,
}

/// The text that replaces a `${...}`, and whether it is secret.
type Replacement = (String, bool);

impl Writer<'_> {
    fn write(&self, text: &Text) -> Result<Text, Vec<Problem>> {
        let mut out = Text::new("");
        out.secret = text.secret;
        let mut problems = Vec::new();
        let mut rest = text.text.as_str();
        while let Some(at) = rest.find('$') {
            let (before, after) = rest.split_at(at);
            out.text.push_str(before);
            if let Some(tail) = after.strip_prefix("$${") {
                out.text.push_str("${");
                rest = tail;
            } else if let Some(tail) = after.strip_prefix("${") {
                let Some((inner, tail)) = tail.split_once('}') else {
                    problems.push(self.unclosed(after));
                    break;
                };
                match self.replacement(inner) {
                    Ok((inserted, secret)) => {
                        out.text.push_str(&inserted);
                        out.secret |= secret;
                        out.typed_by_reader = text.typed_by_reader;
                    }
                    Err(problem) => problems.push(problem),
                }
                rest = tail;
            } else {
                out.text.push('$');
                rest = &after[1..];
            }
        }
        out.text.push_str(rest);
        match problems.is_empty() {
            true => Ok(out),
            false => Err(problems),
        }
    }

    /// The replacement for `${inner}`.
    fn replacement(&self, inner: &str) -> Result<Replacement, Problem> {
        if inner.contains("${") {
            let problem = self.problem(inner, "substitutions cannot be nested");
            return Err(
                problem.help("a default is a plain text; write `$${` for the characters `${`")
            );
        }
        if let Some(path) = inner.strip_prefix("file:") {
            let directory = self.place.file.path().parent().unwrap_or(Path::new(""));
            return match self.environment.file(path, directory) {
                Ok(text) => Ok((text, true)),
                Err(why) => Err(self.problem(inner, why)),
            };
        }
        let end = inner
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(inner.len());
        let (name, operation) = inner.split_at(end);
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(self.no_substitution(inner));
        }
        let value = self.environment.get(name);
        let is_secret = names_secret(name);
        let filled = value.filter(|value| !value.is_empty());
        if operation.is_empty() {
            return match value {
                Some(value) => Ok((value.to_owned(), is_secret)),
                None => Err(self.unset(inner, name)),
            };
        }
        if let Some(default) = operation.strip_prefix(":-") {
            return Ok((filled.unwrap_or(default).to_owned(), is_secret));
        }
        if let Some(message) = operation.strip_prefix(":?") {
            return match filled {
                Some(value) => Ok((value.to_owned(), is_secret)),
                None if message.is_empty() => Err(self.unset(inner, name)),
                None => {
                    let mut problem = self.unset(inner, name);
                    problem.message = format!("{}: {message}", problem.message);
                    problem.help = None;
                    Err(problem)
                }
            };
        }
        Err(self.no_substitution(inner))
    }

    fn problem(&self, inner: &str, message: impl Into<String>) -> Problem {
        let place = self.place.within(&format!("${{{inner}}}"));
        Problem::new(&place, message)
    }

    fn unset(&self, inner: &str, name: &str) -> Problem {
        if self.environment.get(name).is_some() {
            return self.problem(inner, format!("the environment variable `{name}` is empty"));
        }
        let message = format!("the environment variable `{name}` is not set");
        let problem = self.problem(inner, message);
        match nearest(name, self.environment.names()) {
            Some(near) => problem.help(format!("did you mean `{near}`? It is set")),
            None => problem.help(format!("set it, or give a default: ${{{name}:-default}}")),
        }
    }

    fn no_substitution(&self, inner: &str) -> Problem {
        let shown = match self.place.is_secret() {
            true => HIDDEN,
            false => inner,
        };
        self.problem(inner, format!("`${{{shown}}}` is not a substitution")).help(
            "the forms are ${NAME}, ${NAME:-default}, ${NAME:?message} and ${file:PATH}; write `$${` for the characters `${`",
        )
    }

    fn unclosed(&self, from: &str) -> Problem {
        Problem::new(&self.place.within(from), "`${` has no `}`")
            .help("write `$${` for the characters `${`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::parse;
    use crate::place::Source;

    fn outcome(yaml: &str) -> Result<Node, Vec<String>> {
        let environment = Environment::empty()
            .with("PORT", "80")
            .with("EMPTY", "")
            .with("TRICK", "x, b: {c: d}\n${PORT}")
            .with("API_TOKEN", "t0p");
        let mut problems = Vec::new();
        let mut node = parse(&Source::new("/nowhere/t.yaml", yaml, 0), &mut problems).unwrap();
        substitute(&mut node, &environment, &mut problems);
        match problems.is_empty() {
            true => Ok(node),
            false => Err(problems
                .iter()
                .map(|p| format!("{}+{} {}", p.place.column, p.place.length, p.message))
                .collect()),
        }
    }

    fn text(yaml: &str) -> String {
        outcome(yaml).unwrap().as_text().unwrap().to_owned()
    }

    #[test]
    fn variables_and_defaults_are_substituted() {
        for (yaml, wanted) in [
            ("${PORT}", "80"),
            ("a-${PORT}-${PORT}", "a-80-80"),
            ("${NONE:-x y}", "x y"),
            ("${NONE:-}", ""),
            ("${EMPTY:-x}", "x"),
            ("${EMPTY}", ""),
            ("'${PORT:?must be}'", "80"),
            ("'$${PORT} $PORT $ {x}'", "${PORT} $PORT $ {x}"),
            ("'^a$'", "^a$"),
        ] {
            assert_eq!(text(yaml), wanted, "{yaml}");
        }
    }

    #[test]
    fn a_value_cannot_change_the_structure_and_is_not_substituted_again() {
        let node = outcome("a: ${TRICK}").unwrap();
        assert_eq!(node.entries().len(), 1);
        assert_eq!(
            node.get("a").unwrap().as_text(),
            Some("x, b: {c: d}\n${PORT}")
        );
    }

    #[test]
    fn the_option_decides_the_type_of_an_unquoted_substitution_and_a_quoted_one_is_a_text() {
        assert_eq!(outcome("${PORT}").unwrap().read::<u16>(), Ok(80));
        assert_eq!(
            outcome("${PORT}").unwrap().read::<String>(),
            Ok("80".into())
        );
        assert_eq!(outcome("${PORT}0").unwrap().read::<u16>(), Ok(800));
        assert_eq!(outcome("${EMPTY}").unwrap().read::<Option<u16>>(), Ok(None));
        assert!(outcome("'${PORT}'").unwrap().read::<u16>().is_err());
    }

    #[test]
    fn a_failed_substitution_is_reported_at_its_place() {
        for (yaml, wanted) in [
            (
                "ab ${NONE} c",
                "4+7 the environment variable `NONE` is not set",
            ),
            (
                "${NONE:?see wiki}",
                "1+17 the environment variable `NONE` is not set: see wiki",
            ),
            (
                "${EMPTY:?}",
                "1+10 the environment variable `EMPTY` is empty",
            ),
            ("${PORT-1}", "1+9 `${PORT-1}` is not a substitution"),
            ("${}", "1+3 `${}` is not a substitution"),
            ("password: 'a${b$c}'", "13+6 `${***}` is not a substitution"),
            ("token: ${PORT-1}", "8+9 `${***}` is not a substitution"),
            ("x${PORT", "2+6 `${` has no `}`"),
            ("'${A:-${B}}'", "2+9 substitutions cannot be nested"),
            (
                "'${file:none.pw}'",
                "2+15 cannot read /nowhere/none.pw: No such file or directory (os error 2)",
            ),
        ] {
            assert_eq!(outcome(yaml).unwrap_err(), [wanted], "{yaml}");
        }
    }

    #[test]
    fn every_failed_substitution_of_a_scalar_is_reported() {
        assert_eq!(outcome("${A1} ${B2}").unwrap_err().len(), 2);
    }

    #[test]
    fn files_come_from_the_credentials_directory_first_without_their_last_line_end() {
        let dir = tempfile::tempdir().unwrap();
        let credentials = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.pw"), "near\n\n").unwrap();
        std::fs::write(dir.path().join("b.pw"), "near\r\n").unwrap();
        std::fs::write(credentials.path().join("a.pw"), "far\n").unwrap();
        let plain = Environment::empty();
        assert_eq!(plain.file("a.pw", dir.path()), Ok("near\n".to_owned()));
        let systemd = plain.with_credentials(credentials.path());
        assert_eq!(systemd.file("a.pw", dir.path()), Ok("far".to_owned()));
        assert_eq!(systemd.file("b.pw", dir.path()), Ok("near".to_owned()));
    }

    #[test]
    fn a_secret_value_is_not_shown_in_errors() {
        let node = outcome("port: ${API_TOKEN}").unwrap();
        assert!(!format!("{node:?}").contains("t0p"));
        let problems = node.get("port").unwrap().read::<u16>().unwrap_err();
        assert!(!problems[0].message.contains("t0p"), "{problems:?}");
        let problems = node.get("port").unwrap().read::<crate::Size>().unwrap_err();
        assert!(!problems[0].message.contains("t0p"), "{problems:?}");
    }
}
