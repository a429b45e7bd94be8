//! Writes the entry of a log record, for both encodings of requests.

use millstream_record::Time;

use super::Bad;
use crate::{
    msgpack::{write_array_len, write_int, write_str, write_str_head, write_time, write_uint},
    record::MESSAGE,
};

/// An upper bound of the bytes of an entry that do not come from the values of the request: field names and headers.
const NAMES_BYTES: usize = 512;
/// The maximum length of an id in bytes; a trace id has 16.
const ID_BYTES_MAX: usize = 32;
/// The maximum size of a resource or scope in bytes. Every record repeats both. A typical resource or scope has a few hundred
/// bytes.
pub(super) const CONTEXT_BYTES_MAX: usize = 1 << 20;

/// The plain fields of a log record; zero and empty mean "not set".
#[derive(Debug, Default)]
pub(super) struct Plain<'a> {
    pub(super) time: u64,
    pub(super) observed: u64,
    pub(super) severity_number: i64,
    pub(super) severity_text: &'a [u8],
    pub(super) trace_id: Id<'a>,
    pub(super) span_id: Id<'a>,
    pub(super) flags: u64,
    pub(super) event_name: &'a [u8],
    pub(super) dropped: u64,
}

/// An id as it is written in the request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Id<'a> {
    /// Bytes, in protobuf.
    Bytes(&'a [u8]),
    /// Hexadecimal digits, in JSON.
    Digits(&'a [u8]),
}

impl Default for Id<'_> {
    fn default() -> Self {
        Self::Bytes(&[])
    }
}

/// Resource and scope, encoded once for all records that share them. A missing resource or scope is empty.
#[derive(Debug, Default)]
pub(super) struct Context {
    /// A MessagePack map.
    pub(super) resource: Vec<u8>,
    /// The schema URL of the resource; empty if it is not set.
    pub(super) resource_schema: Vec<u8>,
    /// The number of attributes that the resource has lost.
    pub(super) resource_dropped: u64,
    /// A MessagePack map.
    pub(super) scope: Vec<u8>,
}

impl Context {
    /// Returns an upper bound of the size of an entry whose log record has `record_bytes` bytes in the request.
    pub(super) fn room(&self, record_bytes: usize) -> usize {
        // The factor of 2 covers ids, whose bytes become two digits each. All other values grow by a smaller factor. For example,
        // a JSON `doubleValue` of one digit becomes a float of nine bytes, but the name `doubleValue` is not written.
        let context = self.resource.len() + self.resource_schema.len() + self.scope.len();
        record_bytes.saturating_mul(2) + context + NAMES_BYTES
    }
}

/// An entry being written.
pub(super) struct Entry<'o> {
    pub(super) out: &'o mut Vec<u8>,
    start: usize,
    map: usize,
    fields: u8,
}

impl<'o> Entry<'o> {
    /// Writes the head of the entry: its array header, its time, and one byte for the header of its map.
    pub(super) fn begin(plain: &Plain<'_>, received: Time, out: &'o mut Vec<u8>) -> Self {
        let start = out.len();
        write_array_len(out, 2);
        let time = [plain.time, plain.observed]
            .into_iter()
            .filter(|time| *time > 0)
            .find_map(|time| i64::try_from(time).ok());
        write_time(out, time.map_or(received, Time));
        let map = out.len();
        // An entry has at most 14 fields, so one byte is enough for the header.
        out.push(0x80);
        Self {
            out,
            start,
            map,
            fields: 0,
        }
    }

    /// Writes the plain fields.
    pub(super) fn plain(&mut self, plain: &Plain<'_>) -> Result<(), Bad> {
        self.text("severity_text", plain.severity_text);
        if plain.severity_number != 0 {
            self.name("severity_number");
            write_int(self.out, plain.severity_number);
        }
        self.id("trace_id", plain.trace_id)?;
        self.id("span_id", plain.span_id)?;
        self.text("event_name", plain.event_name);
        self.number("flags", plain.flags);
        self.number("observed_time_unix_nano", plain.observed);
        self.number("dropped_attributes_count", plain.dropped);
        Ok(())
    }

    /// Writes the name of the next field. The caller writes its value.
    pub(super) fn name(&mut self, name: &str) {
        write_str(self.out, name.as_bytes());
        self.fields += 1;
    }

    /// Writes the name of the field that holds the body.
    pub(super) fn message(&mut self) {
        self.name(MESSAGE);
    }

    /// Writes resource and scope, and completes the entry.
    pub(super) fn end(mut self, context: &Context) {
        self.text("resource_schema_url", &context.resource_schema);
        self.number(
            "resource_dropped_attributes_count",
            context.resource_dropped,
        );
        for (name, map) in [("resources", &context.resource), ("scope", &context.scope)] {
            if !map.is_empty() {
                self.name(name);
                self.out.extend_from_slice(map);
            }
        }
        if let Some(head) = self.out.get_mut(self.map) {
            *head = 0x80 | self.fields;
        }
    }

    /// Removes the partial entry from the output.
    pub(super) fn undo(self) {
        self.out.truncate(self.start);
    }

    fn text(&mut self, name: &str, text: &[u8]) {
        if !text.is_empty() {
            self.name(name);
            write_str(self.out, text);
        }
    }

    fn number(&mut self, name: &str, number: u64) {
        if number != 0 {
            self.name(name);
            write_uint(self.out, number);
        }
    }

    fn id(&mut self, name: &str, id: Id<'_>) -> Result<(), Bad> {
        match id {
            Id::Bytes(bytes) if bytes.iter().all(|byte| *byte == 0) => {}
            Id::Digits(digits) if digits.iter().all(|digit| *digit == b'0') => {}
            Id::Bytes(bytes) if bytes.len() <= ID_BYTES_MAX => {
                self.name(name);
                write_str_head(self.out, 2 * bytes.len() as u32);
                let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
                self.out.extend(digits.map(digit));
            }
            Id::Digits(digits)
                if digits.len() <= 2 * ID_BYTES_MAX && digits.iter().all(u8::is_ascii_hexdigit) =>
            {
                self.name(name);
                write_str_head(self.out, digits.len() as u32);
                self.out.extend(digits.iter().map(u8::to_ascii_lowercase));
            }
            _ => return Err(Bad::Type),
        }
        Ok(())
    }
}

fn digit(value: u8) -> u8 {
    match value {
        0..=9 => b'0' + value,
        _ => b'a' + value - 10,
    }
}
