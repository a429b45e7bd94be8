//! `format: avro_event`: Flume's Avro event, a map of headers and a body, without a schema around it (a file of them has
//! one: [`crate::avro::container`]).
//!
//! Hop: read decode send keep take [encode] write settle.
//!
//! ```text
//! long n | n times: string name, string value | 00 | bytes body         no headers: 00 | bytes body
//! ```
//! The field `message` (option `field`) is the body: text and binary as they are, nil and a missing one as nothing, others
//! as JSON. Every other field is a header: text as it is, nil as nothing, others as JSON; names and values that are no UTF-8
//! are base64, since Avro's strings are UTF-8. Behind them stands what `add` names.
//!
//! A text of fewer than 32 bytes takes as many bytes in Avro as in MessagePack, where only its head differs; nearly all
//! names and values of headers are such. They are copied 32 bytes at a time, and checked to be ASCII together at the end.
//! Everything else, and whatever that check does not like, is taken value by value.

use millstream_record::Batch;

use super::{
    Headers, Reason,
    add::Added,
    encoder::{Of, Write},
    value::{behind, map_at, text_at},
};
use crate::{
    event::{FieldPath, MESSAGE, Record, Value},
    json::{self, Unfit},
    msgpack::{self, Head, Reader},
    room::Room,
    syslog,
};

/// A text of fewer bytes has a head of one byte, there and here.
const SHORT_BYTES: usize = 32;
/// Bytes of the longest long.
const LONG_BYTES_MAX: usize = 10;

#[derive(Debug)]
pub(super) struct AvroEvent {
    field: FieldPath,
    /// The body's name as a str, if it has a short one at the top of the record.
    key: Vec<u8>,
    added: Added,
    /// Which of the added fields a line has.
    line_seen: u64,
    flume: Option<Levels>,
    scratch: Vec<u8>,
}

/// What Flume calls facility and severity. Nearly every record of syslog begins with them, and mostly as the one before it.
#[derive(Debug, Default)]
struct Levels {
    /// How the two fields stand in the record: two pairs.
    stand: Vec<u8>,
    /// The three headers that they become.
    written: Vec<u8>,
    /// Which of the added fields these are.
    seen: u64,
}

/// What the fields of a record have become.
#[derive(Clone, Copy, Default)]
struct Found {
    headers: u32,
    /// Which of the added fields are among them.
    seen: u64,
    /// Where the value of the body starts.
    message: Option<usize>,
    /// Where the record ends.
    end: usize,
}

impl AvroEvent {
    pub(super) fn new(field: FieldPath, added: Added, headers: Headers) -> Self {
        let mut key = Vec::new();
        if let Some(name) = field.top_name().filter(|name| name.len() < SHORT_BYTES) {
            msgpack::write_str(&mut key, name.as_bytes());
        }
        let line_seen = match field.top_name() {
            Some(MESSAGE) => 0,
            _ => added.named(MESSAGE.as_bytes()),
        };
        let seen = added.named(b"Facility") | added.named(b"Severity") | added.named(b"priority");
        let flume = (headers == Headers::Flume).then(|| Levels {
            seen,
            ..Levels::default()
        });
        Self {
            field,
            key,
            added,
            line_seen,
            flume,
            scratch: Vec::new(),
        }
    }

    /// Records of short texts; `None`: part of it is written and none of it counts.
    #[inline]
    fn quick(
        &self,
        room: &mut Room<'_>,
        body: &[u8],
        mut at: usize,
        mut left: u32,
    ) -> Option<Found> {
        let mut found = Found::default();
        if let Some(levels) = &self.flume
            && left >= 2
            && !levels.stand.is_empty()
            && body.get(at..)?.starts_with(&levels.stand)
        {
            room.bytes(&levels.written);
            at += levels.stand.len();
            left -= 2;
            found.headers = 3;
            found.seen = levels.seen;
        }
        // What is written from here on is to be ASCII.
        let mut checked = room.position();
        for _ in 0..left {
            let length = short(*body.get(at)?)?;
            if found.message.is_none() && self.is_body(body, at) {
                let value = at + 1 + length;
                found.message = Some(value);
                at = match text_at(body, value) {
                    Some((start, length)) => start + length,
                    None => behind(body, value, 1).ok()?,
                };
                continue;
            }
            let name = body.get(at + 1..at + 1 + length)?;
            if self.flume.is_some() && is_level(name) {
                return None;
            }
            found.seen |= self.added.named(name);
            copy_short(room, body, at, length)?;
            at += 1 + length;
            if let Some(length) = short(*body.get(at)?) {
                copy_short(room, body, at, length)?;
                at += 1 + length;
            } else {
                if !room.since(checked).is_ascii() {
                    return None;
                }
                at = value(room, body, at).ok()?;
                checked = room.position();
            }
            found.headers += 1;
        }
        found.end = at;
        room.since(checked).is_ascii().then_some(found)
    }

