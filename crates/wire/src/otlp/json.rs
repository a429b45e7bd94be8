//! OTLP in JSON. The format is protobuf's JSON mapping, but ids are hexadecimal digits.
//!
//! Names are `lowerCamelCase`, or `snake_case` as in the specification; 64-bit numbers are texts or numbers. The caller has
//! converted the request to MessagePack. This code reads the MessagePack bytes in place.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};

use super::{
    Bad,
    record::{CONTEXT_BYTES_MAX, Id, Plain},
    walk::{Any, Encoding, LogRecord, Named, VALUES},
};
use crate::msgpack::{ReadError, Reader};

/// A nil of MessagePack.
const NIL: &[u8] = &[0xc0];

impl From<ReadError> for Bad {
    fn from(_: ReadError) -> Self {
        Self::Type
    }
}

/// The elements of a list that were not read yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct List<'a> {
    left: u32,
    reader: Reader<'a>,
    unread: &'a [u8],
}

impl<'a> List<'a> {
    fn new(value: Option<&'a [u8]>) -> Result<Self, Bad> {
        let Some(value) = value.filter(|value| !is_nil(value)) else {
            return Ok(Self {
                left: 0,
                reader: Reader::new(&[]),
                unread: &[],
            });
        };
        let mut reader = Reader::new(value);
        let left = reader.array_len()?;
        Ok(Self {
            left,
            reader,
            unread: value,
        })
    }
}

/// OTLP in JSON, converted to MessagePack. If a name occurs twice in a map, the last one applies.
#[derive(Debug)]
pub(super) struct Json;

impl<'a> Encoding<'a> for Json {
    type List = List<'a>;

