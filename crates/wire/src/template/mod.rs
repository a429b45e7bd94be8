//! Templates: text with placeholders for the values of a batch, the fields of a record and its time.
//!
//! ```text
//! {tag}                the tag; {host}, {path}, {kubernetes.pod}: the values that the records of a batch share
//! {.field} {.a.b}      a field of the record; {."a.b"} with characters that need quotes
//! {host|unknown}       with a default, used if the value is missing (or nil)
//! {.field:json}        the field as JSON (text in quotes); also {tag:json}, {host:json}
//! {path:dirs}          in a path: the value with its directories; also {tag:dirs}, {.field:dirs}
//! {path:base}          the last part of a path: the file's name; also {tag:base}, {.field:base}
//! {record}             the whole record as a JSON object
//! {metadata.a.b}       metadata beside the time, which Fluent Bit sends; {metadata}: all of it as a JSON object
//! {time}               the event time: RFC 3339, nanoseconds, Z
//! {time:unix_ms}       the event time as a number: unix, unix_ms, unix_us, unix_ns
//! %Y-%m-%d %T.%9f %z   strftime of the event time, in the node's time zone
//! {time:%b %e}         strftime in braces
//! {{ }} %%             { } %
//! ```
//!
//! - [`Template`]: a parsed and checked template.
//! - [`Renderer`]: renders a template. It caches the texts of recent seconds. So even in a busy stream, only one time
//!   of each second is converted to a time zone.

mod clock;
mod parse;
mod path;
mod render;

#[cfg(test)]
mod tests;

use std::{borrow::Cow, fmt, str::FromStr, sync::Arc};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

pub(crate) use render::write_number;
pub use render::{Missing, Renderer, Shared};

use crate::record::{FieldPath, Record, TimedRecord, Value};

/// A checked template. Clones share its text and its parts.
#[derive(Clone)]
pub struct Template {
    text: Arc<str>,
    parts: Arc<[Part]>,
}

/// The inputs on which the text of a template depends. They determine how often the template must be rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depends {
    /// No input: render once.
    Nothing,
    /// The tag or the values of the batch: render once per batch.
    Batch,
    /// The event time, and possibly the batch: render whenever the text may differ ([`Renderer::same_time`]).
    Time,
    /// A field: render for every record.
    Record,
}

/// The text is not a valid template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} at byte {offset} of the template: {help}")]
pub struct TemplateError {
    /// The offset of the error in bytes.
    pub offset: usize,
    /// The error.
    pub message: String,
    /// A hint for correcting the text.
    pub help: String,
}

/// A piece of a template.
#[derive(Clone, Debug, PartialEq)]
enum Part {
    Literal(Box<[u8]>),
    /// The tag, which is never missing.
    Tag,
    /// A value of the batch.
    Value {
        name: Arc<str>,
        default: Option<Box<str>>,
    },
    /// A field of the record, or of its metadata.
    Field {
        place: Place,
        /// The name to report in [`Missing`].
        name: Arc<str>,
        default: Option<Box<str>>,
    },
    /// The event time as RFC 3339.
    Time,
    /// The event time as a number.
    Unix(Unix),
    /// strftime.
    Clock {
        format: Box<str>,
        changes: Changes,
    },
    /// The first digits of the nanoseconds. The value is the number of digits: 1 to 9.
    Fraction(u8),
    /// A tag, a value or a field as JSON.
    Json(Box<Part>),
    /// A tag, a value or a field that is a path.
    Named(Named, Box<Part>),
    /// The record as JSON.
    Record,
}

/// A field of the record or of the metadata beside its time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    path: FieldPath,
    is_metadata: bool,
}

impl Place {
    /// The value of the field; `None` if it is missing.
    #[inline]
    pub(crate) fn find<'a>(&self, event: TimedRecord<'a>) -> Option<Value<'a>> {
        if !self.is_metadata {
            return self.path.find(event.record);
        }
        match event.metadata {
            [] => None,
            map => self.path.find(Record::Packed(map)),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_metadata {
            f.write_str(METADATA)?;
        }
        self.path.fmt(f)
    }
}

