//! Divides a record into the fields that OTLP defines, and all other fields.

use crate::{
    json::Unfit,
    msgpack::{Reader, write_str},
    syslog::severity,
};

/// OpenTelemetry's severity numbers for syslog's severities, emerg to debug (OpenTelemetry's logs data model, appendix B).
const NUMBERS: [u8; 8] = [21, 19, 18, 17, 13, 10, 9, 5];
/// The maximum length of an id in bytes; a trace id has 16.
const ID_BYTES_MAX: usize = 32;

/// The fields of a record that OTLP defines. A missing field is 0, empty or `None`. `attributes`, `resources` and `scope` are
/// MessagePack maps.
#[derive(Debug, Default)]
pub(super) struct Known<'a> {
    pub(super) body: Body<'a>,
    pub(super) severity_text: &'a [u8],
    pub(super) severity_number: u64,
    pub(super) trace_id: Option<Id>,
    pub(super) span_id: Option<Id>,
    pub(super) flags: u32,
    pub(super) event_name: &'a [u8],
    pub(super) observed: Option<u64>,
    pub(super) dropped: u64,
    pub(super) attributes: &'a [u8],
    pub(super) resources: &'a [u8],
    pub(super) resource_schema: &'a [u8],
    pub(super) resource_dropped: u64,
    pub(super) scope: &'a [u8],
    /// The complete record, for its other fields; empty for a line.
    map: &'a [u8],
}

/// The body.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Body<'a> {
    #[default]
    None,
    Text(&'a [u8]),
    Value(&'a [u8]),
}

/// The bytes of an id.
#[derive(Clone, Copy, Debug)]
pub(super) struct Id {
    bytes: [u8; ID_BYTES_MAX],
    length: usize,
}

impl Id {
    /// Parses hexadecimal digits. Returns `None` if `value` is not a valid id.
    fn of(value: &[u8]) -> Option<Self> {
        let digits = Reader::new(value).bytes().ok()?;
        let mut id = Self {
            bytes: [0; ID_BYTES_MAX],
            length: digits.len() / 2,
        };
        if digits.is_empty() || digits.len() % 2 == 1 || id.length > ID_BYTES_MAX {
            return None;
        }
        for (byte, pair) in id.bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            let [high, low] = pair else { return None };
            *byte = u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()?;
        }
        Some(id)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl<'a> Known<'a> {
    /// Returns the fields of a line, which is only a body.
    pub(super) fn line(line: &'a [u8]) -> Self {
        Self {
            body: Body::Text(line),
            ..Self::default()
        }
    }

    /// Finds the fields of a record that OTLP defines.
    pub(super) fn of(map: &'a [u8]) -> Result<Self, Unfit> {
        let mut known = Self {
            map,
            ..Self::default()
        };
        let mut level: &[u8] = &[];
        let mut fields = Reader::new(map);
        for _ in 0..fields.map_len()? {
            let (key, value) = (fields.value()?, fields.value()?);
            let name = Reader::new(key).bytes().unwrap_or_default();
            if matches!(name, b"severity" | b"level") && level.is_empty() {
                level = text(value);
            }
            known.take(name, value);
        }
        if known.severity_number == 0 && known.severity_text.is_empty() {
            let number = str::from_utf8(level).ok().and_then(severity);
            if let Some(number) = number.and_then(|number| NUMBERS.get(usize::from(number))) {
                known.severity_number = u64::from(*number);
                known.severity_text = level;
            }
        }
        Ok(known)
    }

    /// Stores a field that OTLP defines. Returns `false` if the field is an attribute instead.
    fn take(&mut self, name: &[u8], value: &'a [u8]) -> bool {
        match name {
            b"message" => self.body = Body::Value(value),
            b"severity_text" => self.severity_text = text(value),
            b"severity_number" => self.severity_number = number(value).unwrap_or(0),
            b"event_name" => self.event_name = text(value),
            b"observed_time_unix_nano" => self.observed = number(value),
            b"dropped_attributes_count" => self.dropped = number(value).unwrap_or(0),
            b"flags" => self.flags = number(value).map_or(0, |flags| flags as u32),
            b"attributes" if is_map(value) => self.attributes = value,
            b"resources" if is_map(value) => self.resources = value,
            b"resource_schema_url" if is_text(value) => self.resource_schema = text(value),
            b"resource_dropped_attributes_count" if number(value).is_some() => {
                self.resource_dropped = number(value).unwrap_or(0);
            }
            b"scope" if is_map(value) => self.scope = value,
            b"trace_id" => self.trace_id = Id::of(value),
            b"span_id" => self.span_id = Id::of(value),
            _ => return false,
        }
        true
    }

    /// Calls `each` with key and value of every field that OTLP does not define.
    pub(super) fn others(
        &self,
        mut each: impl FnMut(&'a [u8], &'a [u8]) -> Result<(), Unfit>,
    ) -> Result<(), Unfit> {
        if self.map.is_empty() {
            return Ok(());
        }
        let mut fields = Reader::new(self.map);
        let mut unused = Known::default();
        for _ in 0..fields.map_len()? {
            let (key, value) = (fields.value()?, fields.value()?);
            let name = Reader::new(key).bytes().unwrap_or_default();
            // An invalid id becomes an attribute.
            let is_id = matches!(name, b"trace_id" | b"span_id");
            if !unused.take(name, value) || is_id && Id::of(value).is_none() {
                each(key, value)?;
            }
        }
        Ok(())
    }
}

/// Calls `each` with key and value of every pair of a map. A slice without bytes counts as an empty map.
pub(super) fn pairs<'a>(
    map: &'a [u8],
    mut each: impl FnMut(&'a [u8], &'a [u8]) -> Result<(), Unfit>,
) -> Result<(), Unfit> {
    if map.is_empty() {
        return Ok(());
    }
    let mut reader = Reader::new(map);
    for _ in 0..reader.map_len()? {
        each(reader.value()?, reader.value()?)?;
    }
    Ok(())
}

/// A scope: its texts, and its attributes as a MessagePack map. Missing parts are empty.
#[derive(Debug, Default)]
pub(super) struct Scope<'a> {
    pub(super) name: &'a [u8],
    pub(super) version: &'a [u8],
    pub(super) schema: &'a [u8],
    pub(super) dropped: u64,
    pub(super) attributes: &'a [u8],
}

