//! Globs on texts: `*` matches any text, `?` one character, `[a-z]` one character of a set, `[!a-z]` one that is not in the set,
//! `{a,b}` either `a` or `b`. A character after `\` stands for itself.
//!
//! The value of a field is a text, not a file path, so `*` matches slashes, dots and newlines as well. A glob becomes a regular
//! expression, which searches in linear time; a leading or trailing star only omits the anchor at that end.

use regex::bytes::{Regex, RegexBuilder};

/// Any number of any bytes, even if they are not UTF-8.
const ANY: &str = "(?s-u:.)*";
/// One character, or one byte that is not UTF-8.
const ONE: &str = "(?:(?s:.)|(?s-u:.))";

/// Compiles a glob.
///
/// # Errors
/// A text that describes the mistake in the glob.
pub(super) fn compile(glob: &str) -> Result<Regex, String> {
    let text = translate(glob).map_err(|error| format!("`{glob}` is no glob: {error}"))?;
    let regex = RegexBuilder::new(&text).build();
    regex.map_err(|_| format!("`{glob}` is too large a glob"))
}

fn translate(glob: &str) -> Result<String, String> {
    let inner = glob.trim_start_matches('*');
    let mut out = String::new();
    if inner.len() == glob.len() {
        out.push_str("\\A");
    }
    let (mut depth, mut open_end) = (0_u32, false);
    let mut letters = inner.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '*' => {
                while letters.next_if_eq(&'*').is_some() {}
                open_end = letters.peek().is_none() && depth == 0;
                if !open_end {
                    out.push_str(ANY);
                }
            }
            '?' => out.push_str(ONE),
            '[' => set(&mut letters, &mut out)?,
            '{' => {
                depth += 1;
                out.push_str("(?:");
            }
            ',' if depth > 0 => out.push('|'),
            '}' if depth > 0 => {
                depth -= 1;
                out.push(')');
            }
            '}' => return Err("a `}` without a `{`; write `\\}` for `}`".to_owned()),
            '\\' => match letters.next() {
                Some(letter) => literal(letter, &mut out),
                None => return Err("a `\\` at the end; write `\\\\` for `\\`".to_owned()),
            },
            letter => literal(letter, &mut out),
        }
    }
    if depth > 0 {
        return Err("a `{` that is not closed; write `\\{` for `{`".to_owned());
    }
    // A glob that consists only of stars has no anchor at its end either.
    if !open_end && (!inner.is_empty() || glob.is_empty()) {
        out.push_str("\\z");
    }
    Ok(out)
}

fn literal(letter: char, out: &mut String) {
    out.push_str(&regex::escape(letter.encode_utf8(&mut [0; 4])));
}

/// Translates a set (`[abc]`, `[a-z]`, `[!a-z]` or `[^a-z]`) whose `[` has been read. A `]` as the first member stands
/// for itself.
fn set(letters: &mut impl Iterator<Item = char>, out: &mut String) -> Result<(), String> {
    out.push('[');
    let mut members: Vec<(char, bool)> = Vec::new();
    let mut negated = false;
    loop {
        match letters.next() {
            Some('!' | '^') if members.is_empty() && !negated => {
                negated = true;
                out.push('^');
            }
            Some(']') if !members.is_empty() => break,
            Some('\\') => members.extend(letters.next().map(|letter| (letter, true))),
            Some(letter) => members.push((letter, false)),
            None => return Err("a `[` that is not closed; write `\\[` for `[`".to_owned()),
        }
    }
    let last = members.len() - 1;
    let mut from = None;
    for (index, &(letter, escaped)) in members.iter().enumerate() {
        let is_range = letter == '-' && !escaped && index > 0 && index < last && from.is_some();
        if is_range {
            out.push('-');
            continue;
        }
        if out.ends_with('-') && from.take().is_some_and(|from| from > letter) {
            return Err("a range whose end is before its start".to_owned());
        }
        out.push('\\');
        out.push_str("x{");
        out.push_str(&format!("{:x}", u32::from(letter)));
        out.push('}');
        from = Some(letter);
    }
    out.push(']');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(glob: &str, text: &str) -> bool {
        compile(glob).unwrap().is_match(text.as_bytes())
    }

    #[test]
    fn a_glob_matches_whole_texts() {
        for (glob, hits, misses) in [
            ("a", &["a"][..], &["", "b", "ab", "ba"][..]),
            ("", &[""], &["a"]),
            ("*", &["", "a/b\nc"], &[]),
            ("**", &["", "a"], &[]),
            ("/api/*", &["/api/", "/api/v1/x"], &["/api", "x/api/"]),
            ("/api/**", &["/api/v1/x"], &["/apis"]),
            ("*.css", &["x.css", ".css", "a/b.css"], &["xcss", "x.css "]),
            (
                "*time*out*",
                &["a time to go out.", "timeout"],
                &["out time"],
            ),
            ("a?c", &["abc", "a.c", "aéc", "a\nc"], &["ac", "abbc"]),
            ("{a,b*,}x", &["ax", "bccx", "x"], &["cx", "a,x"]),
            ("{a,{b,c}d}", &["a", "bd", "cd"], &["b", "ad"]),
            ("[a-c]", &["a", "b", "c"], &["d", "-", ""]),
            ("[!a-c]", &["d", "é"], &["a", ""]),
            ("[a-]", &["a", "-"], &["b"]),
            ("[]a]", &["]", "a"], &["b"]),
            ("[a\\-c]", &["a", "-", "c"], &["b"]),
            ("[a-c-e]", &["a", "-", "e"], &["d"]),
            ("a\\*", &["a*"], &["ab"]),
            ("a.b(c)", &["a.b(c)"], &["axb(c)"]),
            ("{a*}", &["a", "abc"], &["b"]),
        ] {
            for text in hits {
                assert!(matches(glob, text), "{glob} {text}");
            }
            for text in misses {
                assert!(!matches(glob, text), "{glob} {text}");
            }
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_are_matched_too() {
        assert!(compile("a*b").unwrap().is_match(b"a\xff\xfeb"));
        assert!(compile("a?b").unwrap().is_match(b"a\xffb"));
    }

    #[test]
    fn an_invalid_glob_is_explained() {
        for (glob, why) in [
            ("{a", "not closed"),
            ("a}", "without"),
            ("[a", "not closed"),
            ("[]", "not closed"),
            ("a\\", "at the end"),
            ("[z-a]", "before its start"),
        ] {
            let error = compile(glob).unwrap_err();
            assert!(
                error.contains(why) && error.contains(glob),
                "{glob}: {error}"
            );
        }
    }
}
