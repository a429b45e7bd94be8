//! The records of a request in JSON, one by one.
//!
//! Hop: read [decode] send keep take encode write settle. The JSON of OTLP is that of protobuf (`lowerCamelCase` names, as
//! written in the specification also `snake_case`; 64-bit numbers as texts or numbers) but for ids, which are hexadecimal
//! digits. The request was made MessagePack in one pass before; here it is walked in place.

use base64::{Engine, engine::general_purpose::STANDARD};
use millstream_record::Time;

use super::{
    Bad, LEVELS_MAX, Next,
    record::{AROUND_BYTES_MAX, Around, Entry, Id, Plain},
};
use crate::msgpack::{
    ReadError, Reader, write_array_len, write_bin, write_bool, write_f64, write_int, write_map_len,
    write_nil, write_str,
};

impl From<ReadError> for Bad {
    fn from(_: ReadError) -> Self {
        Self::Type
    }
}

/// The elements of a list that are still to come.
#[derive(Clone, Copy, Debug)]
struct List<'a> {
    left: u32,
    reader: Reader<'a>,
}

impl<'a> List<'a> {
    fn new(value: Option<&'a [u8]>) -> Result<Self, Bad> {
        let empty = Self {
            left: 0,
            reader: Reader::new(&[]),
        };
        let Some(value) = value.filter(|value| !is_nil(value)) else {
            return Ok(empty);
        };
        let mut reader = Reader::new(value);
        let left = reader.array_len()?;
        Ok(Self { left, reader })
    }

    fn next(&mut self) -> Result<Option<&'a [u8]>, Bad> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        Ok(Some(self.reader.value()?))
    }
}

/// A place in a request.
#[derive(Debug)]
pub(super) struct Logs<'a> {
    /// The request itself, until it is begun.
    whole: Option<&'a [u8]>,
    resources: Option<List<'a>>,
    scopes: Option<List<'a>>,
    records: Option<List<'a>>,
    waiting: Option<&'a [u8]>,
    around: Around,
    values: Values<'a>,
}

impl<'a> Logs<'a> {
    pub(super) fn new(packed: &'a [u8]) -> Self {
        Self {
            whole: Some(packed),
            resources: None,
            scopes: None,
            records: None,
            waiting: None,
            around: Around::default(),
            values: Values::default(),
        }
    }

