//! Writes log records, resources, scopes and requests in protobuf: see the table in [`super`].

use millstream_record::Time;

use super::{
    around::Around,
    known::{Body, Known, Scope, packed_text, pairs},
    value::{Stack, Target},
};
use crate::json::Unfit;

/// An AnyValue being written.
struct Any<'o> {
    out: &'o mut Vec<u8>,
    /// For each open message, the offset of its length.
    open: Vec<usize>,
}

impl Any<'_> {
    fn begin(&mut self, tag: u8) {
        self.open.push(begin(tag, self.out));
    }

    fn end(&mut self) {
        if let Some(at) = self.open.pop() {
            end(at, self.out);
        }
    }
}

impl Target for Any<'_> {
    fn nil(&mut self) {}

    fn bool(&mut self, value: bool) {
        self.out.extend_from_slice(&[0x10, u8::from(value)]);
    }

    fn int(&mut self, value: i64) {
        self.out.push(0x18);
        varint(value as u64, self.out);
    }

    fn double(&mut self, value: f64) {
        self.out.push(0x21);
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    fn text(&mut self, value: &str) {
        bytes(1, value.as_bytes(), self.out);
    }

    fn bytes(&mut self, value: &[u8]) {
        bytes(7, value, self.out);
    }

    fn open(&mut self, is_map: bool) {
        self.begin(if is_map { 0x32 } else { 0x2a });
    }

    fn element(&mut self, key: Option<&[u8]>, _: bool) {
        self.begin(0x0a);
        if let Some(key) = key {
            text(1, key, self.out);
            self.begin(0x12);
        }
    }

    fn end_element(&mut self, is_map: bool) {
        if is_map {
            self.end();
        }
        self.end();
    }

    fn close(&mut self, _: bool) {
        self.end();
    }
}

/// Begins a message in the field with this tag. Returns the offset of its length, for which one byte is reserved.
fn begin(tag: u8, out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&[tag, 0]);
    out.len() - 1
}

/// Ends a message: writes its length at `at`. If the length needs more than one byte, the message is moved.
fn end(at: usize, out: &mut Vec<u8>) {
    let length = out.len() - at - 1;
    if length >= 0x80 {
        let more = (length.ilog2() / 7) as usize;
        let end = out.len();
        out.resize(end + more, 0);
        out.copy_within(at + 1..end, at + 1 + more);
    }
    let (mut rest, mut place) = (length, at);
    while let Some(byte) = out.get_mut(place) {
        *byte = (rest & 0x7f) as u8;
        rest >>= 7;
        if rest == 0 {
            return;
        }
        *byte |= 0x80;
        place += 1;
    }
}

/// Writes a field of bytes.
pub(super) fn bytes(number: u8, value: &[u8], out: &mut Vec<u8>) {
    out.push(number << 3 | 2);
    varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

/// Writes a field of text. Invalid UTF-8 is replaced, because protobuf does not allow it.
fn text(number: u8, value: &[u8], out: &mut Vec<u8>) {
    bytes(number, String::from_utf8_lossy(value).as_bytes(), out);
}

pub(super) fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes an AnyValue to the field with this tag.
fn any(tag: u8, value: &[u8], stack: &mut Stack, out: &mut Vec<u8>) -> Result<(), Unfit> {
    let at = begin(tag, out);
    let mut target = Any {
        out,
        open: Vec::new(),
    };
    stack.write(value, &mut target)?;
    end(at, out);
    Ok(())
}

/// Writes a KeyValue to the field with this tag.
fn pair(
    tag: u8,
    key: &[u8],
    value: &[u8],
    stack: &mut Stack,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(), Unfit> {
    let at = begin(tag, out);
    text(1, super::known::key_text(key, scratch), out);
    any(0x12, value, stack, out)?;
    end(at, out);
    Ok(())
}

/// Writes a log record, without tag and length.
pub(super) fn record(
    known: &Known<'_>,
    (time, received): (Time, Time),
    stack: &mut Stack,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(), Unfit> {
    fixed64(1, u64::try_from(time.0).unwrap_or(0), out);
    let observed = known.observed.or(u64::try_from(received.0).ok());
    fixed64(11, observed.unwrap_or(0), out);
    for (number, value) in [(2, known.severity_number), (7, known.dropped)] {
        count(number, value, out);
    }
    for (number, value) in [(3, known.severity_text), (12, known.event_name)] {
        if !value.is_empty() {
            text(number, value, out);
        }
    }
    match known.body {
        Body::None => {}
        Body::Text(line) => {
            packed_text(line, scratch);
            any(0x2a, scratch, stack, out)?;
        }
        Body::Value(value) => any(0x2a, value, stack, out)?,
    }
    pairs(known.attributes, |key, value| {
        pair(0x32, key, value, stack, scratch, out)
    })?;
    known.others(|key, value| pair(0x32, key, value, stack, scratch, out))?;
    if known.flags > 0 {
        out.push(8 << 3 | 5);
        out.extend_from_slice(&known.flags.to_le_bytes());
    }
    for (number, id) in [(9, &known.trace_id), (10, &known.span_id)] {
        if let Some(id) = id {
            bytes(number, id.bytes(), out);
        }
    }
    Ok(())
}

fn fixed64(number: u8, value: u64, out: &mut Vec<u8>) {
    if value > 0 {
        out.push(number << 3 | 1);
        out.extend_from_slice(&value.to_le_bytes());
    }
}

/// Writes the resource of the record, without tag and length. If the record has none, writes a resource with the attributes in
/// `names`.
pub(super) fn resource<'n>(
    known: &Known<'_>,
    names: impl Iterator<Item = (&'n str, &'n [u8])>,
    stack: &mut Stack,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(), Unfit> {
    pairs(known.resources, |key, value| {
        pair(0x0a, key, value, stack, scratch, out)
    })?;
    for (name, value) in names {
        let at = begin(0x0a, out);
        bytes(1, name.as_bytes(), out);
        packed_text(value, scratch);
        any(0x12, scratch, stack, out)?;
        end(at, out);
    }
    count(2, known.resource_dropped, out);
    Ok(())
}

/// Writes a number if it is not 0.
fn count(number: u8, value: u64, out: &mut Vec<u8>) {
    if value > 0 {
        out.push(number << 3);
        varint(value, out);
    }
}

/// Writes a scope, without tag and length.
pub(super) fn scope(
    found: &Scope<'_>,
    stack: &mut Stack,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(), Unfit> {
    for (number, value) in [(1, found.name), (2, found.version)] {
        if !value.is_empty() {
            text(number, value, out);
        }
    }
    pairs(found.attributes, |key, value| {
        pair(0x1a, key, value, stack, scratch, out)
    })?;
    count(4, found.dropped, out);
    Ok(())
}

/// Writes one ResourceLogs, with one resource, one scope and `records` (each with tag and length).
pub(super) fn group(around: Around<'_>, records: &[u8], out: &mut Vec<u8>) {
    let logs = begin(0x0a, out);
    if !around.resource.is_empty() {
        bytes(1, around.resource, out);
    }
    let scoped = begin(0x12, out);
    if !around.scope.is_empty() {
        bytes(1, around.scope, out);
    }
    out.extend_from_slice(records);
    if !around.scope_schema.is_empty() {
        text(3, around.scope_schema, out);
    }
    end(scoped, out);
    if !around.resource_schema.is_empty() {
        text(3, around.resource_schema, out);
    }
    end(logs, out);
}
