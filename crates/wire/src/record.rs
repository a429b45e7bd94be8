//! Single records of a batch: their ranges, times and fields.
//!
//! Nothing is copied: a record is a time and a slice of the body.

use std::{fmt, ops::Range, str::FromStr, sync::Arc};

use millstream_record::{Batch, Encoding, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::msgpack::{self, Reader};

/// The name of a line's only field: a line is the record `{"message": line}`.
pub const MESSAGE: &str = "message";

/// A record, as a slice of the body.
#[derive(Clone, Copy, Debug)]
pub enum Record<'a> {
    /// No record, for a template or condition that is evaluated without one. No field exists.
    None,
    /// A line without its newline: its one field is [`MESSAGE`].
    Line(&'a [u8]),
    /// A MessagePack map at the start of these bytes. Other bytes may follow it.
    Packed(&'a [u8]),
}

/// One record and its time.
#[derive(Clone, Copy, Debug)]
pub struct TimedRecord<'a> {
    /// The event time. For a line, and for an entry without a time, it is the receive time of the batch.
    pub time: Time,
    /// The record.
    pub record: Record<'a>,
    /// The map of metadata beside the time, at the start of these bytes; empty if there is none.
    pub metadata: &'a [u8],
}

/// The value of a field, as a slice of the body.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// The text of a line.
    Line(&'a [u8]),
    /// A MessagePack value at the start of these bytes. Other bytes may follow it.
    Packed(&'a [u8]),
}

impl<'a> Value<'a> {
    /// The bytes of a line, a str or a bin; `None` for any other type.
    #[inline]
    pub fn text(self) -> Option<&'a [u8]> {
        match self {
            Self::Line(line) => Some(line),
            Self::Packed(bytes) => Reader::new(bytes).bytes().ok(),
        }
    }

    /// Whether the value is nil.
    pub fn is_nil(self) -> bool {
        matches!(self, Self::Packed([0xc0, ..]))
    }
}

/// The records of a batch in order, each with its range in the body (including the newline of a line). Stops at bytes that are
/// not an entry. A valid batch contains no such bytes.
pub fn records(batch: &Batch) -> Events<'_> {
    Events {
        body: &batch.body,
        encoding: batch.encoding,
        received: batch.received,
        at: 0,
    }
}

/// Iterates over the records of a batch: see [`records`].
#[derive(Clone, Debug)]
pub struct Events<'a> {
    body: &'a [u8],
    encoding: Encoding,
    received: Time,
    at: usize,
}

impl<'a> Iterator for Events<'a> {
    type Item = (Range<usize>, TimedRecord<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.at;
        let rest = self.body.get(start..).filter(|rest| !rest.is_empty())?;
        let event = match self.encoding {
            Encoding::Lines => {
                let length = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
                self.at = (start + length + 1).min(self.body.len());
                TimedRecord {
                    time: self.received,
                    record: Record::Line(rest.get(..length)?),
                    metadata: &[],
                }
            }
            Encoding::Packed => {
                let head = msgpack::entry_head(self.body, start).ok()?;
                let mut open = 1;
                self.at = msgpack::skip(self.body, head.record, &mut open).ok()?;
                if open > 0 {
                    return None;
                }
                TimedRecord {
                    time: head.time.unwrap_or(self.received),
                    record: Record::Packed(self.body.get(head.record..)?),
                    metadata: head.metadata(self.body),
                }
            }
        };
        Some((start..self.at, event))
    }
}

/// The path of a field in a record: `.level`, `.user.id`, `."a.b".c`. A quoted part may hold any character (`\"` and
/// `\\` for `"` and `\`). Every part except the last must name a map.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct FieldPath {
    parts: Arc<[Box<str>]>,
}

/// The text is not a field path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} at byte {offset} of a field's name such as .level, .user.id or .\"a.b\"")]
pub struct FieldPathError {
    /// The offset of the error in bytes.
    pub offset: usize,
    /// The error.
    pub message: &'static str,
}

impl FieldPath {
    /// The field `name` at the top level of the record, with any characters.
    pub fn top(name: &str) -> Self {
        Self {
            parts: Arc::new([name.into()]),
        }
    }

    /// The path with no part: all of a map.
    pub(crate) fn all() -> Self {
        Self {
            parts: Arc::new([]),
        }
    }