    #[inline(always)]
    fn is_body(&self, body: &[u8], at: usize) -> bool {
        !self.key.is_empty()
            && body
                .get(at..)
                .is_some_and(|rest| rest.starts_with(&self.key))
    }

    /// Any record.
    #[cold]
    #[inline(never)]
    fn careful(
        &mut self,
        room: &mut Room<'_>,
        body: &[u8],
        mut at: usize,
        left: u32,
    ) -> Result<Found, Unfit> {
        let mut found = Found::default();
        let mut levels = [None; 2];
        if let Some(flume) = &mut self.flume {
            flume.learn(body, at, left);
        }
        for _ in 0..left {
            let mut reader = Reader::at(body, at);
            let name = reader.bytes().ok();
            let is_body = name.is_some() && name == self.field.top_name().map(str::as_bytes);
            if is_body && found.message.is_none() {
                found.message = Some(reader.position());
                reader.skip()?;
                at = reader.position();
                continue;
            }
            found.headers = found.headers.saturating_add(1);
            let level = name.filter(|_| self.flume.is_some());
            if let Some((which, number, end)) = level.and_then(|name| level_at(name, body, at)) {
                write_level(room, which, number);
                found.seen |= self.added.named(LEVELS[which].as_bytes());
                levels[which] = Some(number);
                at = end;
                continue;
            }
            let value_at = self.name(room, body, at, &mut found.seen)?;
            at = value(room, body, value_at)?;
        }
        if let [Some(facility), Some(severity)] = levels {
            write_priority(room, facility, severity);
            found.headers = found.headers.saturating_add(1);
            found.seen |= self.added.named(b"priority");
        }
        found.end = at;
        Ok(found)
    }

    /// Writes the name of a field, whatever it is; gives where its value stands.
    fn name(
        &mut self,
        room: &mut Room<'_>,
        body: &[u8],
        at: usize,
        seen: &mut u64,
    ) -> Result<usize, Unfit> {
        let mut reader = Reader::at(body, at);
        if let Ok(name) = reader.bytes() {
            *seen |= self.added.named(name);
            string(room, name);
            return Ok(reader.position());
        }
        self.scratch.clear();
        json::key(&mut Room::new(&mut self.scratch), body, &mut reader)?;
        if let [b'"', name @ .., b'"'] = &self.scratch[..] {
            *seen |= self.added.named(name);
            string(room, name);
        }
        Ok(reader.position())
    }

    /// Writes the body out of the field's value.
    #[inline]
    fn body(&self, room: &mut Room<'_>, body: &[u8], at: usize) -> Result<(), Reason> {
        if let Some((start, length)) = text_at(body, at) {
            bytes(room, body.get(start..start + length).unwrap_or_default());
            return Ok(());
        }
        match Reader::at(body, at).bytes() {
            Ok(text) => bytes(room, text),
            Err(_) => drop(value(room, body, at)?),
        }
        Ok(())
    }
}

impl Write for AvroEvent {
    fn begin(&mut self, batch: &Batch) {
        self.added.begin(batch);
    }

    fn line(&mut self, room: &mut Room<'_>, line: &[u8], of: Of<'_>) -> Result<(), Reason> {
        let start = room.position();
        room.byte(0);
        let is_body = self.field.top_name() == Some(MESSAGE);
        let mut headers = self.added.count(self.line_seen);
        if !is_body {
            string(room, MESSAGE.as_bytes());
            string(room, line);
            headers += 1;
        }
        self.added
            .write(room, of.shared, of.line(line), self.line_seen, true)?;
        end_headers(room, start, headers);
        bytes(room, if is_body { line } else { b"" });
        Ok(())
    }

