//! Hides values wherever a text quotes them.
//!
//! A text quotes a value as it is, or escaped: as JSON, in a URL, in HTML, as Rust prints it. It can also quote only the beginning of a
//! long value.

use std::{borrow::Cow, fmt::Write as _};

use serde_json::Value;

use super::HIDDEN;

/// A value of fewer characters is hidden only where it stands alone, not within another word or number.
const SHORT: usize = 4;
/// The number of bytes by which the beginning of a longer value is recognized.
const BEGINNING: usize = 8;
/// The characters that quote a part of a text.
const QUOTES: [char; 3] = ['"', '\'', '`'];

/// A text in which values are hidden.
pub(super) struct Mask<'a> {
    /// The text without the values so far.
    pub(super) text: Cow<'a, str>,
}

impl<'a> Mask<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text: text.into() }
    }

    /// Hides all texts and numbers within a value.
    pub(super) fn all(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.value(text),
            Value::Number(number) => self.value(&number.to_string()),
            Value::Array(all) => all.iter().for_each(|one| self.all(one)),
            Value::Object(fields) => fields.values().for_each(|one| self.all(one)),
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// Hides a value.
    pub(super) fn value(&mut self, value: &str) {
        if value.is_empty() || value == HIDDEN {
            return;
        }
        let mut forms = vec![value.to_owned()];
        if !value.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            forms.extend(written(value));
        }
        forms.retain(|form| self.text.contains(beginning(form)));
        if !forms.is_empty() {
            self.hide(&forms, value.chars().count() < SHORT);
        }
    }

    /// Hides the parts of the text that are in quotation marks and occur in a record whose fields cannot be told apart.
    pub(super) fn quotes(&mut self, record: &str) {
        for mark in QUOTES {
            let parts: Vec<&str> = self.text.split(mark).collect();
            let inner = |number: usize| number % 2 == 1 && number + 1 < parts.len();
            let is_of_record = |part: &str| !part.is_empty() && record.contains(part);
            let mut parts = parts.iter().enumerate();
            let masked: Vec<&str> = parts
                .by_ref()
                .map(|(number, part)| match inner(number) && is_of_record(part) {
                    true => HIDDEN,
                    false => part,
                })
                .collect();
            self.text = masked.join(&mark.to_string()).into();
        }
    }

    /// Hides each place at which the text has one of the forms of a value, or a long beginning of it.
    fn hide(&mut self, forms: &[String], is_short: bool) {
        let mut out = String::with_capacity(self.text.len());
        let mut rest = &*self.text;
        loop {
            let places = forms.iter().filter_map(|form| rest.find(beginning(form)));
            let Some(at) = places.min() else { break };
            let (before, found) = rest.split_at(at);
            let lengths = forms
                .iter()
                .map(|form| match found.starts_with(beginning(form)) {
                    true => common(found, form),
                    false => 0,
                });
            let (found, after) = found.split_at(lengths.max().unwrap_or(0));
            let last = before.chars().next_back().or(out.chars().next_back());
            let is_within =
                last.is_some_and(char::is_alphanumeric) || after.starts_with(char::is_alphanumeric);
            out.push_str(before);
            out.push_str(if is_short && is_within { found } else { HIDDEN });
            rest = after;
        }
        out.push_str(rest);
        self.text = out.into();
    }
}

/// The part of a value by which it is recognized.
fn beginning(value: &str) -> &str {
    let mut end = value.len().min(BEGINNING);
    while !value.is_char_boundary(end) {
        end += 1;
    }
    &value[..end]
}

/// The number of bytes at the beginning of both texts that are the same.
fn common(one: &str, other: &str) -> usize {
    let same = one.chars().zip(other.chars());
    let same = same.take_while(|(one, other)| one == other);
    same.map(|(character, _)| character.len_utf8()).sum()
}

