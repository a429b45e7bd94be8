//! Regular expressions of Fluentd and Fluent Bit. They are written for Ruby's engine (Onigmo), in which a few things mean something else than
//! in the engine of this program.
//!
//! ```text
//! /PATTERN/ with the flags i, m, x    PATTERN, with these flags
//! \<, \>                              <, >: here they would be the boundaries of a word
//! (?m), (?m:...)                      `.` also matches a newline: (?s)
//! ```
//!
//! Other differences (look-around, back-references, `\h`, atomic groups) are errors here, so they are noticed.

use std::borrow::Cow;

/// Returns a pattern with the same meaning for the regular expressions of this program.
///
/// A Rust pattern keeps its meaning, with two exceptions: `\<` and `\>` are written `\b{start}` and `\b{end}`, and after `(?m)` a `.`
/// also matches a newline.
pub fn translated(pattern: &str) -> Cow<'_, str> {
    let (flags, inner) = unquoted(pattern);
    let plain = !inner.contains(r"\<") && !inner.contains(r"\>") && !inner.contains("(?");
    if plain && flags.is_empty() {
        return inner.into();
    }
    let mut out = flags;
    escapes_and_flags(inner, &mut out);
    out.into()
}

/// Like [`translated`], but refuses a literal `/.../`: where paths are matched, the slashes may also belong to the text.
///
/// # Errors
/// The message says how to write the pattern.
pub fn without_slashes(pattern: &str) -> Result<Cow<'_, str>, String> {
    match literal(pattern) {
        Some((inner, _)) => Err(format!(
            "`{pattern}` would match only a text with both slashes: write `{inner}`, or `[/]{inner}[/]` if the slashes belong to the text"
        )),
        None => Ok(translated(pattern)),
    }
}

/// Returns the pattern between the slashes of a literal `/.../`, if it is one. Such a literal has no other slash that is not escaped.
fn literal(pattern: &str) -> Option<(&str, &str)> {
    let (inner, flags) = pattern.strip_prefix('/')?.rsplit_once('/')?;
    let is_flag = |flag: char| "imxno".contains(flag);
    let escaped = |at: usize| {
        let before = inner[..at].bytes().rev();
        before.take_while(|byte| *byte == b'\\').count() % 2 == 1
    };
    let bare = inner.match_indices('/').any(|(at, _)| !escaped(at));
    let is_literal = !inner.is_empty() && !escaped(inner.len()) && !bare;
    (is_literal && flags.chars().all(is_flag)).then_some((inner, flags))
}

/// Returns the flags of a literal as a group, and its pattern.
fn unquoted(pattern: &str) -> (String, &str) {
    let Some((inner, flags)) = literal(pattern.trim()) else {
        return (String::new(), pattern);
    };
    let known = [('i', "i"), ('m', "s"), ('x', "x")];
    let flags: String = known
        .into_iter()
        .filter(|(flag, _)| flags.contains(*flag))
        .map(|(_, ours)| ours)
        .collect();
    match flags.is_empty() {
        true => (flags, inner),
        false => (format!("(?{flags})"), inner),
    }
}

/// Appends `pattern` with translated escapes and flags.
fn escapes_and_flags(pattern: &str, out: &mut String) {
    let (mut rest, mut in_class) = (pattern, false);
    while let Some(character) = rest.chars().next() {
        let mut length = character.len_utf8();
        match character {
            '\\' => {
                let escaped = rest[1..].chars().next();
                length += escaped.map_or(0, char::len_utf8);
                match escaped {
                    Some(bracket @ ('<' | '>')) => out.push(bracket),
                    _ => out.push_str(&rest[..length]),
                }
            }
            '(' if !in_class && dotall(rest).is_some() => {
                let (flags, taken) = dotall(rest).unwrap_or_default();
                out.push_str(&flags);
                length = taken;
            }
            _ => {
                in_class = match character {
                    '[' => true,
                    ']' => false,
                    _ => in_class,
                };
                out.push(character);
            }
        }
        rest = &rest[length..];
    }
}

/// Returns the translation of a group of flags with Ruby's `m` at the start of `text`, and the length of the group. Of the flags, only
/// those of Ruby are translated: `(?ms)` is no pattern of Ruby.
fn dotall(text: &str) -> Option<(String, usize)> {
    let inner = text.strip_prefix("(?")?;
    let end = inner.find([':', ')'])?;
    let flags = &inner[..end];
    let is_ruby = flags.chars().all(|flag| "imx-".contains(flag));
    if !is_ruby || !flags.contains('m') {
        return None;
    }
    let (on, off) = flags.split_once('-').unwrap_or((flags, ""));
    // In Ruby, `^` and `$` always match at the ends of lines, as with our `m`.
    let flags = format!("(?{}", on.replace('m', "ms"));
    let off = match off.replace('m', "s") {
        off if off.is_empty() => off,
        off => format!("-{off}"),
    };
    Some((flags + &off, "(?".len() + end))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex::Regex;

    use super::*;

    #[test]
    fn patterns_of_ruby_keep_their_meaning() {
        for (ruby, ours) in [
            (r"^\<(?<pri>[0-9]+)\>", r"^<(?<pri>[0-9]+)>"),
            (r"[\<\>]\\<", r"[<>]\\<"),
            (r"/^(?<a>.*)$/", r"^(?<a>.*)$"),
            (r"/a\/b/", r"a\/b"),
            (r"/a.b/m", r"(?s)a.b"),
            (r"/a b/ixm", r"(?isx)a b"),
            (r"(?m)a.b", r"(?ms)a.b"),
            (r"(?im-x:a)(?-m:b)", r"(?ims-x:a)(?-s:b)"),
            (r"(?<m>a)(?:m)(?i)", r"(?<m>a)(?:m)(?i)"),
            (r"[(?m)]\(?m", r"[(?m)]\(?m"),
        ] {
            assert_eq!(translated(ruby), ours);
            assert!(Regex::new(ours).is_ok(), "{ours}");
        }
    }

    #[test]
    fn a_literal_is_refused_where_slashes_may_be_meant() {
        let why = without_slashes("/error/").unwrap_err();
        assert!(why.contains("write `error`, or `[/]error[/]`"), "{why}");
        assert_eq!(without_slashes(r"/api\<").unwrap(), "/api<");
        assert_eq!(without_slashes("[/]api[/]").unwrap(), "[/]api[/]");
    }

    #[test]
    fn other_patterns_stay_unchanged() {
        for pattern in [
            "", "/", "//", "/a", "a/", "/a/b/", r"/a\/", "/a/g", "a b", r"\d+", "(?ms)a", "ä<b>",
        ] {
            assert_eq!(translated(pattern), pattern);
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_translation_panic(pattern in "[/\\\\<>(?mixs:)\\[\\]aä-]{0,20}") {
            let _ = translated(&pattern);
        }
    }
}
