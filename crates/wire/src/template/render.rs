//! Renders templates.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! There is no allocation once the buffers have grown, and a failed rendering leaves no output.

use std::{fmt, sync::Arc};

use jiff::tz::TimeZone;
use millstream_record::{Batch, Time, Values};

use super::{
    Depends, Named, Part, Template,
    clock::{Clock, key},
    path,
};
use crate::{
    json::{self, InvalidUtf8},
    record::{MESSAGE, Record, TimedRecord, Value},
    rfc3339::{Rfc3339, nanos_text},
    room::Room,
};

/// The name of the placeholder for the whole record.
const RECORD: &str = "record";

/// A value of a template is missing and has no default: the record cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Missing {
    /// The name in the template.
    pub name: Arc<str>,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.name {
            RECORD => f.write_str("the record cannot be written as JSON for `{record}`"),
            name => write!(
                f,
                "no value for `{name}`; to write such records give it a default: `{{{name}|unknown}}`"
            ),
        }
    }
}

/// The values that all records of a batch share and that templates can use.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    /// The tag.
    pub tag: &'a str,
    /// The values.
    pub values: &'a Values,
}

impl<'a> From<&'a Batch> for Shared<'a> {
    fn from(batch: &'a Batch) -> Self {
        Self {
            tag: batch.tag.as_str(),
            values: &batch.values,
        }
    }
}

/// Renders a template. Every task needs its own renderer, because a renderer caches formatted times.
#[derive(Clone, Debug)]
pub struct Renderer {
    template: Template,
    zone: TimeZone,
    /// How values are written.
    written: Written,
    /// One clock for each strftime part, in order.
    clocks: Vec<Clock>,
    rfc3339: Rfc3339,
    /// Buffer for a value, before it becomes a component of a path.
    value: Vec<u8>,
}

impl Renderer {
    /// Creates a renderer for text, which writes values unchanged. strftime directives show the time in `zone`.
    pub fn text(template: &Template, zone: TimeZone) -> Self {
        let clocks = template.parts.iter().filter_map(|part| match part {
            Part::Clock { format, changes } => Some(Clock::new(format, *changes)),
            _ => None,
        });
        Self {
            clocks: clocks.collect(),
            template: template.clone(),
            zone,
            written: Written::Text(None),
            rfc3339: Rfc3339::new(),
            value: Vec::new(),
        }
    }

    /// Creates a renderer for a path (or the path of a URL). Every value is one component and cannot leave the directory that the
    /// template's own text names. `/`, control characters and bytes that are not UTF-8 become `_`. An empty value and a value of
    /// only dots also become `_`. Values are truncated at 200 bytes.
    pub fn path(template: &Template, zone: TimeZone) -> Self {
        Self {
            written: Written::Path,
            ..Self::text(template, zone)
        }
    }

    /// Creates a renderer for the path and query of a URL: every byte of a value except letters, digits and `-._~` is
    /// escaped, and a value of only dots becomes `_`.
    pub fn url(template: &Template, zone: TimeZone) -> Self {
        Self {
            written: Written::Url,
            ..Self::text(template, zone)
        }
    }

    /// Sets the replacement for values that are not UTF-8. With `None`, such values become base64 in JSON, and stay unchanged
    /// otherwise.
    pub(crate) fn invalid_utf8(self, how: Option<InvalidUtf8>) -> Self {
        Self {
            written: Written::Text(how),
            ..self
        }
    }

    /// The inputs on which the text depends.
    pub fn depends(&self) -> Depends {
        self.template.depends()
    }

    /// Returns true if the text is certainly the same for both event times, provided that all other inputs are equal.
    pub fn same_time(&self, a: Time, b: Time) -> bool {
        self.template.parts.iter().all(|part| match part {
            Part::Time | Part::Unix(_) | Part::Fraction(_) => a == b,
            Part::Clock { changes, .. } => match (key(*changes, a), key(*changes, b)) {
                (Some(a), Some(b)) => a == b,
                _ => a == b,
            },
            Part::Literal(_)
            | Part::Tag
            | Part::Value { .. }
            | Part::Field { .. }
            | Part::Json(_)
            | Part::Named(..)
            | Part::Record => true,
        })
    }

