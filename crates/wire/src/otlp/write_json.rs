//! Writes log records, resources, scopes and requests in protobuf's JSON: 64-bit integers as text, ids as hexadecimal
//! digits, bytes as base64.

use base64::{Engine, engine::general_purpose::STANDARD};
use millstream_record::Time;

use super::{
    around::Around,
    known::{Body, Id, Known, Scope, packed_text, pairs},
    value::{Stack, Target},
};
use crate::json::{Unfit, append_string};

/// An AnyValue being written.
struct Any<'o>(&'o mut Vec<u8>);

impl Any<'_> {
    fn put(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }
}

impl Target for Any<'_> {
    fn nil(&mut self) {
        self.put("{}");
    }

    fn bool(&mut self, value: bool) {
        self.put(match value {
            true => "{\"boolValue\":true}",
            false => "{\"boolValue\":false}",
        });
    }

    fn int(&mut self, value: i64) {
        self.put("{\"intValue\":\"");
        crate::template::write_number(value, self.0);
        self.put("\"}");
    }

    fn double(&mut self, value: f64) {
        self.put("{\"doubleValue\":");
        // JSON has no numbers for NaN and infinities. Protobuf's JSON mapping writes their names.
        match value {
            _ if value.is_nan() => self.put("\"NaN\""),
            f64::INFINITY => self.put("\"Infinity\""),
            f64::NEG_INFINITY => self.put("\"-Infinity\""),
            _ => {
                let mut packed = Vec::with_capacity(9);
                crate::msgpack::write_f64(&mut packed, value);
                // This cannot fail, because a finite float can always be written.
                let _ = crate::json::write_value(&packed, 0, self.0);
            }
        }
        self.put("}");
    }

    fn text(&mut self, value: &str) {
        self.put("{\"stringValue\":");
        append_string(value.as_bytes(), self.0);
        self.put("}");
    }

    fn bytes(&mut self, value: &[u8]) {
        self.put("{\"bytesValue\":\"");
        self.put(&STANDARD.encode(value));
        self.put("\"}");
    }

    fn open(&mut self, is_map: bool) {
        self.put(match is_map {
            true => "{\"kvlistValue\":{\"values\":[",
            false => "{\"arrayValue\":{\"values\":[",
        });
    }

    fn element(&mut self, key: Option<&[u8]>, first: bool) {
        if !first {
            self.put(",");
        }
        if let Some(key) = key {
            self.put("{\"key\":");
            append_string(key, self.0);
            self.put(",\"value\":");
        }
    }

    fn end_element(&mut self, is_map: bool) {
        if is_map {
            self.put("}");
        }
    }

    fn close(&mut self, _: bool) {
        self.put("]}}");
    }
}

/// An object being written, with commas between its members.
struct Object<'o> {
    out: &'o mut Vec<u8>,
    begun: bool,
}

impl<'o> Object<'o> {
    fn new(out: &'o mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, begun: false }
    }

    /// Writes the name of the next member. The caller appends its value to the returned vector.
    fn member(&mut self, name: &str) -> &mut Vec<u8> {
        if std::mem::replace(&mut self.begun, true) {
            self.out.push(b',');
        }
        append_string(name.as_bytes(), self.out);
        self.out.push(b':');
        self.out
    }

    fn text(&mut self, name: &str, value: &[u8]) {
        if !value.is_empty() {
            append_string(value, self.member(name));
        }
    }

    /// Writes a 64-bit number as text.
    fn long(&mut self, name: &str, value: u64) {
        if value > 0 {
            self.text(name, value.to_string().as_bytes());
        }
    }

    fn number(&mut self, name: &str, value: u64) {
        if value > 0 {
            let out = self.member(name);
            out.extend_from_slice(value.to_string().as_bytes());
        }
    }

    fn id(&mut self, name: &str, id: Option<&Id>) {
        let Some(id) = id else { return };
        let out = self.member(name);
        out.push(b'"');
        for byte in id.bytes() {
            let digits =
                [byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]);
            out.extend_from_slice(&digits);
        }
        out.push(b'"');
    }

    fn close(self) {
        self.out.push(b'}');
    }
}

