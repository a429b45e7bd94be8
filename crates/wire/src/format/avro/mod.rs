//! `format: avro_event`: Flume's Avro event, a map of headers and a body. An event contains no schema. Only Avro files contain
//! one ([`crate::avro::container`]).
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! ```text
//! long n | n times: string name, string value | 00 | bytes body         no headers: 00 | bytes body
//! ```
//!
//! The field `message` (option `field`) is the body. Text and binary values stay unchanged, nil or a missing field gives an empty
//! body, and any other value becomes JSON. Every other field is a header. In a header, text stays unchanged, nil becomes an empty
//! text, and any other value becomes JSON. Header names and header values that are not UTF-8 become base64, because Avro's
//! strings are UTF-8. The fields of `add` follow as headers.
//!
//! A text of fewer than 32 bytes has the same size in Avro and MessagePack; only its head differs. Nearly all names and values of
//! headers are such texts. They are copied 32 bytes at a time. One check after each run of short texts ensures that all of them
//! are ASCII. Values that are not short texts are encoded one by one. If a record has a longer name or fails this check, all its
//! names and values are encoded one by one.

pub(super) mod datum;
mod levels;

use millstream_record::Batch;

use datum::{SHORT_BYTES, bytes, copy_short, head_at, short, string, value};
use levels::{LEVELS, Levels, is_level, level_at, write_level, write_priority};

use super::{
    Headers, Reason,
    add::Added,
    value::{behind, map_at, text_at},
    write::{Of, Write},
};
use crate::{
    json::{self, Unfit},
    msgpack::{self, Head, Reader},
    record::{FieldPath, MESSAGE, Record, Value},
    room::Room,
};

#[derive(Debug)]
pub(super) struct AvroEvent {
    field: FieldPath,
    /// The encoded key of the field that becomes the body, if the field is at the top level and has a short name; otherwise
    /// empty.
    key: Vec<u8>,
    added: Added,
    /// The added fields that a line already has, as a bit set: bit n stands for the added field with index n.
    line_seen: u64,
    flume: Option<Levels>,
    scratch: Vec<u8>,
}

/// The result of encoding the fields of a record.
#[derive(Clone, Copy, Default)]
struct Encoded {
    headers: u32,
    /// The added fields that the record already has, as a bit set.
    seen: u64,
    /// The offset of the value that becomes the body; `None` if the body does not come from a field at the top level.
    message: Option<usize>,
    /// The end of the record.
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

    /// Encodes a common record: all its names are short, and its names and short texts are ASCII. With Flume's headers,
    /// `facility` and `severity` may only be the first two fields, with the values in [`Levels`]. For any other record, returns
    /// `None`; the caller then discards the output of this function and calls [`AvroEvent::careful`].
    #[inline]
    fn quick(
        &self,
        room: &mut Room<'_>,
        body: &[u8],
        mut at: usize,
        mut left: u32,
    ) -> Option<Encoded> {
        let mut found = Encoded::default();
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
        // The output from this offset on must be ASCII.
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

    /// Encodes any record.
    #[cold]
    #[inline(never)]
    fn careful(
        &mut self,
        room: &mut Room<'_>,
        body: &[u8],
        mut at: usize,
        left: u32,
    ) -> Result<Encoded, Unfit> {
        let mut found = Encoded::default();
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

    /// Writes the key of a field; returns the offset of the field's value. The key may have any type.
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

    /// Writes the body from the field's value.
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
        // The number of headers is filled in later. If there are none, this 0 also ends the headers.
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
    /// Writes the body from a nested field, or an empty body if the field is missing.
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

/// Fills in the number of headers at `start`, and ends the headers.
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
