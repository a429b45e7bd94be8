//! Parses the text of a template.

use std::sync::Arc;

use jiff::{Zoned, fmt::strtime};

use super::{Changes, METADATA, Named, Part, Place, TemplateError, Unix};
use crate::record::FieldPath;

pub(super) fn parts(text: &str) -> Result<Vec<Part>, TemplateError> {
    let mut reader = Reader {
        text,
        at: 0,
        parts: Vec::new(),
        literal: String::new(),
        clock: None,
    };
    while let Some(character) = reader.rest().chars().next() {
        match character {
            '{' if reader.rest().starts_with("{{") => reader.push('{', 2),
            '}' if reader.rest().starts_with("}}") => reader.push('}', 2),
            '%' if reader.rest().starts_with("%%") => reader.push('%', 2),
            '{' => reader.place()?,
            '}' => return Err(reader.error("a `}` without a `{`", "write `}}` for `}`")),
            '%' => reader.directive()?,
            other => reader.push(other, other.len_utf8()),
        }
    }
    reader.flush();
    Ok(reader.parts)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    parts: Vec<Part>,
    /// Text that is not yet a part.
    literal: String,
    /// A strftime format that is not yet a part, with the text between its directives.
    clock: Option<(String, Changes)>,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn error(&self, message: impl Into<String>, help: impl Into<String>) -> TemplateError {
        TemplateError {
            offset: self.at,
            message: message.into(),
            help: help.into(),
        }
    }

    /// Consumes `length` bytes of the template, which stand for this character.
    fn push(&mut self, character: char, length: usize) {
        self.at += length;
        match (&mut self.clock, character) {
            (Some((format, _)), '%') => format.push_str("%%"),
            (Some((format, _)), other) => format.push(other),
            (None, other) => self.literal.push(other),
        }
    }

    /// Completes the pending part.
    fn flush(&mut self) {
        if let Some((format, changes)) = self.clock.take() {
            self.parts.push(Part::Clock {
                format: format.into(),
                changes,
            });
        }
        if !self.literal.is_empty() {
            let literal = std::mem::take(&mut self.literal);
            self.parts.push(Part::Literal(literal.into_bytes().into()));
        }
    }

    fn part(&mut self, part: Part, length: usize) {
        self.flush();
        self.parts.push(part);
        self.at += length;
    }

    /// Parses `{...}`.
    fn place(&mut self) -> Result<(), TemplateError> {
        let inner = self.text.get(self.at + 1..).unwrap_or_default();
        let behind = inner.strip_prefix(METADATA);
        if inner.starts_with('.') || behind.is_some_and(|it| it.starts_with(['.', ':', '|', '}'])) {
            return self.field(inner);
        }
        let Some(end) = inner.find('}') else {
            return Err(self.error("a `{` that is not closed", "write `{{` for `{`"));
        };
        let inner = inner.get(..end).unwrap_or_default();
        if let Some(format) = inner.strip_prefix(TIME_FORM)
            && format.contains('%')
        {
            return self.strftime(format);
        }
        let (name, default) = match inner.split_once('|') {
            Some((name, default)) => (name, Some(default.into())),
            None => (inner, None),
        };
        let (name, form) = match name.split_once(':') {
            Some((name, form)) => (name, Some(form)),
            None => (name, None),
        };
        let part = match form {
            Some(unit) if name == "time" && unit != JSON => Part::Unix(self.unit(unit)?),
            Some(form) if Form::of(form).is_none() || matches!(name, "time" | "record") => {
                return Err(self.error(
                    "a format that this value does not have",
                    "`time` has formats such as `{time:unix_ms}`; `{.field:json}` and `{host:json}` are JSON, and `{record}` always is; \
                     `{path:dirs}` keeps directories in a path, and `{path:base}` is the name of the file",
                ));
            }
            _ if name == "time" => Part::Time,
            _ if name == "tag" => Part::Tag,
            _ if name == "record" => Part::Record,
            _ if is_name(name) => Part::Value {
                name: name.into(),
                default,
            },
            _ => {
                return Err(self.error(
                    format!("`{{{inner}}}`, which is not the name of a value"),
                    "a value is `{tag}`, `{time}`, a value of the batch such as `{host}`, or a field such as `{.level}`; write `{{` for `{`",
                ));
            }
        };
        if inner.contains('|') && !matches!(part, Part::Value { .. }) {
            return Err(self.error(
                "a default that is never used",
                "tag, time and record are never missing",
            ));
        }
        self.part(as_form(part, form.and_then(Form::of)), end + 2);
        Ok(())
    }

    /// Parses `{time:%b %e}`, which means the same as its format without the braces.
    fn strftime(&mut self, format: &str) -> Result<(), TemplateError> {
        self.at += "{".len() + TIME_FORM.len();
        let end = self.at + format.len();
        while let Some(character) = self.text.get(self.at..end).and_then(|it| it.chars().next()) {
            match character {
                '%' if self.rest().starts_with("%%") => self.push('%', 2),
                '%' => self.directive()?,
                '{' | '|' => {
                    return Err(self.error(
                        format!("a `{character}` within `{{time:...}}`"),
                        "the format is strftime such as `{time:%b %e}`; the time is never missing and needs no default",
                    ));
                }
                other => self.push(other, other.len_utf8()),
            }
        }
        self.at += "}".len();
        Ok(())
    }

    /// Parses `{.path}`, `{.path:json}`, `{.path:dirs}` or `{.path:base}`, all with an optional `|default`, and the same after `metadata`; `inner` begins after the
    /// brace.
    fn field(&mut self, inner: &str) -> Result<(), TemplateError> {
        let behind = inner.strip_prefix(METADATA);
        let (is_metadata, start) = (
            behind.is_some(),
            inner.len() - behind.unwrap_or(inner).len(),
        );
        let (path, length) = match behind {
            Some(behind) if !behind.starts_with('.') => (FieldPath::all(), 0),
            _ => FieldPath::read(behind.unwrap_or(inner)).map_err(|error| TemplateError {
                offset: self.at + 1 + start + error.offset,
                message: error.message.into(),
                help: "a field is `{.level}`, `{.user.id}` or `{.\"a.b\"}`".into(),
            })?,
        };
        let length = start + length;
        let rest = inner.get(length..).unwrap_or_default();
        let behind = rest.strip_prefix(':').unwrap_or_default();
        let named = behind.find(['|', '}']).and_then(|end| behind.get(..end));
        let named = named.and_then(|name| Some((name, Form::of(name)?)));
        let form = named.map(|(_, form)| form);
        let length = length + named.map_or(0, |(name, _)| ":".len() + name.len());
        let rest = inner.get(length..).unwrap_or_default();
        let (default, end) = match rest.find('}') {
            Some(0) => (None, length),
            Some(close) if rest.starts_with('|') => (rest.get(1..close), length + close),
            _ => {
                self.at += 1 + length;
                return Err(self.error("a field that is not closed", "after the field comes `}` or `|` with a default; a part with other characters needs quotes"));
            }
        };
        let place = Place { path, is_metadata };
        let part = Part::Field {
            name: Arc::from(place.to_string()),
            place,
            default: default.map(Into::into),
        };
        self.part(as_form(part, form), end + 2);
        Ok(())
    }

    fn unit(&self, unit: &str) -> Result<Unix, TemplateError> {
        match unit {
            "unix" => Ok(Unix::Seconds),
            "unix_ms" => Ok(Unix::Millis),
            "unix_us" => Ok(Unix::Micros),
            "unix_ns" => Ok(Unix::Nanos),
            _ => Err(self.error(
                format!("`{unit}`, which is not a format of the time"),
                "`{time}` is RFC 3339, `{time:unix}`, `{time:unix_ms}`, `{time:unix_us}` and `{time:unix_ns}` are numbers, and `{time:%F %T}` is strftime",
            )),
        }
    }

    /// Parses a strftime directive: `%` with flags, a width, a precision, colons and its letter.
    fn directive(&mut self) -> Result<(), TemplateError> {
        let rest = self.rest();
        let letter_at = rest
            .char_indices()
            .skip(1)
            .find(|(_, c)| !matches!(c, '-' | '_' | '0'..='9' | '^' | '#' | '.' | ':'));
        let Some((letter_at, letter)) = letter_at else {
            return Err(self.error("a `%` at the end", "write `%%` for `%`"));
        };
        let directive = rest
            .get(..letter_at + letter.len_utf8())
            .unwrap_or_default();
        if let Err(error) = strtime::format(directive, &Zoned::default()) {
            return Err(self.error(
                format!("`{directive}`, which is not a part of a time ({error})"),
                "such as `%Y %m %d %H %M %S %F %T %3f %9f %z`; write `%%` for `%`",
            ));
        }
        match (letter, directive.as_bytes()) {
            ('f' | 'N', [_, digit @ b'1'..=b'9', _]) => {
                self.part(Part::Fraction(digit - b'0'), directive.len());
            }
            ('f', [_, b'.', digit @ b'1'..=b'9', _]) => {
                self.push('.', 0);
                self.part(Part::Fraction(digit - b'0'), directive.len());
            }
            ('N', [_, _]) => self.part(Part::Fraction(9), directive.len()),
            _ => self.clock(directive, changes(letter)),
        }
        Ok(())
    }

    /// Adds a directive to the pending strftime format. If none is pending, begins a format with the text before the
    /// directive.
    fn clock(&mut self, directive: &str, changes: Changes) {
        let (format, often) = self.clock.get_or_insert_with(|| {
            let before = std::mem::take(&mut self.literal).replace('%', "%%");
            (before, Changes::EveryMinute)
        });
        format.push_str(directive);
        *often = match (*often, changes) {
            (Changes::Always, _) | (_, Changes::Always) => Changes::Always,
            (Changes::EverySecond, _) | (_, Changes::EverySecond) => Changes::EverySecond,
            _ => Changes::EveryMinute,
        };
        self.at += directive.len();
    }
}