/// Reads a scope from the value of the field `scope`.
pub(super) fn scope_of(scope: &[u8]) -> Result<Scope<'_>, Unfit> {
    let mut found = Scope::default();
    pairs(scope, |key, value| {
        match Reader::new(key).bytes().unwrap_or_default() {
            b"name" => found.name = text(value),
            b"version" => found.version = text(value),
            b"schema_url" => found.schema = text(value),
            b"dropped_attributes_count" => found.dropped = number(value).unwrap_or(0),
            b"attributes" if is_map(value) => found.attributes = value,
            _ => {}
        }
        Ok(())
    })?;
    Ok(found)
}

/// Returns the key of an attribute as text. A key that is not text is written to `scratch` as JSON.
pub(super) fn key_text<'s>(key: &'s [u8], scratch: &'s mut Vec<u8>) -> &'s [u8] {
    match Reader::new(key).bytes() {
        Ok(text) => text,
        Err(_) => {
            scratch.clear();
            let _ = crate::json::write_value(key, 0, scratch);
            scratch
        }
    }
}

/// Replaces the contents of `out` by a text as a MessagePack value.
pub(super) fn packed_text(text: &[u8], out: &mut Vec<u8>) {
    out.clear();
    write_str(out, text);
}

fn text(value: &[u8]) -> &[u8] {
    Reader::new(value).bytes().unwrap_or_default()
}

fn number(value: &[u8]) -> Option<u64> {
    u64::try_from(Reader::new(value).int().ok()?).ok()
}

fn is_text(value: &[u8]) -> bool {
    Reader::new(value).bytes().is_ok()
}

fn is_map(value: &[u8]) -> bool {
    Reader::new(value).map_len().is_ok()
}