/// Writes a KeyValue to an open array. `first` is true while the array is empty.
fn pair(
    key: &[u8],
    value: &[u8],
    first: &mut bool,
    stack: &mut Stack,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(), Unfit> {
    let mut any = Any(out);
    let key = super::known::key_text(key, scratch);
    any.element(Some(key), std::mem::replace(first, false));
    stack.write(value, &mut any)?;
    any.end_element(true);
    Ok(())
}

/// Writes a log record.
pub(super) fn record(
    known: &Known<'_>,
    (time, received): (Time, Time),
    stack: &mut Stack,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(), Unfit> {
    let mut object = Object::new(out);
    object.long("timeUnixNano", u64::try_from(time.0).unwrap_or(0));
    let observed = known.observed.or(u64::try_from(received.0).ok());
    object.long("observedTimeUnixNano", observed.unwrap_or(0));
    object.number("severityNumber", known.severity_number);
    object.text("severityText", known.severity_text);
    match known.body {
        Body::None => {}
        Body::Text(line) => {
            packed_text(line, scratch);
            stack.write(scratch, &mut Any(object.member("body")))?;
        }
        Body::Value(value) => stack.write(value, &mut Any(object.member("body")))?,
    }
    let array = object.member("attributes");
    array.push(b'[');
    let mut first = true;
    pairs(known.attributes, |key, value| {
        pair(key, value, &mut first, stack, scratch, array)
    })?;
    known.others(|key, value| pair(key, value, &mut first, stack, scratch, array))?;
    array.push(b']');
    object.number("droppedAttributesCount", known.dropped);
    object.number("flags", known.flags.into());
    object.id("traceId", known.trace_id.as_ref());
    object.id("spanId", known.span_id.as_ref());
    object.text("eventName", known.event_name);
    object.close();
    Ok(())
}

/// Writes the resource of the record. If the record has none, writes a resource with the attributes in `names`.
pub(super) fn resource<'n>(
    known: &Known<'_>,
    names: impl Iterator<Item = (&'n str, &'n [u8])>,
    stack: &mut Stack,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(), Unfit> {
    out.extend_from_slice(b"{\"attributes\":[");
    let mut first = true;
    pairs(known.resources, |key, value| {
        pair(key, value, &mut first, stack, scratch, out)
    })?;
    for (name, value) in names {
        let mut any = Any(out);
        any.element(Some(name.as_bytes()), std::mem::replace(&mut first, false));
        any.text(&String::from_utf8_lossy(value));
        any.end_element(true);
    }
    out.push(b']');
    if known.resource_dropped > 0 {
        out.extend_from_slice(b",\"droppedAttributesCount\":");
        out.extend_from_slice(known.resource_dropped.to_string().as_bytes());
    }
    out.push(b'}');
    Ok(())
}

/// Writes a scope.
pub(super) fn scope(
    found: &Scope<'_>,
    stack: &mut Stack,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(), Unfit> {
    let mut object = Object::new(out);
    object.text("name", found.name);
    object.text("version", found.version);
    if !found.attributes.is_empty() {
        let array = object.member("attributes");
        array.push(b'[');
        let mut first = true;
        pairs(found.attributes, |key, value| {
            pair(key, value, &mut first, stack, scratch, array)
        })?;
        array.push(b']');
    }
    object.number("droppedAttributesCount", found.dropped);
    object.close();
    Ok(())
}

/// Writes one ResourceLogs, with one resource, one scope and `records` (separated by commas). `first` is true if the request has
/// no ResourceLogs yet.
pub(super) fn group(first: bool, around: Around<'_>, records: &[u8], out: &mut Vec<u8>) {
    if !first {
        out.push(b',');
    }
    for part in [
        &b"{\"resource\":"[..],
        around.resource,
        b",\"scopeLogs\":[{\"scope\":",
        around.scope,
        b",\"logRecords\":[",
        records,
        b"]",
    ] {
        out.extend_from_slice(part);
    }
    schema_url(around.scope_schema, out);
    out.extend_from_slice(b"}]");
    schema_url(around.resource_schema, out);
    out.push(b'}');
}

fn schema_url(url: &[u8], out: &mut Vec<u8>) {
    if !url.is_empty() {
        out.extend_from_slice(b",\"schemaUrl\":");
        append_string(url, out);
    }
}