    pub(super) fn next(&mut self, received: Time, out: &mut Vec<u8>) -> Next<'a> {
        loop {
            if let Some(record) = self.waiting {
                let room = self.around.room(record.len());
                if out.capacity() - out.len() < room {
                    return Next::Room(room);
                }
                self.waiting = None;
                return match self.record(record, received, out) {
                    Ok(()) => Next::Record,
                    Err(bad) => Next::Bad(record, bad),
                };
            }
            if self.is_over() {
                return Next::End;
            }
            if let Err((bytes, bad)) = self.advance() {
                return Next::Bad(bytes, bad);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.whole.is_none()
            && self.resources.is_none()
            && self.scopes.is_none()
            && self.records.is_none()
    }

    /// One step towards the next record. What cannot be read is left, and given back.
    fn advance(&mut self) -> Result<(), (&'a [u8], Bad)> {
        if let Some(list) = &mut self.records {
            match list.next() {
                Ok(Some(record)) => self.waiting = Some(record),
                Ok(None) | Err(_) => self.records = None,
            }
        } else if let Some(list) = &mut self.scopes {
            match list.next() {
                Ok(Some(scope)) => self.begin_scope(scope).map_err(|bad| (scope, bad))?,
                Ok(None) | Err(_) => self.scopes = None,
            }
        } else if let Some(list) = &mut self.resources {
            match list.next() {
                Ok(Some(resource)) => self
                    .begin_resource(resource)
                    .map_err(|bad| (resource, bad))?,
                Ok(None) | Err(_) => self.resources = None,
            }
        } else if let Some(request) = self.whole.take() {
            let list = list_of(request, b"resourceLogs", b"resource_logs");
            self.resources = Some(list.map_err(|bad| (request, bad))?);
        }
        Ok(())
    }

    fn begin_resource(&mut self, message: &'a [u8]) -> Result<(), Bad> {
        let map = &mut self.around.resources;
        map.clear();
        if let Some(resource) = around(message, b"resource")? {
            let attributes = List::new(field(resource, b"attributes", b"attributes")?)?;
            if attributes.left > 0 {
                self.values.map(attributes, map)?;
            }
        }
        self.scopes = Some(list_of(message, b"scopeLogs", b"scope_logs")?);
        Ok(())
    }

    fn begin_scope(&mut self, message: &'a [u8]) -> Result<(), Bad> {
        let map = &mut self.around.scope;
        map.clear();
        if let Some(scope) = around(message, b"scope")? {
            let name = text(field(scope, b"name", b"name")?)?;
            let version = text(field(scope, b"version", b"version")?)?;
            let texts = [("name", name), ("version", version)];
            let texts = texts.into_iter().filter(|(_, text)| !text.is_empty());
            let attributes = List::new(field(scope, b"attributes", b"attributes")?)?;
            let length = texts.clone().count() as u32 + u32::from(attributes.left > 0);
            if length > 0 {
                write_map_len(map, length);
            }
            for (name, text) in texts {
                write_str(map, name.as_bytes());
                write_str(map, text);
            }
            if attributes.left > 0 {
                write_str(map, b"attributes");
                self.values.map(attributes, map)?;
            }
        }
        self.records = Some(list_of(message, b"logRecords", b"log_records")?);
        Ok(())
    }

    fn record(&mut self, message: &'a [u8], received: Time, out: &mut Vec<u8>) -> Result<(), Bad> {
        let mut plain = Plain::default();
        let (mut body, mut attributes) = (None, List::new(None)?);
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
                b"attributes" => attributes = List::new(Some(value))?,
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
        let mut entry = Entry::begin(&plain, received, out);
        let written = self.fields(&plain, body, attributes, &mut entry);
        match written {
            Ok(()) => entry.end(&self.around),
            Err(_) => entry.undo(),
        }
        written
    }

    fn fields(
        &mut self,
        plain: &Plain<'a>,
        body: Option<&'a [u8]>,
        attributes: List<'a>,
        entry: &mut Entry<'_>,
    ) -> Result<(), Bad> {
        if let Some(body) = body {
            entry.message();
            self.values.any(body, entry.out)?;
        }
        entry.plain(plain)?;
        if attributes.left > 0 {
            entry.name("attributes");
            self.values.map(attributes, entry.out)?;
        }
        Ok(())
    }
}

/// Writes values. Keeps its stack from one to the next.
#[derive(Debug, Default)]
struct Values<'a> {
    /// Lists that are open, and whether their elements are pairs.
    levels: Vec<(List<'a>, bool)>,
}

impl<'a> Values<'a> {
    /// An AnyValue.
    fn any(&mut self, value: &'a [u8], out: &mut Vec<u8>) -> Result<(), Bad> {
        self.levels.clear();
        self.begin(value, out)?;
        self.rest(out)
    }

    /// A list of KeyValues as a map.
    fn map(&mut self, pairs: List<'a>, out: &mut Vec<u8>) -> Result<(), Bad> {
        self.levels.clear();
        self.open(pairs, true, out)?;
        self.rest(out)
    }

    fn rest(&mut self, out: &mut Vec<u8>) -> Result<(), Bad> {
        while let Some((list, is_map)) = self.levels.last_mut() {
            let is_map = *is_map;
            let Some(element) = list.next()? else {
                self.levels.pop();
                continue;
            };
            if !is_map {
                self.begin(element, out)?;
                continue;
            }
            write_str(out, text(field(element, b"key", b"key")?)?);
            match field(element, b"value", b"value")? {
                Some(value) => self.begin(value, out)?,
                None => write_nil(out),
            }
        }
        Ok(())
    }