    /// Appends the text for one record, or for a batch if the record of `event` is [`Record::None`].
    ///
    /// # Errors
    /// If the template needs a value that is missing or cannot be written. In that case, `out` is unchanged.
    pub fn render(
        &mut self,
        shared: Shared<'_>,
        event: TimedRecord<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Missing> {
        let start = out.len();
        let result = self.parts(shared, event, out);
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    fn parts(
        &mut self,
        shared: Shared<'_>,
        event: TimedRecord<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Missing> {
        let mut clocks = self.clocks.iter_mut();
        for part in self.template.parts.iter() {
            match part {
                Part::Literal(text) => out.extend_from_slice(text),
                Part::Clock { .. } => {
                    if let Some(clock) = clocks.next() {
                        clock.write(event.time, &self.zone, out)?;
                    }
                }
                Part::Fraction(digits) => {
                    let text = nanos_text(event.time.subsec_nanos());
                    out.extend_from_slice(text.get(..usize::from(*digits)).unwrap_or_default());
                }
                Part::Time => out.extend_from_slice(&self.rfc3339.text(event.time)),
                Part::Unix(unit) => write_number(unit.of(event.time), out),
                Part::Json(part) => json_part(part, shared, event, &mut self.written.room(out))?,
                Part::Named(named, part) => {
                    self.value.clear();
                    text_part(part, shared, event, &mut self.value)?;
                    write_named(*named, &self.value, self.written, out);
                }
                Part::Record => record(event.record, &mut self.written.room(out))?,
                Part::Tag => write_value(shared.tag.as_bytes(), self.written, out),
                Part::Value { name, default } => {
                    let value = shared.values.get(name).or(default.as_deref());
                    let value = value.ok_or_else(|| Missing { name: name.clone() })?;
                    write_value(value.as_bytes(), self.written, out);
                }
                Part::Field {
                    place,
                    name,
                    default,
                } => {
                    let missing = || Missing { name: name.clone() };
                    let found = place.find(event);
                    match (
                        found.filter(|value| default.is_none() || !value.is_nil()),
                        default,
                    ) {
                        (Some(value), _) => match value.text() {
                            Some(text) => write_value(text, self.written, out),
                            None => {
                                self.value.clear();
                                let mut room = self.written.room(&mut self.value);
                                write_other(value, &mut room).ok_or_else(missing)?;
                                drop(room);
                                write_value(&self.value, self.written, out);
                            }
                        },
                        (None, Some(default)) => write_value(default.as_bytes(), self.written, out),
                        (None, None) => return Err(missing()),
                    }
                }
            }
        }
        Ok(())
    }

    /// Appends the text for a batch: like [`Renderer::render`] without a record, with the receive time of the batch as the
    /// event time.
    ///
    /// # Errors
    /// If the template needs a value that is missing or cannot be written. In that case, `out` is unchanged.
    pub fn render_batch(&mut self, batch: &Batch, out: &mut Vec<u8>) -> Result<(), Missing> {
        let event = TimedRecord {
            time: batch.received,
            record: Record::None,
            metadata: &[],
        };
        self.render(batch.into(), event, out)
    }
}

/// How values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// Unchanged, or replaced if they are not UTF-8.
    Text(Option<InvalidUtf8>),
    /// As components of a path.
    Path,
    /// As parts of a URL.
    Url,
}

impl Written {
    /// Returns the end of `out` as a [`Room`] for JSON.
    fn room(self, out: &mut Vec<u8>) -> Room<'_> {
        match self {
            Self::Text(how) => Room::with(out, how),
            Self::Path | Self::Url => Room::new(out),
        }
    }
}

fn write_value(value: &[u8], written: Written, out: &mut Vec<u8>) {
    match written {
        Written::Text(None) => out.extend_from_slice(value),
        Written::Text(how) => Room::with(out, how).text(value),
        Written::Path => path::write_part(value, out),
        Written::Url => path::write_escaped(value, out),
    }
}

/// Writes a value that is a path.
fn write_named(named: Named, value: &[u8], written: Written, out: &mut Vec<u8>) {
    match (named, written) {
        (Named::Base, _) => write_value(path::base(value), written, out),
        (Named::Dirs, Written::Text(_)) => write_value(value, written, out),
        (Named::Dirs, Written::Path) => path::write_dirs(value, path::write_part, out),
        (Named::Dirs, Written::Url) => path::write_dirs(value, path::write_escaped, out),
    }
}

/// Writes the text of a tag, a value or a field, unchanged.
fn text_part(
    part: &Part,
    shared: Shared<'_>,
    event: TimedRecord<'_>,
    out: &mut Vec<u8>,
) -> Result<(), Missing> {
    let missing = |name: &Arc<str>| Missing { name: name.clone() };
    match part {
        Part::Tag => out.extend_from_slice(shared.tag.as_bytes()),
        Part::Value { name, default } => {
            let value = shared.values.get(name).or(default.as_deref());
            out.extend_from_slice(value.ok_or_else(|| missing(name))?.as_bytes());
        }
        Part::Field {
            place,
            name,
            default,
        } => {
            let found = place.find(event);
            match (
                found.filter(|value| default.is_none() || !value.is_nil()),
                default,
            ) {
                (Some(value), _) => match value.text() {
                    Some(text) => out.extend_from_slice(text),
                    None => write_other(value, &mut Room::new(out)).ok_or_else(|| missing(name))?,
                },
                (None, Some(default)) => out.extend_from_slice(default.as_bytes()),
                (None, None) => return Err(missing(name)),
            }
        }
        // Only a tag, a value or a field is a path.
        _ => {}
    }
    Ok(())
}

/// Writes a tag, a value or a field as JSON; a default as a JSON string.
fn json_part(
    part: &Part,
    shared: Shared<'_>,
    event: TimedRecord<'_>,
    room: &mut Room<'_>,
) -> Result<(), Missing> {
    let missing = |name: &Arc<str>| Missing { name: name.clone() };
    let text = match part {
        Part::Tag => shared.tag.as_bytes(),
        Part::Value { name, default } => {
            let value = shared.values.get(name).or(default.as_deref());
            value.ok_or_else(|| missing(name))?.as_bytes()
        }
        Part::Field {
            place,
            name,
            default,
        } => match (place.find(event), default) {
            (Some(Value::Line(line)), _) => line,
            (Some(value @ Value::Packed(bytes)), default)
                if default.is_none() || !value.is_nil() =>
            {
                return match json::value(room, bytes, 0) {
                    Ok(_) => Ok(()),
                    Err(_) => Err(missing(name)),
                };
            }
            (_, Some(default)) => default.as_bytes(),
            (_, None) => return Err(missing(name)),
        },
        // Only a tag, a value or a field is converted to JSON.
        _ => b"",
    };
    json::string(room, text, 0, text.len());
    Ok(())
}

/// Writes the whole record as JSON.
fn record(record: Record<'_>, room: &mut Room<'_>) -> Result<(), Missing> {
    let missing = || Missing {
        name: RECORD.into(),
    };
    match record {
        Record::None => Err(missing()),
        Record::Packed(map) => json::value(room, map, 0).map(drop).map_err(|_| missing()),
        Record::Line(line) => {
            room.byte(b'{');
            json::string(room, MESSAGE.as_bytes(), 0, MESSAGE.len());
            room.byte(b':');
            json::string(room, line, 0, line.len());
            room.byte(b'}');
            Ok(())
        }
    }
}

/// Writes a value that is not a text as JSON; `None` if JSON cannot represent the value.
fn write_other(value: Value<'_>, room: &mut Room<'_>) -> Option<()> {
    match value {
        Value::Line(_) => None,
        Value::Packed(bytes) => json::value(room, bytes, 0).ok().map(drop),
    }
}

/// Writes a number in decimal digits.
pub(crate) fn write_number(number: i64, out: &mut Vec<u8>) {
    let mut digits = [0; json::INTEGER_BYTES];
    out.extend_from_slice(json::digits(i128::from(number), &mut digits));
}