/// The value as other texts write it.
fn written(value: &str) -> Vec<String> {
    let json = |text: &str| {
        let text = Value::from(text).to_string();
        text[1..text.len() - 1].to_owned()
    };
    let once = json(value);
    let ascii = once.chars().fold(String::new(), |mut out, character| {
        match character.is_ascii() {
            true => out.push(character),
            false => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    // Writing to a String cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
        out
    });
    let html = value
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;");
    let words: Vec<_> = value.split_whitespace().collect();
    let url = |hexadecimal: fn(u8) -> String, space: &str| {
        value.bytes().fold(String::new(), |mut out, byte| {
            match byte {
                b' ' => out.push_str(space),
                byte if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) => {
                    out.push(byte.into());
                }
                byte => out.push_str(&hexadecimal(byte)),
            }
            out
        })
    };
    vec![
        json(&once),
        ascii,
        once,
        value.escape_debug().to_string(),
        html.replace('\'', "&#39;"),
        html,
        words.join(" "),
        url(|byte| format!("%{byte:02X}"), "%20"),
        url(|byte| format!("%{byte:02X}"), "+"),
        url(|byte| format!("%{byte:02x}"), "%20"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(text: &str, value: &str) -> String {
        let mut mask = Mask::new(text);
        mask.value(value);
        mask.text.into_owned()
    }

    #[test]
    fn a_value_is_hidden_in_each_form_in_which_a_text_quotes_it() {
        let value = "p\u{e4}ss \"w\u{f6}rd\"/<&>'\\\n1";
        let json = Value::from(value).to_string();
        let twice = Value::from(&*json).to_string();
        for text in [
            format!("Invalid integer {value}"),
            format!("Invalid integer {value:?}"),
            format!("400: {{\"error\": {json}}}"),
            format!("400: {{\"error\": {twice}}}"),
            "\\u0070 p\\u00e4ss \\\"w\\u00f6rd\\\"/<&>'\\\\\\n1".to_owned(),
            "?a=p%C3%A4ss%20%22w%C3%B6rd%22%2F%3C%26%3E%27%5C%0A1&b".to_owned(),
            "?a=p%C3%A4ss+%22w%C3%B6rd%22%2F%3C%26%3E%27%5C%0A1".to_owned(),
            "?a=p%c3%a4ss%20%22w%c3%b6rd%22%2f%3c%26%3e%27%5c%0a1".to_owned(),
            "p\u{e4}ss &quot;w\u{f6}rd&quot;/&lt;&amp;&gt;&#39;\\\n1".to_owned(),
            "p\u{e4}ss \"w\u{f6}rd\"/<&>'\\ 1".to_owned(),
        ] {
            let masked = masked(&text, value);
            assert!(masked.contains(HIDDEN), "{text}: {masked}");
            assert!(!masked.contains("rd"), "{text}: {masked}");
        }
    }

    #[test]
    fn the_beginning_of_a_long_value_is_hidden_too() {
        let value = "correct horse battery staple";
        assert_eq!(masked("bad: correct horse ba…", value), "bad: ***…");
        assert_eq!(masked("correct horse", "correct horse battery"), "***");
        assert_eq!(masked("correct", value), "correct");
        // The beginning is the same in two forms.
        assert_eq!(
            masked("{\"a\":\"long one \\\"x\\\" y\"}", "long one \"x\" y"),
            "{\"a\":\"***\"}"
        );
    }

    #[test]
    fn a_short_value_is_hidden_only_where_it_stands_alone() {
        assert_eq!(
            masked("line 17, column 7: 7 is no text", "7"),
            "line 17, column ***: *** is no text"
        );
        assert_eq!(masked("a7 7a 7.", "7"), "a7 7a ***.");
        assert_eq!(masked("abcd", "abc"), "abcd");
        assert_eq!(masked("xhunter2y", "hunter2"), "x***y");
        assert_eq!(masked("nothing", ""), "nothing");
    }

    #[test]
    fn parts_in_quotation_marks_are_hidden_if_the_record_has_them() {
        let mut mask = Mask::new("no `,` behind \"hunter2\" and 'x', expected \"}\", it's `a`");
        mask.quotes("{\"password\": \"hunter2\" x");
        assert_eq!(
            mask.text,
            "no `,` behind \"***\" and '***', expected \"}\", it's `***`"
        );
    }
}