/// The name of the metadata beside the time.
const METADATA: &str = "metadata";

/// Units of the time since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unix {
    Seconds,
    Millis,
    Micros,
    Nanos,
}

impl Unix {
    /// The time in this unit, rounded down.
    pub(crate) fn of(self, time: millstream_record::Time) -> i64 {
        time.0.div_euclid(match self {
            Self::Seconds => 1_000_000_000,
            Self::Millis => 1_000_000,
            Self::Micros => 1_000,
            Self::Nanos => 1,
        })
    }
}

/// The part of a value that is written, if the value is a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    /// All of it. In a path, its directories stay directories.
    Dirs,
    /// Its last part.
    Base,
}

/// How often the text of a strftime format changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Changes {
    EveryMinute,
    EverySecond,
    /// The text has fractions of a second whose length is not fixed.
    Always,
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// [`TemplateError`] with the offset of the mistake and what to write instead.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        Ok(Self {
            text: text.into(),
            parts: parse::parts(text)?.into(),
        })
    }

    /// The text of the template.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the field, if the template consists of a single field without a default.
    pub fn field(&self) -> Option<&FieldPath> {
        match &*self.parts {
            [
                Part::Field {
                    place:
                        Place {
                            path,
                            is_metadata: false,
                        },
                    default: None,
                    ..
                },
            ] => Some(path),
            _ => None,
        }
    }

    /// The inputs on which the text depends.
    pub fn depends(&self) -> Depends {
        let each = self.parts.iter().map(Part::depends);
        each.max().unwrap_or(Depends::Nothing)
    }

    /// Whether the text contains the event time as RFC 3339 or as a number.
    pub(crate) fn shows_event_time(&self) -> bool {
        let is_time = |part: &Part| matches!(part, Part::Time | Part::Unix(_));
        self.parts.iter().any(is_time)
    }

    /// The values of the batch that the template uses, each with its default. The tag and the time are left out.
    pub fn values(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.parts.iter().filter_map(|part| match part.plain() {
            Part::Value { name, default } => Some((&**name, default.as_deref())),
            _ => None,
        })
    }

    /// Returns the placeholder of a template that consists of a single placeholder. Such a template can keep the type
    /// of the value.
    pub(crate) fn single(&self) -> Single<'_> {
        match &*self.parts {
            [Part::Field { place, default, .. }] => Single::Field(place, default.as_deref()),
            [Part::Time] => Single::Time,
            [Part::Unix(unit)] => Single::Unix(*unit),
            _ => Single::No,
        }
    }
}

impl Part {
    fn depends(&self) -> Depends {
        match self.plain() {
            Self::Literal(_) => Depends::Nothing,
            Self::Tag | Self::Value { .. } => Depends::Batch,
            Self::Time | Self::Unix(_) | Self::Clock { .. } | Self::Fraction(_) => Depends::Time,
            Self::Field { .. } | Self::Json(_) | Self::Named(..) | Self::Record => Depends::Record,
        }
    }

    /// The part itself, without the conversion to JSON or the choice of [`Named`].
    fn plain(&self) -> &Self {
        match self {
            Self::Json(part) | Self::Named(_, part) => part,
            part => part,
        }
    }
}

/// The result of [`Template::single`]; `No` if the template does not consist of exactly one of these placeholders.
pub(crate) enum Single<'a> {
    Field(&'a Place, Option<&'a str>),
    Time,
    Unix(Unix),
    No,
}

impl FromStr for Template {
    type Err = TemplateError;
    fn from_str(text: &str) -> Result<Self, TemplateError> {
        Self::parse(text)
    }
}

impl PartialEq for Template {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Template {}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Template({:?})", self.text)
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Template {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

impl JsonSchema for Template {
    fn schema_name() -> Cow<'static, str> {
        "Template".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A template: {tag}, {host}, {host|default}, {.field}, {path:dirs}, {path:base}, {time}, {time:unix_ms}, strftime such as %Y-%m-%d or {time:%b %e}; {{ and %% for { and %",
        })
    }
}