    #[inline]
    fn packed(
        &mut self,
        room: &mut Room<'_>,
        body: &[u8],
        _start: usize,
        head: Head,
        of: Of<'_>,
    ) -> Result<usize, Reason> {
        let start = room.position();
        // How many headers follow, as soon as that is known; none: the end of them.
        room.byte(0);
        let (fields, at) = map_at(body, head.record)?;
        let found = match self.quick(room, body, at, fields) {
            Some(found) => found,
            None => {
                room.back_to(start + 1);
                self.careful(room, body, at, fields)?
            }
        };
        self.added
            .write(room, of.shared, of.packed(body, head), found.seen, true)?;
        let added = self.added.count(found.seen);
        end_headers(room, start, found.headers.saturating_add(added));
        match found.message {
            Some(value) => self.body(room, body, value)?,
            None => self.deep_body(room, body, head.record)?,
        }
        Ok(found.end)
    }
}

impl AvroEvent {
    /// The body is a field within a field, or there is none.
    #[cold]
    fn deep_body(&self, room: &mut Room<'_>, body: &[u8], record: usize) -> Result<(), Reason> {
        let map = Record::Packed(body.get(record..).unwrap_or_default());
        match self.field.find(map) {
            Some(Value::Packed(value)) => self.body(room, value, 0),
            Some(Value::Line(line)) => {
                bytes(room, line);
                Ok(())
            }
            None => {
                room.byte(0);
                Ok(())
            }
        }
    }
}

/// The length of a short text with this head.
#[inline(always)]
fn short(head: u8) -> Option<usize> {
    matches!(head, 0xa0..=0xbf).then_some(usize::from(head & 0x1f))
}

/// Copies the short text at `at`, with a head of Avro's.
#[inline(always)]
fn copy_short(room: &mut Room<'_>, body: &[u8], at: usize, length: usize) -> Option<()> {
    let head = (length as u8) << 1;
    match body.get(at..)?.first_chunk::<SHORT_BYTES>() {
        Some(chunk) => {
            let mut chunk = *chunk;
            chunk[0] = head;
            *room.ahead(SHORT_BYTES).first_chunk_mut()? = chunk;
            room.advance(1 + length);
        }
        None => {
            room.byte(head);
            room.bytes(body.get(at + 1..at + 1 + length)?);
        }
    }
    Some(())
}

/// Writes over the byte at `start` how many headers there are, and ends them.
#[inline(always)]
fn end_headers(room: &mut Room<'_>, start: usize, headers: u32) {
    match headers {
        0 => {}
        1..64 => {
            room.patch(start, &[(headers as u8) << 1]);
            room.byte(0);
        }
        _ => {
            head_at(room, start, headers as usize);
            room.byte(0);
        }
    }
}

/// Writes over the byte at `start` a length of any size; what stands behind it moves.
#[cold]
fn head_at(room: &mut Room<'_>, start: usize, length: usize) {
    let mut head = [0; LONG_BYTES_MAX];
    let size = long(length, &mut head);
    room.insert(start + 1, size - 1);
    room.patch(start, head.get(..size).unwrap_or_default());
}

/// A length as a long; its bytes.
#[inline(always)]
fn long(length: usize, head: &mut [u8; LONG_BYTES_MAX]) -> usize {
    let mut bits = (length as u64) << 1;
    let mut size = 0;
    for byte in head {
        size += 1;
        if bits < 0x80 {
            *byte = bits as u8;
            break;
        }
        *byte = bits as u8 | 0x80;
        bits >>= 7;
    }
    size
}

/// Writes bytes: their length and they.
#[inline(always)]
fn bytes(room: &mut Room<'_>, bytes: &[u8]) {
    match bytes.len() {
        length @ 0..64 => room.byte((length as u8) << 1),
        length @ 64..8192 => {
            let bits = (length as u16) << 1;
            room.bytes(&[bits as u8 | 0x80, (bits >> 7) as u8]);
        }
        length => {
            let mut head = [0; LONG_BYTES_MAX];
            let size = long(length, &mut head);
            room.bytes(head.get(..size).unwrap_or_default());
        }
    }
    room.bytes(bytes);
}

/// Writes a string, as base64 if it is not UTF-8.
#[inline]
pub(super) fn string(room: &mut Room<'_>, text: &[u8]) {
    if text.is_ascii() || str::from_utf8(text).is_ok() {
        bytes(room, text);
    } else {
        not_utf8(room, text);
    }
}

#[cold]
fn not_utf8(room: &mut Room<'_>, text: &[u8]) {
    let start = room.position();
    room.byte(0);
    json::base64(room, text);
    head_at(room, start, room.position() - start - 1);
}

