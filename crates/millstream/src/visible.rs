//! Makes control characters visible in text that a peer, a file or a server chose.
//!
//! File names, error replies and field values reach the log and the terminal. A newline in one of them would forge a log line, and
//! an escape sequence would control the operator's terminal. Every log line and every page passes through here, so no code that
//! formats a message needs to escape it. The escapes are those of JSON, so they are valid in a JSON log line too.

use std::{borrow::Cow, fmt::Write as _};

/// Returns the text with every control character escaped, newlines and tabs included.
pub fn visible(text: &str) -> Cow<'_, str> {
    escape(text, &[])
}

/// Like [`visible`], but keeps newlines and tabs.
pub fn visible_lines(text: &str) -> Cow<'_, str> {
    escape(text, &['\n', '\t'])
}

fn escape<'a>(text: &'a str, keep: &[char]) -> Cow<'a, str> {
    let hides = |letter: char| is_invisible(letter) && !keep.contains(&letter);
    let Some(first) = text.find(hides) else {
        return text.into();
    };
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(&text[..first]);
    for letter in text[first..].chars() {
        match letter {
            _ if !hides(letter) => out.push(letter),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            other => {
                let _ = write!(out, "\\u{:04x}", u32::from(other));
            }
        }
    }
    out.into()
}

/// Control characters (C0, DEL, C1), separators at which some viewers break a line, and marks that reverse the order of the text
/// after them (CVE-2021-42574).
fn is_invisible(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_json_escapes() {
        for (given, shown) in [
            ("plain ünïcode", "plain ünïcode"),
            ("a\nERROR forged", "a\\nERROR forged"),
            ("\u{1b}[2Jx\r\t\u{7f}", "\\u001b[2Jx\\r\\t\\u007f"),
            ("\u{9b}31m", "\\u009b31m"),
            ("a\u{202e}b\u{2028}", "a\\u202eb\\u2028"),
        ] {
            assert_eq!(visible(given), shown, "{given:?}");
            let json: String = serde_json::from_str(&format!("\"{shown}\"")).unwrap();
            assert_eq!(json, given);
        }
        assert_eq!(visible_lines("a\n\tb\u{1b}"), "a\n\tb\\u001b");
    }
}