    /// Writes a value, or the head of a list or map.
    fn begin(&mut self, value: &'a [u8], out: &mut Vec<u8>) -> Result<(), Bad> {
        let Some((kind, value)) = branch(value)? else {
            write_nil(out);
            return Ok(());
        };
        match kind {
            b"stringValue" | b"string_value" => write_str(out, text(Some(value))?),
            b"boolValue" | b"bool_value" => write_bool(out, Reader::new(value).bool()?),
            b"intValue" | b"int_value" => write_int(out, signed(value)?),
            b"doubleValue" | b"double_value" => write_f64(out, double(value)?),
            b"bytesValue" | b"bytes_value" => write_base64(text(Some(value))?, out)?,
            b"arrayValue" | b"array_value" => {
                self.open(list_of(value, b"values", b"values")?, false, out)?;
            }
            _ => self.open(list_of(value, b"values", b"values")?, true, out)?,
        }
        Ok(())
    }

    fn open(&mut self, list: List<'a>, is_map: bool, out: &mut Vec<u8>) -> Result<(), Bad> {
        if self.levels.len() >= LEVELS_MAX {
            return Err(Bad::TooDeep);
        }
        if is_map {
            write_map_len(out, list.left);
        } else {
            write_array_len(out, list.left);
        }
        self.levels.push((list, is_map));
        Ok(())
    }
}

/// The names that an AnyValue's value can have.
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

/// A name and a value.
type Named<'a> = (&'a [u8], &'a [u8]);

/// The one value of an AnyValue and its name.
fn branch(value: &[u8]) -> Result<Option<Named<'_>>, Bad> {
    if is_nil(value) {
        return Ok(None);
    }
    let mut reader = Reader::new(value);
    let mut found = None;
    for _ in 0..reader.map_len()? {
        let name = reader.bytes()?;
        let value = reader.value()?;
        if BRANCHES.contains(&name) && !is_nil(value) {
            found = Some((name, value));
        }
    }
    Ok(found)
}

/// The value of the field that has one of two names. The last one counts.
fn field<'a>(map: &'a [u8], name: &[u8], other: &[u8]) -> Result<Option<&'a [u8]>, Bad> {
    let mut reader = Reader::new(map);
    let mut found = None;
    for _ in 0..reader.map_len()? {
        let key = reader.bytes()?;
        let value = reader.value()?;
        if key == name || key == other {
            found = Some(value).filter(|value| !is_nil(value));
        }
    }
    Ok(found)
}

fn list_of<'a>(map: &'a [u8], name: &[u8], other: &[u8]) -> Result<List<'a>, Bad> {
    List::new(field(map, name, other)?)
}

/// The resource or scope of a message.
fn around<'a>(message: &'a [u8], name: &[u8]) -> Result<Option<&'a [u8]>, Bad> {
    match field(message, name, name)? {
        Some(value) if value.len() > AROUND_BYTES_MAX => Err(Bad::TooLong),
        found => Ok(found),
    }
}

fn is_nil(value: &[u8]) -> bool {
    value.first() == Some(&0xc0)
}

/// A text; one that is missing is empty.
fn text(value: Option<&[u8]>) -> Result<&[u8], Bad> {
    value.map_or(Ok(&[][..]), |value| Ok(Reader::new(value).bytes()?))
}

/// A number as a number or as digits in a text.
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

/// A severity as its number, or by its name: `SEVERITY_NUMBER_INFO`, `SEVERITY_NUMBER_WARN2`.
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

/// Base64 becomes bin: its bytes are written behind a head of their number.
fn write_base64(text: &[u8], out: &mut Vec<u8>) -> Result<(), Bad> {
    let bytes = STANDARD.decode(text).map_err(|_| Bad::Type)?;
    write_bin(out, &bytes);
    Ok(())
}