    /// Parses a path at the start of `text`, up to the first character that is not part of the path; also returns the length
    /// of the path.
    pub(crate) fn read(text: &str) -> Result<(Self, usize), FieldPathError> {
        let mut parts = Vec::new();
        let mut at = 0;
        while text.as_bytes().get(at) == Some(&b'.') {
            at += 1;
            let rest = text.get(at..).unwrap_or_default();
            let (part, length) = if rest.starts_with('"') {
                quoted(rest).ok_or(FieldPathError {
                    offset: at,
                    message: "a quote that is not closed",
                })?
            } else {
                let length = rest
                    .find(['.', '|', '}', '{', '"', ':'])
                    .unwrap_or(rest.len());
                (rest.get(..length).unwrap_or_default().to_owned(), length)
            };
            if length == 0 {
                return Err(FieldPathError {
                    offset: at,
                    message: "an empty part",
                });
            }
            parts.push(part.into_boxed_str());
            at += length;
        }
        if parts.is_empty() {
            return Err(FieldPathError {
                offset: 0,
                message: "no leading dot",
            });
        }
        let parts = parts.into();
        Ok((Self { parts }, at))
    }

    /// The value of the field; `None` if it is missing. If a key occurs several times, the first one applies.
    #[inline]
    pub fn find<'a>(&self, record: Record<'a>) -> Option<Value<'a>> {
        match record {
            Record::None => None,
            Record::Line(line) => match &*self.parts {
                [name] if &**name == MESSAGE => Some(Value::Line(line)),
                _ => None,
            },
            Record::Packed(map) => {
                let mut value = map;
                for part in self.parts.iter() {
                    value = entry(value, part.as_bytes())?;
                }
                Some(Value::Packed(value))
            }
        }
    }

    /// The keys that lead from the top level of the record to the field; at least one.
    pub fn parts(&self) -> &[Box<str>] {
        &self.parts
    }

    /// The name, if the field is at the top level of the record.
    pub(crate) fn top_name(&self) -> Option<&str> {
        match &*self.parts {
            [name] => Some(name),
            _ => None,
        }
    }
}

/// Parses a quoted part; also returns its length with the quotes.
fn quoted(text: &str) -> Option<(String, usize)> {
    let mut part = String::new();
    let mut characters = text.char_indices().skip(1);
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((part, at + 1)),
            '\\' => part.push(characters.next()?.1),
            other => part.push(other),
        }
    }
    None
}

/// Returns the value of `key` in the map at the start of `bytes`, with all bytes that follow the value.
fn entry<'a>(bytes: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let mut reader = Reader::new(bytes);
    for _ in 0..reader.map_len().ok()? {
        match reader.bytes() {
            Ok(name) if name == key => return bytes.get(reader.position()..),
            Ok(_) => {}
            Err(_) => reader.skip().ok()?,
        }
        reader.skip().ok()?;
    }
    None
}

/// Returns the value of `key` in the map at `at` (`None` if the map does not have the key) and the offset after the map.
/// Returns `None` if the map is malformed or incomplete.
#[inline]
pub(crate) fn entry_and_end<'a>(
    bytes: &'a [u8],
    at: usize,
    key: &[u8],
) -> Option<(Option<Value<'a>>, usize)> {
    let mut reader = Reader::at(bytes, at);
    let mut owed = 2 * u64::from(reader.map_len().ok()?);
    let mut value = None;
    while owed > 0 {
        owed -= 1;
        match reader.bytes() {
            Ok(name) if name == key => {
                value = bytes.get(reader.position()..).map(Value::Packed);
                break;
            }
            Ok(_) => {}
            Err(_) => reader.skip().ok()?,
        }
        owed -= 1;
        reader.skip().ok()?;
    }
    reader.values(owed).ok()?;
    Some((value, reader.position()))
}

impl FromStr for FieldPath {
    type Err = FieldPathError;

    /// Parses a path; a name without the leading dot is a field at the top level.
    fn from_str(text: &str) -> Result<Self, FieldPathError> {
        if !text.starts_with('.') && !text.is_empty() {
            return Ok(Self::top(text));
        }
        let (path, length) = Self::read(text)?;
        if length < text.len() {
            return Err(FieldPathError {
                offset: length,
                message: "a character that needs quotes",
            });
        }
        Ok(path)
    }
}

impl TryFrom<String> for FieldPath {
    type Error = FieldPathError;
    fn try_from(text: String) -> Result<Self, FieldPathError> {
        text.parse()
    }
}

impl From<FieldPath> for String {
    fn from(path: FieldPath) -> Self {
        path.to_string()
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.parts.iter() {
            if part.contains(['.', '|', '}', '{', '"', ':', '\\']) || part.is_empty() {
                write!(
                    f,
                    ".\"{}\"",
                    part.replace('\\', "\\\\").replace('"', "\\\"")
                )?;
            } else {
                write!(f, ".{part}")?;
            }
        }
        Ok(())
    }
}
