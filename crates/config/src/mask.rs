//! Masks secrets in the lines that problems quote: each of their characters becomes a `*`.
//!
//! The parser notes where the values of secret options are. So a value is masked even if it has spaces, a tag or several lines. Some
//! secrets are not values of secret options: those in comments, in URLs, and in the rest of a file after a syntax error. A search by name
//! or form finds these.

use std::ops::Range;

use crate::place::Source;
use crate::secret_names::is_secret_name;

/// The characters of a line, with secrets masked; `None` if the file has no such line.
pub(crate) fn line(file: &Source, number: u32) -> Option<Vec<char>> {
    let (line, start) = (file.line(number)?, file.offset(number, 1)?);
    let indent = line.len() - line.trim_start().len();
    let noted = file.secrets().iter().map(|secret| {
        let from = secret.start.saturating_sub(start);
        from.max(indent)..secret.end.saturating_sub(start).min(line.len())
    });
    let mut secrets: Vec<Range<usize>> = noted.filter(|secret| secret.start < secret.end).collect();
    secrets.extend(comment(line, !secrets.is_empty()));
    secrets.extend(passwords(line));
    // A file on a single line can have thousands of secrets, so each secret marks its own bytes.
    let mut is_hidden = vec![false; line.len()];
    for secret in secrets {
        if let Some(bytes) = is_hidden.get_mut(secret) {
            bytes.fill(true);
        }
    }
    let shown = line.char_indices().map(|(at, c)| match is_hidden.get(at) {
        Some(true) => '*',
        _ => c,
    });
    Some(shown.collect())
}

/// Returns the part of `text` that may be secret if the parser did not parse the text from `start` on. The part begins after the first name
/// of a secret in the unparsed text, and ends at the end of `text`. `None` if there is no such name.
pub(crate) fn unparsed(text: &str, start: usize) -> Option<Range<usize>> {
    let name = after_name(text.get(start..)?)?;
    Some(start + name..text.len())
}

/// The end of the first name of a secret in a text, in bytes.
fn after_name(text: &str) -> Option<usize> {
    let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(|c| !is_of_name(c));
        let word = rest.split(|c| !is_of_name(c)).next()?;
        if word.is_empty() {
            return None;
        }
        rest = rest.get(word.len()..)?;
        if is_secret_name(word) {
            return Some(text.len() - rest.len());
        }
    }
}

/// Whether a value only refers to a variable or a file, and so reveals nothing. False for a substitution with a default value, and for a
/// text that only looks like a substitution, because their texts may be the secret.
pub(crate) fn is_reference(text: &str) -> bool {
    let inner = text
        .strip_prefix("${")
        .and_then(|text| text.strip_suffix('}'));
    inner.is_some_and(|inner| {
        let behind = inner.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let is_variable = !inner.starts_with(|c: char| c.is_ascii_digit())
            && (behind.is_empty() || behind.starts_with(":?"));
        let is_form = is_variable || inner.starts_with("file:");
        is_form && !inner.contains(['$', '}'])
    })
}

/// The part of a comment to mask. `has_secret`: the line has a secret. In such a line, a `#` may belong to the secret, so everything from
/// the `#` on is masked.
fn comment(line: &str, has_secret: bool) -> Option<Range<usize>> {
    let is_start = |(at, _): &(usize, &str)| {
        let before = line.get(..*at).and_then(|line| line.chars().next_back());
        before.is_none_or(char::is_whitespace)
    };
    let (start, _) = line.match_indices('#').find(is_start)?;
    let name = match has_secret {
        true => 0,
        false => after_name(line.get(start..)?)?,
    };
    Some(start + name..line.len())
}