/// The prefix of a format of the time.
const TIME_FORM: &str = "time:";

/// The suffix of a value that is written as JSON.
const JSON: &str = "json";

/// The word after the colon behind the name of a tag, a value or a field.
#[derive(Clone, Copy)]
enum Form {
    Json,
    Named(Named),
}

impl Form {
    fn of(name: &str) -> Option<Self> {
        match name {
            JSON => Some(Self::Json),
            "dirs" => Some(Self::Named(Named::Dirs)),
            "base" => Some(Self::Named(Named::Base)),
            _ => None,
        }
    }
}

/// Gives a tag, a value or a field a form. Other parts stay unchanged.
fn as_form(part: Part, form: Option<Form>) -> Part {
    match (part, form) {
        (part @ (Part::Tag | Part::Value { .. } | Part::Field { .. }), Some(form)) => match form {
            Form::Json => Part::Json(Box::new(part)),
            Form::Named(named) => Part::Named(named, Box::new(part)),
        },
        (part, _) => part,
    }
}

/// Whether `name` can be the name of a batch's value, such as `host` or `kubernetes.pod`.
fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/'))
}

/// How often the text of a directive changes.
fn changes(letter: char) -> Changes {
    match letter {
        'f' | 'N' => Changes::Always,
        'S' | 'T' | 's' | 'c' | 'r' | 'X' => Changes::EverySecond,
        _ => Changes::EveryMinute,
    }
}