    fn list(message: &'a [u8], field: Named) -> Result<List<'a>, Bad> {
        List::new(value_of(message, field.names)?)
    }

    fn count(list: &List<'a>) -> Result<u32, Bad> {
        Ok(list.left)
    }

    fn next(list: &mut List<'a>) -> Result<Option<&'a [u8]>, Bad> {
        if list.left == 0 {
            return Ok(None);
        }
        list.left -= 1;
        Ok(Some(list.reader.value()?))
    }

    /// Returns the whole list. The caller uses this result only if `next` fails, which does not happen in valid MessagePack.
    fn unread(list: &List<'a>) -> &'a [u8] {
        list.unread
    }

    fn context(message: &'a [u8], name: &[u8]) -> Result<Option<&'a [u8]>, Bad> {
        match value_of(message, [name; 2])? {
            Some(value) if value.len() > CONTEXT_BYTES_MAX => Err(Bad::TooLong),
            context => Ok(context),
        }
    }

    fn text(message: &'a [u8], field: Named) -> Result<&'a [u8], Bad> {
        text(value_of(message, field.names)?)
    }

    fn number(message: &'a [u8], field: Named) -> Result<u64, Bad> {
        value_of(message, field.names)?.map_or(Ok(0), unsigned)
    }

    fn record(message: &'a [u8]) -> Result<LogRecord<'a, List<'a>>, Bad> {
        let mut plain = Plain::default();
        let (mut body, mut attributes) = (None, None);
        let mut reader = Reader::new(message);
        for _ in 0..reader.map_len()? {
            let name = reader.bytes()?;
            let value = reader.value()?;
            if is_nil(value) {
                continue;
            }
            match name {
                b"timeUnixNano" | b"time_unix_nano" => plain.time = unsigned(value)?,
                b"observedTimeUnixNano" | b"observed_time_unix_nano" => {
                    plain.observed = unsigned(value)?;
                }
                b"severityNumber" | b"severity_number" => plain.severity_number = severity(value)?,
                b"severityText" | b"severity_text" => plain.severity_text = text(Some(value))?,
                b"body" => body = Some(value),
                b"attributes" => attributes = Some(List::new(Some(value))?),
                b"droppedAttributesCount" | b"dropped_attributes_count" => {
                    plain.dropped = unsigned(value)?;
                }
                b"flags" => plain.flags = unsigned(value)?,
                b"traceId" | b"trace_id" => plain.trace_id = Id::Digits(text(Some(value))?),
                b"spanId" | b"span_id" => plain.span_id = Id::Digits(text(Some(value))?),
                b"eventName" | b"event_name" => plain.event_name = text(Some(value))?,
                _ => {}
            }
        }
        Ok(LogRecord {
            plain,
            body,
            attributes: attributes.filter(|list| list.left > 0),
        })
    }

    fn pair(message: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), Bad> {
        let key = text(value_of(message, [b"key"; 2])?)?;
        let value = value_of(message, [b"value"; 2])?;
        Ok((key, value.unwrap_or(NIL)))
    }

    fn any(message: &'a [u8]) -> Result<Any<'a, List<'a>>, Bad> {
        if is_nil(message) {
            return Ok(Any::Nil);
        }
        let mut reader = Reader::new(message);
        let mut branch = None;
        for _ in 0..reader.map_len()? {
            let name = reader.bytes()?;
            let value = reader.value()?;
            if BRANCHES.contains(&name) && !is_nil(value) {
                branch = Some((name, value));
            }
        }
        let Some((name, value)) = branch else {
            return Ok(Any::Nil);
        };
        Ok(match name {
            b"stringValue" | b"string_value" => Any::Text(text(Some(value))?),
            b"boolValue" | b"bool_value" => Any::Bool(Reader::new(value).bool()?),
            b"intValue" | b"int_value" => Any::Int(signed(value)?),
            b"doubleValue" | b"double_value" => Any::Double(double(value)?),
            b"bytesValue" | b"bytes_value" => {
                let bytes = STANDARD.decode(text(Some(value))?);
                Any::Bytes(Cow::Owned(bytes.map_err(|_| Bad::Type)?))
            }
            b"arrayValue" | b"array_value" => Any::List(Self::list(value, VALUES)?),
            _ => Any::Map(Self::list(value, VALUES)?),
        })
    }
}

/// The names of the members that can hold the value of an AnyValue.
const BRANCHES: [&[u8]; 14] = [
    b"stringValue",
    b"string_value",
    b"boolValue",
    b"bool_value",
    b"intValue",
    b"int_value",
    b"doubleValue",
    b"double_value",
    b"bytesValue",
    b"bytes_value",
    b"arrayValue",
    b"array_value",
    b"kvlistValue",
    b"kvlist_value",
];

/// Returns the value under one of two names, or `None` if it is missing or nil. If both names occur, the last one applies.
fn value_of<'a>(map: &'a [u8], names: [&[u8]; 2]) -> Result<Option<&'a [u8]>, Bad> {
    let mut reader = Reader::new(map);
    let mut found = None;
    for _ in 0..reader.map_len()? {
        let key = reader.bytes()?;
        let value = reader.value()?;
        if names.contains(&key) {
            found = Some(value).filter(|value| !is_nil(value));
        }
    }
    Ok(found)
}

fn is_nil(value: &[u8]) -> bool {
    value.first() == NIL.first()
}

/// Reads a text. It is empty if `value` is `None`.
fn text(value: Option<&[u8]>) -> Result<&[u8], Bad> {
    value.map_or(Ok(&[][..]), |value| Ok(Reader::new(value).bytes()?))
}

/// Reads an integer, which is written as a number or as a text of digits.
fn integer(value: &[u8]) -> Result<i128, Bad> {
    let mut reader = Reader::new(value);
    match reader.int() {
        Ok(number) => Ok(number),
        Err(_) => digits(Reader::new(value).bytes()?),
    }
}

fn digits(text: &[u8]) -> Result<i128, Bad> {
    let text = std::str::from_utf8(text).map_err(|_| Bad::Type)?;
    text.parse().map_err(|_| Bad::Type)
}

fn unsigned(value: &[u8]) -> Result<u64, Bad> {
    integer(value)?.try_into().map_err(|_| Bad::Type)
}

fn signed(value: &[u8]) -> Result<i64, Bad> {
    integer(value)?.try_into().map_err(|_| Bad::Type)
}

fn double(value: &[u8]) -> Result<f64, Bad> {
    let mut reader = Reader::new(value);
    if let Ok(number) = reader.float() {
        return Ok(number);
    }
    if let Ok(number) = reader.int() {
        return Ok(number as f64);
    }
    match Reader::new(value).bytes()? {
        b"NaN" => Ok(f64::NAN),
        b"Infinity" => Ok(f64::INFINITY),
        b"-Infinity" => Ok(f64::NEG_INFINITY),
        digits => {
            let text = std::str::from_utf8(digits).map_err(|_| Bad::Type)?;
            text.parse().map_err(|_| Bad::Type)
        }
    }
}

/// Reads a severity, which is written as a number or by its name: `SEVERITY_NUMBER_INFO`, `SEVERITY_NUMBER_WARN2`.
fn severity(value: &[u8]) -> Result<i64, Bad> {
    let Ok(name) = Reader::new(value).bytes() else {
        return signed(value);
    };
    let Some(name) = name.strip_prefix(b"SEVERITY_NUMBER_") else {
        return signed(value);
    };
    let (name, within) = match name.split_last() {
        Some((digit @ b'2'..=b'4', name)) => (name, i64::from(digit - b'1')),
        _ => (name, 0),
    };
    let first = match name {
        b"TRACE" => 1,
        b"DEBUG" => 5,
        b"INFO" => 9,
        b"WARN" => 13,
        b"ERROR" => 17,
        b"FATAL" => 21,
        b"UNSPECIFIED" => 0,
        _ => return Err(Bad::Type),
    };
    Ok(first + within)
}