/// The passwords in `user:password@host` and `scheme://user:password@host`.
fn passwords(line: &str) -> impl Iterator<Item = Range<usize>> {
    let mut next = 0;
    line.split(char::is_whitespace).filter_map(move |word| {
        let start = next;
        let behind = line.get(start + word.len()..)?;
        next = start + word.len() + behind.chars().next().map_or(0, char::len_utf8);
        let before = word.get(..word.rfind('@')?)?;
        let is_before = |(at, _): &(usize, &str)| !word[at + 1..].starts_with("//");
        let (colon, _) = before.match_indices(':').find(is_before)?;
        let password = start + colon + 1..start + before.len();
        (!is_reference(line.get(password.clone())?)).then_some(password)
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use crate::{parse::parse, problem::Problem};

    use super::*;

    /// The lines of a file as problems quote them, and its problems.
    fn quoted(yaml: &str) -> (String, Vec<Problem>) {
        let file = Source::new("a.yaml", yaml, 0);
        let mut problems = Vec::new();
        parse(&file, &mut problems);
        let lines = (1..).map_while(|number| line(&file, number));
        let lines: Vec<String> = lines.map(|line| line.into_iter().collect()).collect();
        (lines.join("\n").trim_end().to_owned(), problems)
    }

    #[test]
    fn secrets_are_masked_in_quoted_lines_whatever_their_form() {
        for (yaml, wanted) in [
            (
                "a: { shared_key: 'a, b', usres: {}, db_password: x }",
                "a: { shared_key: ******, usres: {}, db_password: * }",
            ),
            ("password: a b c", "password: *****"),
            (
                "password: !!str hunter2 # old",
                "password: ************* *****",
            ),
            (
                "{\"password\":\"hunter2\",\"a\":1}",
                "{\"password\":*********,\"a\":1}",
            ),
            ("password: &a hunter2\nb: *a", "password: **********\nb: *a"),
            ("a: &a hunter2\nsecret: *a", "a: &a *******\nsecret: **"),
            (
                "token: |\n  hunter\n  two\nb: 1",
                "token: *\n  ******\n  ***\nb: 1",
            ),
            ("bearer:\n  hunter2\nb: 1", "bearer:\n  *******\nb: 1"),
            (
                "users:\n  bob: x\n  al: [y, z]\nb: 1",
                "users:\n  bob: *\n  al: [*, *]\nb: 1",
            ),
            ("headers: { X-Api-Key: x }", "headers: { X-Api-Key: * }"),
            (
                "password: ${PW}\ntoken: ${T:-hunter2}",
                "password: ${PW}\ntoken: *************",
            ),
            ("token: ${T-hunter2}", "token: ************"),
            ("token: ${1234}", "token: *******"),
            ("token: { a: [b] }", "token: { *: [*] }"),
            (
                "sources: { users: { password: x, users: { bob: y } } }",
                "sources: { users: { password: *, users: { bob: * } } }",
            ),
            (
                "sinks: { type: http, token: x }",
                "sinks: { type: http, token: * }",
            ),
            ("x-auth: { token: x }", "x-auth: { token: * }"),
            ("x-token: x", "x-token: *"),
            ("a: 1 # password: x", "a: 1 # password***"),
            (
                "url: user:hunter2@host\nurls: ['https://u:p:w@h:1/x', tcp://h:2, u@h]",
                "url: user:*******@host\nurls: ['https://u:***@h:1/x', tcp://h:2, u@h]",
            ),
            ("url: https://u:${PW}@h", "url: https://u:${PW}@h"),
            ("listen: tcp://a:1 # b", "listen: tcp://a:1 # b"),
            ("key: x\npath: /a#b", "key: x\npath: /a#b"),
        ] {
            assert_eq!(quoted(yaml).0, wanted, "{yaml}");
        }
    }

    #[test]
    fn secrets_in_a_file_with_a_syntax_error_are_masked() {
        for yaml in [
            "a: 1\npassword: hunter2: x\n",
            "password: 'hunter2\nb: 1\n",
            "password: [hunter2\nb: 1\n",
            "password: @hunter2\n",
            "users:\n  bob: hunter2: x\n",
            "users: { bob: [x, al: hunter2\n",
            "a: { b: } c: d\npassword: hunter2\n",
            "a: [\n  1: } { \"password\":\"hunter2\"\n",
            "password: !hunter2\n",
            "password: *hunter2\n",
            "password: &hunter2\n: :",
        ] {
            let (lines, problems) = quoted(yaml);
            assert!(!lines.contains("hunter2"), "{yaml}: {lines}");
            let shown = crate::Problems(problems).render(false);
            assert!(!shown.contains("hunter2"), "{yaml}: {shown}");
        }
        let (lines, problems) = quoted("a: { b: x }\nc: d: e\n");
        assert_eq!((&*lines, problems.len()), ("a: { b: x }\nc: d: e", 1));
    }

    #[test]
    fn the_options_of_a_node_are_shown_whatever_its_name() {
        for yaml in [
            "sources:\n  auth-log:\n    paths: /a",
            "sources: { users: { paths: /a } }",
            "{\"sinks\":{\"bypass-x\":{\"paths\":\"/a\"}},\"tls\":{\"api_token\":{\"key\":\"k\"}}}",
            "<<: { channels: { keycloak-in: { paths: /a } } }",
            "x-auth: &a { paths: /a }\nsources: { auth-log: *a, users: { <<: *a } }",
            "sources:\n  auth-log:\n    paths: a: b",
        ] {
            assert_eq!(quoted(yaml).0, yaml);
        }
    }

    #[test]
    fn a_map_in_place_of_a_secret_text_is_masked_with_its_names() {
        for yaml in [
            "password: {hunter2}",
            "password: {hunter2, hunter2}",
            "password: {{hunter2}}",
            "password: [{hunter2: x}]",
            "password: {*hunter2 : x}",
            "sinks: { s: { tls: { password: {hunter2} } } }",
        ] {
            let (lines, problems) = quoted(yaml);
            let shown = crate::Problems(problems).render(false);
            assert!(!lines.contains("hunter2"), "{yaml}: {lines}");
            assert!(!shown.contains("hunter2"), "{yaml}: {shown}");
        }
    }

    #[test]
    fn a_long_line_with_many_secrets_is_masked_at_once() {
        let file = Source::new("a.json", "x".repeat(1 << 20), 0);
        let secrets = (0..1 << 17).map(|secret| 8 * secret..8 * secret + 1);
        file.note_secrets(secrets.collect());
        let start = Instant::now();
        let shown = line(&file, 1).unwrap();
        assert!(start.elapsed() < Duration::from_secs(10));
        let hidden = shown.iter().filter(|c| **c == '*').count();
        assert_eq!((shown.len(), hidden), (1 << 20, 1 << 17));
    }

    #[test]
    fn the_end_of_the_first_name_of_a_secret_is_found() {
        for (text, after) in [
            ("x, \"db_password\":1", Some("x, \"db_password".len())),
            ("ü token", Some("ü token".len())),
            ("key: a", None),
            ("", None),
            (" :", None),
        ] {
            assert_eq!(after_name(text), after, "{text}");
        }
    }
}