/// Writes any value as a string; gives the offset behind it.
#[inline]
pub(super) fn value(room: &mut Room<'_>, body: &[u8], at: usize) -> Result<usize, Unfit> {
    if let Some((start, length)) = text_at(body, at) {
        string(room, body.get(start..start + length).unwrap_or_default());
        return Ok(start + length);
    }
    let (number, size) = match *body.get(at..).unwrap_or_default() {
        [number @ 0..0x80, ..] => (u32::from(number), 1),
        [0xcc, number, ..] => (u32::from(number), 2),
        [0xcd, a, b, ..] => (u32::from(u16::from_be_bytes([a, b])), 3),
        [0xce, a, b, c, d, ..] => (u32::from_be_bytes([a, b, c, d]), 5),
        _ => return other(room, body, at),
    };
    let mut buffer = [0; json::INTEGER_BYTES];
    let start = json::unsigned_digits(u64::from(number), &mut buffer);
    bytes(room, buffer.get(start..).unwrap_or_default());
    Ok(at + size)
}

/// Neither short text nor a small number.
#[cold]
#[inline(never)]
fn other(room: &mut Room<'_>, body: &[u8], at: usize) -> Result<usize, Unfit> {
    let mut reader = Reader::at(body, at);
    if let Ok(text) = reader.bytes() {
        string(room, text);
        return Ok(reader.position());
    }
    let start = room.position();
    room.byte(0);
    if reader.nil().is_ok() {
        return Ok(reader.position());
    }
    let end = json::value(room, body, at)?;
    // A time is a string in JSON and plain text here.
    let mut time = [0; 64];
    if let [b'"', text @ .., b'"'] = room.since(start + 1)
        && let Some(copy) = time.get_mut(..text.len())
    {
        copy.copy_from_slice(text);
        let length = text.len();
        room.back_to(start);
        bytes(room, time.get(..length).unwrap_or_default());
        return Ok(end);
    }
    head_at(room, start, room.position() - start - 1);
    Ok(end)
}

/// Flume's names of the two.
const LEVELS: [&str; 2] = ["Facility", "Severity"];

/// Whether a field is one of the two that Flume calls otherwise.
#[inline(always)]
fn is_level(name: &[u8]) -> bool {
    name.len() == 8 && (name == b"facility" || name == b"severity")
}

/// The field `name` at `at`, if it is one of the two and its value is one of syslog's names: which, its number, and the offset
/// behind it.
fn level_at(name: &[u8], body: &[u8], at: usize) -> Option<(usize, u8, usize)> {
    let (which, names) = match name {
        b"facility" => (0, &syslog::FACILITIES[..]),
        b"severity" => (1, &syslog::SEVERITIES[..]),
        _ => return None,
    };
    let mut reader = Reader::at(body, at);
    reader.bytes().ok()?;
    let value = reader.bytes().ok()?;
    let number = names.iter().position(|name| name.as_bytes() == value)?;
    Some((which, u8::try_from(number).ok()?, reader.position()))
}

fn write_level(room: &mut Room<'_>, which: usize, number: u8) {
    bytes(room, LEVELS[which].as_bytes());
    write_number(room, number);
}

fn write_priority(room: &mut Room<'_>, facility: u8, severity: u8) {
    bytes(room, b"priority");
    write_number(room, facility * 8 + severity);
}

fn write_number(room: &mut Room<'_>, number: u8) {
    let mut buffer = [0; json::INTEGER_BYTES];
    let start = json::unsigned_digits(u64::from(number), &mut buffer);
    bytes(room, buffer.get(start..).unwrap_or_default());
}

impl Levels {
    /// Remembers how a record begins that begins with facility and severity.
    fn learn(&mut self, body: &[u8], at: usize, fields: u32) {
        self.stand.clear();
        let level = |at| {
            let name = Reader::at(body, at).bytes().ok()?;
            level_at(name, body, at)
        };
        let Some((0, facility, middle)) = level(at).filter(|_| fields >= 2) else {
            return;
        };
        let Some((1, severity, end)) = level(middle) else {
            return;
        };
        self.stand
            .extend_from_slice(body.get(at..end).unwrap_or_default());
        self.written.clear();
        let mut room = Room::new(&mut self.written);
        write_level(&mut room, 0, facility);
        write_level(&mut room, 1, severity);
        write_priority(&mut room, facility, severity);
    }
}
